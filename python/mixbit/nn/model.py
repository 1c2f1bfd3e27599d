"""Models whose linear-attention layers get :class:`mixbit.nn.ArraysCache`."""

from __future__ import annotations

from typing import Any

from mlx_lm.models import qwen3_5, qwen3_next

from mixbit.nn.cache import ArraysCache
from mixbit.nn.gated_delta_net import GatedDeltaNet, Qwen3NextGatedDeltaNet

__all__ = ["Qwen3NextTextModel", "TextModel"]


def _with_rollback(caches: list[Any], layers: list[Any]) -> list[Any]:
    # Only our layers tell the cache of the states on the way.
    return [
        ArraysCache(len(cache.cache))
        if type(getattr(layer, "linear_attn", None)) in (GatedDeltaNet, Qwen3NextGatedDeltaNet)
        else cache
        for cache, layer in zip(caches, layers, strict=True)
    ]


class TextModel(qwen3_5.TextModel):
    """The language model of qwen3_5 and qwen3_5_moe."""

    def make_cache(self) -> list[Any]:
        """An empty cache for every layer."""
        return _with_rollback(super().make_cache(), self.layers)


class Qwen3NextTextModel(qwen3_next.Model):
    """The model of qwen3_next."""

    def make_cache(self) -> list[Any]:
        """An empty cache for every layer."""
        return _with_rollback(super().make_cache(), self.layers)
