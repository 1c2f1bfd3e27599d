"""Functional operations on ``mx.array``: native primitives where they serve, stock MLX elsewhere.

All of them accumulate in fp32 and round once, into the dtype of ``x`` (or ``v``). On the stock
path MLX's own precision applies: on a CPU it accumulates in the dtype of the activations.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mixbit.backend import native_here

__all__ = [
    "attention",
    "gated_delta",
    "gather_linear",
    "gather_quantized_matmul",
    "linear",
    "quantized_matmul",
]


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
    """``x`` times the transpose of a weight [N, K] packed as ``mx.quantize`` packs it.

    Args:
        x: [..., K], float32, float16 or bfloat16.
        w: uint32 [N, K * bits / 32].
        scales: [N, K / group_size]; a floating dtype for ``affine``, uint8 for the fp modes.
        biases: [N, K / group_size] in the dtype of ``scales``; ``affine`` only.
        bias: [N], added before rounding.
        group_size: 32, 64 or 128 (``affine``), 32 (``mxfp4``, ``mxfp8``), 16 (``nvfp4``).
        bits: 2, 3, 4, 5, 6 or 8 (``affine``), 4 (``mxfp4``, ``nvfp4``), 8 (``mxfp8``).
        mode: ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.

    Returns:
        [..., N] in the dtype of ``x``. Differentiable in ``x`` and ``bias``.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    if (core := native_here()) is not None:
        return core.quantized_matmul(
            x, w, scales, biases, bias=bias, group_size=group_size, bits=bits, mode=mode
        )
    y = mx.quantized_matmul(
        x, w, scales, biases, transpose=True, group_size=group_size, bits=bits, mode=mode
    )
    return (y if bias is None else y + bias).astype(x.dtype)


def linear(x: mx.array, w: mx.array, *, bias: mx.array | None = None) -> mx.array:
    """``x`` [..., K] times the transpose of a dense ``w`` [N, K], plus ``bias`` [N].

    All dtypes float32, float16 or bfloat16, each for itself.

    Returns:
        [..., N] in the dtype of ``x``. Differentiable in all arguments.

    Raises:
        ValueError: for shapes or dtypes that do not fit together.
    """
    if (core := native_here()) is not None:
        return core.linear(x, w, bias=bias)
    y = x @ w.T
    return (y if bias is None else y + bias).astype(x.dtype)


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
    """Each row block of ``x`` times the transpose of its own weight out of a stack of E.

    Args:
        x: [..., M, K]; the leading dimensions broadcast to those of ``indices``.
        w, scales, biases: as for :func:`quantized_matmul` with a leading dimension E.
        indices: integers [...] in [0, E).
        group_size, bits, mode: as for :func:`quantized_matmul`.
        sorted_indices: a promise that ``indices`` ascend, of which stock MLX makes use.

    Returns:
        [*indices.shape, M, N] in the dtype of ``x``. Differentiable in ``x``. An index out of
        range gives NaN.

    Raises:
        ValueError: for shapes, dtypes or formats that do not fit together.
    """
    if (core := native_here()) is not None:
        return core.gather_quantized_matmul(
            x, w, scales, biases, indices, group_size=group_size, bits=bits, mode=mode
        )
    return mx.gather_qmm(
        x,
        w,
        scales,
        biases,
        rhs_indices=indices,
        transpose=True,
        group_size=group_size,
        bits=bits,
        mode=mode,
        sorted_indices=sorted_indices,
    )


def gather_linear(
    x: mx.array, w: mx.array, indices: mx.array, *, sorted_indices: bool = False
) -> mx.array:
    """:func:`gather_quantized_matmul` for dense weights ``w`` [E, N, K]."""
    if (core := native_here()) is not None:
        return core.gather_linear(x, w, indices)
    return mx.gather_mm(
        x, w.swapaxes(-1, -2), rhs_indices=indices, sorted_indices=sorted_indices
    ).astype(x.dtype)


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
) -> mx.array:
    """Scaled dot-product attention with grouped heads, as ``mx.fast.scaled_dot_product_attention``.

    Args:
        q: [B, H, T, D]; any strides, as ``k`` and ``v``, with which it shares a floating dtype.
        k, v: [B, Hk, S, D], H a multiple of Hk.
        scale: factor of the scores, usually ``D ** -0.5``.
        mask: ``"causal"`` (step t sees the keys up to t + S - T), a bool array (true is seen) or a
            floating one (added to the scores), broadcasting to [B, H, T, S]; ``None`` for all keys.

    Returns:
        [B, H, T, D] in the dtype of ``q``; 0 in a row that may see nothing. Differentiable in
        ``q``, ``k`` and ``v``.

    Raises:
        ValueError: for shapes or dtypes that do not fit together.
    """
    if (core := native_here()) is not None:
        causal = isinstance(mask, str) and mask == "causal"
        return core.attention(q, k, v, scale=scale, causal=causal, mask=None if causal else mask)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


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
    return _stock_gated_delta(q, k, v, g, beta, state, mask)


def _stock_gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None,
    mask: mx.array | None,
) -> tuple[mx.array, mx.array]:
    from mlx_lm.models import gated_delta as stock  # heavy import, needed on this path only

    if state is None:
        batch, _, heads, dv = v.shape
        state = mx.zeros((batch, heads, dv, q.shape[-1]), dtype=mx.float32)
    metal: Any = mx.default_device() == mx.gpu and mx.metal.is_available()
    run = stock.gated_delta_kernel if metal and k.shape[-1] % 32 == 0 else stock.gated_delta_ops
    y, state = run(q, k, v, g, beta, state, mask)
    if mask is not None:
        y = mx.where(mask[..., None, None], y, 0)
    return y.astype(v.dtype), state
