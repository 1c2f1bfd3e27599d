"""Products that round activations to 8 bits, against the same integers in fp64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernel_cases import double, relative_error, unpacked
from mixbit import ops

BITS = (2, 3, 4, 5, 6)
FEW = 20  # rows of a product that heeds the option


def random(*shape: int, dtype: mx.Dtype = mx.bfloat16, seed: int = 0) -> mx.array:
    """Standard normal values."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return mx.array(values).astype(dtype)


def packed(*shape: int, bits: int = 4, group: int = 64, seed: int = 1) -> list[mx.array]:
    """A packed bf16 weight."""
    return list(mx.quantize(random(*shape, seed=seed), group, bits))


def weight(arrays: list[mx.array], activation_bits: int = 8, **options: Any) -> ops.Weight:
    """The operations' form of it, with an fp32 product."""
    return ops.Weight(*arrays, dtype=mx.float32, activation_bits=activation_bits, **options)


def rounded(x: mx.array, group: int) -> np.ndarray:
    """What remains of x [M, K] when each group becomes integers of 8 bits with one scale."""
    groups = np.array(x.astype(mx.float32)).reshape(len(x), -1, group)
    largest = np.abs(groups).max(-1, keepdims=True)
    integers = np.rint(groups * (np.float32(127) / largest)).astype(np.float64)
    return (integers * (largest / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_products_are_those_of_8_bit_integers(bits: int, group: int) -> None:
    for M, groups, N in ((1, 1, 9), (1, 8, 13), (2, 37, 5), (3, 12, 1), (4, 7, 12), (20, 19, 25)):
        K = groups * group
        x, arrays, bias = random(M, K), packed(N, K, bits=bits, group=group), random(N, seed=2)
        (y,) = ops.matmul(x, [weight(arrays, bits=bits, group_size=group, bias=bias)])
        values = unpacked(arrays, bits, group, "affine")
        assert relative_error(y, rounded(x, group) @ values.T + double(bias)) < 1e-6
        assert relative_error(y, double(x) @ values.T + double(bias)) > 1e-4


@pytest.mark.parametrize("bits", BITS)
def test_rounding_to_8_bits_loses_what_is_said(bits: int) -> None:
    x, arrays = random(8, 4096), packed(64, 4096, bits=bits)
    (y,) = ops.matmul(x, [weight(arrays, bits=bits)])
    want = double(x) @ unpacked(arrays, bits, 64, "affine").T
    assert 2e-3 < np.sqrt(np.mean((double(y) - want) ** 2) / np.mean(want**2)) < 1e-2


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("bits", BITS)
def test_a_row_does_not_depend_on_its_batch_and_many_rows_keep_16_bits(
    bits: int, group: int
) -> None:
    x, arrays = random(33, 640), packed(37, 640, bits=bits, group=group)

    def product(rows: mx.array, activation_bits: int) -> mx.array:
        form = weight(arrays, activation_bits, bits=bits, group_size=group)
        return ops.matmul(rows, [form])[0]

    alone = mx.concatenate([product(x[m : m + 1], 8) for m in range(FEW)])
    for rows in range(1, FEW + 1):
        assert mx.array_equal(product(x[:rows], 8), alone[:rows])
    for rows in (FEW + 1, 33):
        assert mx.array_equal(product(x[:rows], 8), product(x[:rows], 16))


def test_odd_rows() -> None:
    x = random(4, 128)
    x[0] = 0
    x[1, 5] = float("nan")
    x[2, 70] = float("inf")
    (y,) = ops.matmul(x, [weight(packed(9, 128))])
    assert mx.array_equal(y[0], mx.zeros_like(y[0]))
    assert mx.isnan(y[1:3]).all().item()
    assert mx.isfinite(y[3]).all().item()


def test_several_weights_of_which_some_keep_16_bits() -> None:
    x = random(3, 256)
    forms = {
        activation_bits: [
            weight(packed(7, 256, bits=3, group=32), activation_bits, bits=3, group_size=32),
            weight(packed(5, 256, bits=8), activation_bits, bits=8),
            weight([random(6, 256)], activation_bits),
            weight(
                list(mx.quantize(random(8, 256), mode="mxfp4")),
                activation_bits,
                mode="mxfp4",
                group_size=32,
            ),
            weight(packed(7, 256, bits=3, group=32), 16, bits=3, group_size=32),
        ]
        for activation_bits in (8, 16)
    }
    eight, sixteen = ops.matmul(x, forms[8]), ops.matmul(x, forms[16])
    assert [mx.array_equal(a, b).item() for a, b in zip(eight, sixteen, strict=True)] == [
        False,
        *[True] * 4,
    ]
    values = unpacked(packed(7, 256, bits=3, group=32), 3, 32, "affine")
    assert relative_error(eight[0], rounded(x, 32) @ values.T) < 1e-6


def test_float32_activations_are_not_rounded() -> None:
    x, arrays = random(2, 128, dtype=mx.float32), packed(9, 128)
    a, b = (ops.matmul(x, [weight(arrays, bits)])[0] for bits in (8, 16))
    assert mx.array_equal(a, b)


def test_what_is_fused_with_a_product() -> None:
    x, norm, residual = random(2, 192), ops.Norm(random(192, seed=3), 1e-6), random(2, 11, seed=4)
    arrays = packed(11, 192, bits=5)
    normed = double(x) / np.sqrt((double(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    normed = mx.array((normed * double(norm.weight)).astype(np.float32))
    (y,) = ops.matmul(x, [weight(arrays, bits=5)], norm=norm, residual=residual)
    want = rounded(normed, 64) @ unpacked(arrays, 5, 64, "affine").T + double(residual)
    # A norm that differs in its last place may move a value to the next integer.
    assert relative_error(y, want) < 2e-3
    gate, up = packed(11, 192, bits=4), packed(11, 192, bits=2, group=32, seed=5)
    g = rounded(x, 64) @ unpacked(gate, 4, 64, "affine").T
    u = rounded(x, 32) @ unpacked(up, 2, 32, "affine").T
    y = ops.swiglu(x, weight(gate), weight(up, bits=2, group_size=32))
    assert relative_error(y, g / (1 + np.exp(-g)) * u) < 4e-3
    exact = ops.swiglu(x, weight(gate, 16), weight(up, 16, bits=2, group_size=32))
    assert not mx.array_equal(y, exact)


@pytest.mark.parametrize("tokens", [1, 5, FEW, FEW + 1])
def test_experts_round_for_few_tokens_and_not_for_a_prompt(tokens: int) -> None:
    stack, chosen = (
        packed(6, 9, 128, bits=4),
        mx.array([[t % 6, (t + 2) % 6] for t in range(tokens)]),
    )
    x = random(tokens, 1, 1, 128)
    forms = {bits: ops.Weight(*stack, activation_bits=bits) for bits in (8, 16)}
    got = ops.gather_matmul(x, forms[8], chosen)
    kept = 8 if tokens <= FEW else 16
    for t in range(tokens):
        for slot in range(2):
            one = [a[chosen[t, slot].item()] for a in stack]
            (want,) = ops.matmul(x[t, 0], [ops.Weight(*one, activation_bits=kept)])
            assert mx.array_equal(got[t, slot], want)
    mixed = [ops.gather_swiglu(x, form, form, chosen) for form in forms.values()]
    assert mx.array_equal(*mixed).item() == (tokens > FEW)


def test_compiling_does_not_take_one_for_the_other() -> None:
    x, arrays, stack, chosen = random(1, 128), packed(9, 128), packed(3, 9, 128), mx.array([1])

    def differences(x: mx.array) -> list[mx.array]:
        # Compiling merges operations that it holds for equal, but no results of the whole.
        plain = [ops.matmul(x, [weight(arrays, bits)])[0] for bits in (8, 16)]
        gathered = [
            ops.gather_matmul(x, ops.Weight(*stack, activation_bits=bits), chosen)
            for bits in (8, 16)
        ]
        return [a - b for a, b in (plain, gathered)]

    for got, want in zip(mx.compile(differences)(x), differences(x), strict=True):
        assert mx.array_equal(got, want)
        assert mx.any(want).item()


@pytest.mark.parametrize("bits", [0, 4, 15, 32])
def test_other_bits_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"activation_bits must be 8 or 16, not {bits}"):
        ops.matmul(random(1, 128), [weight(packed(9, 128), bits)])
