"""What a method returns, and what it takes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import mlx.core as mx

from mixbit.calibration import InputStatistics
from mixbit.errors import MixbitError
from mixbit.plan import QuantSpec

_CHUNK = 1 << 22


class Packed(NamedTuple):
    """A weight in MLX's affine format, what ``mx.dequantize`` takes."""

    weight: mx.array
    """uint32 [..., N, K * bits / 32]."""
    scales: mx.array
    """[..., N, K / group_size]."""
    biases: mx.array
    """As ``scales``."""

    def values(self, bits: int, group_size: int) -> mx.array:
        """The weights that it stands for, float32 [..., N, K]."""
        scales, biases = (part.astype(mx.float32) for part in self[1:])
        return mx.dequantize(self.weight, scales, biases, group_size=group_size, bits=bits)


class Method(Protocol):
    """A way to quantise a weight."""

    def __call__(
        self,
        weight: mx.array,
        statistics: InputStatistics | None,
        bits: int,
        group_size: int,
        *,
        dtype: mx.Dtype | None = None,
    ) -> Packed:
        """Quantise.

        Args:
            weight: [N, K], or [E, N, K] for experts; float32, float16 or bfloat16.
            statistics: of the layer's input; None counts all channels alike.
            bits: 2, 3, 4, 5, 6 or 8.
            group_size: 32, 64 or 128, a divisor of K.
            dtype: of scales and biases; None for that of ``weight``.

        Raises:
            MixbitError: the weight holds a NaN or an infinity, or MLX cannot pack it so.
        """


def all_finite(values: mx.array) -> bool:
    """Whether no value is a NaN or an infinity; a piece after the other, to take little memory."""
    flat = values.reshape(-1)
    pieces = (flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK))
    return all(mx.isfinite(piece).all().item() for piece in pieces)


def check_weight(weight: mx.array, bits: int, group_size: int) -> None:
    """Refuse what cannot be packed; it computes the weight.

    Raises:
        MixbitError: as :class:`Method` says.
    """
    violation = QuantSpec(bits, group_size).violation(weight.shape[-1])
    if violation is not None:
        raise MixbitError(f"The weight cannot be packed: {violation}.")
    if not all_finite(weight):
        raise MixbitError("The weight holds a NaN or an infinity; fetch the model again.")
