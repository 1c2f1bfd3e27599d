"""What the operations promise beyond their values: invariances, gradients, compile, errors."""

import mlx.core as mx
import numpy as np
import pytest

from delta_net_fp64 import delta_net
from kernel_cases import DTYPES, double, interleaved, relative_error, unpacked
from mixbit import backend, ops


def random(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    """Standard normal values."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return mx.array(values).astype(dtype)


def packed(n: int, k: int, bits: int = 4, group: int = 64) -> list[mx.array]:
    """A packed bf16 weight."""
    return list(mx.quantize(random(n, k, dtype=mx.bfloat16, seed=1), group, bits))


def test_the_native_module_serves_these_tests() -> None:
    assert backend.native is not None, backend.reason


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("bits", [0, 2, 3, 5])
def test_a_row_does_not_depend_on_its_batch(bits: int, dtype: mx.Dtype) -> None:
    # Beyond 32 rows 16-bit activations meet packed weights in fp32 and not in integers.
    x = random(32 if bits and dtype != mx.float32 else 131, 192, dtype=dtype)
    if bits:
        weight = packed(37, 192, bits)

        def product(rows: mx.array) -> mx.array:
            return ops.quantized_matmul(rows, *weight, bits=bits)
    else:
        dense = random(37, 192, dtype=dtype, seed=1)

        def product(rows: mx.array) -> mx.array:
            return ops.linear(rows, dense)

    whole = np.array(product(x).astype(mx.float32))
    for rows in (1, 2, 3, 4, 5, 8, 31, 32, 130):
        if rows > len(x):
            break
        part = np.array(product(x[:rows]).astype(mx.float32))
        assert np.array_equal(part, whole[:rows])


def test_leading_dimensions_and_strides() -> None:
    weight = packed(24, 128)
    x = random(3, 1, 128, 2).swapaxes(-1, -2)
    y = ops.quantized_matmul(x, *weight)
    assert y.shape == (3, 1, 2, 24)
    assert relative_error(y, double(x) @ unpacked(weight, 4, 64, "affine").T) < 1e-6
    w = random(128, 24).T  # not row-contiguous
    assert relative_error(ops.linear(x, w), double(x) @ double(w).T) < 1e-6
    vector = ops.linear(random(128), w)
    assert vector.shape == (24,)


def test_empty_inputs_give_empty_outputs() -> None:
    assert ops.quantized_matmul(mx.zeros((0, 128)), *packed(24, 128)).shape == (0, 24)
    assert ops.linear(mx.zeros((2, 0, 8)), mx.zeros((3, 8))).shape == (2, 0, 3)


def test_scales_and_activations_may_differ_in_dtype() -> None:
    weight = packed(24, 128)  # bf16 scales
    x = random(5, 128)
    y = ops.quantized_matmul(x, *weight)
    assert y.dtype == mx.float32
    assert relative_error(y, double(x) @ unpacked(weight, 4, 64, "affine").T) < 1e-6


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_integer_products_lose_little(bits: int) -> None:
    x, weight = random(3, 4096, dtype=mx.bfloat16), packed(9, 4096, bits)
    x[0, :64] *= 1000  # one group far louder than the others
    (y,) = ops.matmul(x, [ops.Weight(*weight, bits=bits, dtype=mx.float32)])
    want = double(x) @ unpacked(weight, bits, 64, "affine").T
    for row in range(3):
        assert relative_error(y[row], want[row]) < 1e-4


def test_integer_products_of_odd_rows() -> None:
    weight = packed(9, 128)
    x = random(4, 128, dtype=mx.bfloat16)
    x[0] = 0
    x[1, 5] = float("nan")
    x[2, 70] = float("inf")
    y = ops.quantized_matmul(x, *weight)
    assert mx.array_equal(y[0], mx.zeros_like(y[0]))
    assert mx.isnan(y[1:3]).all().item()
    assert mx.isfinite(y[3]).all().item()


def test_large_sums_stay_within_the_promised_error() -> None:
    x, weight = random(2, 16384), packed(3, 16384, 4, 128)
    want = double(x) @ unpacked(weight, 4, 128, "affine").T
    assert relative_error(ops.quantized_matmul(x, *weight, group_size=128), want) < 1e-5


@pytest.mark.parametrize("bits", [3, 4])
def test_gradient_in_x_is_the_weight(bits: int) -> None:
    weight = packed(24, 128, bits)
    x, dy = random(5, 128), random(5, 24, seed=2)
    bias = random(24, seed=3)

    def loss(x: mx.array, bias: mx.array) -> mx.array:
        return (ops.quantized_matmul(x, *weight, bias=bias, bits=bits) * dy).sum()

    dx, dbias = mx.grad(loss, argnums=(0, 1))(x, bias)
    assert relative_error(dx, double(dy) @ unpacked(weight, bits, 64, "affine")) < 1e-5
    assert relative_error(dbias, double(dy).sum(0)) < 1e-6


def test_gradient_of_dense_products() -> None:
    x, w, dy = random(2, 5, 40), random(7, 40, seed=1), random(2, 5, 7, seed=2)
    dx, dw = mx.grad(lambda x, w: (ops.linear(x, w) * dy).sum(), argnums=(0, 1))(x, w)
    assert relative_error(dx, double(dy) @ double(w)) < 1e-6
    assert relative_error(dw, np.einsum("btn,btk->nk", double(dy), double(x))) < 1e-6


def test_packed_weights_have_no_gradient() -> None:
    weight = packed(24, 128)
    with pytest.raises(ValueError, match="no gradient"):
        mx.grad(lambda s: ops.quantized_matmul(random(2, 128), weight[0], s, weight[2]).sum())(
            weight[1]
        )


@pytest.mark.parametrize("shapeless", [False, True])
def test_compiled_products_are_the_same(shapeless: bool) -> None:
    weight = packed(24, 128)
    function = mx.compile(lambda x: ops.quantized_matmul(x, *weight) + 1, shapeless=shapeless)
    for rows in (1, 6):
        x = random(rows, 128)
        assert mx.array_equal(function(x), ops.quantized_matmul(x, *weight) + 1)


def test_products_in_other_threads_and_streams() -> None:
    from concurrent.futures import ThreadPoolExecutor

    weight = packed(256, 512)
    mx.eval(weight)
    x = random(9, 512)
    mx.eval(x)
    want = np.array(ops.quantized_matmul(x, *weight))

    def work(_: int) -> bool:
        with mx.stream(mx.new_stream(mx.cpu)):
            return np.array_equal(np.array(ops.quantized_matmul(x, *weight)), want)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((random(2, 64),), {}, r"x of shape \(2, 64\) does not fit a weight of shape \(24, 16\)"),
        ((random(2, 128),), {"bits": 7}, "takes bits 2, 3, 4, 5, 6 or 8"),
        ((random(2, 128),), {"group_size": 16}, "group_size 32, 64 or 128"),
        ((random(2, 128),), {"group_size": 32}, r"scales must have shape \(24, 4\)"),
        ((random(2, 128),), {"mode": "int4"}, "unknown mode 'int4'"),
        ((random(2, 128),), {"mode": "mxfp4", "group_size": 32}, "takes no biases"),
        ((random(2, 128),), {"bias": random(23)}, r"bias must have shape \(24,\)"),
        ((mx.zeros((2, 128), mx.int32),), {}, "x must be float32, float16 or bfloat16"),
    ],
)
def test_wrong_products_say_what_is_wrong(arguments, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        ops.quantized_matmul(*arguments, *packed(24, 128), **options)


def test_a_missing_bias_array_is_named() -> None:
    w, scales, _ = packed(24, 128)
    with pytest.raises(ValueError, match="mode 'affine' needs biases"):
        ops.quantized_matmul(random(2, 128), w, scales)


# ---- several products of one x -------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 7, 140])
def test_products_that_share_x_are_those_alone(rows: int) -> None:
    x = random(rows, 128, dtype=mx.bfloat16)
    narrow, wide, dense = packed(24, 128, 3), packed(700, 128, 6), random(5, 128, seed=3)
    together = ops.matmul(
        x,
        [
            ops.Weight(*narrow, bits=3),
            ops.Weight(*wide, bits=6, bias=random(700, seed=4)),
            ops.Weight(dense, dtype=mx.float32),
        ],
    )
    alone = [
        ops.quantized_matmul(x, *narrow, bits=3),
        ops.quantized_matmul(x, *wide, bits=6, bias=random(700, seed=4)),
        ops.linear(x.astype(mx.float32), dense),
    ]
    assert [y.dtype for y in together] == [mx.bfloat16, mx.bfloat16, mx.float32]
    for a, b in zip(together, alone, strict=True):
        assert mx.array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 7, 140])
def test_swiglu_against_fp64(rows: int, dtype: mx.Dtype) -> None:
    x = random(rows, 128, dtype=dtype)
    gate, up = packed(50, 128, 3), random(50, 128, dtype=mx.float16, seed=2) * 0.1
    y = ops.swiglu(x, ops.Weight(*gate, bits=3), ops.Weight(up, bias=random(50, seed=3)))
    g = double(x) @ unpacked(gate, 3, 64, "affine").T
    want = g / (1 + np.exp(-g)) * (double(x) @ double(up).T + double(random(50, seed=3)))
    tolerance = {mx.float32: 1e-6, mx.float16: 5e-4, mx.bfloat16: 4e-3}[dtype]
    assert y.dtype == dtype
    assert relative_error(y, want) < tolerance
    if rows <= 32 or dtype == mx.float32:
        first = ops.swiglu(
            x[:1], ops.Weight(*gate, bits=3), ops.Weight(up, bias=random(50, seed=3))
        )
        assert mx.array_equal(first, y[:1])


def test_swiglu_gradient_agrees_with_its_composition() -> None:
    x, gate, up = random(3, 128), packed(24, 128, 3), random(24, 128, seed=2)

    def ours(x: mx.array, up: mx.array) -> mx.array:
        return ops.swiglu(x, ops.Weight(*gate, bits=3), ops.Weight(up)).sum()

    def composed(x: mx.array, up: mx.array) -> mx.array:
        g = mx.quantized_matmul(x, *gate, bits=3)
        return (g * mx.sigmoid(g) * (x @ up.T)).sum()

    for a, b in zip(
        mx.grad(ours, argnums=(0, 1))(x, up), mx.grad(composed, argnums=(0, 1))(x, up), strict=True
    ):
        assert mx.allclose(a, b, rtol=1e-3, atol=1e-3)


# ---- what products are fused with ---------------------------------------------------------------


def rms_norm(x: np.ndarray, norm: ops.Norm) -> np.ndarray:
    """In fp64."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * double(norm.weight)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 7, 33, 140])
def test_norm_and_residual_against_fp64(rows: int, dtype: mx.Dtype) -> None:
    x, residual = random(2, rows, 224, dtype=dtype) * 3, random(2, rows, 50, dtype=dtype, seed=5)
    norm = ops.Norm(1 + random(224, dtype=dtype, seed=4) / 4, 1e-3)
    weight, dense = packed(50, 224, 3, 32), random(50, 224, dtype=mx.float16, seed=2)
    normed = rms_norm(double(x), norm)
    packed_product = normed @ unpacked(weight, 3, 32, "affine").T
    dense_product = normed @ double(dense).T
    tolerance = {mx.float32: 1e-6, mx.float16: 5e-4, mx.bfloat16: 4e-3}[dtype]

    both = ops.matmul(x, [ops.Weight(*weight, None, 32, 3), ops.Weight(dense)], norm=norm)
    for y, want in zip(both, (packed_product, dense_product), strict=True):
        assert y.dtype == dtype
        assert relative_error(y, want) < tolerance
    (y,) = ops.matmul(x, [ops.Weight(*weight, None, 32, 3)], norm=norm, residual=residual)
    assert relative_error(y, packed_product + double(residual)) < tolerance
    gated = ops.swiglu(x, ops.Weight(*weight, None, 32, 3), ops.Weight(dense), norm=norm)
    want = packed_product / (1 + np.exp(-packed_product)) * dense_product
    assert relative_error(gated, want) < tolerance


def test_a_residual_is_rounded_with_the_product() -> None:
    # 1 + 2^-8 is not a bf16 number, but the sum with 2^-8 is.
    x, w = mx.array([[1.0, 2.0**-8]], mx.bfloat16), mx.ones((3, 2), mx.bfloat16)
    residual = mx.full((1, 3), 2.0**-8, mx.bfloat16)
    (y,) = ops.matmul(x, [ops.Weight(w)], residual=residual)
    assert y.tolist() == [[1 + 2.0**-7] * 3]


def test_fused_gradients_agree_with_their_composition() -> None:
    x, w, scale, residual = random(3, 64), random(5, 64, seed=1), random(64, seed=2), random(3, 5)

    def ours(x: mx.array, w: mx.array, scale: mx.array, residual: mx.array) -> mx.array:
        norm = ops.Norm(scale, 1e-5)
        (y,) = ops.matmul(x, [ops.Weight(w)], norm=norm, residual=residual)
        return (y * ops.swiglu(x, ops.Weight(w), ops.Weight(2 * w), norm=norm)).sum()

    def composed(x: mx.array, w: mx.array, scale: mx.array, residual: mx.array) -> mx.array:
        product = mx.fast.rms_norm(x, scale, 1e-5) @ w.T
        return ((product + residual) * product * mx.sigmoid(product) * 2 * product).sum()

    arguments = (x, w, scale, residual)
    for a, b in zip(
        mx.grad(ours, argnums=(0, 1, 2, 3))(*arguments),
        mx.grad(composed, argnums=(0, 1, 2, 3))(*arguments),
        strict=True,
    ):
        assert relative_error(a, double(b)) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": ops.Norm(mx.ones(7), 1e-6)}, "norm must have shape"),
        ({"norm": ops.Norm(mx.ones(8, mx.int32), 1e-6)}, "norm"),
        ({"residual": mx.ones((2, 4))}, "shape of the product"),
        ({"residual": mx.ones((2, 3), mx.int32)}, "residual"),
    ],
)
def test_wrong_fusions_say_what_is_wrong(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        ops.matmul(random(2, 8), [ops.Weight(random(3, 8))], **options)


def test_a_residual_goes_with_a_single_product() -> None:
    weights = [ops.Weight(random(3, 8))] * 2
    for serve in (ops.matmul, lambda *a, **k: ops.stock.matmuls(*a, None, **k)):
        with pytest.raises(ValueError, match="single weight"):
            serve(random(2, 8), weights, residual=mx.ones((2, 3)))


def test_swiglu_needs_equal_shapes() -> None:
    with pytest.raises(ValueError, match="the same number of rows"):
        ops.swiglu(random(2, 8), ops.Weight(random(3, 8)), ops.Weight(random(4, 8)))


# ---- experts ------------------------------------------------------------------------------------


def experts(bits: int, count: int = 5, n: int = 12, k: int = 64) -> list[mx.array]:
    """Packed weights of ``count`` experts."""
    return list(mx.quantize(random(count, n, k, dtype=mx.bfloat16, seed=1), 32, bits))


@pytest.mark.parametrize("bits", [0, 3, 8])
@pytest.mark.parametrize("shape", [((2, 3, 1, 1, 64), (2, 3, 2)), ((40, 1, 64), (40,))])
def test_experts_against_fp64(bits: int, shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x = random(*shape[0])
    chosen = np.random.default_rng(2).integers(0, 5, shape[1])
    if bits:
        weight = experts(bits)
        y = ops.gather_quantized_matmul(x, *weight, mx.array(chosen), group_size=32, bits=bits)
        values = unpacked(weight, bits, 32, "affine")
    else:
        w = random(5, 12, 64, seed=1)
        y, values = ops.gather_linear(x, w, mx.array(chosen)), double(w)
    want = np.einsum("...mk,...nk->...mn", double(x), values[chosen])
    assert y.shape == want.shape
    assert relative_error(y, want) < 1e-6


def test_expert_gradient_sums_over_the_chosen() -> None:
    weight, chosen = experts(4), mx.array([[0, 3], [3, 3], [4, 1]])
    x, dy = random(3, 1, 1, 64), random(3, 2, 1, 12, seed=2)
    dx = mx.grad(
        lambda x: (ops.gather_quantized_matmul(x, *weight, chosen, group_size=32) * dy).sum()
    )(x)
    values = unpacked(weight, 4, 32, "affine")[np.array(chosen)]
    want = np.einsum("temn,tenk->tmk", double(dy), values)[:, None]
    assert relative_error(dx, want) < 1e-5


def test_an_expert_that_does_not_exist_is_visible() -> None:
    y = ops.gather_quantized_matmul(random(2, 1, 64), *experts(4), mx.array([1, 5]), group_size=32)
    assert np.isfinite(np.array(y[0])).all()
    assert np.isnan(np.array(y[1])).all()


def test_experts_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\), do not broadcast to the indices' shape \(2,\)"):
        ops.gather_quantized_matmul(random(3, 1, 64), *experts(4), mx.array([1, 2]), group_size=32)


def fused_experts(x: np.ndarray, chosen: np.ndarray, stacks: list[np.ndarray]) -> np.ndarray:
    """SiLU(x gate^T) * (x up^T) of the chosen experts, in fp64."""
    gate, up = (np.einsum("...mk,...nk->...mn", x, stack[chosen]) for stack in stacks)
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("M", [1, 3])
@pytest.mark.parametrize("tokens", [2, 40])
def test_expert_swiglu_against_fp64(tokens: int, M: int) -> None:
    packed_gate, dense_up = experts(3), random(5, 12, 64, seed=7)
    x = random(tokens, 1, M, 64)
    chosen = np.random.default_rng(2).integers(0, 5, (tokens, 3))
    y = ops.gather_swiglu(
        x, ops.Weight(*packed_gate, group_size=32, bits=3), ops.Weight(dense_up), mx.array(chosen)
    )
    stacks = [unpacked(packed_gate, 3, 32, "affine"), double(dense_up)]
    assert relative_error(y, fused_experts(double(x), chosen, stacks)) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_scored_experts_are_summed_before_rounding(dtype: mx.Dtype) -> None:
    weight = experts(5)
    x, scores = random(7, 3, 1, 64, dtype=dtype), mx.abs(random(7, 3, seed=3))
    chosen = np.random.default_rng(2).integers(0, 5, (7, 3))
    y = ops.gather_matmul(
        x, ops.Weight(*weight, group_size=32, bits=5), mx.array(chosen), scores=scores
    )
    values = unpacked(weight, 5, 32, "affine")[chosen]
    want = np.einsum("ts,tsmk,tsnk->tmn", double(scores), double(x), values)
    assert y.shape == (7, 1, 12)
    assert y.dtype == dtype
    limit = {mx.float32: 1e-6, mx.float16: 5e-4, mx.bfloat16: 3e-3}[dtype]
    assert relative_error(y, want) < limit


def test_gradients_of_fused_experts() -> None:
    gate, up = (ops.Weight(*experts(4), group_size=32) for _ in range(2))
    wide = ops.Weight(random(5, 64, 12, seed=9))
    chosen = mx.array([[0, 3], [3, 3], [4, 1]])
    x, logits = random(3, 1, 1, 64), random(3, 2, seed=4)

    def ours(x: mx.array, logits: mx.array) -> mx.array:
        hidden = ops.gather_swiglu(x, gate, up, chosen)
        return ops.gather_matmul(hidden, wide, chosen, scores=mx.softmax(logits)).square().sum()

    def composed(x: mx.array, logits: mx.array) -> mx.array:
        g, u = (ops.gather_matmul(x, w, chosen) for w in (gate, up))
        y = (g * mx.sigmoid(g) * u) @ wide.w[chosen].swapaxes(-1, -2)
        return (y * mx.softmax(logits)[..., None, None]).sum(-3).square().sum()

    for got, want in zip(
        mx.grad(ours, argnums=(0, 1))(x, logits),
        mx.grad(composed, argnums=(0, 1))(x, logits),
        strict=True,
    ):
        assert mx.allclose(got, want, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="expert weights have no gradient"):
        mx.grad(lambda w: ops.gather_matmul(x, ops.Weight(w), chosen).sum())(random(5, 12, 64))


def test_fused_experts_that_do_not_fit_are_refused() -> None:
    x, chosen = random(2, 1, 1, 64), mx.array([[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="the same number of experts and of rows"):
        ops.gather_swiglu(x, ops.Weight(random(5, 8, 64)), ops.Weight(random(5, 9, 64)), chosen)
    with pytest.raises(ValueError, match=r"scores must have the indices' shape \(2, 2\)"):
        ops.gather_matmul(x, ops.Weight(random(5, 8, 64)), chosen, scores=random(2))
    with pytest.raises(ValueError, match="take no bias"):
        ops.gather_matmul(x, ops.Weight(random(5, 8, 64), bias=random(8)), chosen)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_route_against_fp64(dtype: mx.Dtype, normalise: bool) -> None:
    logits = random(2, 3, 37, dtype=dtype)
    indices, scores = ops.route(logits, 5, normalise=normalise)
    assert indices.dtype == mx.uint32
    assert scores.dtype == mx.float32
    want = np.argsort(-double(logits), axis=-1, kind="stable")[..., :5]
    assert np.array_equal(np.array(indices), want)
    p = np.exp(double(logits))
    chosen = np.take_along_axis(p, want, -1)
    total = (chosen if normalise else p).sum(-1, keepdims=True)
    assert relative_error(scores, chosen / total) < 1e-6


def test_route_takes_the_earlier_of_equals_and_no_nan() -> None:
    logits = mx.array([[float("nan"), 1, 2, float("nan"), 2], [float("nan")] * 4 + [0]])
    indices, scores = ops.route(logits, 2, normalise=True)
    assert np.array(indices).tolist() == [[2, 4], [4, 0xFFFFFFFF]]
    assert np.array(scores).tolist() == [[0.5, 0.5], [1, 0]]


@pytest.mark.parametrize("normalise", [True, False])
def test_route_gradient(normalise: bool) -> None:
    logits, weights = random(3, 9), random(3, 4, seed=2)

    def ours(logits: mx.array) -> mx.array:
        return (ops.route(logits, 4, normalise=normalise)[1] * weights).sum()

    def composed(logits: mx.array) -> mx.array:
        chosen = mx.stop_gradient(mx.argsort(-logits, axis=-1)[:, :4])
        p = mx.take_along_axis(mx.softmax(logits, axis=-1), chosen, axis=-1)
        return ((p / p.sum(-1, keepdims=True) if normalise else p) * weights).sum()

    assert mx.allclose(mx.grad(ours)(logits), mx.grad(composed)(logits), atol=1e-6)


def test_route_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="at most 1023 experts"):
        ops.route(random(1, 1024), 2, normalise=True)
    for slots in (0, 6, 33):
        with pytest.raises(ValueError, match="slots must be from 1 to 32 and to the 5 experts"):
            ops.route(random(2, 5), slots, normalise=True)


# ---- gated delta --------------------------------------------------------------------------------


def delta_inputs(T: int = 6, Hk: int = 2, Hv: int = 4, D: int = 16) -> list[mx.array]:
    """q, k, v, g, beta."""
    q, k = random(1, T, Hk, D, seed=1), random(1, T, Hk, D, seed=2)
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    gates = mx.sigmoid(random(2, 1, T, Hv, seed=4))
    return [q, k, random(1, T, Hv, D, seed=3), gates[0], gates[1]]


def test_key_heads_serve_consecutive_value_heads() -> None:
    k = mx.zeros((1, 1, 2, 4))
    k[0, 0, 0, 0] = 1
    k[0, 0, 1, 1] = 1
    ones = mx.ones((1, 1, 4))
    _, state = ops.gated_delta(k, k, mx.ones((1, 1, 4, 4)), ones, ones)
    assert np.array(mx.argmax(state[0, :, 0], axis=-1)).tolist() == [0, 0, 1, 1]


def test_every_key_dimension_counts() -> None:
    q, k, v, g, beta = delta_inputs(D=48)
    y, _ = ops.gated_delta(q, k, v, g, beta)
    changed = mx.concatenate([q[..., :32], q[..., 32:] + 1], axis=-1)
    assert mx.abs(ops.gated_delta(changed, k, v, g, beta)[0] - y).max().item() > 1e-2


def test_a_split_run_is_the_whole_run() -> None:
    inputs = delta_inputs(T=11)
    y, state = ops.gated_delta(*inputs)
    y0, middle = ops.gated_delta(*(a[:, :4] for a in inputs))
    y1, last = ops.gated_delta(*(a[:, 4:] for a in inputs), middle)
    assert mx.array_equal(mx.concatenate([y0, y1], axis=1), y)
    assert mx.array_equal(last, state)


def test_the_given_state_is_not_changed() -> None:
    inputs, state = delta_inputs(), mx.ones((1, 4, 16, 16))
    mx.eval(ops.gated_delta(*inputs, state))
    assert mx.array_equal(state, mx.ones((1, 4, 16, 16)))


def test_a_zero_beta_only_decays_and_repetition_overwrites() -> None:
    q, k, v, g, beta = delta_inputs(T=1)
    state = random(1, 4, 16, 16, seed=9)
    _, decayed = ops.gated_delta(q, k, v, g, mx.zeros_like(beta), state)
    assert mx.allclose(decayed, g.reshape(1, 4, 1, 1) * state, rtol=1e-6)
    ones = mx.ones_like(beta)
    _, once = ops.gated_delta(q, k, v, ones, ones, state)
    y, _ = ops.gated_delta(k, k, v, ones, ones, once)
    assert mx.allclose(y, v, atol=1e-5)


def test_a_vanishing_state_ends_at_zero() -> None:
    _, k, _, _, beta = delta_inputs(T=400)
    v = mx.zeros((1, 400, 4, 16))
    y, state = ops.gated_delta(k, k, v, mx.full(beta.shape, 0.5), beta * 0, mx.ones((1, 4, 16, 16)))
    assert mx.array_equal(state, mx.zeros_like(state))
    assert mx.isfinite(y).all().item()
    # Flushing is confined to the kernel.
    assert (mx.array(1e-38) * mx.array(1e-2)).item() > 0


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_agree_with_finite_differences(masked: bool) -> None:
    inputs = [*delta_inputs(T=4, Hk=1, Hv=2, D=4), random(1, 2, 4, 4, seed=5)]
    mask = mx.array([[True, False, True, True]]) if masked else None
    weights = [random(1, 4, 2, 4, seed=6), random(1, 2, 4, 4, seed=7)]

    def loss(*arrays: mx.array) -> mx.array:
        y, state = ops.gated_delta(*arrays, mask)
        return (y * weights[0]).sum() + (state * weights[1]).sum()

    gradients = mx.grad(loss, argnums=tuple(range(6)))(*inputs)
    for index, (value, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        direction = random(*value.shape, seed=20 + index)
        step = 1e-2
        ends = [
            loss(*inputs[:index], value + sign * step * direction, *inputs[index + 1 :]).item()
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope == pytest.approx((gradient * direction).sum().item(), rel=2e-2, abs=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: random(1, 6, 3, 16)}, r"k must have shape \(1, 6, 3, 16\)"),
        ({3: random(1, 6, 4, dtype=mx.bfloat16)}, "g and beta must be float32"),
        ({0: random(1, 6, 2, 16, dtype=mx.float16)}, "must have the same dtype"),
        ({4: random(1, 5, 4)}, r"beta must have shape \(1, 6, 4\)"),
        ({5: mx.zeros((1, 4, 16, 16), mx.bfloat16)}, "the state must be float32"),
        ({5: mx.zeros((1, 4, 16, 8))}, r"state must have shape \(1, 4, 16, 16\)"),
    ],
)
def test_wrong_gated_delta_says_what_is_wrong(change, message) -> None:
    inputs: list[mx.array | None] = [*delta_inputs(), None]
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        ops.gated_delta(*inputs)


def test_head_counts_that_do_not_divide_are_refused() -> None:
    q = random(1, 6, 3, 16)
    _, _, v, g, beta = delta_inputs()
    with pytest.raises(ValueError, match="4, must be a multiple of the number of key heads, 3"):
        ops.gated_delta(q, q, v, g, beta)


# ---- gated delta net -----------------------------------------------------------------------------


def net_inputs(
    T: int, Hk: int, Hv: int, Dk: int, Dv: int, dtype: mx.Dtype = mx.float32, B: int = 2
) -> dict[str, mx.array | int | float]:
    """Arguments of ``ops.delta_net`` with a state that matters."""
    C = 2 * Hk * Dk + Hv * Dv
    return {
        "qkv": random(B, T, C, dtype=dtype),
        "z": random(B, T, Hv * Dv, dtype=dtype, seed=1),
        "a": random(B, T, Hv, seed=2),
        "b": random(B, T, Hv, seed=3),
        "conv_weight": random(C, 4, 1, dtype=dtype, seed=4),
        "A_log": random(Hv, seed=5) - 3,
        "dt_bias": random(Hv, dtype=dtype, seed=6),
        "norm_weight": random(Dv, dtype=dtype, seed=7),
        "num_k_heads": Hk,
        "eps": 1e-6,
        "conv_state": random(B, 3, C, dtype=dtype, seed=8),
        "state": random(B, Hv, Dv, Dk, seed=9),
    }


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 4, 32, 32), (9, 1, 3, 30, 17), (40, 2, 6, 48, 64)])
def test_delta_net_against_fp64(shape, masked: bool, dtype: mx.Dtype) -> None:
    inputs = net_inputs(*shape, dtype=dtype)
    mask = np.arange(shape[0]) >= np.array([[0], [shape[0] // 2]]) if masked else None
    y, conv_state, state = ops.delta_net(**inputs, mask=None if mask is None else mx.array(mask))
    wide = {k: double(v) if isinstance(v, mx.array) else v for k, v in inputs.items()}
    want_y, _, want_state = delta_net(**wide, mask=mask)
    tolerance = {mx.float32: 2e-6, mx.float16: 5e-4, mx.bfloat16: 4e-3}[dtype]
    assert relative_error(y, want_y) < tolerance
    assert relative_error(state, want_state) < 2e-6
    seen = inputs["qkv"] if mask is None else mx.where(mx.array(mask)[..., None], inputs["qkv"], 0)
    steps = mx.concatenate([inputs["conv_state"], seen], axis=1)
    assert mx.array_equal(conv_state, steps[:, -3:])


@pytest.mark.parametrize("masked", [False, True])
def test_native_and_stock_delta_net_agree(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = net_inputs(7, 2, 4, 32, 16)
    lengths = mx.array([7, 2])
    extra = {"lengths": lengths, "mask": mx.arange(7) < lengths[:, None]} if masked else {}
    native = ops.delta_net(**inputs, **extra)
    mx.eval(native)
    monkeypatch.setattr(backend, "native", None)
    for a, b in zip(native, ops.delta_net(**inputs, **extra), strict=True):
        assert mx.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_the_states_after_all_steps(
    masked: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(backend, "native", None)
    inputs = net_inputs(5, 2, 4, 16, 12, B=3)
    lengths = np.array([5, 0, 2])
    mask = np.arange(5) < lengths[:, None] if masked else None
    extra = {"lengths": mx.array(lengths), "mask": mx.array(mask)} if masked else {}
    y, conv_state, states = ops.delta_net(**inputs, **extra, keep_steps=True)
    assert states.shape == (3, 5, 4, 12, 16)
    wide = {k: double(v) if isinstance(v, mx.array) else v for k, v in inputs.items()}
    for t in range(5):
        until = {name: wide[name][:, : t + 1] for name in ("qkv", "z", "a", "b")}
        seen = None if mask is None else mask[:, : t + 1]
        assert relative_error(states[:, t], delta_net(**wide | until, mask=seen)[2]) < 2e-6
    plain = ops.delta_net(**inputs, **extra)
    for a, b in zip(plain, (y, conv_state, states[:, -1]), strict=True):
        assert mx.array_equal(a, b)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(1, 2, 4, 32, 32), (7, 1, 3, 30, 17), (20, 16, 32, 16, 8)])
def test_interleaved_inputs_give_the_same_bits(
    shape, dtype: mx.Dtype, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(backend, "native", None)
    inputs = net_inputs(*shape, dtype=dtype)
    T, Hk, _, Dk, _ = shape
    lengths = mx.array([T, T // 2])
    padded = {"lengths": lengths, "mask": mx.arange(T) < lengths[:, None]}
    zeros = {"conv_state": None, "state": None}
    for more in ({}, padded, zeros, padded | zeros, {"keep_steps": True}):
        plain = inputs | more
        for a, b in zip(
            ops.delta_net(**interleaved(plain, Hk, Dk)), ops.delta_net(**plain), strict=True
        ):
            assert mx.array_equal(a, b)


def test_no_steps_have_no_states() -> None:
    with pytest.raises(ValueError, match="no steps to keep the states of"):
        ops.delta_net(**net_inputs(0, 2, 4, 16, 16), keep_steps=True)


def test_delta_net_starts_from_zeros() -> None:
    inputs = net_inputs(3, 2, 4, 16, 16)
    given = inputs | {name: mx.zeros_like(inputs[name]) for name in ("conv_state", "state")}
    absent = inputs | {"conv_state": None, "state": None}
    for a, b in zip(ops.delta_net(**given), ops.delta_net(**absent), strict=True):
        assert mx.array_equal(a, b)


def test_the_epsilon_of_small_keys_is_added_to_their_sum() -> None:
    inputs = net_inputs(1, 1, 1, 128, 8, B=1) | {"state": None, "conv_state": None}
    inputs["conv_weight"] = mx.ones((2 * 128 + 8, 4, 1))
    small = 1e-4  # SiLU halves it
    qkv = mx.full((1, 1, 264), 2 * small)
    qkv[..., 256:] = 5.0
    _, _, state = ops.delta_net(**inputs | {"qkv": qkv})
    beta = mx.sigmoid(inputs["b"]).item()
    value = 5 / (1 + np.exp(-5))
    length = mx.linalg.norm(state[0, 0, 0]).item() / (beta * value)
    assert length == pytest.approx(0.749, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_k_heads": 3}, "4, must be a multiple of the number of key heads, 3"),
        ({"a": random(2, 5, 4, dtype=mx.bfloat16)}, "a has the wrong dtype"),
        ({"z": random(2, 4, 64)}, r"z must have shape \(2, 5, 64\)"),
        ({"qkv": random(2, 5, 127)}, "qkv has 127 channels"),
        ({"conv_state": random(2, 2, 128)}, r"state must have shape \(2, 3, 128\)"),
        ({"A_log": random(3)}, r"A_log must have shape \(4,\)"),
        ({"z": None}, "z and b must both be given"),
        ({"z": None, "b": None}, r"conv_weight must have shape \(96, 4, 1\)"),
    ],
)
def test_wrong_delta_net_says_what_is_wrong(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        ops.delta_net(**net_inputs(5, 2, 4, 16, 16) | change)


# ---- attention ----------------------------------------------------------------------------------


def attention_inputs() -> list[mx.array]:
    """Q with four heads, k and v with two."""
    return [random(1, 4, 6, 16), random(1, 2, 9, 16, seed=1), random(1, 2, 9, 16, seed=2)]


def test_a_row_that_sees_nothing_is_zero_and_disturbs_no_other() -> None:
    q, k, v = attention_inputs()
    seen = mx.ones((6, 9), mx.bool_)
    seen[2] = False
    y = ops.attention(q, k, v, scale=0.25, mask=seen)
    open_ = ops.attention(q, k, v, scale=0.25)
    assert mx.array_equal(y[:, 2], mx.zeros_like(y[:, 2]))
    assert mx.array_equal(y[:, 3:], open_[:, 3:])


def test_large_scores_do_not_overflow_and_nan_is_not_hidden() -> None:
    q, k, v = attention_inputs()
    y = ops.attention(1e4 * q, 1e4 * k, v, scale=1.0)
    assert mx.isfinite(y).all().item()
    k[0, 0, 4, 3] = float("nan")
    y = ops.attention(q, k, v, scale=0.25)
    assert mx.isnan(y[0, :, :2]).all().item()
    assert mx.isfinite(y[0, :, 2:]).all().item()


def test_a_step_of_attention_does_not_depend_on_the_others() -> None:
    q, k, v = random(1, 4, 50, 64), random(1, 2, 50, 64, seed=1), random(1, 2, 50, 64, seed=2)
    whole = ops.attention(q, k, v, scale=0.125, mask="causal")
    for step in (0, 7, 49):
        end = step + 1
        alone = ops.attention(q[:, :, step:end], k[:, :, :end], v[:, :, :end], scale=0.125)
        assert mx.array_equal(alone[:, 0], whole[:, step])


def gated_attention(q, k, v, gate, **how) -> mx.array:
    """Of MLX operations."""
    y = mx.fast.scaled_dot_product_attention(q, k, v, **how).swapaxes(1, 2)
    return y * mx.sigmoid(gate)


@pytest.mark.parametrize("mask", [None, "causal", mx.array([[True] * 8 + [False]] * 6)])
def test_attention_gradients_agree_with_mlx(mask: mx.array | str | None) -> None:
    def gradients(attention) -> list[mx.array]:
        def loss(q: mx.array, k: mx.array, v: mx.array, gate: mx.array) -> mx.array:
            return (attention(q, k, v, gate=gate, scale=0.25, mask=mask) ** 2).sum()

        gate = random(1, 6, 4, 16, seed=3)
        return mx.grad(loss, argnums=(0, 1, 2, 3))(*attention_inputs(), gate)

    ours, theirs = gradients(ops.attention), gradients(gated_attention)
    for a, b in zip(ours, theirs, strict=True):
        assert mx.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: random(1, 3, 9, 16), 2: random(1, 3, 9, 16)}, "q's heads be a multiple of k's"),
        ({2: random(1, 2, 8, 16)}, r"v must have k's shape \(1, 2, 9, 16\)"),
        ({0: random(1, 4, 6, 16, dtype=mx.bfloat16)}, "must have the same dtype"),
        ({0: random(4, 6, 16)}, "must have 4 dimensions"),
        ({0: random(1, 4, 10, 16)}, "as many keys as queries"),
    ],
)
def test_wrong_attention_says_what_is_wrong(change, message) -> None:
    inputs = attention_inputs()
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        ops.attention(*inputs, scale=0.25, mask="causal")


def test_a_mask_that_does_not_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(6,8\)"):
        ops.attention(*attention_inputs(), scale=0.25, mask=mx.ones((6, 8), mx.bool_))


def test_a_gate_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the gate must have shape \(1, 6, 4, 16\)"):
        ops.attention(*attention_inputs(), scale=0.25, gate=random(1, 4, 6, 16))


# ---- norm and rotary embedding ------------------------------------------------------------------


def turned_by_mlx(x: mx.array, norm: ops.Norm, *, dims: int, base: float, offset) -> mx.array:
    heads = mx.fast.rms_norm(x, norm.weight, norm.eps).swapaxes(1, 2)
    return mx.fast.rope(heads, dims, traditional=False, base=base, scale=1.0, offset=offset)


@pytest.mark.parametrize("offset", [5, mx.array([2, 9])])
def test_norm_rope_and_its_gradients_agree_with_mlx(offset: int | mx.array) -> None:
    def of(turned) -> list[mx.array]:
        def loss(x: mx.array, weight: mx.array) -> mx.array:
            y = turned(x, ops.Norm(weight, 1e-6), dims=8, base=1e4, offset=offset)
            return (y * random(*y.shape, seed=7)).sum()

        value, gradients = mx.value_and_grad(loss, argnums=(0, 1))(
            random(2, 5, 3, 24), random(24, seed=1)
        )
        return [value, *gradients]

    for a, b in zip(of(ops.norm_rope), of(turned_by_mlx), strict=True):
        assert mx.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": random(5, 3, 24)}, "steps, heads, head_dim"),
        ({"norm": ops.Norm(random(23), 1e-6)}, r"the norm's weight must have shape \(24,\)"),
        ({"dims": 7}, "dims must be even"),
        ({"dims": 26}, "at most the head_dim 24"),
        ({"offset": mx.array([1, 2, 3])}, "offset must be one integer"),
    ],
)
def test_wrong_norm_rope_says_what_is_wrong(change, message) -> None:
    inputs = {"x": random(2, 5, 3, 24), "norm": ops.Norm(random(24), 1e-6), "dims": 8}
    with pytest.raises(ValueError, match=message):
        ops.norm_rope(**inputs | {"base": 1e4} | change)


