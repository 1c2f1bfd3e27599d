"""Round to nearest, as MLX does."""

from __future__ import annotations

import mlx.core as mx

from mixbit.calibration import InputStatistics
from mixbit.quantization.methods.packed import Packed, check_weight


def rtn(
    weight: mx.array,
    statistics: InputStatistics | None,  # noqa: ARG001
    bits: int,
    group_size: int,
    *,
    dtype: mx.Dtype | None = None,
) -> Packed:
    """``mx.quantize`` of the weight, cast to ``dtype`` before, bit for bit. A :class:`Method`."""
    check_weight(weight, bits, group_size)
    return Packed(*mx.quantize(weight.astype(dtype or weight.dtype), group_size, bits))
