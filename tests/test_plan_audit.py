"""Auditing checkpoints, comparing plans and drawing them."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mixbit.checkpoint import describe
from mixbit.errors import MixbitError
from mixbit.plan import Audit, Plan, QuantSpec, audit, diff, draw, with_methods
from mixbit.quantization import quantize
from models import config, save_raw

LAYER = "language_model.model.layers.0"
UP = f"{LAYER}.mlp.up_proj"
OUT = f"{LAYER}.linear_attn.out_proj"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_raw("qwen3_5_moe", tmp_path_factory.mktemp("audit") / "source", dtype=mx.bfloat16)


def told(found: Audit) -> list[tuple[str, str, str]]:
    return [(finding.level, finding.kind, finding.text) for finding in found.findings]


def edit_block(folder: Path, **entries: object) -> None:
    document = json.loads((folder / "config.json").read_text())
    document["quantization"] |= entries
    (folder / "config.json").write_text(json.dumps(document))


def edit_tensors(folder: Path, **changes: mx.array | None) -> None:
    tensors = dict(mx.load(str(folder / "model.safetensors"))) | changes
    kept = {name: value for name, value in tensors.items() if value is not None}
    mx.eval(kept)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), kept)


def test_a_sound_checkpoint_has_no_findings(tmp_path: Path, source: Path) -> None:
    report = quantize(source, tmp_path / "out", plan="unsloth-2026-06@4")
    plan = Plan.load("unsloth-2026-06@4", model=source)
    found = audit(tmp_path / "out", plan)
    assert told(found) == []
    assert (found.errors, found.plan) == (0, plan.name)
    assert found.packed == sum(spec is not None for spec in plan.modules.values())
    assert found.bytes == found.predicted_bytes == report.bytes
    assert found.to_json()["schema"] == "mixbit.plan-check/1"


def test_weak_spots_are_warned_of_class_by_class(tmp_path: Path, source: Path) -> None:
    plan = {path: QuantSpec(4, 64) for path in Plan.load("uniform-4", model=source).modules}
    quantize(source, tmp_path / "out", plan=Plan(plan))
    found = audit(tmp_path / "out")
    assert found.errors == 0
    kinds = [kind for _, kind, _ in told(found)]
    # in_proj_a, in_proj_b, out_proj and o_proj; gate and shared_expert_gate.
    assert (kinds.count("sensitive"), kinds.count("router"), len(kinds)) == (4, 2, 6)
    texts = [finding.text for finding in found.findings]
    assert f"{OUT} (and 2 more) is sensitive and has affine 4/64, less than 5 bits" in texts
    assert f"{LAYER}.mlp.gate (and 3 more) has affine 4/64 to choose experts, not 8 bits" in texts
    assert not [f for f in audit(tmp_path / "out", min_sensitive_bits=4).findings
                if f.kind == "sensitive"]  # fmt: skip


def test_what_contradicts_the_plan_or_the_config_is_an_error(tmp_path: Path, source: Path) -> None:
    quantize(source, tmp_path / "out", plan="unsloth-2026-06@4")
    structure = describe(source)
    modules = dict(Plan.load("unsloth-2026-06@4", model=structure).modules)
    modules |= {OUT: None, "language_model.model.layers.9.x": QuantSpec(4, 64)}
    found = audit(tmp_path / "out", Plan(modules, "other"))
    assert told(found) == [
        ("error", "plan",
         f"plan other says not quantised for {OUT}, but its tensors are affine 8/64"),
        ("error", "plan", "plan other names language_model.model.layers.9.x, which is no module"),
    ]  # fmt: skip
    edit_block(tmp_path / "out", **{OUT: {"bits": 6, "group_size": 64}})
    assert told(audit(tmp_path / "out")) == [
        ("error", "config", f"config.json says affine 6/64 for {OUT}, but its tensors are affine "
         "8/64")
    ]  # fmt: skip


def test_tensors_that_fit_nothing_are_an_error(tmp_path: Path, source: Path) -> None:
    quantize(source, tmp_path / "out", plan="unsloth-2026-06@4")
    edit_tensors(tmp_path / "out", **{f"{OUT}.biases": None})
    (finding,) = audit(tmp_path / "out").findings
    assert (finding.level, finding.kind) == ("error", "tensors")
    assert f"{OUT} is packed as affine 8/64 without biases" in finding.text
    edit_tensors(tmp_path / "out", **{f"{LAYER}.mlp.more.scales": mx.ones((2, 2))})
    (finding,) = audit(tmp_path / "out").findings
    assert "mlp.more.scales, which belongs to no module" in finding.text


def test_wide_scales_and_missing_weights_are_told(tmp_path: Path, source: Path) -> None:
    quantize(source, tmp_path / "out", plan="unsloth-2026-06@4")
    stored = mx.load(str(tmp_path / "out" / "model.safetensors"))
    wide = {f"{OUT}.{part}": stored[f"{OUT}.{part}"].astype(mx.float32)
            for part in ("scales", "biases")}  # fmt: skip
    edit_tensors(tmp_path / "out", **wide)
    found = audit(tmp_path / "out")
    # 64 rows of 128: 8 bits and two groups a row, each with two numbers of 2 or 4 bytes.
    assert told(found) == [
        ("warning", "bytes", f"{OUT} takes 9,216 bytes, but 8,704 with 16-bit floats")
    ]
    assert found.bytes - found.predicted_bytes == 512
    edit_tensors(tmp_path / "out", **{f"{OUT}.{part}": None for part in ("weight", "scales",
                                                                        "biases")})  # fmt: skip
    found = audit(tmp_path / "out")
    assert ("error", "bytes", f"{OUT} takes 0 bytes, but 16,384 with 16-bit floats") in told(found)


def test_side_parts_are_not_counted(tmp_path: Path, source: Path) -> None:
    quantize(source, tmp_path / "out", plan="unsloth-2026-06@4")
    before = audit(tmp_path / "out")
    edit_tensors(tmp_path / "out", **{"mtp.fc.weight": mx.ones((9, 9)),
                                      "vision_tower.x.scales": mx.ones((9, 9))})  # fmt: skip
    after = audit(tmp_path / "out")
    assert (after.bytes, told(after)) == (before.bytes, [])


def test_a_method_that_is_not_the_plan_s_is_told_once(tmp_path: Path) -> None:
    def of_plan(plan: Plan) -> list[tuple[str, str]]:
        findings = audit(tmp_path / "out", plan).findings
        return sorted((each.level, each.text) for each in findings if each.kind == "plan")

    source = save_raw("qwen3_5", tmp_path / "source")
    uniform = Plan.load("uniform-4", model=source)
    plan = with_methods(uniform, ["mlp=search"])
    quantize(source, tmp_path / "out", plan=plan)
    assert of_plan(plan) == of_plan(uniform) == []
    embed = "language_model.model.embed_tokens"
    assert of_plan(with_methods(plan, ["search", "up_proj=rtn"])) == [
        ("warning", f"plan uniform-4 names rtn for {UP} (and 3 more), but mixbit.json says search"),
        ("warning", f"plan uniform-4 names search for {embed} (and {len(plan.modules) - 13} more), "
         "but mixbit.json says rtn"),
    ]  # fmt: skip
    (tmp_path / "out" / "mixbit.json").unlink()
    assert of_plan(with_methods(plan, ["search"])) == []


# --- differences ------------------------------------------------------------------------------


def test_differences_and_what_they_cost() -> None:
    structure = describe(config("qwen3_5"))
    one = Plan({UP: QuantSpec(4, 64), OUT: None}, "one", {}, structure)
    other = Plan({UP: QuantSpec(6, 64)}, "other")
    result = diff(one, other)
    assert result == {
        "schema": "mixbit.plan-diff/1", "first": "one", "second": "other",
        "method": {"first": None, "second": None},
        "modules": [{
            "path": UP, "class": "mlp.up_proj", "bytes": 128 * 64 * 2 // 8,
            "first": {"bits": 4, "group_size": 64, "mode": "affine"},
            "second": {"bits": 6, "group_size": 64, "mode": "affine"},
        }],
        "bytes": 2048,
    }  # fmt: skip
    assert diff(other, one)["bytes"] == -2048
    assert diff(one, one)["modules"] == []
    unknown = diff(Plan({UP: None}), other)
    assert (unknown["bytes"], unknown["modules"][0]["bytes"]) == (None, None)


# --- pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_draws_a_heat_map(tmp_path: Path, suffix: str, magic: bytes) -> None:
    plan = Plan.load("unsloth@3", model=config("qwen3_5_moe"))
    draw(plan, tmp_path / f"plan.{suffix}")
    content = (tmp_path / f"plan.{suffix}").read_bytes()
    assert content.startswith(magic)
    if suffix == "svg":
        text = content.decode()
        for label in ("mlp.switch_mlp.down_proj", "linear_attn.out_proj", "unsloth-2026-03@3"):
            assert label in text
    draw(Plan({UP: QuantSpec(4, 64), OUT: None}), tmp_path / f"plan.{suffix}")


def test_a_picture_of_another_kind_is_told(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match=r"plan\.txt must end in \.png, \.svg, \.pdf"):
        draw(Plan({UP: None}), tmp_path / "plan.txt")
