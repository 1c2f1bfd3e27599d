"""The operations composed of stock MLX ones: what serves where no native kernel does.

They are also what the native ones are compared with. Imports of mlx-lm stand inside the functions:
it is heavy, and the native path needs none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mixbit.weight import Norm, Weight

__all__ = [
    "TOP",
    "LogitFields",
    "convolved",
    "decay",
    "gated_delta",
    "gated_delta_steps",
    "gated_norm",
    "gather_matmul",
    "gather_swiglu",
    "in_order",
    "kl_divergence",
    "last_steps",
    "logit_tiles",
    "matmul",
    "matmuls",
    "normed",
    "route",
    "swiglu",
]

Array = npt.NDArray[np.float64]

TOP = 5
"""Largest logits of which the statistics tell."""

# Rows are worked off in groups of about this many logits, so that the fp64 temporaries stay small.
_GROUP_ELEMENTS = 1 << 18


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


def normed(x: mx.array, norm: Norm | None) -> mx.array:
    """``x``, or its RMSNorm, in the dtype of ``x``."""
    return x if norm is None else mx.fast.rms_norm(x, norm.weight, norm.eps)


def matmuls(
    x: mx.array, weights: Sequence[Weight], norm: Norm | None, residual: mx.array | None
) -> list[mx.array]:
    """As :func:`mixbit.ops.matmul`."""
    x = normed(x, norm)
    products = [matmul(x, weight) for weight in weights]
    if residual is None:
        return products
    if len(products) != 1 or products[0].shape != residual.shape:
        raise ValueError("A residual has the shape of the product and goes with a single weight.")
    return [(products[0] + residual).astype(products[0].dtype)]


def swiglu(x: mx.array, gate: Weight, up: Weight) -> mx.array:
    """``SiLU(x gate^T) * (x up^T)``: [..., N]."""
    from mlx_lm.models.activations import swiglu as activation

    return activation(matmul(x, gate), matmul(x, up))


def gather_matmul(
    x: mx.array,
    weight: Weight,
    indices: mx.array,
    scores: mx.array | None,
    sorted_indices: bool,
) -> mx.array:
    """As :func:`mixbit.ops.gather_matmul`."""
    if weight.scales is None:
        transposed = weight.w.swapaxes(-1, -2)
        y = mx.gather_mm(x, transposed, rhs_indices=indices, sorted_indices=sorted_indices)
    else:
        y = mx.gather_qmm(
            x,
            weight.w,
            weight.scales,
            weight.biases,
            rhs_indices=indices,
            transpose=True,
            group_size=weight.group_size,
            bits=weight.bits,
            mode=weight.mode,
            sorted_indices=sorted_indices,
        )
    if scores is not None:
        y = (y * scores[..., None, None]).sum(axis=-3)
    return y.astype(x.dtype)


def gather_swiglu(
    x: mx.array, gate: Weight, up: Weight, indices: mx.array, sorted_indices: bool
) -> mx.array:
    """As :func:`mixbit.ops.gather_swiglu`."""
    from mlx_lm.models.activations import swiglu as activation

    return activation(
        gather_matmul(x, gate, indices, None, sorted_indices),
        gather_matmul(x, up, indices, None, sorted_indices),
    )


def route(logits: mx.array, slots: int, normalise: bool) -> tuple[mx.array, mx.array]:
    """As :func:`mixbit.ops.route`."""
    logits = logits.astype(mx.float32)
    chosen = mx.stop_gradient(mx.argsort(-logits, axis=-1)[..., :slots])
    if normalise:
        return chosen, mx.softmax(mx.take_along_axis(logits, chosen, axis=-1), axis=-1)
    return chosen, mx.take_along_axis(mx.softmax(logits, axis=-1), chosen, axis=-1)


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


def gated_delta_steps(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None,
    mask: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """As :func:`gated_delta`, with the states after all steps: [B, T, Hv, Dv, Dk]."""
    ys, states = [], []
    for t in range(q.shape[1]):
        at = slice(t, t + 1)
        seen = None if mask is None else mask[:, at]
        y, state = gated_delta(q[:, at], k[:, at], v[:, at], g[:, at], beta[:, at], state, seen)
        ys.append(y)
        states.append(state)
    return mx.concatenate(ys, axis=1), mx.stack(states, axis=1)


def in_order(
    qkvz: mx.array, ba: mx.array, num_k_heads: int, value_dim: int
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """The interleaved inputs of :func:`mixbit.ops.delta_net` as its four others.

    Args:
        qkvz: [B, T, Hk (2 Dk + 2 Hv / Hk Dv)].
        ba: [B, T, 2 Hv].
        num_k_heads: Hk.
        value_dim: Dv.

    Returns:
        qkv [B, T, 2 Hk Dk + Hv Dv], z [B, T, Hv Dv], a and b [B, T, Hv].
    """
    B, T, width = qkvz.shape
    share = ba.shape[-1] // 2 // num_k_heads
    key, values = width // num_k_heads // 2 - share * value_dim, share * value_dim
    heads = qkvz.reshape(B, T, num_k_heads, -1)
    *qkv, z = mx.split(heads, [key, 2 * key, 2 * key + values], axis=-1)
    b, a = (t.reshape(B, T, -1) for t in mx.split(ba.reshape(B, T, num_k_heads, -1), 2, axis=-1))
    joined = mx.concatenate([t.reshape(B, T, -1) for t in qkv], axis=-1)
    return joined, z.reshape(B, T, -1), a, b


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


class LogitFields:
    """The columns of a tile's statistics, ``[rows, tiles, fields]``, by name.

    For logits p and q: ``max_p`` and ``sum_p`` = sum exp(p - max_p), likewise ``max_q`` and
    ``sum_q``; ``forward`` = sum exp(p - max_p) (p - q), ``reverse`` = sum exp(q - max_q) (q - p),
    where a token that one side rules out (-inf) weighs nothing there; ``target_p`` and
    ``target_q``, 0 where the target is in another tile, all ``[rows, tiles]``. The largest logits
    of each side, largest first, with their tokens, ``[rows, tiles, TOP]``: -inf and -1 where there
    are fewer.
    """

    COUNT = 8 + 4 * TOP

    def __init__(self, tiles: Array) -> None:
        """Views into ``tiles``; writing to them writes there."""
        (
            self.max_p, self.sum_p, self.max_q, self.sum_q,
            self.forward, self.reverse, self.target_p, self.target_q,
        ) = np.moveaxis(tiles[..., :8], -1, 0)  # fmt: skip
        self.top_p, self.top_p_tokens, self.top_q, self.top_q_tokens = np.split(
            tiles[..., 8:], 4, axis=-1
        )


def kl_divergence(
    p_hidden: mx.array,
    p_head: Weight,
    q_hidden: mx.array,
    q_head: Weight | None,
    targets: mx.array,
    vocabulary: int,
) -> Array:
    """As :func:`mixbit.ops.kl_divergence`, the logits of all rows held at once, in one tile."""

    def logits(hidden: mx.array, head: Weight) -> npt.NDArray[np.float32]:
        return np.asarray(matmul(hidden.astype(mx.float32), head._replace(dtype=None)))

    return logit_tiles(
        logits(p_hidden, p_head)[:, :vocabulary],
        logits(q_hidden, p_head if q_head is None else q_head)[:, :vocabulary],
        np.asarray(targets.astype(mx.int64)),
    )


def logit_tiles(
    p: npt.NDArray[np.float32], q: npt.NDArray[np.float32], targets: npt.NDArray[np.int64]
) -> Array:
    """Statistics of logits that are at hand.

    Args:
        p: the reference's logits ``[rows, vocab]``, float32.
        q: the candidate's.
        targets: ``[rows]``.

    Returns:
        ``[rows, 1, LogitFields.COUNT]``: the whole vocabulary as one tile.
    """
    rows, vocab = p.shape
    tiles = np.empty((rows, 1, LogitFields.COUNT))
    step = max(1, _GROUP_ELEMENTS // vocab)
    for begin in range(0, rows, step):
        group = slice(begin, begin + step)
        _fill(LogitFields(tiles[group]), p[group], q[group], targets[group])
    return tiles


def _fill(
    fields: LogitFields,
    p: npt.NDArray[np.float32],
    q: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
) -> None:
    x, y = p.astype(np.float64), q.astype(np.float64)
    row = np.arange(len(x))
    with np.errstate(invalid="ignore", over="ignore"):
        fields.max_p[:, 0], fields.sum_p[:, 0], fields.forward[:, 0] = _side(x, y)
        fields.max_q[:, 0], fields.sum_q[:, 0], fields.reverse[:, 0] = _side(y, x)
    fields.target_p[:, 0], fields.target_q[:, 0] = x[row, targets], y[row, targets]
    fields.top_p[:, 0], fields.top_p_tokens[:, 0] = _largest(x)
    fields.top_q[:, 0], fields.top_q_tokens[:, 0] = _largest(y)


def _side(x: Array, other: Array) -> tuple[Array, Array, Array]:
    """Maximum, sum of exponentials and cost of ``x`` against ``other``, each ``[rows]``."""
    top = x.max(axis=1)
    weights = np.exp(x - top[:, None])
    cost = weights * (x - other)
    # A token that this side rules out weighs nothing, whatever the other says; one that only the
    # other rules out costs infinity, also where its weight underflows to zero.
    cost[np.isneginf(x)] = 0
    cost[np.isneginf(other) & ~np.isneginf(x)] = np.inf
    return top, weights.sum(axis=1), cost.sum(axis=1)


def _largest(x: Array) -> tuple[Array, Array]:
    """The ``TOP`` largest of each row and their places, the first first where two are equal."""
    values = np.full((len(x), TOP), -np.inf)
    tokens = np.full((len(x), TOP), -1.0)
    for row, logits in enumerate(np.where(np.isnan(x), -np.inf, x)):
        kept = min(TOP, len(logits))
        least = np.partition(logits, -kept)[-kept]
        found = (
            np.flatnonzero(logits >= least) if least > -np.inf else np.flatnonzero(logits > least)
        )
        found = found[np.argsort(-logits[found], kind="stable")][:TOP]
        values[row, : len(found)] = logits[found]
        tokens[row, : len(found)] = found
    return values, tokens
