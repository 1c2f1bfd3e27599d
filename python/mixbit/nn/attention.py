"""Gated full attention of qwen3_5, qwen3_5_moe and qwen3_next over :mod:`mixbit.ops`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_next

from mixbit import ops
from mixbit.nn.projections import add_product, project

__all__ = ["Attention"]


class Attention(qwen3_next.Qwen3NextAttention):
    """Attention whose queries come with an output gate: [B, T, hidden] -> [B, T, hidden].

    A quantised key-value cache (``bits``) goes through mlx-lm's own attention.
    """

    def __call__(
        self, x: mx.array, mask: mx.array | str | None = None, cache: Any | None = None
    ) -> mx.array:
        return self.forward(x, mask, cache)

    def forward(
        self,
        x: mx.array,
        mask: mx.array | str | None = None,
        cache: Any | None = None,
        norm: Any | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        """``residual + self(norm(x))``, either of them left out where ``None``."""
        if hasattr(cache, "bits"):
            x = x if norm is None else norm(x)
            y = super().__call__(x, mask, cache)  # type: ignore[arg-type]  # it takes "causal" too
            return y if residual is None else residual + y
        return add_product(residual, self.mixed(x, mask, cache, norm), self["o_proj"])

    def mixed(
        self,
        x: mx.array,
        mask: mx.array | str | None = None,
        cache: Any | None = None,
        norm: Any | None = None,
    ) -> mx.array:
        """What the output projection reads, [B, T, heads * head width]."""
        B, T, _ = x.shape
        q, k, v = project(
            x, [self["q_proj"], self["k_proj"], self["v_proj"]], [None, None, None], norm
        )
        queries, gate = mx.split(q.reshape(B, T, self.num_attention_heads, -1), 2, axis=-1)
        keys, values = (t.reshape(B, T, self.num_key_value_heads, -1) for t in (k, v))
        offset = 0 if cache is None else cache.offset
        queries = self._rotated(queries, self["q_norm"], offset)
        keys = self._rotated(keys, self["k_norm"], offset)
        values = values.transpose(0, 2, 1, 3)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        y = ops.attention(queries, keys, values, scale=self.scale, mask=mask, gate=gate)
        return y.reshape(B, T, -1)

    def _rotated(self, heads: mx.array, norm: nn.RMSNorm, offset: int | mx.array) -> mx.array:
        """[B, T, H, D] -> [B, H, T, D], normalised and turned."""
        rope = self["rope"]
        if type(rope) is not nn.RoPE or rope.traditional:  # scaled ones choose their frequencies
            return rope(norm(heads).swapaxes(1, 2), offset=offset)
        return ops.norm_rope(
            heads,
            ops.Norm(norm["weight"], norm.eps),
            dims=rope.dims,
            base=rope.base,
            scale=rope.scale,
            offset=offset,
        )
