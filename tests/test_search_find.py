"""The search: within its budget, measured, and never worse than what it was given."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixbit
from kld_runs import run_killed_often, run_ranks
from mixbit.checkpoint import describe
from mixbit.cli import main
from mixbit.errors import MixbitError
from mixbit.kld import stream as stream_module
from mixbit.plan import Plan, QuantSpec, with_methods
from mixbit.quantization import quantize
from mixbit.quantization.methods import Choice
from mixbit.search import SearchResult, Sensitivity, search
from mixbit.search.choices import ROUTER_FLOOR, Choices
from mixbit.search.swap import Packing
from search_models import LENGTHS, documents, save_small, sweep

INPUTS = ("uniform-3", "unsloth-2026-03@3")
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of most tests."""
    return save_small(tmp_path_factory.mktemp("search") / "small")


@pytest.fixture(scope="module")
def table(small: Path) -> Sensitivity:
    """Its sensitivities."""
    return sweep(small, small.parent / "sweep", by="layer-class", widths=(2, 3, 4, 8))


@pytest.fixture(scope="module")
def result(small: Path, table: Sensitivity) -> SearchResult:
    """A search against two recipes, in the folder ``found``."""
    return find(small, table, small.parent / "found", against=INPUTS)


def find(model: Path, table: Sensitivity | Path, out: Path, **options: Any) -> SearchResult:
    return search(
        model, table, documents(), out,
        **({"window": 32, "batch_size": 3, "candidates": 3, "pairs": 3} | options),
    )  # fmt: skip


def windows(length: int) -> list[int]:
    """Tokens of each window of a document of the tests."""
    return [min(32, length - at) for at in range(0, length, 32)]


def measured(model: Path, plan: Plan | str | Path, out: Path) -> float:
    """What a checkpoint of the plan measures."""
    mixbit.quantize(model, out, plan=plan)
    result = mixbit.kld.measure(out, model, documents(), window=32, batch_size=3)
    return float(result.summary()["mean"])


def test_plans_keep_their_budgets_and_are_never_worse_than_what_was_given(
    small: Path, result: SearchResult, tmp_path: Path
) -> None:
    sizes = {given.plan.name: given for given in result.inputs}
    assert set(sizes) == set(INPUTS)
    assert [found.limit for found in result.found] == sorted(g.nbytes for g in result.inputs)
    assert max(one.nbytes for one in result.tried) <= result.found[-1].limit
    for at, found in enumerate(result.found):
        given = [g for g in result.inputs if g.nbytes <= found.limit]
        assert found.best.nbytes <= found.limit
        assert found.best.mean <= min(g.mean for g in given)
        path = small.parent / "found" / result.file_of(found.limit)
        assert found.best.nbytes == Plan.load(path).report()["bytes"]
        assert measured(small, path, tmp_path / str(at)) == pytest.approx(
            found.best.mean, rel=1e-12
        )


