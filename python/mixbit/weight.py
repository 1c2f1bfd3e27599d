"""A weight matrix, and a norm before it, as the operations take them."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

__all__ = ["Norm", "Weight"]


class Weight(NamedTuple):
    """A weight matrix [N, K] with all that its product needs.

    Packed as ``mx.quantize`` packs it, or dense, without ``scales``.
    """

    w: mx.array
    """uint32 [N, K * bits / 32], or floating [N, K]."""
    scales: mx.array | None = None
    """[N, K / group_size]; floating for ``affine``, uint8 for the fp modes."""
    biases: mx.array | None = None
    """[N, K / group_size] in the dtype of ``scales``; ``affine`` only."""
    bias: mx.array | None = None
    """[N], added before rounding."""
    group_size: int = 64
    """32, 64 or 128 (``affine``), 32 (``mxfp4``, ``mxfp8``), 16 (``nvfp4``)."""
    bits: int = 4
    """2, 3, 4, 5, 6 or 8 (``affine``), 4 (``mxfp4``, ``nvfp4``), 8 (``mxfp8``)."""
    mode: str = "affine"
    """``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``."""
    dtype: mx.Dtype | None = None
    """Of the product; by default that of ``x``."""
    activation_bits: int = 16
    """What the native CPU products of at most 20 rows round 16-bit ``x`` to beside ``affine`` codes
    of at most 6 bits: 16, for some 3e-5 of a product, or 8, for 5e-3 to 1e-2 at more speed. All
    others do not heed it."""


class Norm(NamedTuple):
    """An RMSNorm of ``x`` [..., K]: ``x * weight / sqrt(mean(x^2) + eps)``.

    As part of a product it is computed in fp32 and not rounded in between.
    """

    weight: mx.array
    """[K], floating."""
    eps: float
