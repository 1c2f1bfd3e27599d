"""A decoder layer whose norms and residual sums are parts of the products beside them.

The residual stream is rounded once a block where mlx-lm rounds the norm, the block and the sum.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_5, qwen3_next

from mixbit.nn.attention import Attention
from mixbit.nn.gated_delta_net import GatedDeltaNet, Qwen3NextGatedDeltaNet
from mixbit.nn.mlp import MLP

__all__ = ["DecoderLayer", "Qwen3NextDecoderLayer", "feed", "mix"]

_MIXERS = (Attention, GatedDeltaNet, Qwen3NextGatedDeltaNet)


def mix(layer: Any, x: mx.array, mask: mx.array | str | None, cache: Any | None) -> mx.array:
    """The first half of a decoder layer, up to the sum after its mixer; all [B, T, hidden]."""
    mixer = layer["linear_attn" if layer.is_linear else "self_attn"]
    # A subclass of somebody's may do something else when it is called.
    if type(mixer) in _MIXERS:
        return mixer.forward(x, mask, cache, layer["input_layernorm"], x)
    return x + mixer(layer["input_layernorm"](x), mask, cache)


def feed(layer: Any, h: mx.array) -> mx.array:
    """The second half of a decoder layer, with its MLP or experts; all [B, T, hidden]."""
    mlp, norm = layer["mlp"], layer["post_attention_layernorm"]
    if type(mlp) is MLP:
        return mlp.forward(h, norm, h)
    return h + mlp(norm(h))


class DecoderLayer(qwen3_5.DecoderLayer):
    """The decoder layer of qwen3_5 and qwen3_5_moe: [B, T, hidden] -> [B, T, hidden]."""

    def __call__(
        self, x: mx.array, mask: mx.array | str | None = None, cache: Any | None = None
    ) -> mx.array:
        return feed(self, mix(self, x, mask, cache))


class Qwen3NextDecoderLayer(qwen3_next.Qwen3NextDecoderLayer):
    """The decoder layer of qwen3_next."""

    def __call__(
        self, x: mx.array, mask: mx.array | str | None = None, cache: Any | None = None
    ) -> mx.array:
        return feed(self, mix(self, x, mask, cache))
