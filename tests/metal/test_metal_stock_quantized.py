"""MLX's shipped quantised kernels run unedited, and give what fp64 gives.

K spans at least two blocks of every kernel, N and M have remainders: the edges run too.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from metal_runner import Mode, from_bfloat, stock, to_bfloat

from kernel_cases import codes_of

BITS = (2, 3, 4, 5, 6, 8)
# Rounding of the result, and of partial sums in fp32.
TOLERANCE: dict[stock.Element, float] = {"float": 2e-6, "half": 1e-3, "bfloat": 8e-3}


def stored(values: np.ndarray, element: stock.Element) -> np.ndarray:
    """Values as buffers of ``element`` hold them."""
    return to_bfloat(values) if element == "bfloat" else values.astype(stock.Storage[element])


def double(buffer: np.ndarray) -> np.ndarray:
    """The values of such a buffer in fp64."""
    return (from_bfloat(buffer) if buffer.dtype == np.uint16 else buffer).astype(np.float64)


class Packed:
    """A random weight [N, K] as MLX packs it, and its values in fp64."""

    def __init__(self, N: int, K: int, element: stock.Element, bits: int, group: int) -> None:
        rng = np.random.default_rng([N, K, bits, group])
        self.w = rng.integers(0, 1 << 32, (N, K * bits // 32), dtype=np.uint32)
        self.scales = stored(rng.uniform(0.5, 1.5, (N, K // group)) / 2**bits, element)
        self.biases = stored(rng.uniform(-1, 0, (N, K // group)), element)
        scales, biases = (np.repeat(double(a), group, 1) for a in (self.scales, self.biases))
        self.values = codes_of(self.w, bits) * scales + biases


def check_matmul(
    kernel: stock.Matmul,
    M: int,
    packed: Packed,
    element: stock.Element,
    bits: int,
    group: int,
    mode: Mode,
) -> None:
    rng = np.random.default_rng(M)
    x = stored(rng.standard_normal((M, packed.values.shape[1])), element)
    report = stock.matmul(
        kernel, x, packed.w, packed.scales, packed.biases,
        element=element, bits=bits, group=group, mode=mode,
    )  # fmt: skip
    want = double(x) @ packed.values.T
    error = np.abs(double(report["y"]) - want).max() / np.abs(want).max()
    assert error < TOLERANCE[element], (kernel, M, packed.w.shape)
    # The tile at the end is moved back, so that some rows are stored twice.
    assert {note.kind for note in report.notes} <= {
        "device memory written by two threads with the same value"
    }


def check_matmuls(element: stock.Element, bits: int, group: int, mode: Mode) -> None:
    K = 1024 if bits < 6 else 512
    for M, N in ((1, 16), (2, 13)):
        packed = Packed(N, K, element, bits, group)
        check_matmul("qmv_fast", M, packed, element, bits, group, mode)
    for M, N in ((2, 13), (1, 5)):
        packed = Packed(N, 3 * max(group, 64), element, bits, group)
        check_matmul("qmv", M, packed, element, bits, group, mode)
        check_matmul("qmv_wide", M + 4, packed, element, bits, group, mode)
    for M, N in ((33, 32), (7, 40)):
        packed = Packed(N, 2 * max(group, 64), element, bits, group)
        check_matmul("qmm_t", M, packed, element, bits, group, mode)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("element", ["float", "half", "bfloat"])
def test_matmuls(element: stock.Element, bits: int, long_grid: bool) -> None:
    for group in (32, 64, 128) if long_grid else (64,):
        check_matmuls(element, bits, group, "fast")


@pytest.mark.parametrize("bits", [3, 4])
def test_matmuls_are_sound_in_checked_mode(bits: int) -> None:
    check_matmuls("half", bits, 64, "checked")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("element", ["float", "half", "bfloat"])
def test_dequantize_is_mlx_to_the_bit(element: stock.Element, bits: int) -> None:
    packed = Packed(6, 256, element, bits, 64)
    codes_a_thread = {2: 4, 3: 8, 4: 2, 5: 8, 6: 4, 8: 1}[bits]
    kernel = stock.quantized_library(element, bits, 64).kernel(
        "dequantize", constants={"align_M": True, "align_N": True, "align_K": True}
    )
    out = np.zeros(packed.values.shape, stock.Storage[element])
    report = kernel.run(
        {
            "w": packed.w.view(np.uint8),
            "scales": packed.scales,
            "biases": packed.biases,
            "out": out,
        },
        grid=(out.size // codes_a_thread, 1),
        threads=(256,),
    )

    def as_array(buffer: np.ndarray) -> mx.array:
        array = mx.array(buffer)
        return array.view(mx.bfloat16) if element == "bfloat" else array

    w, scales, biases = mx.array(packed.w), as_array(packed.scales), as_array(packed.biases)
    want = mx.dequantize(w, scales, biases, group_size=64, bits=bits)
    got = as_array(report["out"])
    assert mx.array_equal(got.view(mx.uint8), want.view(mx.uint8))


def quantized_in_numpy(w: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, ...]:
    """What affine_quantize computes, in its own order of fp32 operations: codes, scales, biases."""
    w = w.astype(np.float32).reshape(-1, group)
    bins = np.float32(2**bits - 1)
    low, high = w.min(1), np.maximum(w.max(1), 0)
    scale = np.maximum((high - low) / bins, np.float32(1e-7))
    from_low = np.abs(low) > np.abs(high)
    scale = np.where(from_low, scale, -scale)
    edge = np.where(from_low, low, high)
    steps = away_from_zero(edge / scale)
    scale = np.where(steps == 0, scale, edge / np.where(steps == 0, np.float32(1), steps))
    bias = np.where(steps == 0, np.float32(0), edge)
    codes = np.minimum(away_from_zero((w - bias[:, None]) / scale[:, None]), bins)
    return codes.astype(np.uint8), scale, bias


def away_from_zero(x: np.ndarray) -> np.ndarray:
    """MSL's round: halves away from zero."""
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("element", ["float", "half"])
def test_quantize_is_numpy_to_the_bit(element: stock.Element, bits: int) -> None:
    rng = np.random.default_rng(bits)
    w = stored(rng.standard_normal((8, 256)), element)
    codes, scales, biases = quantized_in_numpy(w, bits, 64)
    kernel = stock.quantized_library(element, bits, 64).kernel(
        "quantize", constants={"align_M": True, "align_N": True, "align_K": True}
    )
    storage = stock.Storage[element]
    report = kernel.run(
        {
            "w": w,
            "out": np.zeros(w.size * bits // 8, np.uint8),
            "scales": np.zeros(w.size // 64, storage),
            "biases": np.zeros(w.size // 64, storage),
        },
        grid=(w.size // 2, 1),
        threads=(256,),
    )
    np.testing.assert_array_equal(codes_of(report["out"], bits), codes.reshape(-1))
    np.testing.assert_array_equal(report["scales"], scales.astype(storage))
    np.testing.assert_array_equal(report["biases"], biases.astype(storage))
