"""``quantize`` by methods that use statistics, on random models of every family."""

import json
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten

from kld_runs import run_killed_often
from mixbit.calibration import Calibration, readers_of_norms
from mixbit.calibration.run import calibrate
from mixbit.checkpoint import TensorInfo, read_config, structure_of
from mixbit.checkpoint import read_rows as checkpoint_rows
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec, with_methods
from mixbit.quantization import quantiser, quantize
from mixbit.quantization.embedding import embedding_statistics
from mixbit.quantization.methods import Choice
from models import MODEL_TYPES, build, save_raw
from test_calibration import write_tokens
from test_quantize import tensors


def calibrated(tmp_path: Path, model_type: str, dtype: mx.Dtype = mx.bfloat16) -> tuple[Path, Path]:
    """A model and its calibration."""
    source, out = tmp_path / "source", tmp_path / "c.safetensors"
    save_raw(model_type, source, dtype=dtype)
    calibrate(source, write_tokens(tmp_path / "data.jsonl", (30, 20)), out, hessian="")
    return source, out


def weight_of(model: object, path: str) -> mx.array:
    for part in path.split("."):
        model = model[int(part)] if part.isdigit() else model[part]  # type: ignore[index]
    return model.weight  # type: ignore[attr-defined]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("method", ["search", "gptq+search"])
def test_each_module_is_packed_by_its_own_statistics(
    tmp_path: Path, model_type: str, method: str
) -> None:
    source, calibration = calibrated(tmp_path, model_type, dtype=mx.float32)
    plan = Plan.load("unsloth-2026-06@3", model=source)
    report = quantize(
        source,
        tmp_path / "out",
        plan=plan,
        method=method,
        calibration=calibration,
        dtype="bfloat16",
    )
    stored, model = tensors(tmp_path / "out"), build(model_type)
    statistics = Calibration.load(calibration, read_config(source))
    choice, fallbacks = Choice.of(method), set()
    for path, spec in plan.modules.items():
        weight = weight_of(model, path).astype(mx.bfloat16)
        if spec is None:
            assert mx.array_equal(stored[f"{path}.weight"], weight)
            continue
        seen = statistics.of(path)
        if path.endswith("embed_tokens"):
            weights = dict(tree_flatten(model.parameters()))
            seen = embedding_statistics(weights, readers_of_norms(plan.modules))
        packed, reason = choice.pack(weight, seen, spec.bits, spec.group_size, mx.bfloat16)
        fallbacks |= {path} if reason else set()
        for part, want in zip(("weight", "scales", "biases"), packed, strict=True):
            assert mx.array_equal(stored[f"{path}.{part}"], want), path
    assert report.fallbacks.keys() == fallbacks
    if method == "gptq+search":  # some experts were given no token
        assert all("switch_mlp.down_proj" in path for path in fallbacks)
    sidecar = json.loads((tmp_path / "out" / "mixbit.json").read_text())["provenance"]
    packed_modules = sum(spec is not None for spec in plan.modules.values())
    assert sidecar["methods"] == report.methods == {method: packed_modules}
    assert sidecar["calibration"]["tokens"] == 50
    loaded, _ = mlx_lm.load(str(tmp_path / "out"))
    assert mx.isfinite(loaded(mx.array([[1, 5, 9]]))).all()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_errors_of_the_embedding_cost_what_the_first_layer_makes_of_them(model_type: str) -> None:
    model = build(model_type)
    paths = [module.path for module in structure_of(model, model_type).modules]
    weights = dict(tree_flatten(model.parameters()))
    statistics = embedding_statistics(weights, readers_of_norms(paths))
    assert statistics is not None
    assert statistics.hessian is not None
    assert mx.array_equal(statistics.mean_square, mx.diagonal(statistics.hessian))
    layer = model.layers[0]
    mixer, mlp = layer.linear_attn, layer.mlp
    ffn = ("gate_proj", "up_proj")
    blocks = [(layer.input_layernorm, [m for n, m in mixer.children().items() if "in_proj" in n])]
    if model_type == "qwen3_5":
        blocks.append((layer.post_attention_layernorm, [mlp[name] for name in ffn]))
    else:
        shared = [mlp.shared_expert[name] for name in ffn]
        blocks.append((layer.post_attention_layernorm, [*shared, mlp.gate, mlp.shared_expert_gate]))
    e = np.random.default_rng(0).normal(size=64)
    cost = sum(
        float(((np.array(m.weight, np.float64) @ (np.array(norm.weight) * e)) ** 2).sum())
        for norm, readers in blocks
        for m in readers
    )
    assert e @ np.array(statistics.hessian, np.float64) @ e == pytest.approx(cost, rel=1e-5)


