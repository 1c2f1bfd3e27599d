"""Rounding to nearest within a clipped range."""

from __future__ import annotations

import mlx.core as mx

from mixbit.calibration import InputStatistics
from mixbit.quantization.methods.packed import Packed, check_weight
from mixbit.quantization.methods.search import importance

# Share of a group's range that is kept.
_KEPT = tuple(1 - i / 20 for i in range(11))
# Weights worked on at once, so that the trials take little memory.
_CHUNK = 1 << 22


def clip(
    weight: mx.array,
    statistics: InputStatistics | None,
    bits: int,
    group_size: int,
    *,
    dtype: mx.Dtype | None = None,
) -> Packed:
    """``mx.quantize`` of the weight, each group clipped to the share of its range that loses least.

    Between half of the range and all of it, by squared errors weighed with the mean squares of the
    channels; the clipping of AWQ (Lin et al., 2023). A :class:`Method`.
    """
    check_weight(weight, bits, group_size)
    dtype = dtype or weight.dtype
    *leading, K = weight.shape
    h = mx.ones(K) if statistics is None else importance(statistics)
    rows = weight.reshape(-1, K)
    channels = mx.broadcast_to(h[..., None, :], weight.shape).reshape(-1, K)
    step = max(1, _CHUNK // K)
    parts = [
        _clip(rows[i : i + step], channels[i : i + step], bits, group_size, dtype)
        for i in range(0, len(rows), step)
    ]
    joined = (mx.concatenate(list(part)) for part in zip(*parts, strict=True))
    return Packed(*(part.reshape(*leading, -1) for part in joined))


def _clip(
    rows: mx.array, channels: mx.array, bits: int, group_size: int, dtype: mx.Dtype
) -> Packed:
    groups = rows.astype(mx.float32).reshape(len(rows), -1, group_size)
    weights = channels.reshape(groups.shape)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    best = least = None
    for kept in _KEPT:
        trial = mx.clip(groups, kept * low, kept * high).astype(dtype)
        packed = Packed(*mx.quantize(trial.reshape(rows.shape), group_size, bits))
        back = packed.values(bits, group_size)
        error = (weights * (back.reshape(groups.shape) - groups).square()).sum(-1, keepdims=True)
        if best is None or least is None:
            best, least = trial, error
        else:
            best, least = mx.where(error < least, trial, best), mx.minimum(error, least)
        mx.eval(best, least)
    assert best is not None
    return Packed(*mx.quantize(best.reshape(rows.shape), group_size, bits))
