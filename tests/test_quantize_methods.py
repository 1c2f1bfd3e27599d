"""Methods of quantisation by what the packed bytes say, decoded here and not by MLX."""

import hashlib
import os
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from kernel_cases import codes_of, double
from mixbit import backend, ops
from mixbit.calibration import InputStatistics
from mixbit.errors import MixbitError
from mixbit.quantization.methods import Packed, rtn, search

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)


def normal(*shape: int, dtype: mx.Dtype = mx.bfloat16, seed: int = 0) -> mx.array:
    values = np.random.default_rng(seed).normal(0, 0.02, shape).astype(np.float32)
    return mx.array(values).astype(dtype)


def seen(mean_square: np.ndarray) -> InputStatistics:
    """Statistics of inputs with these mean squares."""
    return InputStatistics(
        mx.array(mean_square.astype(np.float32)), mx.full(mean_square.shape[:-1], 100.0)
    )


def uneven(*shape: int) -> np.ndarray:
    return np.exp(np.random.default_rng(1).normal(0, 1.5, shape))


def values_of(packed: Packed, bits: int, group: int) -> np.ndarray:
    scales, biases = (np.repeat(double(a), group, axis=-1) for a in packed[1:])
    return codes_of(np.array(packed.weight), bits) * scales + biases


def error(weight: mx.array, packed: Packed, h: np.ndarray | float, bits: int, group: int) -> float:
    return float((h * (double(weight) - values_of(packed, bits, group)) ** 2).sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_rtn_is_mlx_to_the_bit(bits: int, dtype: mx.Dtype) -> None:
    weight = normal(3, 5, 256, dtype=mx.float32)
    for group in GROUPS:
        theirs = mx.quantize(weight.astype(dtype), group, bits)
        for ours, want in zip(rtn(weight, None, bits, group, dtype=dtype), theirs, strict=True):
            assert ours.dtype == want.dtype
            assert mx.array_equal(ours, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_search_takes_the_nearest_codes_and_loses_less_than_rounding(
    bits: int, dtype: mx.Dtype
) -> None:
    weight, h = normal(7, 384, dtype=dtype), uneven(384)
    for group in GROUPS:
        packed = search(weight, seen(h), bits, group)
        assert packed.scales.dtype == packed.biases.dtype == dtype
        scales, biases = (np.repeat(double(a), group, axis=-1) for a in packed[1:])
        all_values = np.arange(2**bits)[:, None, None] * scales + biases
        nearest = np.abs(double(weight) - all_values).min(axis=0)
        miss = np.abs(double(weight) - values_of(packed, bits, group))
        np.testing.assert_allclose(miss, nearest, rtol=0, atol=1e-7)
        rounded = Packed(*mx.quantize(weight, group, bits))
        assert error(weight, packed, h, bits, group) < 0.85 * error(weight, rounded, h, bits, group)


def best_error(w: np.ndarray, h: np.ndarray, bits: int) -> float:
    """Least weighted error of one group that a dense grid of starts finds, scales not rounded."""
    top, least = 2**bits - 1, np.inf
    h = h / h.sum()
    for low in np.linspace(w.min() - 0.1 * np.ptp(w), w.max(), 24):
        for high in np.linspace(low + 0.05 * np.ptp(w), w.max() + 0.1 * np.ptp(w), 24):
            scale, bias = (high - low) / top, low
            for _ in range(6):
                q = np.clip(np.rint((w - bias) / scale), 0, top)
                spread = (h * (q - h @ q) ** 2).sum()
                if spread == 0:
                    break
                scale = (h * (q - h @ q) * w).sum() / spread
                bias = h @ w - scale * (h @ q)
                least = min(least, (h * (w - scale * q - bias) ** 2).sum())
    return float(least)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_search_comes_near_the_best_there_is(bits: int) -> None:
    weight, h = normal(4, 64, dtype=mx.float32), uneven(64)
    packed = search(weight, seen(h), bits, 64)
    least = sum(best_error(row, h, bits) for row in double(weight))
    assert error(weight, packed, h / h.sum(), bits, 64) < 1.05 * least


@pytest.mark.parametrize("bits", BITS)
def test_scales_are_rounded_before_the_codes_are_chosen(bits: int) -> None:
    weight = normal(16, 128, dtype=mx.float32)
    coarse = search(weight, None, bits, 64, dtype=mx.bfloat16)
    assert coarse.scales.dtype == mx.bfloat16
    fine = search(weight, None, bits, 64)
    limit = 1.3 if bits == 8 else 1.1
    assert error(weight, coarse, 1, bits, 64) < limit * error(weight, fine, 1, bits, 64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_the_form_without_a_native_module_agrees(bits: int, dtype: mx.Dtype) -> None:
    weight, h = normal(2, 9, 256, dtype=dtype), uneven(2, 256)
    native = search(weight, seen(h), bits, 64)
    backend.select("stock")
    try:
        stock = search(weight, seen(h), bits, 64)
    finally:
        backend.select()
    for a, b in zip(native, stock, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    ours, theirs = (error(weight, p, h[:, None], bits, 64) for p in (native, stock))
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert np.mean(np.array(native.weight) == np.array(stock.weight)) > 0.9


def test_each_expert_goes_by_its_own_statistics() -> None:
    weight, h = normal(3, 5, 128), uneven(3, 128)
    h[1] = 0  # never routed to
    together = search(weight, seen(h), 3, 32)
    for e in range(3):
        alone = search(weight[e], seen(h[e]) if h[e].any() else None, 3, 32)
        for a, b in zip(together, alone, strict=True):
            assert mx.array_equal(a[e], b)


@pytest.mark.parametrize("method", [rtn, search])
@pytest.mark.parametrize("bits", BITS)
def test_zero_and_constant_groups_are_exact(method: type[rtn], bits: int) -> None:
    weight = np.zeros((4, 96), np.float32)
    weight[1], weight[2], weight[3, 32:64] = 0.75, -3.0, 1e-3
    for dtype in DTYPES:
        rounded = mx.array(weight).astype(dtype)
        packed = method(rounded, None, bits, 32)
        assert np.array_equal(values_of(packed, bits, 32), double(rounded))


def test_dead_channels_neither_count_nor_run_away() -> None:
    weight, h = normal(8, 128, dtype=mx.float32), uneven(128)
    h[::2] = 0
    packed = search(weight, seen(h), 3, 64)
    assert error(weight, packed, h, 3, 64) < 0.6 * error(weight, rtn(weight, None, 3, 64), h, 3, 64)
    assert np.abs(double(weight) - values_of(packed, 3, 64)).max() < np.abs(double(weight)).max()
    silent, uniform = search(weight, seen(0 * h), 3, 64), search(weight, None, 3, 64)
    assert all(mx.array_equal(a, b) for a, b in zip(silent, uniform, strict=True))


def test_tiny_importances_keep_their_proportions() -> None:
    weight, h = normal(4, 64, dtype=mx.float32), uneven(64)
    for factor in (1e-30, 1e30):
        for a, b in zip(
            search(weight, seen(h * factor), 3, 64), search(weight, seen(h), 3, 64), strict=True
        ):
            np.testing.assert_allclose(double(a), double(b), rtol=1e-5)


def test_weights_below_the_range_of_half_scales_are_packed() -> None:
    weight = mx.array(np.random.default_rng(0).normal(0, 1e-7, (2, 64)).astype(np.float32))
    packed = search(weight.astype(mx.float16), None, 4, 64)
    assert np.isfinite(values_of(packed, 4, 64)).all()


@pytest.mark.parametrize("method", [rtn, search])
def test_what_cannot_be_packed_is_refused(method: type[rtn]) -> None:
    for value in (np.nan, np.inf):
        weight = mx.full((2, 64), value)
        with pytest.raises(MixbitError, match="NaN or an infinity"):
            method(weight, None, 4, 64)
    with pytest.raises(MixbitError, match="rows of 96 weights do not split into groups of 64"):
        method(normal(2, 96), None, 4, 64)
    with pytest.raises(MixbitError, match="not 7"):
        method(normal(2, 64), None, 7, 64)


@pytest.mark.parametrize(
    ("shape", "channels", "dtype", "message"),
    [
        ((64,), None, mx.float32, "must be"),
        ((2, 65), None, mx.float32, "must be"),
        ((2, 64), (63,), mx.float32, "importance must have shape"),
        ((2, 64), None, mx.int32, "scales must be"),
    ],
)
def test_the_operation_refuses_what_does_not_fit(
    shape: tuple[int, ...], channels: tuple[int, ...] | None, dtype: mx.Dtype, message: str
) -> None:
    importance = None if channels is None else mx.ones(channels)
    with pytest.raises(ValueError, match=message):
        ops.quantize_search(mx.zeros(shape), importance, group_size=64, bits=4, dtype=dtype)


def fingerprint(threads: int) -> str:
    """Of what a process with so many threads packs."""
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"MIXBIT_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    assert fingerprint(1) == fingerprint(3)


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    results = search(normal(37, 256), seen(uneven(256)), 3, 64)
    print(
        hashlib.sha256(b"".join(np.array(a.view(mx.uint8)).tobytes() for a in results)).hexdigest()
    )
