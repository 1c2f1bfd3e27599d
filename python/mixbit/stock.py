"""The operations composed of stock MLX ones: what serves where no native kernel does.

They are also what the native ones are compared with. Imports of mlx-lm stand inside the functions:
it is heavy, and the native path needs none of it.
"""

from __future__ import annotations

import mlx.core as mx

from mixbit.weight import Weight

__all__ = [
    "convolved",
    "decay",
    "gated_delta",
    "gated_norm",
    "last_steps",
    "matmul",
    "swiglu",
]


def matmul(x: mx.array, weight: Weight) -> mx.array:
    """``x`` [..., K] times one weight [N, K] transposed, plus its bias: [..., N]."""
    dtype = weight.dtype or x.dtype
    if weight.dtype is not None:
        x = x.astype(weight.dtype)  # more precise than rounding the product first
    if weight.scales is None:
        y = x @ weight.w.T
    else:
        y = mx.quantized_matmul(
            x,
            weight.w,
            weight.scales,
            weight.biases,
            transpose=True,
            group_size=weight.group_size,
            bits=weight.bits,
            mode=weight.mode,
        )
    return (y if weight.bias is None else y + weight.bias).astype(dtype)


def swiglu(x: mx.array, gate: Weight, up: Weight) -> mx.array:
    """``SiLU(x gate^T) * (x up^T)``: [..., N]."""
    from mlx_lm.models.activations import swiglu as activation

    return activation(matmul(x, gate), matmul(x, up))


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None,
    mask: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """mlx-lm's gated delta rule, with its kernel on Metal; as :func:`mixbit.ops.gated_delta`."""
    from mlx_lm.models import gated_delta as rule

    if state is None:
        batch, _, heads, dv = v.shape
        state = mx.zeros((batch, heads, dv, q.shape[-1]), dtype=mx.float32)
    metal = mx.default_device() == mx.gpu and mx.metal.is_available()
    run = rule.gated_delta_kernel if metal and k.shape[-1] % 32 == 0 else rule.gated_delta_ops
    y, state = run(q, k, v, g, beta, state, mask)
    if mask is not None:
        y = mx.where(mask[..., None, None], y, 0)
    return y.astype(v.dtype), state


def convolved(
    conv_input: mx.array, weight: mx.array, values: tuple[int, ...], num_k_heads: int
) -> list[mx.array]:
    """q, k [B, T, Hk, Dk], normalised, and v [B, T, Hv, Dv] of the shape ``values``.

    Args:
        conv_input: [B, taps - 1 + T, C].
        weight: [C, taps, 1].
        values: the shape of v.
        num_k_heads: Hk.
    """
    from mlx_lm.models.gated_delta import normalize_qk

    B, T, Hv, Dv = values
    channels = conv_input.shape[-1]
    mixed = mx.conv1d(conv_input, weight, groups=channels)
    mixed = mixed * mx.sigmoid(mixed)
    key = (channels - Hv * Dv) // 2
    q, k, v = mx.split(mixed, [key, 2 * key], axis=-1)
    dim = key // num_k_heads
    q, k = normalize_qk(
        q.reshape(B, T, num_k_heads, dim),
        k.reshape(B, T, num_k_heads, dim),
        inv_scale=dim**-0.5,
        eps=1e-6,
    )
    return [q, k, v.reshape(values)]


def decay(A_log: mx.array, a: mx.array, dt_bias: mx.array) -> mx.array:
    """``exp(-exp(A_log) softplus(a + dt_bias))`` in fp32."""
    from mlx_lm.models.gated_delta import compute_g

    return compute_g(A_log, a, dt_bias.astype(mx.float32))


def gated_norm(y: mx.array, z: mx.array, weight: mx.array, eps: float) -> mx.array:
    """``RMSNorm(y) * weight * SiLU(z)`` over the last dimension, in the dtype of ``y``."""
    from mlx_lm.models.activations import precise_swiglu

    return precise_swiglu(y, z, mx.fast.rms_norm(y, weight, eps))


def last_steps(conv_input: mx.array, count: int, lengths: mx.array | None) -> mx.array:
    """The ``count`` inputs before each row's next step; rows may end early (``lengths``)."""
    if lengths is None:
        return mx.contiguous(conv_input[:, -count:, :])
    steps = conv_input.shape[1] - count
    ends = mx.clip(lengths, 0, steps)
    positions = (ends[:, None] + mx.arange(count))[..., None]
    return mx.take_along_axis(conv_input, positions, axis=1)
