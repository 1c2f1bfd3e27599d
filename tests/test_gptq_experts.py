"""GPTQ for stacks of experts: the definition in fp64, and what it is good for on other text."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest

from kernel_cases import codes_of, double
from mixbit.calibration import Calibration, InputStatistics
from mixbit.calibration.run import calibrate
from mixbit.checkpoint import describe, read_config
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize
from mixbit.quantization.methods import Choice, Feedback, gptq, rtn, search
from mixbit.quantization.methods import refine as refining
from models import build, save_raw
from test_gptq import believed, by_definition, correlated
from test_quantize_methods import normal

MODELS = ("qwen3_5_moe", "qwen3_next")


def seen_apart(inputs: list[np.ndarray], hessian: np.ndarray | None = None) -> InputStatistics:
    """Statistics of experts that read ``inputs``, their Hessians or the one given."""
    own = np.stack([x.T @ x / max(len(x), 1) for x in inputs])
    return InputStatistics(
        mx.array(np.diagonal(own, axis1=1, axis2=2).astype(np.float32)),
        mx.array([float(len(x)) for x in inputs]),
        hessian=mx.array((own if hessian is None else hessian).astype(np.float32)),
    )


@pytest.mark.parametrize(("bits", "group", "K"), [(2, 32, 96), (3, 64, 128), (4, 32, 64)])
def test_each_expert_goes_by_its_own_inputs(
    bits: int, group: int, K: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refining, "_SWEEPS", 0)
    inputs = [correlated(K, count, seed) for seed, count in enumerate((600, 40, 7, 0, 200))]
    weight = normal(5, 7, K, dtype=mx.float32)
    choice = Choice.of("gptq")
    packed, reason = choice.pack(weight, seen_apart(inputs), bits, group, mx.float32)
    codes = codes_of(np.array(packed.weight), bits)
    for expert, x in enumerate(inputs):
        if not len(x):
            for ours, theirs in zip(packed, rtn(weight[expert], None, bits, group), strict=True):
                assert mx.array_equal(ours[expert], theirs)
            continue
        want = by_definition(double(weight[expert]), believed(x), bits, group)
        assert np.mean(codes[expert] == want) > 0.97, expert
    assert reason == "1 of 5 experts have no usable Hessian: calibration gave them no token."


def test_a_hessian_of_all_tokens_serves_every_expert() -> None:
    inputs = [correlated(64, count, seed) for seed, count in enumerate((90, 0, 31))]
    together = np.concatenate(inputs)
    statistics = seen_apart(inputs, together.T @ together / len(together))
    weight = normal(3, 9, 64)
    packed, reason = Choice.of("gptq+search").pack(weight, statistics, 3, 32, mx.bfloat16)
    assert reason is None
    for expert in range(3):
        want = gptq(weight[expert], Feedback.of(statistics), 3, 32, scales=search)
        for ours, theirs in zip(packed, want, strict=True):
            assert mx.array_equal(ours[expert], theirs)


def write_text(path: Path, seed: int, documents: int) -> Path:
    """Documents of tokens of which a few are frequent, as in any language."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, 257)
    lines = (rng.choice(256, 48, p=shares / shares.sum()).tolist() for _ in range(documents))
    path.write_text("\n".join(json.dumps({"tokens": line}) for line in lines))
    return path


def calibrated_experts(tmp_path: Path, model_type: str) -> tuple[Path, Path, Plan]:
    """A model, its calibration and a plan that packs nothing but experts."""
    source = save_raw(model_type, tmp_path / "source")
    out = tmp_path / "c.safetensors"
    calibrate(source, write_text(tmp_path / "data.jsonl", 1, 20), out, hessian="switch_mlp")
    modules = {m.path: QuantSpec(3, 64) for m in describe(source).modules if m.kind == "switch"}
    return source, out, Plan(modules)


def log_softmax(logits: mx.array) -> np.ndarray:
    values = np.array(logits, np.float64)
    values -= values.max(-1, keepdims=True)
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def inputs_of_blocks(model: nn.Module, tokens: mx.array) -> list[mx.array]:
    """What the mixture of experts of each layer reads."""
    read, block = [], type(model.layers[0].mlp)
    with pytest.MonkeyPatch.context() as patch:
        call = block.__call__
        patch.setattr(block, "__call__", lambda self, x: read.append(x) or call(self, x))
        mx.eval(model(tokens))
    return read


@pytest.mark.parametrize("model_type", MODELS)
def test_less_is_lost_on_text_that_calibration_has_not_seen(
    tmp_path: Path, model_type: str
) -> None:
    source, calibration, plan = calibrated_experts(tmp_path, model_type)
    text = write_text(tmp_path / "other.jsonl", 2, 12).read_text().splitlines()
    tokens = mx.array([json.loads(line)["tokens"] for line in text])
    model = build(model_type)
    want, inputs = log_softmax(model(tokens)), inputs_of_blocks(model, tokens)
    lost, divergence = [], []
    for method in ("rtn", "search", "gptq+search"):
        out = tmp_path / method
        quantize(source, out, plan=plan, method=method, calibration=calibration, dtype="float32")
        packed, _ = mlx_lm.load(str(out))
        got = log_softmax(packed(tokens))
        divergence.append(float((np.exp(want) * (want - got)).sum(-1).mean()))
        errors = [
            mx.square(theirs.mlp(x) - ours.mlp(x)).sum().item()
            for ours, theirs, x in zip(model.layers, packed.layers, inputs, strict=True)
        ]
        lost.append(np.array(errors))
    assert (lost[2] < 0.9 * lost[1]).all() and (lost[1] < lost[0]).all()
    assert divergence[2] < 0.8 * divergence[1] < divergence[0]


def test_a_calibration_without_hessians_of_experts_still_serves(tmp_path: Path) -> None:
    """As made before there were any."""
    source, calibration, plan = calibrated_experts(tmp_path, "qwen3_5_moe")
    tensors, metadata = mx.load(str(calibration), return_metadata=True)
    left = {k: v for k, v in tensors.items() if not k.endswith("down_proj.hessian")}
    assert len(left) == len(tensors) - 4
    old = tmp_path / "old.safetensors"
    mx.save_safetensors(str(old), left, metadata)
    report = quantize(source, tmp_path / "out", plan=plan, method="gptq+search", calibration=old)
    down = {path for path in plan.modules if path.endswith("down_proj")}
    assert report.fallbacks == dict.fromkeys(down, "It has no Hessian: calibrate with --hessian.")
    quantize(source, tmp_path / "plain", plan=plan, method="search", calibration=old)
    packed, plain = (mx.load(str(tmp_path / n / "model.safetensors")) for n in ("out", "plain"))
    for path in plan.modules:
        alike = mx.array_equal(packed[f"{path}.weight"], plain[f"{path}.weight"]).item()
        assert alike == (path in down), path


def test_hessians_of_another_width_are_refused(tmp_path: Path) -> None:
    source, calibration, _ = calibrated_experts(tmp_path, "qwen3_5_moe")
    tensors, metadata = mx.load(str(calibration), return_metadata=True)
    name = next(name for name in tensors if name.endswith("down_proj.hessian"))
    tensors[name] = tensors[name][:5]
    mx.save_safetensors(str(calibration), tensors, metadata)
    with pytest.raises(MixbitError, match=r"down_proj have shape \(5, 64, 64\), not \(6, 64, 64\)"):
        Calibration.load(calibration, read_config(source))
