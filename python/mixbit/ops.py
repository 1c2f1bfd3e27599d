"""Functional operations on ``mx.array``: native primitives where they serve, stock MLX elsewhere.

All of them compute in fp32 and round once, into the dtype of their input unless they say otherwise.
On the stock path MLX's own precision applies: on a CPU it accumulates in the dtype of the
activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mixbit import backend, stock, stock_search
from mixbit.backend import native_here, run_native
from mixbit.stock import TOP, LogitFields
from mixbit.weight import Norm, Weight

__all__ = [
    "TOP",
    "LogitFields",
    "Norm",
    "Weight",
    "attention",
    "delta_net",
    "gated_delta",
    "gather_linear",
    "gather_matmul",
    "gather_quantized_matmul",
    "gather_swiglu",
    "kl_divergence",
    "linear",
    "matmul",
    "norm_rope",
    "quantize_search",
    "quantized_matmul",
    "route",
    "swiglu",
]


def matmul(
    x: mx.array,
    weights: Sequence[Weight],
    *,
    norm: Norm | None = None,
    residual: mx.array | None = None,
) -> list[mx.array]:
    """``x`` times the transpose of several weights that share it, plus their biases.

    Args:
        x: [..., K], float32, float16 or bfloat16.
        weights: each with its own format and number of rows.
        norm: of ``x``, before it is multiplied.
        residual: [..., N], added to the product of a single weight before rounding.

    Returns:
        [..., N] for each weight. Differentiable in all but packed weights.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    ys = run_native(
        lambda core: core.matmul(
            x,
            [_native(core, weight) for weight in weights],
            norm=_native_norm(core, norm),
            residual=residual,
        )
    )
    return stock.matmuls(x, weights, norm, residual) if ys is None else ys


def swiglu(x: mx.array, gate: Weight, up: Weight, *, norm: Norm | None = None) -> mx.array:
    """``SiLU(x gate^T) * (x up^T)``, for two weights of equal shape.

    Args:
        x: [..., K].
        gate: its ``dtype`` does not count.
        up: likewise.
        norm: of ``x``, before it is multiplied.

    Returns:
        [..., N] in the dtype of ``x``, rounded once. Differentiable as :func:`matmul`.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    y = run_native(
        lambda core: core.swiglu(
            x, _native(core, gate), _native(core, up), norm=_native_norm(core, norm)
        )
    )
    return stock.swiglu(stock.normed(x, norm), gate, up) if y is None else y


def _native(core: ModuleType, weight: Weight) -> Any:
    return core.Weight(
        weight.w,
        weight.scales,
        weight.biases,
        bias=weight.bias,
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
        dtype=weight.dtype,
        activation_bits=weight.activation_bits,
    )


def _native_norm(core: ModuleType, norm: Norm | None) -> Any:
    return None if norm is None else core.Norm(norm.weight, norm.eps)


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    bias: mx.array | None = None,
    group_size: int = 64,
    bits: int = 4,
    mode: str = "affine",
) -> mx.array:
    """:func:`matmul` with one packed weight; the arguments are :class:`Weight`'s.

    Returns:
        [..., N] in the dtype of ``x``.
    """
    (y,) = matmul(x, [Weight(w, scales, biases, bias, group_size, bits, mode)])
    return y


def linear(x: mx.array, w: mx.array, *, bias: mx.array | None = None) -> mx.array:
    """:func:`matmul` with one dense weight: ``x`` [..., K] times ``w`` [N, K] transposed.

    Returns:
        [..., N] in the dtype of ``x``.
    """
    (y,) = matmul(x, [Weight(w, bias=bias)])
    return y


def gather_matmul(
    x: mx.array,
    weight: Weight,
    indices: mx.array,
    *,
    scores: mx.array | None = None,
    sorted_indices: bool = False,
) -> mx.array:
    """Each row block of ``x`` times the transpose of its own weight out of a stack of E.

    Args:
        x: [..., M, K]; the leading dimensions broadcast to those of ``indices``.
        weight: arrays with a leading dimension E, no bias; its ``dtype`` does not count.
        indices: integers [...] in [0, E).
        scores: floating, of the shape of ``indices``: the blocks along its last dimension are
            multiplied by them and added up, in that order.
        sorted_indices: a promise that ``indices`` ascend, of which stock MLX makes use.

    Returns:
        [*indices.shape, M, N], with ``scores`` [*indices.shape[:-1], M, N], in the dtype of ``x``,
        rounded once. Differentiable in ``x`` and ``scores``. An index out of range gives NaN.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    y = run_native(
        lambda core: core.gather_matmul(x, _native(core, weight), indices, scores=scores)
    )
    return stock.gather_matmul(x, weight, indices, scores, sorted_indices) if y is None else y


