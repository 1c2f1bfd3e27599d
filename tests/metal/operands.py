"""Random operands of the matrix products, as the runner wants them and in fp64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from metal_runner import from_bfloat

from kernel_cases import TOLERANCE, double, unpacked
from mixbit._core import MatmulPart

__all__ = [
    "FLOATS",
    "Operand",
    "assert_close",
    "empty",
    "floats",
    "part",
    "raw",
    "silu",
    "weight",
]

FLOATS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True)
class Operand:
    """An array, or those of a weight: as buffers, and what they stand for."""

    buffers: list[np.ndarray]
    values: np.ndarray


def raw(a: mx.array) -> np.ndarray:
    """The array as the runner takes it: bfloat as its bits."""
    return np.array(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a)


def floats(rng: np.random.Generator, dtype: str, *shape: int, scale: float = 1.0) -> Operand:
    """Normal floats of a type."""
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    a = mx.array(values).astype(FLOATS[dtype])
    return Operand([raw(a)], double(a))


def weight(
    rng: np.random.Generator,
    form: tuple[str, int, int],
    dtype: str,
    *shape: int,
) -> Operand:
    """A weight [..., N, K] of a (mode, bits, group), its codes all values that there are.

    ``dtype``: of a dense weight, or of affine scales and biases.
    """
    mode, bits, group = form
    *rows, K = shape
    if mode == "dense":
        return floats(rng, dtype, *shape)
    codes = mx.array(rng.integers(0, 1 << 32, (*rows, K * bits // 32), dtype=np.uint32))
    groups = (*rows, K // group)
    if mode == "affine":
        step = mx.array(rng.uniform(0.5, 1.5, groups).astype(np.float32)) * 2.0 ** (1 - bits)
        shift = mx.array(rng.uniform(-1.2, -0.8, groups).astype(np.float32))
        scales = [step.astype(FLOATS[dtype]), shift.astype(FLOATS[dtype])]
    else:  # E4M3 around 1, or E8M0 around 1
        low, high = (0x30, 0x40) if mode == "nvfp4" else (122, 128)
        scales = [mx.array(rng.integers(low, high, groups, dtype=np.uint8))]
    arrays = [codes, *scales]
    return Operand([raw(a) for a in arrays], unpacked(arrays, bits, group, mode))


def part(form: tuple[str, int, int], dtype: str, N: int, **more: Any) -> MatmulPart:
    """How the launch plan is told of such a weight."""
    mode, bits, group = form
    return MatmulPart(
        N=N,
        bits=0 if mode == "dense" else bits,
        group_size=group or 64,
        mode="affine" if mode == "dense" else mode,
        dtype=FLOATS[dtype],
        **{key: FLOATS[value] for key, value in more.items()},
    )


def empty(dtype: str, *shape: int) -> np.ndarray:
    """An output before the launch: all NaN."""
    return np.full(shape, 0x7FFF if dtype == "bfloat16" else np.nan, _STORED[dtype])


def silu(v: np.ndarray) -> np.ndarray:
    """``v * sigmoid(v)``."""
    return v / (1.0 + np.exp(-v))


def assert_close(got: np.ndarray, want: np.ndarray, slack: float = 1.0, size: float = 0.0) -> None:
    """Equal, NaN to NaN, up to ``slack`` times the rounding of the output against the largest.

    ``size``: of what was summed, where few outputs may all have come out small.
    """
    dtype = {np.dtype(np.uint16): "bfloat16"}.get(got.dtype, got.dtype.name)
    values = from_bfloat(got) if dtype == "bfloat16" else got
    largest = max(size, np.nanmax(np.abs(want)))
    np.testing.assert_allclose(values, want, rtol=0, atol=TOLERANCE[dtype] * slack * largest)
