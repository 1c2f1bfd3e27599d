"""What metal/matvec.metal asks of a GPU, counted, against MLX's kernel and the least there is."""

from __future__ import annotations

import functools

import pytest
from metal_runner import Counters, stock
from product_cases import single

BITS = (2, 3, 4, 5, 6, 8)
GROUP = 64
# Issue cost against MLX's affine_qmv_fast. Four and eight bits MLX decodes well already.
SHARE = {2: 0.7, 3: 0.7, 4: 1.0, 5: 0.7, 6: 0.7, 8: 1.0}
N, K = 64, 2048
ALIGNED = ((N, K), (32, 512), (16, 2560))
STEP = 512  # values of a row that a SIMD group takes at once
WEIGHT = ("w0", "scales0", "biases0")


@functools.cache
def ours(bits: int, M: int, N: int, K: int) -> Counters:
    case = single(("affine", bits, GROUP), "float16", M, K, N)
    report = case.check(mode="counted")
    return report.launches[0].counters


@functools.cache
def mlx(bits: int) -> Counters:
    case = single(("affine", bits, GROUP), "float16", 1, K, N)
    (x, w, scales, biases), _ = case.operands()
    report = stock.matmul(
        "qmv_fast", x, w, scales, biases, element="half", bits=bits, group=GROUP, mode="counted"
    )
    return report.counters


@pytest.mark.parametrize("bits", BITS)
def test_one_row_costs_no_more_than_in_mlx(bits: int) -> None:
    counted, theirs = ours(bits, 1, N, K), mlx(bits)
    assert counted.bytes_loaded <= theirs.bytes_loaded
    assert counted.issue_cost <= SHARE[bits] * theirs.issue_cost


@pytest.mark.parametrize("bits", BITS)
def test_one_row_reads_weights_once(bits: int) -> None:
    for shape in ALIGNED:
        counted = ours(bits, 1, *shape)
        for name in WEIGHT:
            traffic = counted.buffers[name]
            assert traffic.bytes_loaded == traffic.bytes_touched == traffic.bytes
        device = [b for b in counted.buffers.values() if b.name != "params"]
        lines = sum(b.lines for b in device)
        assert 128 * lines <= 1.05 * sum(b.bytes for b in device)


@pytest.mark.parametrize("bits", BITS)
def test_eight_rows_share_one_decoding(bits: int, long_grid: bool) -> None:
    for K in (64, 128, 512, 896, 1024, 1536, 4864) if long_grid else (64, 512, 896, 2048):
        alone, shared = ours(bits, 1, 32, K), ours(bits, 8, 32, K)
        for name in WEIGHT:
            assert shared.buffers[name].bytes_loaded == alone.buffers[name].bytes_loaded
        # Lanes beyond the end of K multiply zeros, whether for one row or for eight.
        products = 32 * -(-K // STEP) * STEP
        decoding = alone.issue_cost - products  # all but the one FMA
        assert shared.issue_cost <= 1.1 * (decoding + 8 * products)


def test_tiles_read_weights_once_each() -> None:
    alone, tiled = ours(4, 1, N, K), ours(4, 32, N, K)
    for name in WEIGHT:
        assert tiled.buffers[name].bytes_loaded == 4 * alone.buffers[name].bytes_loaded