KILLED = """
import sys
from pathlib import Path
from mixbit.quantization import quantize
source, out, calibration, plan, calls = sys.argv[1:]
if Path(out).exists():
    sys.exit()  # killed between the last step and the end
if int(calls):
    die_after(int(calls))
print("begun", flush=True)
quantize(source, out, plan=plan, calibration=calibration, max_shard_bytes=40_000)
"""


@pytest.mark.parametrize(
    ("model_type", "methods"),
    [
        ("qwen3_5", ["awq+gptq+search"]),
        ("qwen3_5_moe", ["awq+gptq+search"]),
        ("qwen3_5", ["gptq+search", "in_proj_qkv|q_proj|down_proj=awq", "lm_head|up_proj=rtn"]),
    ],
)
def test_a_run_killed_again_and_again_comes_to_the_same_bytes(
    tmp_path: Path, model_type: str, methods: list[str], long_grid: bool
) -> None:
    source, calibration = calibrated(tmp_path, model_type)
    plan = tmp_path / "plan.json"
    with_methods(Plan.load("uniform-3", model=source), methods).save(plan)
    options = {"plan": plan, "calibration": calibration}
    whole = quantize(source, tmp_path / "whole", max_shard_bytes=40_000, **options)
    kills = 12 if long_grid else 3
    arguments = (source, tmp_path / "out", calibration, plan)
    run_killed_often(KILLED, *arguments, kills=kills, steps=12, seconds=0.6)
    if not (tmp_path / "out").exists():
        report = quantize(source, tmp_path / "out", max_shard_bytes=40_000, **options)
        assert (report.changed, report.fallbacks) == (whole.changed, whole.fallbacks)
    files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    assert not (tmp_path / ".out.part").exists()


@pytest.mark.parametrize("method", ["rtn", "awq+search", "awq+gptq+search"])
def test_large_matrices_are_packed_some_rows_at_a_time_to_the_same_bytes(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, calibration = calibrated(tmp_path, "qwen3_5")
    options = {"plan": "uniform-4", "method": method, "calibration": calibration}
    quantize(source, tmp_path / "whole", **options)
    read: list[int] = []

    def read_rows(info: TensorInfo, begin: int, end: int) -> mx.array:
        read.append(end - begin)
        return checkpoint_rows(info, begin, end)

    monkeypatch.setattr(quantiser, "_PIECE", 1000)
    monkeypatch.setattr(quantiser, "read_rows", read_rows)
    quantize(source, tmp_path / "pieces", **options)
    assert max(read) == 15 and 256 % 15 and read.count(256 % 15) >= 2  # embedding and head
    a, b = (tmp_path / name / "model.safetensors" for name in ("whole", "pieces"))
    assert a.read_bytes() == b.read_bytes()


def test_modes_without_scales_to_choose_are_rounded_with_a_note(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    path = "language_model.model.layers.0.mlp.up_proj"
    plan = Plan({path: QuantSpec(4, 32, "mxfp4")})
    report = quantize(source, tmp_path / "out", plan=plan, method="search")
    assert report.fallbacks == {path: "Mode mxfp4 is rounded to nearest."}


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    out = tmp_path / "out"
    with pytest.raises(MixbitError, match="gptq needs a calibration"):
        quantize(source, out, plan="uniform-4", method="gptq")
    with pytest.raises(MixbitError, match="no method 'best'"):
        quantize(source, out, plan="uniform-4", method="best")
    with pytest.raises(MixbitError, match="There is no calibration file"):
        quantize(source, out, plan="uniform-4", calibration=tmp_path / "missing")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