def gather_quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    indices: mx.array,
    *,
    group_size: int = 64,
    bits: int = 4,
    mode: str = "affine",
    sorted_indices: bool = False,
) -> mx.array:
    """:func:`gather_matmul` with packed weights; the arguments are :class:`Weight`'s."""
    weight = Weight(w, scales, biases, None, group_size, bits, mode)
    return gather_matmul(x, weight, indices, sorted_indices=sorted_indices)


def gather_linear(
    x: mx.array, w: mx.array, indices: mx.array, *, sorted_indices: bool = False
) -> mx.array:
    """:func:`gather_matmul` with dense weights ``w`` [E, N, K]."""
    return gather_matmul(x, Weight(w), indices, sorted_indices=sorted_indices)


def gather_swiglu(
    x: mx.array, gate: Weight, up: Weight, indices: mx.array, *, sorted_indices: bool = False
) -> mx.array:
    """``SiLU(x gate^T) * (x up^T)`` with an expert's ``gate`` and ``up`` for each row block.

    Args:
        x, indices, sorted_indices: as for :func:`gather_matmul`.
        gate: stack of weights [E, N, K] without bias; its ``dtype`` does not count.
        up: likewise, of the same shape.

    Returns:
        [*indices.shape, M, N] in the dtype of ``x``, rounded once. Differentiable in ``x``.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    y = run_native(
        lambda core: core.gather_swiglu(x, _native(core, gate), _native(core, up), indices)
    )
    return stock.gather_swiglu(x, gate, up, indices, sorted_indices) if y is None else y


def route(logits: mx.array, slots: int, *, normalise: bool) -> tuple[mx.array, mx.array]:
    """The experts that a router chooses, and how much each counts.

    Args:
        logits: [..., E], floating, E <= 1023.
        slots: how many experts to choose, at most 32 and E.
        normalise: softmax over the chosen logits, so that the scores sum to 1; else over all.

    Returns:
        uint32 [..., slots], the largest logits first and the earlier of equals first, and their
        softmax in float32 [..., slots]. Differentiable in ``logits`` through the scores.

    Raises:
        ValueError: for a shape, dtype or number of slots that does not fit.
    """
    chosen = run_native(lambda core: core.route(logits, slots, normalise=normalise))
    return stock.route(logits, slots, normalise) if chosen is None else tuple(chosen)


def norm_rope(
    x: mx.array,
    norm: Norm,
    *,
    dims: int,
    base: float,
    scale: float = 1.0,
    offset: int | mx.array = 0,
) -> mx.array:
    """RMSNorm of attention heads, then rotary position embedding of their first ``dims`` values.

    Values i and i + dims/2 of a normalised head turn by (offset + t) * scale * base ** (-2i / dims)
    (``nn.RoPE`` with ``traditional=False``); the values from ``dims`` on stay.

    Args:
        x: [B, T, H, D] of a floating dtype; any strides.
        norm: weight [D] and eps.
        dims: even, at most D.
        base: of the frequencies.
        scale: of the positions.
        offset: position of the first step, for all rows or int [B].

    Returns:
        [B, H, T, D] in the dtype of ``x``, rounded once. Differentiable in ``x`` and the weight.

    Raises:
        ValueError: for shapes or dtypes that do not fit together.
    """
    if (core := native_here()) is not None:
        native = core.Norm(norm.weight, norm.eps)
        return core.norm_rope(x, native, dims=dims, base=base, scale=scale, offset=offset)
    heads = mx.fast.rms_norm(x, norm.weight, norm.eps).swapaxes(1, 2)
    return mx.fast.rope(heads, dims, traditional=False, base=base, scale=scale, offset=offset)


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    gate: mx.array | None = None,
) -> mx.array:
    """Scaled dot-product attention with grouped heads.

    Args:
        q: [B, H, T, D]; any strides, as ``k`` and ``v``, with which it shares a floating dtype.
        k, v: [B, Hk, S, D], H a multiple of Hk.
        scale: factor of the scores, usually ``D ** -0.5``.
        mask: ``"causal"`` (step t sees the keys up to t + S - T), a bool array (true is seen) or a
            floating one (added to the scores), broadcasting to [B, H, T, S]; ``None`` for all keys.
        gate: [B, T, H, D] in the dtype of ``q``, any strides: the result is multiplied by its
            sigmoid.

    Returns:
        [B, T, H, D] in the dtype of ``q``; 0 in a row that may see nothing. Differentiable in
        all but the mask.

    Raises:
        ValueError: for shapes or dtypes that do not fit together.
    """
    if (core := native_here()) is not None:
        causal = isinstance(mask, str) and mask == "causal"
        seen = None if causal else mask
        return core.attention(q, k, v, scale=scale, causal=causal, mask=seen, gate=gate)
    y = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask).swapaxes(1, 2)
    return y if gate is None else y * mx.sigmoid(gate)


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """The gated delta rule (Yang, Kautz, Hatamizadeh 2024, eq. 10), one step after the other.

    For each value head, with the key head that serves it (value heads are grouped: head j of Hv
    uses key head j // (Hv / Hk))::

        S_t = g_t S_{t-1} + beta_t (v_t - g_t S_{t-1} k_t) k_t^T        y_t = S_t q_t

    Args:
        q, k: [B, T, Hk, Dk], normalised and scaled by the caller; one floating dtype with ``v``.
        v: [B, T, Hv, Dv], Hv a multiple of Hk.
        g, beta: float32 [B, T, Hv]. In 16 bits a gate of 0.999 would be 1.
        state: float32 [B, Hv, Dv, Dk], or ``None`` for zeros.
        mask: bool [B, T]; where false the state passes unchanged and ``y`` is 0.

    Returns:
        ``y`` [B, T, Hv, Dv] in the dtype of ``v``, and the state after the last step.
        Differentiable in all floating arguments.

    Raises:
        ValueError: for shapes or dtypes that do not fit together.
    """
    if (core := native_here()) is not None:
        return core.gated_delta(q, k, v, g, beta, state, mask)
    return stock.gated_delta(q, k, v, g, beta, state, mask)


def delta_net(
    qkv: mx.array,
    z: mx.array | None,
    a: mx.array,
    b: mx.array | None,
    *,
    conv_weight: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    norm_weight: mx.array,
    num_k_heads: int,
    eps: float,
    conv_state: mx.array | None = None,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    lengths: mx.array | None = None,
    keep_steps: bool = False,
) -> tuple[mx.array, mx.array, mx.array]:
    """GatedDeltaNet between its projections.

    Causal depthwise convolution over q | k | v and SiLU; q and k divided by
    ``sqrt(sum of squares + 1e-6)`` per head, q also by ``sqrt(Dk)``; the gates
    ``g = exp(-exp(A_log) softplus(a + dt_bias))`` and ``beta = sigmoid(b)``; :func:`gated_delta`;
    ``RMSNorm(.) * norm_weight * SiLU(z)``. Not differentiable: layers train through mlx-lm's form.

    Without ``z`` and ``b`` the inputs are qwen3_next's, interleaved by key head: a step of ``qkv``
    is q | k | v | z of each key head in turn, v and z those of its Hv / Hk value heads, and a step
    of ``a`` b | a of each. ``conv_weight`` and ``conv_state`` have q | k | v of all heads as ever.

    Args:
        qkv: [B, T, C] with C = 2 Hk Dk + Hv Dv, one floating dtype with ``z``; interleaved
            [B, T, C + Hv Dv].
        z: [B, T, Hv Dv]; ``None`` for interleaved inputs.
        a: float32 [B, T, Hv], the decay before its function; interleaved [B, T, 2 Hv].
        b: float32 [B, T, Hv], beta before its function; ``None`` for interleaved inputs.
        conv_weight: [C, taps, 1].
        A_log, dt_bias: [Hv].
        norm_weight: [Dv].
        num_k_heads: Hk.
        eps: of the norm.
        conv_state: [B, taps - 1, C], what the convolution saw last; ``None`` for zeros.
        state: float32 [B, Hv, Dv, Dk]; ``None`` for zeros.
        mask: bool [B, T]; a false step is zero to the convolution and leaves ``state`` alone.
        lengths: integers [B], steps before the padding on the right of each row.
        keep_steps: return the state after every step, the last of which is the next ``state``.

    Returns:
        [B, T, Hv Dv] in the dtype of ``qkv``, the next ``conv_state`` and the next ``state``, with
        ``keep_steps`` [B, T, Hv, Dv, Dk].

    Raises:
        ValueError: for shapes or dtypes that do not fit together, one of ``z`` and ``b`` without
            the other, or no steps to keep.
    """
    made = run_native(
        lambda core: core.delta_net(
            qkv,
            z,
            a,
            b,
            conv_weight,
            A_log,
            dt_bias,
            norm_weight,
            conv_state,
            state,
            mask,
            None if lengths is None else lengths.astype(mx.int32),
            num_k_heads=num_k_heads,
            eps=eps,
            keep_steps=keep_steps,
        )
    )
    if made is not None:
        return made
    if z is None or b is None:
        qkv, z, a, b = stock.in_order(qkv, a, num_k_heads, norm_weight.size)
    if conv_state is None:
        B, _, C = qkv.shape
        conv_state = mx.zeros((B, conv_weight.shape[1] - 1, C), dtype=qkv.dtype)
    if mask is not None:
        # The convolution reads earlier steps: a masked one must not reach its neighbours.
        qkv = mx.where(mask[..., None], qkv, 0)
    conv_input = mx.concatenate([conv_state, qkv], axis=1)
    heads = (*a.shape, norm_weight.size)
    q, k, v = stock.convolved(conv_input, conv_weight, heads, num_k_heads)
    g = stock.decay(A_log, a, dt_bias)
    rule = stock.gated_delta_steps if keep_steps else gated_delta
    y, state = rule(q, k, v, g, mx.sigmoid(b), state, mask)
    y = stock.gated_norm(y, z.reshape(heads), norm_weight, eps).reshape(z.shape)
    taken = stock.last_steps(conv_input, conv_weight.shape[1] - 1, lengths)
    return y, taken, state


def kl_divergence(
    p_hidden: mx.array,
    p_head: Weight,
    q_hidden: mx.array,
    q_head: Weight | None,
    targets: mx.array,
    *,
    vocabulary: int,
) -> npt.NDArray[np.float64]:
    """Softmax statistics of two models' logits over tiles of the vocabulary, logits never stored.

    Logits come from fp32 sums and everything after them is fp64; on a GPU a tile's sums are pairs
    of fp32, rounded once. Rows and tiles are independent of each other and of the number of either.
    :func:`mixbit.kld.rows.merge_tiles` makes divergences of the tiles.

    Args:
        p_hidden: last hidden states [T, K] of the reference.
        p_head: its output head [N, K].
        q_hidden: those of the candidate, [T, K'].
        q_head: its head [N', K'], or ``None`` if it is the reference's own. Then q's logits are
            p's less the head's product with ``p_hidden - q_hidden``, so that a small divergence is
            not lost in the rounding of large logits.
        targets: tokens [T] whose logits are wanted.
        vocabulary: the softmax runs over tokens 0 to ``vocabulary`` - 1; further rows of a head
            only pad it.

    Returns:
        float64 [T, tiles, fields], which :class:`LogitFields` names.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    tiles = run_native(
        lambda core: core.kl_divergence(
            p_hidden,
            _native(core, p_head),
            q_hidden,
            None if q_head is None else _native(core, q_head),
            targets,
            vocabulary=vocabulary,
        )
    )
    if tiles is not None:
        return np.asarray(tiles).astype(np.float64, copy=False)
    return stock.kl_divergence(p_hidden, p_head, q_hidden, q_head, targets, vocabulary)


def quantize_search(
    w: mx.array,
    importance: mx.array | None,
    *,
    group_size: int,
    bits: int,
    dtype: mx.Dtype,
) -> tuple[mx.array, mx.array, mx.array]:
    """Codes, scales and biases of a weight in MLX's affine format, searched for.

    For each group of a row it minimises ``sum_k h_k (w_k - s q_k - b)^2`` over scale s and bias b,
    both rounded to ``dtype`` before the nearest codes q are taken: least squares for the codes in
    turn with the nearest codes for the fit, from 16 starts (an idea of llama.cpp's k-quants). The
    result is never worse than ``mx.quantize`` by that measure. It runs on the CPU, and the bits do
    not depend on the number of threads.

    Args:
        w: [..., N, K], finite.
        importance: h, [..., K], finite and not negative; None for ones. Groups in which it is zero
            throughout count all weights alike.
        group_size: 32, 64 or 128, a divisor of K.
        bits: 2, 3, 4, 5, 6 or 8.
        dtype: of scales and biases: float32, float16 or bfloat16.

    Returns:
        uint32 [..., N, K * bits / 32], and twice [..., N, K / group_size].

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    if backend.native is None:
        return stock_search.quantize_search(w, importance, group_size, bits, dtype)
    codes, scales, biases = backend.native.quantize_search(
        w, importance, group_size=group_size, bits=bits, dtype=dtype, stream=mx.cpu
    )
    return codes, scales, biases
