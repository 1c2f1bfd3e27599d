"""Quantised products on a grid of shapes against fp64, rows and columns one by one."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from kernel_cases import DTYPES, TOLERANCE, double, unpacked
from mixbit import ops

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
INPUTS = (64, 96, 128, 512, 896, 1536, 4864)
COLUMNS = (1, 4, 7, 8, 16, 33)
ROWS = (1, 2, 3, 5, 8, 9, 16, 31, 33)


def grid(bits: int, group: int, whole: bool) -> list[tuple[int, str]]:
    """Of inputs and dtype: all that fit, or three of them."""
    fitting = [(K, dtype) for K in INPUTS if K % group == 0 for dtype in DTYPES]
    if whole:
        return fitting
    chosen = np.random.default_rng([bits, group]).choice(len(fitting), 3, replace=False)
    return [fitting[i] for i in chosen]


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", BITS)
def test_products_agree_with_fp64_and_rows_with_themselves_alone(
    bits: int, group: int, long_grid: bool
) -> None:
    for K, dtype in grid(bits, group, long_grid):
        rng = np.random.default_rng([bits, group, K])
        x, w = (
            mx.array(rng.standard_normal((rows, K), dtype=np.float32)).astype(DTYPES[dtype])
            for rows in (max(ROWS), max(COLUMNS))
        )
        weight = list(mx.quantize(w, group, bits))

        def product(m0: int, m1: int, N: int) -> mx.array:
            columns = [a[:N] for a in weight]  # noqa: B023
            return ops.quantized_matmul(x[m0:m1], *columns, group_size=group, bits=bits)  # noqa: B023

        alone = mx.concatenate([product(m, m + 1, max(COLUMNS)) for m in range(max(ROWS))])
        want = double(x) @ unpacked(weight, bits, group, "affine").T
        # What the sums of fp32 lose grows with the root of their terms.
        tolerance = TOLERANCE[dtype] * (max(1, K / 1000) ** 0.5 if dtype == "float32" else 1)
        for N, M in itertools.product(COLUMNS, ROWS):
            y = product(0, M, N)
            # A sum may cancel to nothing: its terms' size is what rounding is measured by.
            error = np.abs(double(y) - want[:M, :N]).max() / max(abs(want[:M, :N]).max(), K**0.5)
            assert error <= tolerance, (K, dtype, N, M, error)
            assert mx.array_equal(y, alone[:M, :N]), (K, dtype, N, M)