def test_smaller_plans_are_smaller_and_surely_measure_no_higher(result: SearchResult) -> None:
    counts = np.array([sum((w - w // 2 - 1) for w in windows(n)) for n in LENGTHS])
    for given, smaller in zip(result.inputs, result.smaller, strict=True):
        assert smaller.nbytes <= given.nbytes
        apart = (given.score.documents - smaller.score.documents)[counts > 0]
        mean = apart.sum() / counts.sum()
        spread = np.square(apart - counts[counts > 0] * mean).sum()
        documents = len(apart)
        error = np.sqrt(documents / (documents - 1) * spread) / counts.sum()
        assert mean >= error * (1 - 1e-9)
    assert any(s.nbytes < g.nbytes for g, s in zip(result.inputs, result.smaller, strict=True))


def test_a_table_that_is_all_wrong_cannot_make_a_plan_worse(
    small: Path, table: Sensitivity, tmp_path: Path
) -> None:
    """Sensitivities upside down: what is worst looks best."""
    highest = max(cell.mean for cell in table.cells)
    wrong = tuple(replace(cell, mean=highest - cell.mean) for cell in table.cells)
    uniform = Plan.load("uniform-3", model=small)
    (head,) = (path for path in uniform.modules if path.endswith("lm_head"))
    given = Plan(uniform.modules | {head: QuantSpec(8, 64)}, "given")
    found = find(small, replace(table, cells=wrong), tmp_path / "out", against=[given])
    assert found.found[0].best == found.inputs[0]
    assert found.smaller[0] == found.inputs[0]
    assert min(one.mean for one in found.tried) > found.inputs[0].mean


def test_what_any_change_costs_is_left_out_of_each_cost(table: Sensitivity) -> None:
    """KLD that falls fourfold with each bit, on top of a constant."""
    cell = table.cells[0]

    def at(constant: float, *widths: int) -> list[float]:
        cells = [
            replace(cell, spec=QuantSpec(bits, 64), mean=constant + 4.0**-bits) for bits in widths
        ]
        return list(replace(table, cells=tuple(cells)).costs().values())

    assert at(1e-3, 2, 5, 8) == pytest.approx([4.0**-2, 4.0**-5, 4.0**-8])
    assert at(1e-3, 2, 3, 4) == pytest.approx([1e-3 + 4.0**-2, 1e-3 + 4.0**-3, 1e-3 + 4.0**-4])
    assert at(-1e-5, 6, 8) == pytest.approx([4.0**-6 - 1e-5, max(4.0**-8 - 1e-5, 0)])


def test_groups_that_do_not_interact_save_nothing_together(table: Sensitivity) -> None:
    """KLD that is a sum, but for the noise of any change, which is in every measurement once."""
    noise = {group: 1e-4 * (1 + at) for at, group in enumerate(table.groups)}
    cells = tuple(
        replace(table.cells[0], group=group, spec=QuantSpec(bits, 64), mean=own + 4.0**-bits)
        for group, own in noise.items()
        for bits in (2, 5, 8)
    )
    own = replace(table, cells=cells)
    assert own.noise() == pytest.approx(noise)
    choices = Choices(own, "layer-class", ROUTER_FLOOR)
    alone = (1e-4 + 4.0**-5, 3e-4 + 4.0**-2)
    assert choices.interaction(0, 2, 3e-4 + 4.0**-5 + 4.0**-2, alone) == pytest.approx(0, abs=1e-12)
    assert choices.interaction(0, 2, 3e-4 + 4.0**-5, alone) == pytest.approx(-(4.0**-2))


def test_predictions_add_up_the_table(table: Sensitivity, small: Path) -> None:
    choices = Choices(table, "layer-class", ROUTER_FLOOR)
    cells = {(cell.group.name, cell.spec): cell.mean for cell in table.cells}
    plan = Plan.load("uniform-4", model=small)
    four = sum(mean for (_, spec), mean in cells.items() if spec == QuantSpec(4, 64))
    assert choices.predicted(plan) == pytest.approx(four, rel=1e-12)
    assert choices.predicted(Plan.load("uniform-5", model=small)) is None
    knapsack = choices.knapsack({})
    best = knapsack.best(plan.report()["bytes"] - choices.fixed)
    assert best is not None
    own = choices.plan(best, "own", {})
    assert choices.predicted(own) == pytest.approx(knapsack.value(best), rel=1e-12)
    assert own.report()["bytes"] == knapsack.size(best) + choices.fixed


def test_tied_groups_get_equal_bits(table: Sensitivity) -> None:
    choices = Choices(table, "class", ROUTER_FLOOR)
    best = choices.knapsack({}).best(60_000)
    assert best is not None
    plan = choices.plan(best, "tied", {})
    for group in choices.groups:
        assert len({plan.modules[path] for path in group.paths}) == 1
    assert max(len(group.paths) for group in choices.groups) == 4


def test_floors_hold(table: Sensitivity) -> None:
    choices = Choices(table, "layer-class", {r"self_attn\.": 4, "lm_head": 8})
    smallest = choices.knapsack({}).smallest(np.inf)
    assert smallest is not None
    plan = choices.plan(smallest, "floors", {})
    for path, spec in plan.modules.items():
        assert spec is not None
        floor = 4 if "self_attn" in path else 8 if "lm_head" in path else 2
        assert spec.bits == floor, path


def test_routers_keep_8_bits(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "moe", "qwen3_5_moe")
    table = sweep(folder, tmp_path / "sweep", by="class", widths=(2, 8), round_documents=1)
    choices = Choices(table, "class", ROUTER_FLOOR)
    smallest = choices.knapsack({}).smallest(np.inf)
    assert smallest is not None
    plan = choices.plan(smallest, "floors", {})
    routers = {path for path in plan.modules if path.endswith(("mlp.gate", "shared_expert_gate"))}
    assert len(routers) == 4
    assert {spec.bits for path, spec in plan.modules.items() if path in routers and spec} == {8}
    others = {spec.bits for path, spec in plan.modules.items() if path not in routers and spec}
    assert others == {2}


def test_the_front_falls(result: SearchResult) -> None:
    sizes = [point.nbytes for point in result.front]
    predicted = [point.predicted for point in result.front]
    assert sizes == sorted(sizes)
    assert all(a >= b - 1e-6 * predicted[0] for a, b in itertools.pairwise(predicted))


def test_the_page_needs_nothing_else(result: SearchResult, small: Path) -> None:
    page = (small.parent / "found" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 + len(result.found)
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page
    for name in [*result.files, *(given.plan.name for given in result.inputs)]:
        assert name in page
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).lower()


SEARCH = """
sys.path.insert(0, sys.argv[4])
from test_search_find import find
if int(sys.argv[5]):
    die_after(int(sys.argv[5]))
print("begun", flush=True)
find(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), against=["uniform-3"])
"""


def content(folder: Path) -> dict[str, Any]:
    """What a search leaves, less the time it took."""
    document = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    del document["seconds"]
    files = {path.name: path.read_bytes() for path in folder.glob("plan-*.json")}
    assert len(files) == 2
    trials = (folder / "trials.jsonl").read_bytes()
    return {"search.json": document, "trials.jsonl": trials, **files}


@pytest.fixture(scope="module")
def whole(small: Path, table: Sensitivity) -> Iterator[dict[str, Any]]:
    """What a search leaves that nothing disturbs; units as small as in processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "UNIT_TOKENS", 40)
        find(small, table, small.parent / "whole", against=["uniform-3"])
        yield content(small.parent / "whole")


def test_a_search_killed_again_and_again_comes_to_the_same_result(
    small: Path, tmp_path: Path, whole: dict[str, Any], long_grid: bool
) -> None:
    sweep_folder, out = small.parent / "sweep", tmp_path / "killed"
    kills = 12 if long_grid else 3
    run_killed_often(SEARCH, small, sweep_folder, out, TESTS, kills=kills, steps=8, seconds=1)
    assert (out / "job.json").exists()
    find(small, sweep_folder, out, against=["uniform-3"])
    assert content(out) == whole


def test_two_ranks_find_the_plans_of_one(
    small: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    for rank in run_ranks(2, SEARCH, tmp_path, small, small.parent / "sweep", out, TESTS, 0):
        assert rank.returncode == 0, rank.stderr
    assert content(out) == whole


def test_a_model_is_known_by_its_content(small: Path, table: Sensitivity, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(small, moved)
    found = find(moved, table, tmp_path / "out", bpw=[4.0], candidates=1, pairs=0)
    assert found.found[0].best.bpw <= 4
    room = found.found[0].best.nbytes
    again = find(moved, table, tmp_path / "again", nbytes=[room], candidates=1, pairs=0)
    assert (again.found[0].limit, again.found[0].best) == (room, found.found[0].best)


def test_bad_input_is_told_in_a_sentence(small: Path, table: Sensitivity, tmp_path: Path) -> None:
    for options, sentence in (
        ({}, "A search needs a budget"),
        ({"bpw": [2.0]}, r"cannot be met; the lowest widths take [\d,]+ \(\d\.\d+\)"),
        (
            {"bpw": [4.0], "tie": "tensor"},
            "measured by layer-class, too coarse to choose by tensor",
        ),
        ({"bpw": [4.0], "floors": {"nowhere": 4}}, "The floor 'nowhere' fits no module"),
        (
            {"bpw": [4.0], "floors": {"(": 4}},
            r"The floor '\(' is no regular expression: missing \)",
        ),
        ({"bpw": [4.0], "candidates": 0}, "candidates must be at least 1"),
        (
            {"bpw": [4.0], "packing": Packing(Choice.of("gptq"))},
            "Method gptq needs a calibration; make one with mixbit calibrate",
        ),
        ({"against": ["uniform-9"]}, "Recipe uniform does not exist at 9 bits"),
    ):
        with pytest.raises(MixbitError, match=sentence):
            find(small, table, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    other = save_small(tmp_path / "other", seed=1)
    with pytest.raises(MixbitError, match="are those of another model"):
        find(other, table, tmp_path / "out", bpw=[4.0])


def test_the_commands(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.jsonl"
    lines = [json.dumps({"tokens": tokens}) for tokens in documents()]
    data.write_text("\n".join(lines), encoding="utf-8")
    common = ["--model", str(small), "--data", str(data), "--window", "32"]
    options = ["--by", "class", "--widths", "2", "4", "--out", str(tmp_path / "sweep")]
    assert main(["sensitivity", *common, *options, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "mixbit.sensitivity/1"
    assert document == json.loads((tmp_path / "sweep" / "sensitivity.json").read_text())
    assert main(["sensitivity", *common, *options]) == 0
    shown = capsys.readouterr().out
    assert "Prefix sharing saved" in shown and "Rank correlation of the proxies" in shown
    options = ["--sensitivity", str(tmp_path / "sweep"), "--out", str(tmp_path / "found")]
    budget = ["--against", "uniform-4", "--bpw", "5", "--floor", "lm_head=4"]
    assert main(["search", *common, *options, *budget, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "mixbit.search/1"
    assert main(["search", *common, *options, *budget]) == 0
    shown = capsys.readouterr().out
    assert all(str(path.name) in shown for path in (tmp_path / "found").glob("*plan*.json"))
    assert f"mixbit quantize --model {small} --plan {tmp_path}/found/plan-5.000.json --m" in shown
    assert Plan.load(tmp_path / "found" / "plan-5.000.json").method == "rtn"
    (one,) = document["budgets"]
    assert one["bpw"] <= 5 and (tmp_path / "found" / one["plan"]).exists()
    assert main(["search", *common, *options]) == 1
    assert "give --bpw, --bytes or --against" in capsys.readouterr().err
    assert main(["search", *common, *options, "--floor", "x", "--bpw", "5"]) == 1
    assert "--floor 'x' is not PATTERN=BITS." in capsys.readouterr().err


def test_what_is_found_is_packed_as_it_was_measured(
    small: Path, table: Sensitivity, tmp_path: Path
) -> None:
    packing = Packing(Choice.of("search"))
    find(small, table, tmp_path / "found", against=["uniform-3"], packing=packing)
    for file in (tmp_path / "found").glob("plan-*.json"):
        plan = Plan.load(file)
        assert (plan.method, plan.methods) == ("search", {})
        report = quantize(small, tmp_path / file.stem, plan=file)
        assert report.methods.keys() == {"search"}
        told = quantize(small, tmp_path / f"{file.stem}-rtn", plan=file, method="rtn").notes
        assert told == [f"plan {plan.name} names search, in whose place rtn was taken"]
        weights, other = (
            (tmp_path / name / "model.safetensors").read_bytes()
            for name in (file.stem, f"{file.stem}-rtn")
        )
        assert weights != other


def test_methods_of_a_plan_that_was_given_took_no_part(result: SearchResult) -> None:
    given = result.inputs[0]
    own = replace(given, plan=with_methods(given.plan, ["gptq", "mlp=search"]))
    plan = result.named(own, "plan.json")
    assert (plan.modules, plan.method, plan.methods) == (given.plan.modules, "rtn", {})


def test_budgets_that_are_close_have_files_of_their_own(result: SearchResult) -> None:
    (found, _), params = result.found, result.table.structure.params
    close = [replace(found, limit=found.limit + more) for more in (0, params // 8000, 1)]
    names = list(replace(result, found=tuple(close), smaller=()).files)
    assert len(set(names)) == 3
    assert [f"{float(name[5:-5]):.3f}" for name in names] == [
        f"{8 * one.limit / params:.3f}" for one in close
    ]


def test_structures_agree(small: Path, table: Sensitivity) -> None:
    assert table.structure == describe(small)
