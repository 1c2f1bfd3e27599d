"""The scale of a fold, by activations (Lin et al., 2023): a grid over the exponent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from mixbit.calibration import Calibration, InputStatistics
from mixbit.plan import QuantSpec
from mixbit.quantization.fold.apply import LayerScales
from mixbit.quantization.fold.folds import Fold
from mixbit.quantization.methods import Method

_EXPONENTS = tuple(i / 10 for i in range(1, 11))
# A channel that calibration left asleep is taken to carry so much of the mean.
_LEAST = 1e-3
# Rows of each reader, and of each of some experts, that the error is measured on.
_ROWS, _EXPERTS = 64, 8


@dataclass(frozen=True)
class _Sample:
    """Some rows [n, K] of a reader, or of some of its experts [e, n, K], and what they read."""

    path: str
    rows: mx.array
    mean_square: mx.array
    """[K], or [e, K]"""
    share: mx.array
    """Of the inputs, that each expert sees: [e, 1, 1]; 1 where there are none."""
    experts: slice
    spec: QuantSpec
    dtype: mx.Dtype
    """Of scales and biases."""

    def output(self, weight: mx.array) -> mx.array:
        """Mean square of the outputs, by mean squares of the inputs alone, summed over rows."""
        return (self.share * weight.square() * self.beside(self.mean_square)).sum()

    def beside(self, channels: mx.array) -> mx.array:
        """Values [K] or [e, K] of the columns, to go with ``rows``."""
        return channels[:, None] if channels.ndim == 2 else channels


def solve(
    fold: Fold,
    weights: Mapping[str, mx.array],
    specs: Mapping[str, QuantSpec | None],
    calibration: Calibration,
    methods: Mapping[str, Method],
    dtype: mx.Dtype | None = None,
) -> mx.array | None:
    """The scale with the least error of the readers' outputs over calibration text.

    The candidates are powers from 0.1 to 1 of the mean absolute value of each channel (of its root
    mean square, if the calibration has no other), divided by the root of the largest times the
    least. The error of a reader counts relative to its output.

    Args:
        fold: where the scale goes.
        weights: parameters of the layer by name.
        specs: how modules are packed.
        calibration: statistics of the readers' inputs.
        methods: what packs a trial, by the reader's path.
        dtype: of scales and biases; None for that of the weights.

    Returns:
        float32 [outer * inner], or [E, outer * inner] for experts that each have their own; None if
        no candidate is better than no scale, or nothing is known of the input.
    """
    magnitude = _magnitude(fold, calibration)
    found = [_sample(reader, weights, specs, calibration, dtype) for reader in fold.readers]
    samples = [sample for sample in found if sample is not None]
    if magnitude is None or not samples:
        return None

    def error(scale: mx.array) -> float:
        losses = [_loss(sample, fold, scale, methods[sample.path]) for sample in samples]
        return float(mx.stack(losses).sum().item().real)

    best, least = None, error(mx.ones_like(magnitude))
    for exponent in _EXPONENTS:
        scale = magnitude**exponent
        scale = scale / mx.sqrt(scale.max(-1, keepdims=True) * scale.min(-1, keepdims=True))
        if (trial := error(scale)) < least:
            best, least = scale, trial
    return best


def _magnitude(fold: Fold, calibration: Calibration) -> mx.array | None:
    """Of each scale's channels, positive; None if the calibration does not know them."""
    found = [calibration.of(reader, hessian=False) for reader in fold.readers]
    known = [statistics for statistics in found if statistics is not None]
    # Of readers of one norm those that are no experts saw every token.
    whole = [s for s in known if s.mean_square.ndim == 1] if len(fold.readers) > 1 else known
    if not whole:
        return None
    absolute = whole[0].mean_abs
    values = mx.sqrt(whole[0].mean_square) if absolute is None else absolute
    outer, repeats, inner = fold.heads
    values = values.reshape(*values.shape[:-1], outer, repeats, inner).mean(axis=-2)
    values = values.reshape(*values.shape[:-2], outer * inner)
    mean = values.mean(axis=-1, keepdims=True)
    return mx.where(mean > 0, mx.maximum(values, _LEAST * mean), 1)


def _sample(
    path: str,
    weights: Mapping[str, mx.array],
    specs: Mapping[str, QuantSpec | None],
    calibration: Calibration,
    dtype: mx.Dtype | None,
) -> _Sample | None:
    """None for a reader that is not packed with scales, or of whose input nothing is known."""
    spec, statistics = specs.get(path), calibration.of(path, hessian=False)
    if spec is None or spec.mode != "affine" or statistics is None:
        return None
    weight = weights[f"{path}.weight"]
    rows = weight[..., :: max(1, weight.shape[-2] // _ROWS), :]
    if rows.ndim == 2:
        share, experts = mx.array(1.0), slice(None)
    else:
        experts = slice(None, None, max(1, len(rows) // _EXPERTS))
        counts = statistics.count[experts]
        share = (counts / mx.maximum(counts.sum(), 1))[:, None, None]
        rows = rows[experts]
    return _Sample(
        path,
        rows.astype(mx.float32),
        statistics.mean_square[experts],
        share,
        experts,
        spec,
        dtype or weight.dtype,
    )


def _loss(sample: _Sample, fold: Fold, scale: mx.array, method: Method) -> mx.array:
    """What packing loses of the sample's outputs, relative to them."""
    scales = LayerScales()
    scales.add(fold, scale, None)
    columns = scales.columns[sample.path]
    columns = columns[sample.experts] if columns.ndim == 2 else columns
    spec, beside = sample.spec, sample.beside(columns)
    seen = InputStatistics(sample.mean_square / columns.square(), mx.array(1.0))
    packed = method(sample.rows * beside, seen, spec.bits, spec.group_size, dtype=sample.dtype)
    lost = sample.output(packed.values(spec.bits, spec.group_size) / beside - sample.rows)
    return lost / mx.maximum(sample.output(sample.rows), 1e-30)
