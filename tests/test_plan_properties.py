"""What holds of every plan, and that no input of any format makes more than one clear sentence."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixbit.checkpoint import ModelStructure, ModuleShape, describe
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec, diff, write
from mixbit.plan.entries import Entries
from mixbit.plan.names import PathTable, spellings
from mixbit.plan.readers.mlx_config import plan_of_block
from models import MODEL_TYPES, config
from mutations import mutated, mutated_bytes
from plan_examples import DENSE, EXAMPLES, STRUCTURES
from test_plan_readers import Types, gguf_file

AFFINE = [QuantSpec(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
LEGAL = [*AFFINE, QuantSpec(4, 32, "mxfp4"), QuantSpec(8, 32, "mxfp8"), QuantSpec(4, 16, "nvfp4")]
SAYABLE = [spec for spec in LEGAL if spec.group_size < 64 and spec.mode != "mxfp8"]

quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
structures = st.sampled_from(list(STRUCTURES.values()))


def plans(specs: list[QuantSpec]) -> st.SearchStrategy[Plan]:
    """Plans that name every module, with any of the values or none."""

    def of(structure: ModelStructure) -> st.SearchStrategy[Plan]:
        count = len(structure.modules)
        values = st.lists(st.sampled_from([None, *specs]), min_size=count, max_size=count)
        return values.map(
            lambda chosen: Plan(
                {shape.path: spec for shape, spec in zip(structure.modules, chosen, strict=True)
                 if spec is None or spec.violation(shape.in_dims) is None},
                "any", {}, structure,
            )
        )  # fmt: skip

    return structures.flatmap(of)


def dense_apart(plan: Plan) -> dict[str, QuantSpec]:
    return {path: spec for path, spec in plan.modules.items() if spec is not None}


@quick
@given(plan=plans(LEGAL), format_name=st.sampled_from(["plan", "mlx", "overrides"]))
def test_reading_gives_what_was_written(tmp_path: Path, plan: Plan, format_name: str) -> None:
    write(plan, tmp_path / "file", format_name)
    again = Plan.load(tmp_path / "file", model=plan.structure)
    assert dense_apart(again) == dense_apart(plan)
    assert diff(plan, again)["modules"] == []


@quick
@given(plan=plans(SAYABLE))
def test_tensor_types_give_what_was_written(tmp_path: Path, plan: Plan) -> None:
    write(plan, tmp_path / "file", "tensor-types")
    assert dense_apart(Plan.load(tmp_path / "file", model=plan.structure)) == dense_apart(plan)


@quick
@given(plan=plans(LEGAL), rng=st.randoms(use_true_random=False))
def test_order_and_spelling_of_keys_change_nothing(plan: Plan, rng: random.Random) -> None:
    assert plan.structure is not None
    table = PathTable(plan.structure)
    block: dict[str, Any] = {"bits": 4, "group_size": 64}
    for path in table.paths:
        spec = plan.modules.get(path)
        for key in rng.choice(spellings(table, path)):
            block[key] = False if spec is None else spec.to_json()
    keys = list(block)
    rng.shuffle(keys)
    try:
        found = plan_of_block({key: block[key] for key in keys}, plan.structure, name="any")
    except MixbitError as error:
        # gate_up_proj names two modules, which may rightly differ in the plan.
        assert "that differ" in str(error)
        return
    assert dense_apart(found) == dense_apart(plan)


@settings(quick, max_examples=15)
@given(
    model_type=st.sampled_from(MODEL_TYPES),
    layers=st.integers(1, 12),
    every=st.integers(1, 5),
    experts=st.integers(2, 12),
    suffix=st.sampled_from(["", ".weight"]),
)
def test_every_spelling_leads_back(
    model_type: str, layers: int, every: int, experts: int, suffix: str
) -> None:
    sizes = {"num_hidden_layers": layers, "full_attention_interval": every}
    if model_type != "qwen3_5":
        sizes["num_experts"] = experts
    structure = describe(config(model_type, **sizes))
    table = PathTable(structure)
    for path in table.paths:
        for keys in spellings(table, path):
            entries = Entries(structure, "a plan")
            for key in keys:
                entries.add(key.removesuffix(".weight") + suffix, QuantSpec(4, 64))
            assert entries.named()[path] == QuantSpec(4, 64)


@quick
@given(
    width=st.integers(1, 4096),
    bits=st.integers(-1, 40),
    group=st.integers(-1, 300),
    mode=st.sampled_from(["affine", "mxfp4", "mxfp8", "nvfp4", "other"]),
)
def test_what_passes_the_gate_has_a_whole_number_of_bytes(
    width: int, bits: int, group: int, mode: str
) -> None:
    spec = QuantSpec(bits, group, mode)
    structure = ModelStructure("any", (ModuleShape("w", "linear", 8, width),), 8 * width)
    if spec.violation(width) is None:
        report = Plan({"w": spec}).report(structure)
        assert report["bytes"] * 8 == 8 * width * spec.bits_per_weight
    else:
        with pytest.raises(MixbitError):
            Plan({"w": spec}).report(structure)


# --- damaged input ----------------------------------------------------------------------------


def survives(file: Path, content: bytes, **options: Any) -> bool:
    """Whether a damaged file is read; if not, by one sentence and no traceback."""
    file.write_bytes(content)
    try:
        plan = Plan.load(file, model=DENSE, target_bpw=6.0, **options)
    except MixbitError as error:
        assert str(error).isprintable()
        return False
    assert all(str(note).isprintable() for note in plan.provenance.get("notes", []))
    paths = {shape.path for shape in DENSE.modules}
    assert plan.modules.keys() <= paths
    plan.report()
    return True


REDUCED, FULL = 100, 100_000
RANKING = [[shape.path, 0.5] for shape in DENSE.modules]
JSON_EXAMPLES = {name: content for name, (content, _, _) in EXAMPLES.items()
                 if not isinstance(content, str)} | {"ranking": RANKING}  # fmt: skip
TEXT_EXAMPLES = {name: content for name, (content, _, _) in EXAMPLES.items()
                 if isinstance(content, str)}  # fmt: skip


def sweep(tmp_path: Path, count: int, name: str, damage: Callable[[random.Random], bytes]) -> None:
    rng = random.Random(name)
    survived = 0
    for _ in range(count):
        conflict = rng.choice(["refuse", "highest"])
        survived += survives(tmp_path / "file", damage(rng), on_conflict=conflict)
    assert survived < count


@pytest.mark.parametrize("name", JSON_EXAMPLES)
def test_damaged_json_is_read_or_refused(tmp_path: Path, name: str, long_grid: bool) -> None:
    def damage(rng: random.Random) -> bytes:
        value = JSON_EXAMPLES[name]
        for _ in range(rng.randrange(1, 4)):
            value = mutated(value, rng)
        return json.dumps(value).encode()

    sweep(tmp_path, FULL if long_grid else REDUCED, name, damage)


@pytest.mark.parametrize("name", TEXT_EXAMPLES)
def test_damaged_text_is_read_or_refused(tmp_path: Path, name: str, long_grid: bool) -> None:
    def damage(rng: random.Random) -> bytes:
        text = TEXT_EXAMPLES[name]
        for _ in range(rng.randrange(1, 4)):
            text = str(mutated(text, rng))
        return text.encode("utf-8", "surrogatepass")

    sweep(tmp_path, FULL if long_grid else REDUCED, name, damage)


def test_damaged_gguf_is_read_or_refused(tmp_path: Path, long_grid: bool) -> None:
    tensors = {"token_embd.weight": Types.Q6_K, "blk.0.ssm_out.weight": Types.F32,
               "blk.0.attn_qkv.weight": Types.Q8_0}  # fmt: skip
    whole = gguf_file(tmp_path / "whole", tensors).read_bytes()
    sweep(tmp_path, FULL if long_grid else REDUCED, "gguf", lambda rng: mutated_bytes(whole, rng))
