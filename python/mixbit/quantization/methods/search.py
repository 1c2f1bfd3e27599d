"""Least squares over scale and bias of each group."""

from __future__ import annotations

import mlx.core as mx

from mixbit import ops
from mixbit.calibration import InputStatistics
from mixbit.quantization.methods.packed import Packed, check_weight

# Calibration text never wakes every channel. One that slept still counts so much of the mean.
_LEAST_IMPORTANCE = 1e-3


def search(
    weight: mx.array,
    statistics: InputStatistics | None,
    bits: int,
    group_size: int,
    *,
    dtype: mx.Dtype | None = None,
) -> Packed:
    """Scale and bias of each group that lose least, channels weighed by their mean square.

    A :class:`Method`; :func:`mixbit.ops.quantize_search` says what it minimises. The error is that
    of the layer's output if channels of the input were independent with mean zero.
    """
    check_weight(weight, bits, group_size)
    weights = None if statistics is None else importance(statistics)
    return Packed(
        *ops.quantize_search(
            weight, weights, group_size=group_size, bits=bits, dtype=dtype or weight.dtype
        )
    )


def importance(statistics: InputStatistics) -> mx.array:
    """How much the squared error of each input channel counts: positive, float32 [K] or [E, K].

    Experts that saw nothing count all channels alike.
    """
    mean = statistics.mean_square.mean(axis=-1, keepdims=True)
    floored = mx.maximum(statistics.mean_square, _LEAST_IMPORTANCE * mean)
    return mx.where(mean > 0, floored, 1)
