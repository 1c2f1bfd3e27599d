"""GatedDeltaNet of qwen3_5 (and qwen3_5_moe) and of qwen3_next over :mod:`mixbit.ops`.

What differs from mlx-lm's layer is the numbers: the gates ``g`` and ``beta`` come from fp32
pre-activations and stay fp32. mlx-lm computes softplus in the activation dtype, which in bf16
changes 1 - g of a slow head by more than a percent. The recurrent state is fp32 in, out and in the
cache, as mlx-lm's is. Training goes through mlx-lm's own composition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.distributed import sum_gradients
from mlx_lm.models import qwen3_5, qwen3_next

from mixbit import ops, stock
from mixbit.nn.cache import ArraysCache
from mixbit.nn.projections import add_product, project

__all__ = ["GatedDeltaNet", "Qwen3NextGatedDeltaNet"]


def _mix(
    layer: Any,
    projected: tuple[mx.array, mx.array | None, mx.array, mx.array | None],
    mask: mx.array | None,
    cache: Any | None,
) -> mx.array:
    """What comes between the projections; updates the cache.

    Args:
        layer: the GatedDeltaNet, for its dimensions and parameters.
        projected: qkv, z, a and b of :func:`mixbit.ops.delta_net`.
        mask: bool [B, T] or ``None``.
        cache: mixbit's or mlx-lm's ``ArraysCache``, or ``None``.

    Returns:
        [B, T, Hv * Dv] in the dtype of qkv.
    """
    qkv, z, a, b = projected
    norm = layer["norm"]
    T = qkv.shape[1]
    keep = isinstance(cache, ArraysCache) and cache.keeps(T)
    y, conv_state, state = ops.delta_net(
        qkv,
        z,
        a,
        b,
        conv_weight=layer["conv1d"]["weight"],
        A_log=layer["A_log"],
        dt_bias=layer["dt_bias"],
        norm_weight=norm["weight"],
        num_k_heads=layer.num_k_heads,
        eps=norm.eps,
        conv_state=None if cache is None else cache[0],
        state=None if cache is None else cache[1],
        mask=mask,
        lengths=None if cache is None else cache.lengths,
        keep_steps=keep,
    )
    if cache is not None and keep:
        if z is None:
            qkv, *_ = stock.in_order(qkv, a, layer.num_k_heads, layer.head_v_dim)
        cache.keep(qkv, conv_state, state)
    elif cache is not None:
        cache[0], cache[1] = conv_state, state
        cache.advance(T)
    return y


def _unfused(
    call: Callable[..., mx.array],
    inputs: mx.array,
    mask: mx.array | None,
    cache: Any | None,
    norm: Any | None,
    residual: mx.array | None,
) -> mx.array:
    y = call(inputs if norm is None else norm(inputs), mask, cache)
    return y if residual is None else residual + y


class GatedDeltaNet(qwen3_5.GatedDeltaNet):
    """The linear-attention layer of qwen3_5 and qwen3_5_moe: [B, T, hidden] -> [B, T, hidden]."""

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        return self.forward(inputs, mask, cache)

    def forward(
        self,
        inputs: mx.array,
        mask: mx.array | None = None,
        cache: Any | None = None,
        norm: Any | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        """``residual + self(norm(inputs))``, either of them left out where ``None``."""
        if self.training:
            return _unfused(super().__call__, inputs, mask, cache, norm, residual)
        if self.sharding_group is not None:
            return _unfused(self._sharded, inputs, mask, cache, norm, residual)
        return add_product(residual, self.mixed(inputs, mask, cache, norm), self["out_proj"])

    def mixed(
        self,
        inputs: mx.array,
        mask: mx.array | None = None,
        cache: Any | None = None,
        norm: Any | None = None,
    ) -> mx.array:
        """What the output projection reads, [B, T, Hv * Dv]."""
        qkv, z, b, a = project(
            inputs,
            [self["in_proj_qkv"], self["in_proj_z"], self["in_proj_b"], self["in_proj_a"]],
            [None, None, mx.float32, mx.float32],
            norm,
        )
        return _mix(self, (qkv, z, a, b), mask, cache)

    def _sharded(self, inputs: mx.array, mask: mx.array | None, cache: Any | None) -> mx.array:
        inputs = sum_gradients(self.sharding_group)(inputs)
        out = self["out_proj"](self.mixed(inputs, mask, cache))
        return mx.distributed.all_sum(out, group=self.sharding_group)


class Qwen3NextGatedDeltaNet(qwen3_next.Qwen3NextGatedDeltaNet):
    """The linear-attention layer of qwen3_next, whose projections are fused and interleaved."""

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        return self.forward(inputs, mask, cache)

    def forward(
        self,
        inputs: mx.array,
        mask: mx.array | None = None,
        cache: Any | None = None,
        norm: Any | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        """``residual + self(norm(inputs))``, either of them left out where ``None``."""
        if self.training:
            return _unfused(super().__call__, inputs, mask, cache, norm, residual)
        return add_product(residual, self.mixed(inputs, mask, cache, norm), self["out_proj"])

    def mixed(
        self,
        inputs: mx.array,
        mask: mx.array | None = None,
        cache: Any | None = None,
        norm: Any | None = None,
    ) -> mx.array:
        """What the output projection reads, [B, T, Hv * Dv]."""
        qkvz, ba = project(
            inputs, [self["in_proj_qkvz"], self["in_proj_ba"]], [None, mx.float32], norm
        )
        return _mix(self, (qkvz, None, ba, None), mask, cache)
