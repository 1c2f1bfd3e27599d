"""Linear layers and embeddings over :mod:`mixbit.ops`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn

from mixbit import ops

__all__ = ["Embedding", "Linear", "QuantizedEmbedding", "QuantizedLinear", "packed_weight"]


def packed_weight(layer: Any, dtype: mx.Dtype | None = None) -> ops.Weight:
    """The weight of a packed layer; ``dtype`` is that of its product."""
    return ops.Weight(
        layer["weight"],
        layer["scales"],
        layer.get("biases"),
        layer.get("bias"),
        layer.group_size,
        layer.bits,
        layer.mode,
        dtype,
        getattr(layer, "activation_bits", 16),  # stock MLX's layers have none
    )


class QuantizedLinear(nn.QuantizedLinear):
    """``mlx.nn.QuantizedLinear``: x [..., in_dims] -> [..., out_dims], dtype of x."""

    activation_bits = 16
    """As :class:`mixbit.ops.Weight` has it."""

    def __call__(self, x: mx.array) -> mx.array:
        (y,) = ops.matmul(x, [packed_weight(self)])
        return y


class Linear(nn.Linear):
    """``mlx.nn.Linear``: x [..., in_dims] -> [..., out_dims], dtype of x."""

    def __call__(self, x: mx.array) -> mx.array:
        return ops.linear(x, self["weight"], bias=self.get("bias"))

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> nn.Module:
        """As ``mlx.nn.Linear.to_quantized``, giving :class:`QuantizedLinear`."""
        layer = super().to_quantized(group_size, bits, mode, quantize_input)
        if type(layer) is nn.QuantizedLinear:  # with quantize_input it is another class
            layer.__class__ = QuantizedLinear
        return layer


class QuantizedEmbedding(nn.QuantizedEmbedding):
    """``mlx.nn.QuantizedEmbedding``; as an output head, [..., dims] -> [..., vocabulary]."""

    activation_bits = 16
    """Of the output head, as :class:`mixbit.ops.Weight` has it."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of a tied head, at the width and group size of the table itself."""
        (y,) = ops.matmul(x, [packed_weight(self)])
        return y


class Embedding(nn.Embedding):
    """``mlx.nn.Embedding``; as an output head, [..., dims] -> [..., vocabulary]."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of a tied head."""
        return ops.linear(x, self["weight"])

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> nn.Module:
        """As ``mlx.nn.Embedding.to_quantized``, giving :class:`QuantizedEmbedding`."""
        layer = super().to_quantized(group_size, bits, mode, quantize_input)
        if type(layer) is nn.QuantizedEmbedding:  # with quantize_input it is another class
            layer.__class__ = QuantizedEmbedding
        return layer
