"""Plans on disk: our own file, mlx-lm's config block, and packed checkpoints."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mixbit.checkpoint import ModelStructure, ModuleShape, describe
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec
from models import MODEL_TYPES, config

STRUCTURE = describe(config("qwen3_5"))
LAYER = "language_model.model.layers.0"
QKV = f"{LAYER}.linear_attn.in_proj_qkv"
OUT = f"{LAYER}.linear_attn.out_proj"
TOP = {"group_size": 64, "bits": 4, "mode": "affine"}
MIXED = {
    "uniform-3": "uniform-3",
    "mixed": "unsloth-2026-03@2",
    "all packed": "unsloth-2026-06@5",
}


def read_block(block: dict[str, Any]) -> Plan:
    return Plan.from_mlx_config(block, STRUCTURE)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("recipe", MIXED.values(), ids=MIXED.keys())
def test_round_trips(tmp_path: Path, model_type: str, recipe: str) -> None:
    structure = describe(config(model_type))
    plan = Plan.load(recipe, model=structure)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.structure == structure
    assert Plan.from_mlx_config(plan.to_mlx_config(), structure).modules == plan.modules


def test_round_trips_of_odd_plans(tmp_path: Path) -> None:
    first, second, *_ = (shape.path for shape in STRUCTURE.modules)
    modes = Plan({first: QuantSpec(4, 32, "mxfp4"), second: QuantSpec(4, 16, "nvfp4")}, "modes")
    nothing = Plan(dict.fromkeys(shape.path for shape in STRUCTURE.modules), "nothing")
    for plan in (modes, nothing):
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan
    assert nothing.to_mlx_config() == {}
    assert read_block({}).modules == nothing.modules
    block = read_block(modes.to_mlx_config())
    assert block.modules[first] == QuantSpec(4, 32, "mxfp4")
    assert block.modules[second] == QuantSpec(4, 16, "nvfp4")


def test_a_plan_cannot_be_changed_from_outside() -> None:
    modules: dict[str, QuantSpec | None] = {QKV: QuantSpec(4, 64)}
    plan = Plan(modules)
    modules[QKV] = None
    assert plan.modules[QKV] == QuantSpec(4, 64)
    with pytest.raises(TypeError):
        plan.modules[QKV] = None  # type: ignore[index]


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    plan = Plan.load("unsloth@3", model=STRUCTURE)
    plan.save(tmp_path / "config.json")
    assert Plan.load(tmp_path / "config.json") == plan
    as_config = config("qwen3_5") | {"quantization": plan.to_mlx_config()}
    (tmp_path / "plan.json").write_text(json.dumps(as_config))
    assert Plan.load(tmp_path / "plan.json").modules == plan.modules
    (tmp_path / "block").write_text(json.dumps(plan.to_mlx_config()))
    assert Plan.load(tmp_path / "block", model=STRUCTURE).modules == plan.modules


def test_a_recipe_name_is_a_recipe_and_a_path_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Plan.load("uniform-8", model=STRUCTURE)
    other.save("uniform-4")
    assert Plan.load("uniform-4", model=STRUCTURE).name == "uniform-4"
    assert Plan.load("./uniform-4", model=STRUCTURE) == other
    assert Plan.load(Path("uniform-4"), model=STRUCTURE) == other


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schema": "mixbit.plan/2"}, "schema 'mixbit.plan/2', but this mixbit reads"),
        ({"schema": "mixbit.plan/1"}, "needs objects for modules"),
        ({"schema": "mixbit.plan/1", "modules": {}, "provenance": 1}, "needs objects"),
        ({"schema": "mixbit.plan/1", "modules": {QKV: True}}, f"{QKV} must be false or hold"),
        ({"schema": "mixbit.plan/1", "modules": {QKV: {"bits": 4}}}, f"{QKV} must be false"),
        (
            {"schema": "mixbit.plan/1", "modules": {QKV: TOP | {"bits": True}}},
            f"{QKV} must be false",
        ),
        (
            {"schema": "mixbit.plan/1", "modules": {QKV: TOP | {"bits": 7}}},
            f"{QKV}: mode affine takes .* bits, not 7",
        ),
        ({"schema": "mixbit.plan/1", "modules": {}, "model": {}}, "model it describes is malf"),
        ({"schema": "mixbit.plan/1", "modules": {}, "model": 4}, "model it describes is malf"),
        ({"anything": [1]}, "is no plan in any format that mixbit reads"),
        ({"bits": 4, "group_size": 64}, "does not say which model"),
        ({"model_type": "qwen3_5", "text_config": {}}, "no quantization block"),
        (
            {"model_type": "qwen3_5", "text_config": {}, "quantization": 4},
            "quantization must be an object",
        ),
        (
            {
                "model_type": "qwen3_5",
                "text_config": {},
                "quantization_config": {"quant_method": "bitnet"},
            },
            "quantised as bitnet, which mixbit does not read",
        ),
    ],
)
def test_unusable_files_are_told(tmp_path: Path, document: Any, message: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(MixbitError, match=message) as caught:
        Plan.load(tmp_path / "plan.json")
    assert "plan.json" in str(caught.value) or "Plan custom" in str(caught.value)


def test_saving_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match=f"{QKV}: mode affine takes"):
        Plan({QKV: QuantSpec(7, 64)}).save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_checked_against_the_model_given(tmp_path: Path) -> None:
    Plan({QKV: QuantSpec(4, 64)}).save(tmp_path / "plan.json")
    with pytest.raises(MixbitError, match=r"no module of this qwen3_next model .*; the nearest"):
        Plan.load(tmp_path / "plan.json", model=config("qwen3_next"))


# --- the quantization block -------------------------------------------------------------------


def test_unnamed_modules_get_the_top_level_where_it_fits() -> None:
    shapes = (ModuleShape("w64", "linear", 8, 64), ModuleShape("w96", "linear", 8, 96))
    plan = Plan.from_mlx_config(TOP, ModelStructure("any", shapes, 1280))
    assert plan.modules == {"w64": QuantSpec(4, 64), "w96": None}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (False, None),
        (True, QuantSpec(3, 32)),
        ({"bits": 6, "group_size": 64, "mode": "affine"}, QuantSpec(6, 64)),
        ({"bits": 6, "group_size": 64}, QuantSpec(6, 64)),
        ({"bits": 8}, QuantSpec(8, 64)),
        ({"bits": 8, "group_size": None}, QuantSpec(8, 64)),
        ({"group_size": 32}, QuantSpec(4, 32)),
        ({"mode": "mxfp8"}, QuantSpec(8, 32, "mxfp8")),
        ({"mode": "nvfp4", "bits": 4}, QuantSpec(4, 16, "nvfp4")),
    ],
)
def test_entries_mean_what_mlx_lm_takes_them_for(
    entry: dict[str, Any] | bool, expected: QuantSpec | None
) -> None:
    plan = read_block({"bits": 3, "group_size": 32, QKV: entry})
    assert plan.modules[QKV] == expected
    assert plan.modules[OUT] == QuantSpec(3, 32)


def test_a_mode_that_is_missing_is_affine_whatever_the_top_level_says() -> None:
    plan = read_block({"bits": 4, "group_size": 32, "mode": "mxfp4", QKV: {"bits": 4}})
    assert plan.modules[QKV] == QuantSpec(4, 64)
    assert plan.modules[OUT] == QuantSpec(4, 32, "mxfp4")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (f"{prefix}layers.0.linear_attn.in_proj_qkv", QKV)
        for prefix in ("language_model.model.", "model.language_model.", "model.", "")
    ]
    + [
        (f"{prefix}lm_head", "language_model.lm_head")
        for prefix in ("language_model.", "", "model.", "language_model.model.")
    ],
)
def test_every_spelling_of_the_prefix_reaches_the_module(key: str, path: str) -> None:
    plan = read_block(TOP | {key: {"bits": 6, "group_size": 64}})
    assert plan.modules[path] == QuantSpec(6, 64)
    assert sum(spec == QuantSpec(6, 64) for spec in plan.modules.values()) == 1


def test_weight_may_follow_a_key_and_unknown_values_are_told() -> None:
    plan = read_block(TOP | {f"{QKV}.weight": {"bits": 6, "sensitivity": 0.1}})
    assert plan.modules[QKV] == QuantSpec(6, 64)
    assert plan.provenance["notes"] == ["entries hold sensitivity, which stock mlx-lm refuses"]


def test_entries_for_parts_outside_the_text_model_are_passed_over() -> None:
    block = TOP | {"vision_tower.blocks.0.attn.qkv": False, "mtp.fc": {"bits": 4}}
    assert read_block(block).modules == read_block(TOP).modules


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{LAYER}.linear_attn.in_proj_qk": {"bits": 4}}, f"names {LAYER}.*nearest are .*{QKV}"),
        ({f"{LAYER}.input_layernorm": {"bits": 4}}, "input_layernorm, which is no module"),
        ({QKV: {"bits": 7, "group_size": 64}}, f"{QKV}: mode affine takes .* not 7"),
        ({QKV: {"bits": 4, "group_size": 128}}, f"{QKV}: rows of 64 weights do not split"),
        ({QKV: {"mode": "kquant"}}, f"{QKV} is packed as kquant, a format of mlx-kquant's own"),
        ({QKV: {"mode": ["affine"]}}, f"gives {QKV} the unknown mode"),
        ({QKV: {"bits": "4"}}, f"gives {QKV} \\['4'\\], not whole numbers"),
        ({QKV: {"mode": "affine4"}}, f"gives {QKV} the unknown mode 'affine4'"),
        ({QKV: {"bits": 4, "symmetric_zero_point": True}}, f"{QKV} has symmetric_zero_point"),
        (
            {QKV: {"bits": 6}, "layers.0.linear_attn.in_proj_qkv": {"bits": 5}},
            f"entries for {QKV} that differ",
        ),
        ({"bits": 7}, "in the quantization block mode affine takes"),
        ({"bits": None, "group_size": 16}, "in the quantization block mode affine takes groups"),
        ({"mode": "q4k"}, "is packed as q4k, a format of mlx-node's own"),
    ],
)
def test_malformed_blocks_are_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MixbitError, match=message):
        read_block(TOP | change)


@pytest.mark.parametrize("missing", ["bits", "group_size"])
def test_a_block_without_its_top_level_is_told(missing: str) -> None:
    with pytest.raises(MixbitError, match=f"lacks {missing}"):
        read_block({key: value for key, value in TOP.items() if key != missing})


# --- packed checkpoints -----------------------------------------------------------------------


def packed(
    tmp_path: Path, widths: dict[str, QuantSpec], block: dict[str, Any] | None, *, dims: int = 128
) -> tuple[Path, ModelStructure]:
    """A folder of linear layers that are packed as told, and the structure they belong to."""
    tensors: dict[str, mx.array] = {}
    shapes = []
    for path, spec in widths.items():
        shapes.append(ModuleShape(path, "linear", 8, dims))
        parts = mx.quantize(mx.ones((8, dims)), spec.group_size, spec.bits, mode=spec.mode)
        names = ("weight", "scales", "biases")
        tensors |= {f"{path}.{name}": part for name, part in zip(names, parts, strict=False)}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    document = {"model_type": "any"} | ({} if block is None else {"quantization": block})
    (tmp_path / "config.json").write_text(json.dumps(document))
    return tmp_path, ModelStructure("any", tuple(shapes), 8 * dims * len(shapes))


@pytest.mark.parametrize("dims", [128, 4096])
def test_shapes_fill_in_what_the_config_leaves_out(tmp_path: Path, dims: int) -> None:
    specs = {f"layers.{bits}": QuantSpec(bits, 64) for bits in (2, 3, 4, 5, 6, 8)}
    specs |= {
        "layers.a": QuantSpec(4, 128),
        "layers.b": QuantSpec(8, 32),
        "layers.c": QuantSpec(4, 32, "mxfp4"),
        "layers.d": QuantSpec(8, 32, "mxfp8"),
        "layers.e": QuantSpec(4, 16, "nvfp4"),
    }
    folder, structure = packed(tmp_path, specs, TOP, dims=dims)
    assert Plan.load(folder, model=structure).modules == specs


def test_layouts_that_look_alike_are_told_apart_by_the_true_width(tmp_path: Path) -> None:
    # All four give 32 words and 2 groups, or 16 words and 2 groups.
    for index, (dims, spec) in enumerate(
        [(256, QuantSpec(4, 128)), (128, QuantSpec(8, 64)), (128, QuantSpec(4, 64)),
         (64, QuantSpec(8, 32))]
    ):  # fmt: skip
        (tmp_path / str(index)).mkdir()
        folder, structure = packed(tmp_path / str(index), {"layers.0": spec}, TOP, dims=dims)
        assert Plan.load(folder, model=structure).modules == {"layers.0": spec}


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        (TOP, []),
        (TOP | {"layers.0": {"bits": 4, "group_size": 64}}, []),
        (
            TOP | {"layers.0": {"bits": 8, "group_size": 64}},
            ["config.json says affine 8/64 for layers.0, but its tensors are affine 4/64"],
        ),
        (
            TOP | {"layers.0": False},
            ["config.json says not quantised for layers.0, but its tensors are affine 4/64"],
        ),
        (
            TOP | {"bits": 8},
            ["config.json does not name layers.0, whose tensors are affine 4/64 and not, as its "
             "top level has it, affine 8/64"],
        ),
        (
            TOP | {"layers.1": True},
            ["config.json says affine 4/64 for layers.1, but its tensors are not quantised"],
        ),
        (
            TOP | {"layers.9": True},
            ["config.json: quantization names layers.9, which is no module of this any model that "
             "can be quantised; the nearest are layers.1, layers.0"],
        ),
        (
            TOP | {"layers.0": {"bits": "4"}},
            ["config.json: quantization gives layers.0 ['4'], not whole numbers"],
        ),
        (None, ["config.json has no quantization block, but 1 modules are packed"]),
        (
            {"bits": 4, "layers.0": {"bits": 4}},
            ["config.json: the quantization block lacks group_size"],
        ),
    ],
)  # fmt: skip
def test_the_tensors_decide_and_a_config_that_contradicts_them_is_told(
    tmp_path: Path, block: dict[str, Any] | None, lines: list[str]
) -> None:
    folder, structure = packed(tmp_path, {"layers.0": QuantSpec(4, 64)}, block)
    more = (*structure.modules, ModuleShape("layers.1", "linear", 8, 128))
    plan = Plan.load(folder, model=ModelStructure("any", more, 2048))
    assert plan.modules == {"layers.0": QuantSpec(4, 64), "layers.1": None}
    assert plan.provenance.get("contradictions", []) == lines


def test_packed_tensors_of_no_module_are_told(tmp_path: Path) -> None:
    folder, structure = packed(tmp_path, {"layers.0.a": QuantSpec(4, 64)}, TOP)
    shapes = (ModuleShape("layers.0.b", "linear", 8, 128),)
    with pytest.raises(MixbitError, match=r"holds layers\.0\.a\.scales, .* nearest are layers"):
        Plan.load(folder, model=ModelStructure("any", shapes, structure.params))


def test_packed_tensors_of_another_width_are_told(tmp_path: Path) -> None:
    folder, _ = packed(tmp_path, {"layers.0": QuantSpec(4, 64)}, TOP)
    for out_dims, in_dims in ((16, 128), (8, 96), (8, 192)):
        shapes = (ModuleShape("layers.0", "linear", out_dims, in_dims),)
        with pytest.raises(MixbitError, match=rf"layers\.0 is {out_dims} x {in_dims}, to which"):
            Plan.load(folder, model=ModelStructure("any", shapes, 1))


def test_a_dense_checkpoint_is_a_plan_of_nothing(tiny_folder: Path) -> None:
    plan = Plan.load(tiny_folder)
    assert set(plan.modules.values()) == {None}
    assert plan.report()["bpw"] == 16
