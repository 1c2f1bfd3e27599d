"""Layers: drop-in subclasses of the mlx and mlx-lm ones, with the same parameters.

``isinstance`` checks, saving, LoRA wrapping, sharding and ``model.parameters()`` see what they
always saw; only ``__call__`` is ours, and the cache of linear-attention layers.

A module of MLX is a dict. Parameters and children are taken from it as items: as attributes they
cost ten times as much, and a generated token takes hundreds.
"""

from mixbit.nn.attention import Attention
from mixbit.nn.cache import ArraysCache, speculative_cache
from mixbit.nn.decoder import DecoderLayer, Qwen3NextDecoderLayer
from mixbit.nn.experts import SparseMoeBlock
from mixbit.nn.gated_delta_net import GatedDeltaNet, Qwen3NextGatedDeltaNet
from mixbit.nn.linear import Embedding, Linear, QuantizedEmbedding, QuantizedLinear
from mixbit.nn.mlp import MLP
from mixbit.nn.model import Qwen3NextTextModel, TextModel
from mixbit.nn.switch import QuantizedSwitchLinear, SwitchLinear

__all__ = [
    "MLP",
    "ArraysCache",
    "Attention",
    "DecoderLayer",
    "Embedding",
    "GatedDeltaNet",
    "Linear",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedSwitchLinear",
    "Qwen3NextDecoderLayer",
    "Qwen3NextGatedDeltaNet",
    "Qwen3NextTextModel",
    "SparseMoeBlock",
    "SwitchLinear",
    "TextModel",
    "speculative_cache",
]
