"""bfloat in numpy: arrays of uint16 that hold the upper halves of floats."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def to_bfloat(values: ArrayLike) -> NDArray[np.uint16]:
    """Values rounded to bfloat, to nearest and ties to even, as their bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bfloat(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloats that are given as their bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
