"""The recipes against the published table, and their limits."""

import re

import pytest

from mixbit.checkpoint import ModelStructure, ModuleShape, describe
from mixbit.errors import MixbitError
from mixbit.plan import RECIPES, Plan, QuantSpec, recipe_name
from models import MODEL_TYPES, config

# Bits at base 2, 3, 4, 5, 6, 7 and 8, as mlx-node publishes them; it has no base 7, where the
# classes at the base itself are lifted to 8 too.
BASES = (2, 3, 4, 5, 6, 7, 8)
TABLE: dict[str, tuple[int, ...]] = {
    "mlp.gate_proj": (2, 3, 4, 5, 6, 8, 8),
    "mlp.up_proj": (2, 3, 4, 5, 6, 8, 8),
    "mlp.down_proj": (3, 4, 5, 6, 8, 8, 8),
    "embed_tokens": (4, 5, 6, 8, 8, 8, 8),
    "lm_head": (5, 6, 8, 8, 8, 8, 8),
    "self_attn.q_proj": (4, 5, 6, 8, 8, 8, 8),
    "self_attn.k_proj": (4, 5, 6, 8, 8, 8, 8),
    "self_attn.v_proj": (4, 5, 6, 8, 8, 8, 8),
    "linear_attn.in_proj_qkv": (4, 5, 6, 8, 8, 8, 8),
    "linear_attn.in_proj_z": (4, 5, 6, 8, 8, 8, 8),
    "linear_attn.in_proj_qkvz": (4, 5, 6, 8, 8, 8, 8),
    "mlp.gate": (8,) * 7,
    "mlp.shared_expert_gate": (8,) * 7,
}
for _kind in ("switch_mlp", "shared_expert"):
    for _name in ("gate_proj", "up_proj", "down_proj"):
        TABLE[f"mlp.{_kind}.{_name}"] = TABLE[f"mlp.{_name}"]
SENSITIVE = (
    "self_attn.o_proj",
    "linear_attn.out_proj",
    "linear_attn.in_proj_a",
    "linear_attn.in_proj_b",
)

STRUCTURES = {model_type: describe(config(model_type)) for model_type in MODEL_TYPES}


def role(path: str) -> str:
    """A path without its prefix and layer, as the table names it."""
    return re.sub(r"^(language_model\.)?(model\.)?(layers\.\d+\.)?", "", path)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("version", "sensitive"), [("2026-03", None), ("2026-06", 8)])
def test_unsloth_is_the_published_table(
    model_type: str, base: int, version: str, sensitive: int | None
) -> None:
    structure = STRUCTURES[model_type]
    plan = Plan.load(f"unsloth-{version}@{base}", model=structure)
    expected = {name: bits[BASES.index(base)] for name, bits in TABLE.items()}
    expected |= dict.fromkeys(SENSITIVE, sensitive)
    expected |= {"linear_attn.in_proj_ba": None}
    assert plan.modules == {
        shape.path: None if (bits := expected[role(shape.path)]) is None else QuantSpec(bits, 64)
        for shape in structure.modules
    }
    assert plan.provenance == {"recipe": f"unsloth-{version}@{base}"}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_uniform_spares_routers_only(model_type: str, bits: int) -> None:
    structure = STRUCTURES[model_type]
    plan = Plan.load(f"uniform-{bits}", model=structure)
    routers = ("mlp.gate", "mlp.shared_expert_gate")
    assert plan.modules == {
        shape.path: QuantSpec(8 if role(shape.path) in routers else bits, 64)
        for shape in structure.modules
    }


def test_unsloth_means_its_first_version() -> None:
    structure = STRUCTURES["qwen3_5"]
    plan = Plan.load("unsloth@3", model=structure)
    assert plan == Plan.load("unsloth-2026-03@3", model=structure)
    assert plan.name == "unsloth-2026-03@3"


def test_a_tied_model_has_no_head_to_plan() -> None:
    plan = Plan.load("unsloth@3", model=config("qwen3_5", tie_word_embeddings=True))
    assert plan.modules["language_model.model.embed_tokens"] == QuantSpec(5, 64)
    assert not any("lm_head" in path for path in plan.modules)


def test_widths_fall_to_a_smaller_group_or_stay_dense() -> None:
    structure = ModelStructure(
        "any",
        tuple(ModuleShape(f"layers.0.w{width}", "linear", 32, width) for width in (96, 128, 80)),
        32 * (96 + 128 + 80),
    )
    plan = Plan.load("uniform-4", model=structure)
    assert plan.modules == {
        "layers.0.w96": QuantSpec(4, 32),
        "layers.0.w128": QuantSpec(4, 64),
        "layers.0.w80": None,
    }
    assert plan.provenance == {
        "recipe": "uniform-4",
        "regrouped": {"layers.0.w96": 32},
        "dense_by_width": {"layers.0.w80": 80},
    }


def test_a_dense_rule_is_not_reported_as_a_misfit() -> None:
    structure = ModelStructure("any", (ModuleShape("layers.0.out_proj", "linear", 4, 80),), 320)
    plan = Plan.load("unsloth@4", model=structure)
    assert plan.provenance == {"recipe": "unsloth-2026-03@4"}


def test_names() -> None:
    assert [recipe_name(recipe, 4) for recipe in RECIPES] == [
        "uniform-4",
        "unsloth-2026-03@4",
        "unsloth-2026-03@4",
        "unsloth-2026-06@4",
    ]


@pytest.mark.parametrize(
    "name", ["unsloth-2027-01@3", "uniform@4@4", "unsloth", "uniform", "unsloth-4", "mixed_3_6"]
)
def test_an_unknown_recipe_is_told_with_the_known(name: str) -> None:
    with pytest.raises(MixbitError, match=r"nor a recipe; .*uniform-N, unsloth-2026-03@N"):
        Plan.load(name, model=STRUCTURES["qwen3_5"])


@pytest.mark.parametrize(
    ("name", "bits"), [("uniform-7", 7), ("uniform-1", 1), ("unsloth@9", 9), ("unsloth@1", 1)]
)
def test_bits_that_a_recipe_lacks_are_told(name: str, bits: int) -> None:
    with pytest.raises(MixbitError, match=f"does not exist at {bits} bits; give one of 2, 3, 4"):
        Plan.load(name, model=STRUCTURES["qwen3_5"])


def test_a_recipe_without_a_model_is_told() -> None:
    with pytest.raises(MixbitError, match="uniform-4 needs a model"):
        Plan.load("uniform-4")