# ---- buffers ------------------------------------------------------------------------------------


def begins_on_a_cache_line(state: mx.array) -> bool:
    """Whether a vector of the CPU never takes two lines of an evaluated state."""
    return np.array(state, copy=False).ctypes.data % 64 == 0


@pytest.mark.parametrize("held", [False, True])
def test_a_state_that_nobody_holds_is_updated_in_place(held: bool) -> None:
    inputs = net_inputs(1, 2, 4, 64, 64)
    _, _, state = ops.delta_net(**inputs)
    mx.eval(state)
    old = np.array(state)
    inputs["state"] = state
    _, _, after = ops.delta_net(**inputs)
    del inputs["state"]
    if not held:
        del state
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(after)
    assert (mx.get_peak_memory() - before >= after.nbytes) == held
    assert begins_on_a_cache_line(after)
    assert not held or np.array_equal(np.array(state), old)


@pytest.mark.parametrize("places", range(0, 16, 3))
def test_a_state_from_anywhere_gives_the_same_bits_on_a_cache_line(places: int) -> None:
    inputs = net_inputs(1, 2, 4, 64, 64)
    y, _, after = ops.delta_net(**inputs)
    flat = mx.concatenate([mx.zeros(places), inputs["state"].flatten()])
    mx.eval(flat)
    inputs["state"] = flat[places:].reshape(inputs["state"].shape)
    del flat
    same_y, _, same = ops.delta_net(**inputs)
    del inputs["state"]
    mx.eval(same_y, same)
    assert mx.array_equal(y, same_y)
    assert mx.array_equal(after, same)
    assert begins_on_a_cache_line(same)


def test_inputs_of_any_strides_give_the_same_bits() -> None:
    x, w = random(6, 40, 64), ops.Weight(random(24, 64, seed=1))
    turned = mx.transpose(mx.contiguous(mx.transpose(x, (1, 0, 2))), (1, 0, 2))
    (want,) = ops.matmul(x, [w])
    for same in (turned, mx.concatenate([x, x])[6:], turned + 0):
        (got,) = ops.matmul(same, [w])
        assert mx.array_equal(got, want)
    # A product's own result, and a view of it, go on as they are.
    square = ops.Weight(random(64, 64, seed=2))
    (y,) = ops.matmul(x, [square])
    (again,) = ops.matmul(y.reshape(240, 64)[::2].reshape(120, 64), [square])
    (whole,) = ops.matmul(mx.array(np.array(y)).reshape(240, 64), [square])
    assert mx.array_equal(again, whole[::2])
