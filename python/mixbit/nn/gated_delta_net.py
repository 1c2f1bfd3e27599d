"""GatedDeltaNet of qwen3_5 (and qwen3_5_moe) and of qwen3_next over :mod:`mixbit.ops`.

What differs from mlx-lm's layer is the numbers: the gates ``g`` and ``beta`` come from fp32
pre-activations and stay fp32. mlx-lm computes softplus in the activation dtype, which in bf16
changes 1 - g of a slow head by more than a percent. The recurrent state is fp32 in, out and in the
cache, as mlx-lm's is. Training goes through mlx-lm's own composition.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.nn.layers.distributed import sum_gradients
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.gated_delta import compute_g, normalize_qk

from mixbit import ops

__all__ = ["GatedDeltaNet", "Qwen3NextGatedDeltaNet"]


def _mix(
    layer: Any,
    qkv: mx.array,
    a: mx.array,
    b: mx.array,
    mask: mx.array | None,
    cache: Any | None,
) -> mx.array:
    """Convolution, gates and recurrence; updates the cache.

    Args:
        layer: the GatedDeltaNet, for its dimensions and parameters.
        qkv: [B, T, conv_dim], before the convolution.
        a, b: float32 [B, T, Hv], gate pre-activations.
        mask: bool [B, T] or ``None``.
        cache: mlx-lm's ``ArraysCache`` of (convolution inputs [B, taps - 1, conv_dim], state) or
            ``None``.

    Returns:
        [B, T, Hv, Dv] in the dtype of ``qkv``.
    """
    B, T, _ = qkv.shape
    taps = layer.conv_kernel_size
    conv_state = cache[0] if cache is not None else None
    if conv_state is None:
        conv_state = mx.zeros((B, taps - 1, layer.conv_dim), dtype=qkv.dtype)
    if mask is not None:
        # The convolution reads taps - 1 steps back: a masked step must not reach its neighbours.
        qkv = mx.where(mask[..., None], qkv, 0)
    conv_input = mx.concatenate([conv_state, qkv], axis=1)
    if cache is not None:
        cache[0] = _last_inputs(conv_input, taps - 1, T, cache.lengths)
    mixed = nn.silu(layer.conv1d(conv_input))
    q, k, v = mx.split(mixed, [layer.key_dim, 2 * layer.key_dim], axis=-1)
    q, k = normalize_qk(
        q.reshape(B, T, layer.num_k_heads, layer.head_k_dim),
        k.reshape(B, T, layer.num_k_heads, layer.head_k_dim),
        inv_scale=layer.head_k_dim**-0.5,
        eps=1e-6,
    )
    v = v.reshape(B, T, layer.num_v_heads, layer.head_v_dim)
    g = compute_g(layer.A_log, a, layer.dt_bias.astype(mx.float32))
    state = cache[1] if cache is not None else None
    y, state = ops.gated_delta(q, k, v, g, mx.sigmoid(b), state, mask)
    if cache is not None:
        cache[1] = state
        cache.advance(T)
    return y


def _last_inputs(
    conv_input: mx.array, count: int, steps: int, lengths: mx.array | None
) -> mx.array:
    """The ``count`` inputs before each row's next step; rows may end early (``lengths``)."""
    if lengths is None:
        return mx.contiguous(conv_input[:, -count:, :])
    ends = mx.clip(lengths, 0, steps)
    positions = (ends[:, None] + mx.arange(count))[..., None]
    return mx.take_along_axis(conv_input, positions, axis=1)


class GatedDeltaNet(qwen3_5.GatedDeltaNet):
    """The linear-attention layer of qwen3_5 and qwen3_5_moe: [B, T, hidden] -> [B, T, hidden]."""

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        if self.training:
            return super().__call__(inputs, mask, cache)
        if self.sharding_group is not None:
            inputs = sum_gradients(self.sharding_group)(inputs)
        B, T, _ = inputs.shape
        wide = inputs.astype(mx.float32)
        y = _mix(
            self,
            self.in_proj_qkv(inputs),
            self.in_proj_a(wide),
            self.in_proj_b(wide),
            mask,
            cache,
        )
        z = self.in_proj_z(inputs).reshape(B, T, self.num_v_heads, self.head_v_dim)
        out = self.out_proj(self.norm(y, z).reshape(B, T, -1))
        if self.sharding_group is not None:
            out = mx.distributed.all_sum(out, group=self.sharding_group)
        return out


class Qwen3NextGatedDeltaNet(qwen3_next.Qwen3NextGatedDeltaNet):
    """The linear-attention layer of qwen3_next, whose projections are fused and interleaved."""

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        if self.training:
            return super().__call__(inputs, mask, cache)
        B, T, _ = inputs.shape
        q, k, v, z, b, a = self.fix_query_key_value_ordering(
            self.in_proj_qkvz(inputs), self.in_proj_ba(inputs.astype(mx.float32))
        )
        qkv = mx.concatenate([t.reshape(B, T, -1) for t in (q, k, v)], axis=-1)
        y = _mix(self, qkv, a, b, mask, cache)
        return self.out_proj(self.norm(y, z).reshape(B, T, -1))
