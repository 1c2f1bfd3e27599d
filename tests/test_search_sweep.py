"""The sweep: exact, shared, resumable, and the same on any number of ranks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import scipy.stats

import mixbit
from kld_runs import run_killed_often, run_ranks
from mixbit.checkpoint import describe
from mixbit.errors import MixbitError
from mixbit.kld import stream as stream_module
from mixbit.kld.documents import Document
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Protocol, Stream
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization.methods import Choice
from mixbit.search import Sensitivity, score, sensitivity
from mixbit.search.choices import Choices
from mixbit.search.groups import groups_of
from mixbit.search.proxies import stage_errors
from mixbit.search.stages import Stages
from mixbit.search.swap import KeptPacking, Packing, swapped
from mixbit.search.tables import by_context
from mixbit.search.trials import Trials
from models import MODEL_TYPES
from search_models import documents, save_small, sweep

SPEC = QuantSpec(2, 64)
RTN = Packing()


def place(folder: Path) -> tuple[Any, Stages, Stream]:
    """A loaded model, its stages and a stream."""
    model, _ = mixbit.load(folder)
    stream = Stream.of([Document(tokens) for tokens in documents()], Protocol(32))
    return model, Stages(model, describe(folder)), stream


def trials(model: Any, stages: Stages, stream: Stream, packing: Packing = RTN) -> Trials:
    return Trials(model, stages, stream, 256, packing, Sizes(3))


@pytest.fixture(scope="module", autouse=True)
def units() -> Iterator[None]:
    """As small as in the processes of ``kld_runs``, whose results are compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "UNIT_TOKENS", 40)
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of most tests."""
    return save_small(tmp_path_factory.mktemp("search") / "small")


@pytest.fixture(scope="module")
def table(small: Path) -> Sensitivity:
    """Its sensitivities, in the folder ``sweep`` beside it."""
    return sweep(small, small.parent / "sweep")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_run_from_the_middle_equals_a_whole_one_bit_for_bit(
    tmp_path: Path, model_type: str
) -> None:
    folder = save_small(tmp_path / "model", model_type)
    model, stages, stream = place(folder)
    paths = [shape.path for shape in describe(folder).modules]
    begins = {stages.stage_of(path): path for path in paths}
    left_out = () if model_type == "qwen3_5" else range(4, stages.head, 4)
    assert sorted(begins) == [at for at in range(stages.head + 1) if at not in left_out]
    whole, moving = trials(model, stages, stream), trials(model, stages, stream)
    for stage, path in sorted(begins.items()):
        moving.advance(stage)
        (one,), (other,) = (t.measure_all([{path: SPEC}]) for t in (whole, moving))
        assert one.to_json() == other.to_json()
        assert one.mean(whole.counts) > 0


@pytest.mark.parametrize(("tied", "method"), [(False, "rtn"), (True, "search")])
def test_a_trial_measures_what_the_checkpoint_of_its_plan_does(
    tmp_path: Path, tied: bool, method: str
) -> None:
    folder = save_small(tmp_path / "model", tie_word_embeddings=tied)
    model, stages, stream = place(folder)
    structure = describe(folder)
    specs = [QuantSpec(3, 32), None, QuantSpec(2, 64), QuantSpec(8, 64)]
    change = {shape.path: specs[at % 4] for at, shape in enumerate(structure.modules)}
    own = trials(model, stages, stream, Packing(Choice.of(method)).fitted(model, structure))
    (found,) = own.measure_all([change])
    plan = Plan(change, structure=structure)
    mixbit.quantize(folder, tmp_path / "out", plan=plan, method=method)
    expected = mixbit.kld.measure(tmp_path / "out", folder, documents(), window=32, batch_size=3)
    summary = expected.summary()
    assert found.mean(own.counts) == pytest.approx(summary["mean"], rel=1e-12)
    assert found.error(own.counts) == pytest.approx(summary["se"], rel=1e-9)
    assert found.top1 / summary["tokens"] == summary["top1"]
    sums = np.bincount(score.doublings(stream), weights=expected.kld, minlength=score.CONTEXTS)
    np.testing.assert_allclose(found.contexts, sums, rtol=1e-12, atol=1e-15)


def test_trials_go_back_to_earlier_stages(small: Path) -> None:
    model, stages, stream = place(small)
    moving = trials(model, stages, stream)
    first, *_, last = modules_of(small)
    for path in (last, first, last):
        moving.advance(stages.stage_of(path))
        (one,), (other,) = (
            t.measure_all([{path: SPEC}]) for t in (moving, trials(model, stages, stream))
        )
        assert one.to_json() == other.to_json()


def test_a_trial_leaves_the_model_as_it_was(small: Path) -> None:
    model, stages, _ = place(small)
    tokens = mx.array(documents()[:1])
    (before,) = stages.run((tokens,), 0, stages.head + 1)
    modules = dict(model.named_modules())
    change = dict.fromkeys(modules_of(small), SPEC)
    with pytest.raises(ZeroDivisionError), swapped(model, change, Packing()):
        assert not mx.array_equal(*stages.run((tokens,), 0, stages.head + 1), before).item()
        raise ZeroDivisionError
    assert dict(model.named_modules()) == modules
    assert mx.array_equal(*stages.run((tokens,), 0, stages.head + 1), before).item()


def test_packings_are_kept_and_the_same(small: Path) -> None:
    model, _, _ = place(small)
    path = "language_model.model.layers.0.mlp.up_proj"
    weight = dict(model.named_modules())[path].weight
    own, kept = Packing(Choice.of("search")), KeptPacking(Choice.of("search"))
    for spec in (SPEC, SPEC, QuantSpec(4, 64), SPEC):
        first = kept.pack(path, weight, spec)
        assert all(map(mx.array_equal, first, own.pack(path, weight, spec)))
        assert kept.pack(path, weight, spec) is first
    assert list(kept.kept) == [path]


def modules_of(folder: Path) -> list[str]:
    return [shape.path for shape in describe(folder).modules]


def test_the_table_has_every_cell_and_sharing_saves_work(table: Sensitivity, small: Path) -> None:
    assert [group.paths[0] for group in table.groups] == modules_of(small)
    assert {cell.spec for cell in table.cells} == {QuantSpec(2, 64), QuantSpec(4, 64)}
    assert len(table.cells) == 2 * len(table.groups)
    assert (table.documents, table.tokens) == (5, 90)
    means = np.array([cell.mean for cell in table.cells]).reshape(-1, 2)
    assert (means[:, 0] > means[:, 1]).all() and (means[:, 1] > 0).all()
    # Cells of the last stages do next to nothing of a forward pass; the first ones do all.
    assert table.saved > 1.3
    loaded = Sensitivity.load(small.parent / "sweep")
    assert loaded.to_json() == table.to_json()


def test_sensitivity_is_told_by_position(table: Sensitivity) -> None:
    """By doublings of context, whose means weighted by their tokens are the mean of all."""
    stream = Stream.of([Document(tokens) for tokens in documents()], Protocol(32))
    doublings = [int(context).bit_length() - 1 for context in stream.context]
    tokens = np.array(table.contexts)
    assert tokens.tolist() == np.bincount(doublings, minlength=len(tokens)).tolist()
    assert tokens.sum() == table.tokens and np.count_nonzero(tokens) > 1
    for cell in table.cells:
        known = np.array(cell.contexts)[tokens > 0]
        assert known @ tokens[tokens > 0] == pytest.approx(cell.mean * table.tokens)
    header, rows = by_context(table)
    assert len(header) == 2 + np.count_nonzero(tokens)
    assert header[2] == f"from {1 << np.flatnonzero(tokens)[0]}"
    downs = [c for c in table.cells if "down_proj" in c.group.name and c.spec.bits == 2]
    sums = np.sum([cell.contexts for cell in downs], axis=0)[tokens > 0]
    (shown,) = (row for row in rows if row[0] == "mlp.down_proj")
    assert shown[1] == "2/64"
    assert [float(value) for value in shown[2:]] == pytest.approx(sums.tolist(), rel=1e-3)


def test_settling_stops_the_sweep_early(small: Path, tmp_path: Path, table: Sensitivity) -> None:
    early = sweep(small, tmp_path / "early", settle=0.5)
    assert early.documents == 3 < table.documents
    assert early.settled >= 0.5


def test_grains_follow_the_recipes(small: Path) -> None:
    structure = describe(small)
    by_layer = [group.name for group in groups_of(structure, "layer-class")]
    root = "language_model.model.layers"
    assert by_layer == [
        "language_model.model.embed_tokens",
        f"{root}.0.linear_attn.in_proj_qkv+in_proj_z",
        f"{root}.0.linear_attn.in_proj_a+in_proj_b",
        f"{root}.0.linear_attn.out_proj",
        f"{root}.0.mlp.gate_proj+up_proj",
        f"{root}.0.mlp.down_proj",
        f"{root}.1.self_attn.q_proj+k_proj+v_proj",
        f"{root}.1.self_attn.o_proj",
        f"{root}.1.mlp.gate_proj+up_proj",
        f"{root}.1.mlp.down_proj",
        "language_model.lm_head",
    ]
    by_class = {group.name: len(group.paths) for group in groups_of(structure, "class")}
    assert by_class["mlp.gate_proj+up_proj"] == 4
    assert by_class["lm_head"] == 1
    with pytest.raises(MixbitError, match="by must be tensor, layer-class or class, not 'row'"):
        groups_of(structure, "row")


def test_rows_that_64_does_not_divide_get_groups_of_32(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "odd", intermediate_size=96)
    groups = {group.name: group for group in groups_of(describe(folder), "tensor")}
    down = groups["language_model.model.layers.0.mlp.down_proj"]
    assert down.specs((4, 2), (64, 128)) == [QuantSpec(2, 32), QuantSpec(4, 32)]


def test_rows_that_no_group_divides_stay_as_they_are(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "odd", intermediate_size=80)
    found = sweep(folder, tmp_path / "sweep", widths=(4,), round_documents=1)
    dense = {path for path in modules_of(folder) if path.endswith("down_proj")}
    assert {path for group in found.groups for path in group.paths} == {*modules_of(folder)} - dense
    choices = Choices(found, "tensor", {})
    smallest = choices.knapsack({}).smallest(np.inf)
    assert smallest is not None
    plan = choices.plan(smallest, "smallest", {})
    assert {path for path, spec in plan.modules.items() if spec is None} == dense
    assert plan.report()["bytes"] == choices.knapsack({}).size(smallest) + choices.fixed


def test_proxies_are_what_they_say(small: Path) -> None:
    """Against float64 arithmetic on the input of a projection."""
    model, stages, _ = place(small)
    path = "language_model.model.layers.1.self_attn.q_proj"
    tokens = mx.array([documents()[2]])
    stage = stages.stage_of(path)
    states = stages.run((tokens,), 0, stage)
    (found,) = stage_errors(model, stages, stage, [states], {path: [SPEC]}, Packing()).values()
    (x,), (y,) = states, stages.run(states, stage, stage + 2)
    layer = model.language_model.model.layers[1]
    inputs, weight, packed, before, after = (
        np.asarray(value.astype(mx.float32), np.float64)
        for value in (
            layer.input_layernorm(x),
            layer.self_attn.q_proj.weight,
            mx.dequantize(*mx.quantize(layer.self_attn.q_proj.weight, 64, 2), 64, 2),
            x,
            y,
        )
    )
    squares = np.square(inputs).sum(axis=(0, 1))
    wrong = np.square(packed - weight)
    output = (wrong * squares).sum() / (np.square(weight) * squares).sum()
    share = np.square(after - before).sum() / np.square(after).sum()
    assert found["weight"] == pytest.approx(wrong.sum() / np.square(weight).sum(), rel=1e-4)
    assert found["output"] == pytest.approx(output, rel=1e-3)
    assert found["residual"] == pytest.approx(output * share, rel=1e-2)


def test_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(9, size=(2, 40)).astype(float)
    assert score.rank_correlation(one, other) == pytest.approx(
        float(scipy.stats.spearmanr(one, other).statistic)
    )
    assert np.isnan(score.rank_correlation(one, np.ones(40)))


def test_stability_tells_one_document_of_opinions_from_many() -> None:
    rng = np.random.default_rng(0)
    documents = np.full(30, 100)
    clear = np.arange(1, 21)[:, None] * documents * rng.uniform(0.99, 1.01, (20, 30))
    assert score.stability(clear, documents) > 0.999
    assert score.stability(rng.lognormal(0, 2, (20, 30)), documents) < 0.8


# --- left and taken up again -----------------------------------------------------------------

SWEEP = """
sys.path.insert(0, sys.argv[3])
from search_models import sweep
if int(sys.argv[4]):
    die_after(int(sys.argv[4]))
