"""Which packings exist, and what they cost."""

import itertools

import mlx.core as mx
import pytest

from mixbit.plan import QuantSpec

MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")


def mlx_packs(spec: QuantSpec, in_dims: int) -> bool:
    try:
        mx.eval(mx.quantize(mx.ones((2, in_dims)), spec.group_size, spec.bits, mode=spec.mode))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("mode", MODES)
def test_verdict_is_that_of_mlx(mode: str) -> None:
    # MLX packs 1 bit as well, in the affine mode; mixbit's own kernels begin at 2.
    for bits, group_size, in_dims in itertools.product(
        range(2, 10), (8, 16, 32, 64, 128, 256), (16, 48, 64, 80, 96, 128, 256)
    ):
        spec = QuantSpec(bits, group_size, mode)
        assert (spec.violation(in_dims) is None) == mlx_packs(spec, in_dims), (spec, in_dims)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (QuantSpec(3, 64), 3.5),
        (QuantSpec(4, 64), 4.5),
        (QuantSpec(6, 128), 6.25),
        (QuantSpec(4, 32, "mxfp4"), 4.25),
        (QuantSpec(8, 32, "mxfp8"), 8.25),
        (QuantSpec(4, 16, "nvfp4"), 4.5),
    ],
)
def test_bits_per_weight_is_what_mlx_stores(spec: QuantSpec, expected: float) -> None:
    weight = mx.ones((2, 256), dtype=mx.bfloat16)
    packed = mx.quantize(weight, spec.group_size, spec.bits, mode=spec.mode)
    assert spec.bits_per_weight == expected
    assert 8 * sum(part.nbytes for part in packed) / weight.size == expected


def test_violations_say_what_would_do() -> None:
    assert QuantSpec(1, 64).violation() == "mode affine takes 2, 3, 4, 5, 6 or 8 bits, not 1"
    assert QuantSpec(7, 64).violation() == "mode affine takes 2, 3, 4, 5, 6 or 8 bits, not 7"
    assert QuantSpec(4, 64, "mxfp4").violation() == "mode mxfp4 takes groups of 32, not 64"
    assert QuantSpec(4, 64, "kquant").violation() == (
        "mode 'kquant' is not one of affine, mxfp4, mxfp8, nvfp4"
    )
    assert QuantSpec(4, 64).violation(96) == ("rows of 96 weights do not split into groups of 64")
