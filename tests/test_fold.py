"""Scales moved between layers change nothing, and no reader of a channel may be left out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mixbit.calibration import Calibration, InputStatistics
from mixbit.checkpoint import TensorInfo, describe, structure_of
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize
from mixbit.quantization.fold import Fold, LayerScales, folds_of, solve
from mixbit.quantization.methods import Choice, clip, rtn, search
from models import MODEL_TYPES, build, config, save_checkpoint
from test_quantize import tensors
from test_quantize_calibrated import calibrated
from test_quantize_methods import error, normal, seen, uneven

TOKENS = mx.array([[1, 5, 9, 200, 3, 77, 13, 8, 41]])
UNEVEN = {
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}


def scaled(model: nn.Module, folds: Mapping[str, list[Fold]], seed: int = 0) -> nn.Module:
    """The model in place, with a random scale in every fold."""
    rng = np.random.default_rng(seed)
    weights = dict(tree_flatten(model.parameters()))
    for its_folds in folds.values():
        scales = LayerScales()
        for fold in its_folds:
            source = weights[f"{fold.source}.weight"]
            outer, _, inner = fold.heads
            experts = source.shape[:-2] if not fold.is_norm else ()
            scale = np.exp(rng.normal(0, 0.5, (*experts, outer * inner))).astype(np.float32)
            scales.add(fold, mx.array(scale), source if fold.is_norm else None)
        weights = {name: scales.parameter(name, value) for name, value in weights.items()}
    model.load_weights(list(weights.items()))
    return model


def folds_in(model: nn.Module, settings: Mapping[str, Any]) -> dict[str, list[Fold]]:
    return folds_of(structure_of(model, settings["model_type"]), settings)


def difference(a: nn.Module, b: nn.Module) -> float:
    return float(mx.abs(a(TOKENS) - b(TOKENS)).max().item())


@pytest.mark.parametrize("overrides", [{}, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_fold_changes_no_logit(model_type: str, overrides: dict[str, Any]) -> None:
    settings = config(model_type, **overrides)
    model = build(model_type, **overrides)
    if overrides:  # as with attention_bias
        attention = model.layers[3].self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            attention[name].bias = 0.1 * mx.random.normal((len(attention[name].weight),))
    before = model(TOKENS)
    mx.eval(before)
    after = scaled(model, folds_in(model, settings))(TOKENS)
    assert mx.abs(after - before).max().item() <= 5e-6


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_forgotten_reader_is_felt(model_type: str) -> None:
    settings, reference = config(model_type), build(model_type)
    folds = folds_in(reference, settings)
    readers = {reader for its in folds.values() for fold in its for reader in fold.readers}
    layer = next(iter(folds))
    attention = next(name for name in folds if any("o_proj" in f.readers[0] for f in folds[name]))
    for name in (layer, attention):
        for index, fold in enumerate(folds[name]):
            for reader in fold.readers:
                rest = tuple(r for r in fold.readers if r != reader)
                others = [f for i, f in enumerate(folds[name]) if i != index]
                wrong = {name: [*others, replace(fold, readers=rest)]}
                assert difference(scaled(build(model_type), wrong), reference) > 1e-3, reader
    structure = structure_of(reference, model_type)
    unread = {module.path for module in structure.modules} - readers
    assert {path.rpartition(".")[2] for path in unread} == {"embed_tokens", "lm_head"}


def test_all_readers_of_norms_are_known() -> None:
    expected = {
        "qwen3_5": (4, 2),
        "qwen3_5_moe": (4, 6),
        "qwen3_next": (2, 6),
    }
    for model_type, (mixer, ffn) in expected.items():
        structure = describe(config(model_type))
        norms = [f for f in folds_of(structure, config(model_type))[_first(structure)] if f.is_norm]
        assert [len(f.readers) for f in norms if f.source.endswith("input_layernorm")] == [mixer]
        assert [len(f.readers) for f in norms if "post_attention" in f.source] == [ffn]


def _first(structure: Any) -> str:
    path = next(m.path for m in structure.modules if ".layers.0." in m.path)
    return path[: path.index("layers.0.") + len("layers.0.")]


def test_a_norm_in_16_bits_loses_nothing() -> None:
    fold = Fold(("a",), "norm", True, (1, 1, 64))
    norm = mx.random.normal((64,)).astype(mx.bfloat16)
    norm[3] = 0
    scales = LayerScales()
    scales.add(fold, mx.exp(mx.random.normal((64,))), norm)
    product = scales.norms["norm"].astype(mx.float32) * scales.columns["a"]
    np.testing.assert_allclose(np.array(product), np.array(norm.astype(mx.float32)), rtol=1e-6)
    assert scales.columns["a"][3].item() == 1
    assert scales.norms["norm"].dtype == mx.bfloat16


def test_other_models_are_refused() -> None:
    structure = replace(describe(config("qwen3_5")), model_type="llama")
    with pytest.raises(MixbitError, match="knows which modules share an input"):
        folds_of(structure, {})


PLAIN = Fold(("l.mlp.down_proj",), "l.mlp.up_proj", False, (1, 1, 128))
SPECS = {"l.mlp.down_proj": QuantSpec(3, 64)}


def solved(weight: mx.array, mean_square: np.ndarray, mean_abs: np.ndarray | None) -> Any:
    statistics = seen(mean_square)
    if mean_abs is not None:
        statistics = replace(statistics, mean_abs=mx.array(mean_abs.astype(np.float32)))
    calibration = Calibration({"l.mlp.down_proj": statistics}, {})
    return solve(
        PLAIN, {"l.mlp.down_proj.weight": weight}, SPECS, calibration, {"l.mlp.down_proj": rtn}
    )


def test_the_scale_lowers_the_error_of_the_output() -> None:
    weight, h = normal(64, 128, dtype=mx.float32), uneven(128) ** 2
    for mean_abs in (None, 0.8 * np.sqrt(h)):
        scale = solved(weight, h, mean_abs)
        s = np.array(scale)
        packed = rtn(weight * scale, None, 3, 64)
        plain = rtn(weight, None, 3, 64)
        of_scaled = error(weight * scale, packed, h / s**2, 3, 64)
        assert of_scaled < 0.7 * error(weight, plain, h, 3, 64)
        assert np.sqrt(s.max() * s.min()) == pytest.approx(1, rel=1e-5)


def test_no_hessian_is_read_for_a_scale(tmp_path: Path) -> None:
    path = "l.mlp.down_proj"
    lost = {path: TensorInfo(tmp_path / "lost.safetensors", "F32", (128, 128), 1 << 16, 0)}
    weight, calibration = normal(64, 128), Calibration({path: seen(uneven(128))}, {}, lost)
    assert solve(PLAIN, {f"{path}.weight": weight}, SPECS, calibration, {path: rtn}) is not None
    with pytest.raises(MixbitError, match="cannot be read"):
        calibration.of(path)


@pytest.mark.parametrize("kind", ["dead", "all but one dead", "all dead", "signed"])
def test_odd_statistics_give_finite_scales(kind: str) -> None:
    weight, h = normal(32, 128, dtype=mx.float32), uneven(128)
    weight[:, :64] = 0  # a group of zeros
    mean_abs = np.sqrt(h)
    if kind == "dead":
        h[::2] = mean_abs[::2] = 0
    elif kind == "all but one dead":
        h[1:] = mean_abs[1:] = 0
    elif kind == "all dead":
        h[:] = mean_abs[:] = 0
    else:
        mean_abs[5] = -0.25
    scale = solved(weight, h, mean_abs)
    if scale is not None:
        assert np.isfinite(np.array(scale)).all()
        assert (np.array(scale) > 0).all()


def test_statistics_follow_the_scale() -> None:
    x = np.random.default_rng(0).normal(size=(50, 128))
    s = uneven(128).astype(np.float32)
    scales = LayerScales()
    scales.add(PLAIN, mx.array(s), None)

    def of(inputs: np.ndarray) -> InputStatistics:
        return InputStatistics(
            mx.array((inputs**2).mean(0).astype(np.float32)),
            mx.array(50.0),
            mx.array(np.abs(inputs).mean(0).astype(np.float32)),
            mx.array((inputs.T @ inputs / 50).astype(np.float32)),
        )

    got, want = scales.statistics("l.mlp.down_proj", of(x)), of(x / s)
    for name in ("mean_square", "mean_abs", "hessian"):
        ours, theirs = np.array(getattr(got, name)), np.array(getattr(want, name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("own", [True, False], ids=["own", "of all tokens"])
def test_statistics_of_experts_follow_the_scale(own: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 50, 128))
    s = np.exp(rng.normal(size=(3, 128) if own else 128)).astype(np.float32)
    scales = LayerScales()
    scales.add(PLAIN, mx.array(s), None)

    def of(inputs: np.ndarray) -> InputStatistics:
        rows = inputs if own else inputs.reshape(-1, 128)
        return InputStatistics(
            mx.array((inputs**2).mean(1).astype(np.float32)),
            mx.array([50.0, 50, 50]),
            mx.array(np.abs(inputs).mean(1).astype(np.float32)),
            mx.array((rows.swapaxes(-1, -2) @ rows / 50).astype(np.float32)),
        )

    scaled_inputs = x / (s[:, None] if own else s)
    got, want = scales.statistics("l.mlp.down_proj", of(x)), of(scaled_inputs)
    for name in ("mean_square", "mean_abs", "hessian"):
        ours, theirs = np.array(getattr(got, name)), np.array(getattr(want, name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_clipping_never_loses_more_than_rounding(bits: int) -> None:
    weight, h = normal(3, 9, 128), uneven(3, 128)
    clipped, plain = clip(weight, seen(h), bits, 64), rtn(weight, None, bits, 64)
    ours, theirs = (error(weight, p, h[:, None], bits, 64) for p in (clipped, plain))
    assert ours <= theirs * (1 + 1e-6)
    assert bits > 3 or ours < 0.9 * theirs
    with pytest.raises(MixbitError, match="NaN"):
        clip(mx.full((2, 64), np.nan), None, bits, 64)


def test_methods_with_awq() -> None:
    assert Choice.of("awq") == Choice("awq", clip, feedback=False, fold=True)
    choice = Choice.of("awq+gptq+search")
    assert (choice.scales, choice.feedback, choice.fold) == (search, True, True)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_raw_and_converted_sources_give_the_same(tmp_path: Path, model_type: str) -> None:
    """Hugging Face stores most norms less one: the scale has to divide the gain, not that."""
    raw, calibration = calibrated(tmp_path, model_type, dtype=mx.float32)
    converted = save_checkpoint(build(model_type), tmp_path / "converted")
    reports = [
        quantize(
            folder, tmp_path / name, plan="uniform-3", method="awq+search", calibration=calibration
        )
        for folder, name in ((raw, "a"), (converted, "b"))
    ]
    assert reports[0].changed == reports[1].changed > 20
    a, b = tensors(tmp_path / "a"), tensors(tmp_path / "b")
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert mx.array_equal(value, b[name]), name


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_is_written_computes_what_the_source_does(tmp_path: Path, model_type: str) -> None:
    source, calibration = calibrated(tmp_path, model_type, dtype=mx.float32)
    options = {"plan": "uniform-8", "calibration": calibration, "dtype": "float32"}
    quantize(source, tmp_path / "plain", method="search", **options)
    quantize(source, tmp_path / "folded", method="awq+search", **options)
    norm = next(n for n in tensors(tmp_path / "plain") if n.endswith("0.input_layernorm.weight"))
    assert not mx.array_equal(tensors(tmp_path / "plain")[norm], tensors(tmp_path / "folded")[norm])
    want = build(model_type)(TOKENS)
    errors = []
    for name in ("plain", "folded"):
        model, _ = mlx_lm.load(str(tmp_path / name))
        errors.append(mx.abs(model(TOKENS) - want).mean().item())
    assert errors[1] < 4 * errors[0]  # a wrong fold is off by hundreds


def test_awq_that_changes_nothing_is_an_error(tmp_path: Path) -> None:
    source, calibration = calibrated(tmp_path, "qwen3_5")
    head_only = Plan({"language_model.lm_head": QuantSpec(4, 64)})
    with pytest.raises(MixbitError, match="awq found no scale that helps"):
        quantize(source, tmp_path / "out", plan=head_only, method="awq", calibration=calibration)
    assert not (tmp_path / "out").exists()
    with pytest.raises(MixbitError, match="awq needs a calibration"):
        quantize(source, tmp_path / "out", plan="uniform-4", method="awq")


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("3.self_attn.k_proj.weight", np.nan),
        ("2.mlp.experts.down_proj", np.nan),
        ("0.input_layernorm.weight", -np.inf),
    ],
)
def test_a_weight_that_is_no_number_is_named(tmp_path: Path, name: str, bad: float) -> None:
    source, calibration = calibrated(tmp_path, "qwen3_5_moe")
    file = source / "model.safetensors"
    weights = {key: mx.array(value) for key, value in tensors(source).items()}
    (key,) = (key for key in weights if key.endswith(name))
    weights[key][..., 5] = bad
    mx.save_safetensors(str(file), weights, {"format": "pt"})
    options = {"plan": "uniform-3", "method": "awq+search", "calibration": calibration}
    with pytest.raises(MixbitError, match=rf"^Tensor {key} in {file} holds a NaN"):
        quantize(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("qwen3_5", mx.bfloat16), ("qwen3_5_moe", mx.float32)], ids=str
)
def test_weights_and_statistics_are_scaled_alike_before_packing(
    tmp_path: Path, model_type: str, dtype: mx.Dtype
) -> None:
    source, file = calibrated(tmp_path, model_type, dtype=mx.float32)
    plan = Plan.load("uniform-3", model=source)
    method, target = "awq+gptq+search", str(dtype).removeprefix("mlx.core.")
    quantize(source, tmp_path / "out", plan=plan, method=method, calibration=file, dtype=target)
    stored, settings = tensors(tmp_path / "out"), config(model_type)
    calibration, choice = Calibration.load(file, settings), Choice.of(method)
    weights = dict(tree_flatten(build(model_type).parameters()))
    structure = describe(settings)
    folds, scales = folds_of(structure, settings)[_first(structure)], LayerScales()
    methods = dict.fromkeys(plan.modules, search)
    for fold in folds:
        scale = solve(fold, weights, plan.modules, calibration, methods, dtype)
        if scale is not None:
            norm = weights[f"{fold.source}.weight"].astype(dtype) if fold.is_norm else None
            scales.add(fold, scale, norm)
    assert scales.changed > 3
    for path in scales.columns.keys() | scales.rows.keys():
        name, spec, seen = f"{path}.weight", plan.modules[path], calibration.of(path)
        assert spec is not None
        assert seen is not None
        packed, _ = choice.pack(
            scales.parameter(name, weights[name]),
            scales.statistics(path, seen),
            spec.bits,
            spec.group_size,
            dtype,
        )
        for part, want in zip(("weight", "scales", "biases"), packed, strict=True):
            assert mx.array_equal(stored[f"{path}.{part}"], want), path