print("begun", flush=True)
sweep(Path(sys.argv[1]), Path(sys.argv[2]), by="layer-class")
"""
TESTS = Path(__file__).parent


def figures(folder: Path) -> dict[str, Any]:
    """The result less the time it took."""
    found = json.loads((folder / "sensitivity.json").read_text(encoding="utf-8"))
    del found["seconds"]
    return found


@pytest.fixture(scope="module")
def whole(small: Path) -> dict[str, Any]:
    """What a sweep finds that nothing disturbs, in the folder ``whole``."""
    sweep(small, small.parent / "whole", by="layer-class")
    return figures(small.parent / "whole")


def test_a_sweep_killed_again_and_again_comes_to_the_same_result(
    small: Path, tmp_path: Path, whole: dict[str, Any], long_grid: bool
) -> None:
    out = tmp_path / "killed"
    kills = 12 if long_grid else 3
    run_killed_often(SWEEP, small, out, TESTS, kills=kills, steps=20, seconds=1)
    assert (out / "job.json").exists()
    sweep(small, out, by="layer-class")
    assert figures(out) == whole
    journals = [folder / "trials.jsonl" for folder in (out, small.parent / "whole")]
    assert journals[0].read_bytes() == journals[1].read_bytes()


@pytest.mark.parametrize("cut", [1, 2, 300])
def test_a_line_that_was_cut_short_is_measured_again(
    small: Path, tmp_path: Path, whole: dict[str, Any], cut: int
) -> None:
    sweep(small, tmp_path / "out", by="layer-class")
    journal = tmp_path / "out" / "trials.jsonl"
    text = journal.read_bytes()
    journal.write_bytes(text[:-cut])
    (tmp_path / "out" / "sensitivity.json").unlink()
    sweep(small, tmp_path / "out", by="layer-class")
    assert figures(tmp_path / "out") == whole
    assert sorted(journal.read_bytes().splitlines()) == sorted(text.splitlines())


def test_two_ranks_find_what_one_does(small: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    for rank in run_ranks(2, SWEEP, tmp_path, small, tmp_path / "out", TESTS, 0):
        assert rank.returncode == 0, rank.stderr
    assert figures(tmp_path / "out") == whole


# --- what cannot be ---------------------------------------------------------------------------


def test_bad_input_is_told_in_a_sentence(small: Path, tmp_path: Path) -> None:
    for options, sentence in (
        ({"by": "row"}, "by must be tensor"),
        ({"widths": (7,)}, "mode affine takes 2, 3, 4, 5, 6 or 8 bits, not 7"),
        ({"group_sizes": (48,)}, "mode affine takes groups of 32, 64 or 128, not 48"),
        ({"round_documents": 0}, "round_documents must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
    ):
        with pytest.raises(MixbitError, match=sentence):
            sweep(small, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(MixbitError, match="vocabulary is 0 to 255"):
        sensitivity(small, [[1, 2, 999, 4]], tmp_path / "out")
    mixbit.quantize(small, tmp_path / "packed", plan="uniform-4")
    with pytest.raises(MixbitError, match="is quantised already"):
        sweep(tmp_path / "packed", tmp_path / "out")


def test_a_method_that_moves_scales_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match="awq moves scales between modules"):
        sweep(small, tmp_path / "out", packing=Packing(Choice.of("awq")))


@pytest.mark.usefixtures("table")
def test_another_job_is_refused(small: Path) -> None:
    with pytest.raises(MixbitError, match="not the same specs"):
        sweep(small, small.parent / "sweep", widths=(2, 3))


def test_a_damaged_journal_or_table_is_told(small: Path, tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match="does not exist; make it with mixbit sensitivity"):
        Sensitivity.load(tmp_path)
    (tmp_path / "sensitivity.json").write_text('{"schema": "mixbit.sensitivity/1"}')
    with pytest.raises(MixbitError, match="is damaged"):
        Sensitivity.load(tmp_path)
    (tmp_path / "sensitivity.json").write_text("{}")
    with pytest.raises(MixbitError, match="holds no sensitivities"):
        Sensitivity.load(tmp_path)
    sweep(small, tmp_path / "out", by="class", widths=(2,))
    (tmp_path / "out" / "trials.jsonl").write_text('{"trial": 3}\n')
    with pytest.raises(MixbitError, match=r"trials.jsonl is damaged .* remove it"):
        sweep(small, tmp_path / "out", by="class", widths=(2,))
