"""The verbs of ``mixbit plan`` as a person types them."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mixbit.cli import main
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize
from models import config, save_raw

OUT = "language_model.model.layers.0.linear_attn.out_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_raw("qwen3_5", tmp_path_factory.mktemp("plan") / "model", dtype=mx.bfloat16)


@pytest.fixture(scope="module")
def packed(model: Path) -> Path:
    quantize(model, model.parent / "packed", plan="unsloth-2026-06@4")
    return model.parent / "packed"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["plan", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    status, out, err = run(capsys, *arguments, "--json", "-")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_show_has_classes_layers_and_provenance(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "plan.svg"
    status, out, _ = run(capsys, "show", packed, "--image", image)
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["linear_attn.out_proj", "3", "24,576", "8", "64", "affine", "26,112", "8.500"] in lines
    # q, k, v at 6.5 bits; o at 8.5; gate and up at 4.5; down at 5.5.
    nbytes = (24576 * 13 + 8192 * 17 + 16384 * 9 + 8192 * 11) // 16
    assert ["3", "7", "57,344", f"{nbytes:,}", "6.071"] in lines
    assert ["recipe:", "unsloth-2026-06@4"] in lines
    assert image.read_bytes().startswith(b"<?xml")
    report = run_json(capsys, "show", packed)
    assert [row["layer"] for row in report["layers"]] == [None, 0, 1, 2, 3]
    assert (
        sum(row["bytes"] for row in report["layers"]) + report["classes"][-1]["bytes"]
        == (report["bytes"])
    )
    assert report["provenance"] == {"recipe": "unsloth-2026-06@4"}


def test_show_tells_what_contradicts(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((packed / "config.json").read_text())
    document["quantization"][OUT] = False
    for file in packed.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(document))
    _, out, _ = run(capsys, "show", tmp_path)
    assert f"contradictions: config.json says not quantised for {OUT}, but its tensors are" in out


def test_make_takes_overrides_and_a_plan_as_its_base(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    base = ("--model", model / "config.json")
    overrides = ("--override", "layers.0.*out_proj=8/32", "--override", "out_proj=6")
    run_json(
        capsys, "make", *base, "--recipe", "unsloth", "--q-bits", 3, *overrides, "--out", first
    )
    modules = Plan.load(first).modules
    assert modules[OUT] == QuantSpec(8, 32)
    assert modules[OUT.replace(".0.", ".1.")] == QuantSpec(6, 64)
    again = ("--plan", first, "--override", "lm_head=bfloat16")
    run_json(capsys, "make", *base, *again, "--out", second)
    result = run_json(capsys, "diff", first, second)
    assert [row["path"] for row in result["modules"]] == ["language_model.lm_head"]
    # 6 bits and groups of 64 against 16 bits.
    assert result["bytes"] == 256 * 64 * (32 - 13) // 16
    status, _, err = run(
        capsys, "make", *base, *again, "--override", "none=4", "--out", tmp_path / "third.json"
    )
    assert (status, err.count("\n")) == (1, 1)
    assert not (tmp_path / "third.json").exists()


@pytest.mark.parametrize("target", ["plan", "mlx", "overrides", "tensor-types"])
def test_convert(
    model: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    nearest = ("--nearest",) if target == "tensor-types" else ()
    arguments = ("convert", "unsloth@3", "--model", model, "--to", target, "--out", out)
    result = run_json(capsys, *arguments, *nearest)
    assert (result["schema"], result["format"]) == ("mixbit.plan-convert/1", target)
    assert bool(result["notes"]) == bool(nearest)
    differing = run_json(capsys, "diff", "unsloth@3", out, "--model", model)["modules"]
    assert all(row["first"]["bits"] == row["second"]["bits"] for row in differing)
    assert bool(differing) == bool(nearest)
    status, shown, _ = run(capsys, *arguments, *nearest)
    assert status == 0
    assert shown.splitlines()[-1] == f"written to {out}"


def test_convert_says_why_it_cannot(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ("convert", "unsloth@3", "--model", model, "--to", "tensor-types", "--out", out)
    status, _, err = run(capsys, *arguments)
    assert (status, err.count("\n")) == (1, 1)
    assert "have the nearest written (--nearest)" in err
    assert not out.exists()


def test_conflicts_and_rankings_have_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("qwen3_next")))
    layer = "model.layers.0.linear_attn"
    (tmp_path / "split").write_text(
        json.dumps({f"{layer}.in_proj_qkv": 4, f"{layer}.in_proj_z": 6})
    )
    arguments = ("show", tmp_path / "split", "--model", tmp_path / "config.json")
    status, _, err = run(capsys, *arguments)
    assert status == 1
    assert "have the highest taken (--on-conflict highest)" in err
    report = run_json(capsys, *arguments, "--on-conflict", "highest")
    widths = {row["path"]: row["bits"] for row in report["modules"]}
    assert widths[f"{layer}.in_proj_qkvz"] == 6
    (tmp_path / "ranking").write_text(json.dumps([["lm_head", 0.5], ["embed_tokens", 0.25]]))
    arguments = ("show", tmp_path / "ranking", "--model", tmp_path / "config.json")
    assert "(target_bpw, --target-bpw)" in run(capsys, *arguments)[2]
    report = run_json(capsys, *arguments, "--target-bpw", 16)
    assert {row["bits"] for row in report["modules"]} == {5, None}


def test_check_passes_a_sound_checkpoint(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "check", packed, "--plan", "unsloth-2026-06@4")
    assert (found["schema"], found["findings"]) == ("mixbit.plan-check/1", [])
    status, out, _ = run(capsys, "check", packed, "--min-sensitive-bits", 9)
    assert status == 0
    assert "is sensitive and has affine 8/64, less than 9 bits" in out


def test_check_fails_a_checkpoint_that_is_not_what_the_plan_says(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "check", packed, "--plan", "unsloth@4")
    assert status == 1
    assert err.startswith(f"mixbit: {packed} is not what it should be: 10 errors, the first: ")
    assert f"says not quantised for {OUT}, but its tensors are affine 8/64" in out
    status, out, _ = run(capsys, "check", packed, "--plan", "unsloth@4", "--json", "-")
    assert status == 1
    assert len(json.loads(out)["findings"]) == 10


@pytest.mark.parametrize(
    "arguments",
    [("convert", "p", "--out", "o"), ("convert", "p", "--to", "gguf", "--out", "o"), ("diff", "p"),
     ("check",), ("show", "p", "--on-conflict", "guess"), ("show", "p", "--target-bpw", "few")],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", *arguments])
    assert leaving.value.code == 2
