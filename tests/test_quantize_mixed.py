"""``quantize`` by plans that give modules methods of their own."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mixbit.calibration import Calibration
from mixbit.checkpoint import describe
from mixbit.cli import main
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec, with_methods
from mixbit.quantization import quantize
from mixbit.quantization.fold import LayerScales, folds_of, solve
from mixbit.quantization.methods import Choice
from models import build, config, save_raw
from test_quantize import tensors
from test_quantize_calibrated import calibrated

PARTS = ("weight", "scales", "biases")
HEAD = "language_model.lm_head"
# Unsloth's recipe: attention by AWQ. Its o_proj is dense, so that no fold reaches another module.
RULES = ("gptq+search", r"self_attn\.[qkv]_proj=awq", r"down_proj|\.gate$=rtn", "in_proj=search")


def alone(source: Path, folder: Path, plan: Plan, calibration: Path) -> dict[str, Mapping]:
    """What each method gives when it serves all modules."""
    made = {}
    for method in sorted({plan.method_of(path) or "rtn" for path in plan.modules}):
        plain = replace(plan, method=None, methods={})
        quantize(source, folder / method, plan=plain, method=method, calibration=calibration)
        made[method] = tensors(folder / method)
    return made


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_moe"])
def test_each_module_is_what_its_method_alone_makes_of_it(tmp_path: Path, model_type: str) -> None:
    source, calibration = calibrated(tmp_path, model_type)
    plan = with_methods(Plan.load("unsloth-2026-03@3", model=source), RULES)
    report = quantize(source, tmp_path / "out", plan=plan, calibration=calibration)
    stored = tensors(tmp_path / "out")
    made = alone(source, tmp_path / "alone", plan, calibration)
    kinds: dict[str, int] = {}
    for path, spec in plan.modules.items():
        if spec is None:
            assert mx.array_equal(stored[f"{path}.weight"], made["rtn"][f"{path}.weight"])
            continue
        method = plan.method_of(path)
        assert method is not None
        kinds[method] = kinds.get(method, 0) + 1
        for part in PARTS:
            assert mx.array_equal(stored[f"{path}.{part}"], made[method][f"{path}.{part}"]), path
        others = [name for name in made if not mx.array_equal(
            stored[f"{path}.weight"], made[name][f"{path}.weight"])]  # fmt: skip
        # At 8 bits methods may well agree.
        assert len(others) == len(made) - 1 or spec.bits > 6 or HEAD in path, (path, others)
    assert len(kinds) == 4
    norm = "language_model.model.layers.3.input_layernorm.weight"
    assert mx.array_equal(stored[norm], made["awq"][norm])
    assert not mx.array_equal(stored[norm], made["rtn"][norm])
    assert report.methods == kinds
    assert (report.changed, report.notes) == (4, [])
    sidecar = json.loads((tmp_path / "out" / "mixbit.json").read_text())
    assert sidecar["provenance"]["methods"] == kinds
    assert Plan.load(tmp_path / "out") == plan
    block = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    assert block == plan.to_mlx_config()
    loaded, _ = mlx_lm.load(str(tmp_path / "out"))
    assert mx.isfinite(loaded(mx.array([[1, 5, 9]]))).all()


@pytest.mark.parametrize(
    ("model_type", "asking"),
    [("qwen3_5", "in_proj_qkv$"), ("qwen3_5_moe", r"\.gate$"), ("qwen3_next", "in_proj_ba$")],
)
def test_all_readers_of_a_norm_are_scaled_where_one_asks(
    tmp_path: Path, model_type: str, asking: str
) -> None:
    """Each is packed by its own method, in the trials of the scale as well."""
    source, file = calibrated(tmp_path, model_type, dtype=mx.float32)
    uniform = Plan.load("uniform-3", model=source)
    plan = with_methods(uniform, ["gptq+search", f"layers\\.0\\..*{asking}=awq+search", "mlp=rtn"])
    report = quantize(source, tmp_path / "out", plan=plan, calibration=file)
    stored, settings = tensors(tmp_path / "out"), config(model_type)
    calibration = Calibration.load(file, settings)
    weights = dict(tree_flatten(build(model_type).parameters()))
    (asker,) = (path for path, method in plan.methods.items() if method == "awq+search")
    layer = next(iter(folds_of(describe(settings), settings).values()))
    (fold,) = (fold for fold in layer if asker in fold.readers)
    choices = {path: Choice.of(plan.method_of(path) or "") for path in plan.modules}
    trials = {path: choice.scales for path, choice in choices.items()}
    scale, scales = solve(fold, weights, plan.modules, calibration, trials), LayerScales()
    assert scale is not None
    scales.add(fold, scale, weights[f"{fold.source}.weight"])
    assert len(fold.readers) > 1
    assert {choices[reader].name for reader in fold.readers} > {"awq+search"}
    assert report.changed == len(fold.readers) + 1
    assert mx.array_equal(stored[f"{fold.source}.weight"], scales.norms[fold.source])
    for path in plan.modules:
        if path.endswith("embed_tokens"):
            continue
        spec, seen, name = plan.modules[path], calibration.of(path), f"{path}.weight"
        assert spec is not None
        weight = scales.parameter(name, weights[name])
        known = None if seen is None else scales.statistics(path, seen)
        packed, _ = choices[path].pack(weight, known, spec.bits, spec.group_size, mx.float32)
        for part, want in zip(PARTS, packed, strict=True):
            assert mx.array_equal(stored[f"{path}.{part}"], want), path


def test_a_mixed_fold_computes_what_the_source_does(tmp_path: Path) -> None:
    source, calibration = calibrated(tmp_path, "qwen3_5", dtype=mx.float32)
    uniform = Plan.load("uniform-8", model=source)
    mixed = with_methods(uniform, ["in_proj_qkv|up_proj|o_proj=awq+search"])
    for name, plan in {"plain": uniform, "folded": mixed}.items():
        quantize(source, tmp_path / name, plan=plan, calibration=calibration, dtype="float32")
    tokens = mx.array([[1, 5, 9, 200, 3, 77, 13, 8, 41]])
    want = build("qwen3_5")(tokens)
    plain, folded = (
        float(mx.abs(mlx_lm.load(str(tmp_path / name))[0](tokens) - want).mean().item())
        for name in ("plain", "folded")
    )
    assert folded < 4 * plain  # a wrong fold is off by hundreds


def test_a_fold_that_only_an_fp_mode_asks_for_is_none(tmp_path: Path) -> None:
    source, calibration = calibrated(tmp_path, "qwen3_5")
    qkv = "language_model.model.layers.0.linear_attn.in_proj_qkv"
    modules = dict(Plan.load("uniform-3", model=source).modules)
    plan = Plan(modules | {qkv: QuantSpec(4, 32, "mxfp4")}, methods={qkv: "awq"})
    with pytest.raises(MixbitError, match="awq found no scale that helps: nothing that it is to"):
        quantize(source, tmp_path / "out", plan=plan, calibration=calibration)
    assert not (tmp_path / "out").exists()
    report = quantize(
        source, tmp_path / "out", plan=replace(plan, methods={qkv: "search"}), method="gptq",
        calibration=calibration,
    )  # fmt: skip
    assert report.fallbacks == {qkv: "Mode mxfp4 is rounded to nearest."}
    assert report.methods == {"gptq": len(modules) - 1, "search": 1}


def test_a_missing_calibration_and_unknown_methods_are_told(tmp_path: Path) -> None:
    source, out = save_raw("qwen3_5", tmp_path / "source"), tmp_path / "out"
    plan = with_methods(Plan.load("uniform-4", model=source), ["lm_head=gptq"])
    with pytest.raises(
        MixbitError,
        match=f"Method gptq, which plan uniform-4 names for {HEAD}, needs a calibration; make one",
    ):
        quantize(source, out, plan=plan, method="search")
    with pytest.raises(MixbitError, match=r"Method awq, which plan uniform-4 names for .*embed_to"):
        quantize(source, out, plan=replace(plan, method="awq"))
    with pytest.raises(MixbitError, match="Method gptq needs a calibration"):
        quantize(source, out, plan=replace(plan, methods={}), method="gptq")
    with pytest.raises(MixbitError, match=f"cannot be applied to {HEAD}: there is no method 'best"):
        quantize(source, out, plan=replace(plan, methods={HEAD: "best"}))
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_what_becomes_of_a_method_beside_the_plan_s_is_told(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    plan = Plan({HEAD: QuantSpec(4, 64)}, "one", method="rtn")
    cases: dict[str, tuple[Plan, str | None, list[str], str]] = {
        "as the plan says": (plan, None, [], "rtn"),
        "alike": (plan, "rtn", [], "rtn"),
        "other": (
            plan, "search", ["plan one names rtn, in whose place search was taken"], "search",
        ),
        "none for it": (
            replace(plan, method=None, methods={HEAD: "search"}), "rtn",
            ["method rtn took no part: plan one names one for every module"], "search",
        ),
    }  # fmt: skip
    made = {}
    for name, (case, method, notes, used) in cases.items():
        report = quantize(source, tmp_path / name, plan=case, method=method)
        assert (report.notes, report.methods) == (notes, {used: 1})
        made[name] = (tmp_path / name / "model.safetensors").read_bytes()
    assert made["as the plan says"] == made["alike"] != made["other"] == made["none for it"]
    # A checkpoint's plan has the method that it was made by.
    assert Plan.load(tmp_path / "other").method == "search"
    quantize(source, tmp_path / "again", plan=tmp_path / "other")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == made["other"]


def test_a_plan_with_other_methods_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    def stop(done: int, *_: object) -> None:
        if done == 20:
            raise KeyboardInterrupt

    source, out = save_raw("qwen3_5", tmp_path / "source"), tmp_path / "out"
    plan = with_methods(Plan.load("uniform-4", model=source), ["mlp=search"])
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, plan=plan, progress=stop)
    with pytest.raises(MixbitError, match="out was begun with another plan; finish that"):
        quantize(source, out, plan=with_methods(plan, ["lm_head=search"]))
    quantize(source, out, plan=plan)
    quantize(source, tmp_path / "whole", plan=plan)
    names = [file.name for file in out.iterdir()]
    assert all((out / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)


def test_the_command_takes_methods_for_all_and_for_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    base = ["quantize", "--model", str(source), "--recipe", "uniform", "--q-bits", "4"]
    both = ["--method", "search", "--method", "mlp=rtn"]
    assert main([*base, *both, "--mlx-path", str(tmp_path / "a")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    plan = with_methods(Plan.load("uniform-4", model=source), ["search", "mlp=rtn"])
    assert Plan.load(tmp_path / "a") == plan
    mlp = len(plan.methods)
    assert f"method search ({len(plan.modules) - mlp} modules), rtn ({mlp} modules)" in shown
    plan.save(tmp_path / "plan.json")
    given = ["quantize", "--model", str(source), "--plan", str(tmp_path / "plan.json")]
    assert main([*given, "--method", "rtn", "--mlx-path", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert f"note: plan {plan.name} names search, in whose place rtn was taken" in shown
    assert np.isin(["method", "rtn"], shown.split()).all()
    assert main([*base, "--method", "mpl=rtn", "--mlx-path", str(tmp_path / "c")]) == 1
    assert "the pattern 'mpl' matches nothing" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
