"""Writing plans, and reading back what was written."""

import itertools
import json
from pathlib import Path

import pytest

from mixbit.checkpoint import ModelStructure, ModuleShape, describe
from mixbit.errors import MixbitError
from mixbit.plan import FORMATS, Plan, QuantSpec, override, write
from models import MODEL_TYPES, config

STRUCTURES = {model_type: describe(config(model_type)) for model_type in MODEL_TYPES}
DENSE = STRUCTURES["qwen3_5"]
OUT = "language_model.model.layers.0.linear_attn.out_proj"
UP = "language_model.model.layers.0.mlp.up_proj"
# What llama.cpp has a type for, so that every format can say it.
SAYABLE: tuple[QuantSpec | None, ...] = (
    *(QuantSpec(bits, 32) for bits in (2, 3, 4, 5, 6, 8)),
    QuantSpec(4, 32, "mxfp4"),
    QuantSpec(4, 16, "nvfp4"),
    None,
)


def sayable_plan(structure: ModelStructure) -> Plan:
    values = itertools.cycle(SAYABLE)
    return Plan({shape.path: next(values) for shape in structure.modules}, "a", {}, structure)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize(("first", "second"), list(itertools.product(FORMATS, FORMATS)))
def test_every_pair_of_formats_gives_the_plan_back(
    tmp_path: Path, model_type: str, first: str, second: str
) -> None:
    structure = STRUCTURES[model_type]
    plan = sayable_plan(structure)
    assert write(plan, tmp_path / "one", first) == _notes(first, structure)
    once = Plan.load(tmp_path / "one", model=structure)
    assert once.modules == plan.modules
    write(once, tmp_path / "other", second)
    assert Plan.load(tmp_path / "other", model=structure).modules == plan.modules


def _notes(format_name: str, structure: ModelStructure) -> list[str]:
    has_router = any(shape.path.endswith("mlp.gate") for shape in structure.modules)
    if format_name != "tensor-types" or not has_router:
        return []
    return ["llama.cpp quantises no router (ffn_gate_inp), whatever its line says"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("recipe", ["uniform-3", "unsloth-2026-03@2", "unsloth-2026-06@5"])
def test_recipes_come_back_from_what_has_words_for_them(
    tmp_path: Path, model_type: str, recipe: str
) -> None:
    plan = Plan.load(recipe, model=STRUCTURES[model_type])
    for format_name in ("plan", "mlx", "overrides"):
        assert write(plan, tmp_path / "file", format_name) == []
        again = Plan.load(tmp_path / "file", model=STRUCTURES[model_type])
        assert again.modules == plan.modules
    with pytest.raises(MixbitError, match=r"for which llama\.cpp has no type; have the nearest"):
        write(plan, tmp_path / "types", "tensor-types")
    assert not (tmp_path / "types").exists()
    notes = write(plan, tmp_path / "types", "tensor-types", nearest=True)
    assert "written as the nearest type, in groups of 32" in notes[0]
    near = Plan.load(tmp_path / "types", model=STRUCTURES[model_type])
    assert {path: spec and spec.bits for path, spec in near.modules.items()} == {
        path: spec and spec.bits for path, spec in plan.modules.items()
    }


def test_a_partial_plan_is_written_whole(tmp_path: Path) -> None:
    plan = Plan({UP: QuantSpec(4, 32)}, "part", {}, DENSE)
    for format_name in FORMATS:
        write(plan, tmp_path / "file", format_name)
        modules = Plan.load(tmp_path / "file", model=DENSE).modules
        assert modules == dict.fromkeys(modules) | {UP: QuantSpec(4, 32)}
        assert len(modules) == len(DENSE.modules)


def test_the_files_are_what_their_tools_read(tmp_path: Path) -> None:
    plan = Plan(
        dict.fromkeys((shape.path for shape in DENSE.modules), QuantSpec(4, 32)) | {OUT: None},
        "a", {}, DENSE,
    )  # fmt: skip
    write(plan, tmp_path / "types", "tensor-types")
    lines = (tmp_path / "types").read_text().splitlines()
    assert r"^blk\.0\.ssm_out\.weight$=bf16" in lines
    assert r"^blk\.(1|2)\.ssm_out\.weight$=q4_k" in lines
    assert not any(" " in line or line.startswith("#") for line in lines)
    write(plan, tmp_path / "block", "mlx")
    document = json.loads((tmp_path / "block").read_text())
    assert document["quantization"]["bits"] == 4
    assert document["quantization"][OUT] is False
    write(plan, tmp_path / "lines", "overrides")
    lines = (tmp_path / "lines").read_text().splitlines()
    assert r"^language_model\.model\.layers\.0\.linear_attn\.out_proj$=bfloat16" in lines


@pytest.mark.parametrize(
    ("plan", "format_name", "message"),
    [
        (Plan({UP: QuantSpec(4, 64)}, structure=DENSE), "gguf", "'gguf' is no format to write"),
        (Plan({UP: QuantSpec(7, 64)}, structure=DENSE), "mlx", f"{UP}: mode affine takes"),
        (Plan({UP: QuantSpec(7, 64)}), "overrides", f"{UP}: mode affine takes"),
        (Plan({"layers.0.x": None}, structure=DENSE), "plan", r"names layers\.0\.x, which is no"),
        (Plan({UP: QuantSpec(4, 32)}), "tensor-types", "does not say which model it is for"),
        (
            Plan({}, structure=ModelStructure("any", (ModuleShape("w", "linear", 8, 64),), 512)),
            "tensor-types", "w has no name in GGUF",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_told(
    tmp_path: Path, plan: Plan, format_name: str, message: str
) -> None:
    with pytest.raises(MixbitError, match=message):
        write(plan, tmp_path / "file", format_name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match="cannot be written"):
        write(sayable_plan(DENSE), tmp_path / "none" / "file", "plan")


def test_overrides_change_what_they_find_and_the_first_counts() -> None:
    plan = override(
        Plan.load("unsloth@3", model=DENSE),
        [r"layers\.0\..*out_proj=bfloat16", r"out_proj=6/32", "lm_head=mxfp8"],
    )
    assert plan.modules[OUT] is None
    assert plan.modules[OUT.replace("layers.0", "layers.1")] == QuantSpec(6, 32)
    assert plan.modules["language_model.lm_head"] == QuantSpec(8, 32, "mxfp8")
    assert plan.modules[UP] == QuantSpec(3, 64)
    assert plan.name == "unsloth-2026-03@3+overrides"
    assert plan.provenance["overrides"] == [
        r"layers\.0\..*out_proj=bfloat16", "out_proj=6/32", "lm_head=mxfp8",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out_proj", "override: 'out_proj' is not PATTERN=VALUE"),
        ("=4", "override: '=4' is not PATTERN=VALUE"),
        ("out_proj=fast", "override: 'out_proj=fast' is not PATTERN=VALUE"),
        ("out_prj=4", "the pattern 'out_prj' matches nothing"),
        ("out_proj=7", "bits, not 7"),
        ("out_proj=4/16", "groups of 32, 64 or 128, not 16"),
        ("out_(proj=4", "is not a regular expression"),
    ],
)
def test_overrides_that_cannot_be_are_told(text: str, message: str) -> None:
    with pytest.raises(MixbitError, match=message):
        override(Plan.load("unsloth@3", model=DENSE), [text])
    with pytest.raises(MixbitError, match="does not say which model"):
        override(Plan({}), [text])
