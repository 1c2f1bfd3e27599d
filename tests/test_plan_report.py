"""The gate and the sizes."""

import pytest

from mixbit.checkpoint import ModelStructure, ModuleShape, describe
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec, check
from models import MODEL_TYPES, config

STRUCTURE = ModelStructure(
    "any",
    (
        ModuleShape("model.embed_tokens", "embedding", 100, 128),
        ModuleShape("model.layers.0.mlp.up_proj", "linear", 40, 128),
        ModuleShape("model.layers.1.mlp.up_proj", "linear", 40, 128),
        ModuleShape("model.layers.1.mlp.switch_mlp.up_proj", "switch", 40, 128, 3),
    ),
    128 * (100 + 40 + 40 + 120) + 500,
)
PLAN = Plan(
    {
        "model.embed_tokens": None,
        "model.layers.0.mlp.up_proj": QuantSpec(3, 64),
        "model.layers.1.mlp.up_proj": QuantSpec(6, 128),
        "model.layers.1.mlp.switch_mlp.up_proj": QuantSpec(4, 32, "mxfp4"),
    },
    "by hand",
)


def test_sizes_by_hand() -> None:
    report = PLAN.report(STRUCTURE)
    sizes = {row["path"]: row["bytes"] for row in report["modules"]}
    assert sizes == {
        "model.embed_tokens": 100 * 128 * 2,
        "model.layers.0.mlp.up_proj": 40 * (128 * 3 // 8 + 2 * 4),
        "model.layers.1.mlp.up_proj": 40 * (128 * 6 // 8 + 1 * 4),
        "model.layers.1.mlp.switch_mlp.up_proj": 3 * 40 * (128 * 4 // 8 + 4 * 1),
    }
    assert report["bytes"] == sum(sizes.values()) + 500 * 2
    assert report["bpw"] == 8 * report["bytes"] / STRUCTURE.params
    assert (report["schema"], report["name"]) == ("mixbit.plan-report/1", "by hand")
    assert report["modules"][3] == {
        "path": "model.layers.1.mlp.switch_mlp.up_proj",
        "bits": 4, "group_size": 32, "mode": "mxfp4", "method": None,
        "in_dims": 128, "out_dims": 40, "experts": 3, "bytes": 8160,
    }  # fmt: skip


def test_classes_gather_equal_roles_of_equal_bits() -> None:
    rows = PLAN.report(STRUCTURE)["classes"]
    assert [(row["class"], row["bits"], row["modules"], row["params"]) for row in rows] == [
        ("embed_tokens", None, 1, 12800),
        ("mlp.up_proj", 3, 1, 5120),
        ("mlp.up_proj", 6, 1, 5120),
        ("mlp.switch_mlp.up_proj", 4, 1, 15360),
        ("other", None, 0, 500),
    ]
    assert [row["bpw"] for row in rows] == [16, 3.5, 6.25, 4.25, 16]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_classes_add_up_to_the_model(model_type: str) -> None:
    report = Plan.load("unsloth@3", model=config(model_type)).report()
    structure = describe(config(model_type))
    assert sum(row["params"] for row in report["classes"]) == structure.params
    assert sum(row["bytes"] for row in report["classes"]) == report["bytes"]
    assert sum(row["modules"] for row in report["classes"]) == len(structure.modules)
    assert len({(row["class"], row["bits"]) for row in report["classes"]}) == len(report["classes"])


def test_a_module_that_is_not_named_counts_as_dense() -> None:
    report = Plan({}).report(STRUCTURE)
    assert report["bpw"] == 16
    assert {row["bits"] for row in report["modules"]} == {None}


def test_a_report_needs_a_model() -> None:
    with pytest.raises(MixbitError, match="Plan by hand does not say which model"):
        PLAN.report()


@pytest.mark.parametrize(
    ("path", "spec", "message"),
    [
        (
            "model.layers.0.mlp.up_prj",
            None,
            r"names model\.layers\.0\.mlp\.up_prj, .* nearest are model\.layers\.0\.mlp\.up_proj",
        ),
        ("model.layers.9.zzz", QuantSpec(4, 64), r"model\.layers\.9\.zzz, which is no module"),
        ("model.embed_tokens", QuantSpec(7, 64), r"model\.embed_tokens: mode affine takes"),
        ("model.embed_tokens", QuantSpec(4, 16), r"model\.embed_tokens: mode affine takes groups"),
        ("model.embed_tokens", QuantSpec(4, 64, "mxfp4"), "mode mxfp4 takes groups of 32, not 64"),
        ("model.embed_tokens", QuantSpec(4, 64, "q4k"), "mode 'q4k' is not one of affine"),
    ],
)
def test_the_gate_names_the_entry_at_fault(path: str, spec: QuantSpec | None, message: str) -> None:
    with pytest.raises(MixbitError, match=message):
        check(Plan({path: spec}), STRUCTURE)


def test_the_gate_counts_further_faults() -> None:
    bad = Plan({shape.path: QuantSpec(7, 64) for shape in STRUCTURE.modules})
    with pytest.raises(MixbitError, match=r"embed_tokens \(and 3 more\): mode affine"):
        check(bad, STRUCTURE)


def test_the_gate_refuses_a_width_that_the_group_does_not_divide() -> None:
    structure = ModelStructure("any", (ModuleShape("w", "linear", 4, 96),), 384)
    check(Plan({"w": QuantSpec(4, 32)}), structure)
    with pytest.raises(MixbitError, match="w: rows of 96 weights do not split into groups of 64"):
        check(Plan({"w": QuantSpec(4, 64)}), structure)
