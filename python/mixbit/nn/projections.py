"""Linear layers with what stands around them in a block, as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from mixbit import ops
from mixbit.nn.linear import Linear, QuantizedLinear, packed_weight

__all__ = ["add_product", "norm_of", "project", "weight_of"]


def weight_of(layer: Any, dtype: mx.Dtype | None = None) -> ops.Weight | None:
    """What :func:`mixbit.ops.matmul` needs of a layer of ours; ``None`` for any other.

    Others are adapters around a layer, or somebody's subclass: only they know how to be called.
    """
    if type(layer) is QuantizedLinear:
        return packed_weight(layer, dtype)
    if type(layer) is Linear:
        return ops.Weight(layer["weight"], bias=layer.get("bias"), dtype=dtype)
    return None


def norm_of(layer: Any) -> ops.Norm | None:
    """What :func:`mixbit.ops.matmul` needs of an RMSNorm; ``None`` for any other layer."""
    if type(layer) is nn.RMSNorm:
        return ops.Norm(layer["weight"], layer.eps)
    return None


def project(
    x: mx.array,
    layers: Sequence[Any],
    dtypes: Sequence[mx.Dtype | None],
    norm: Any | None = None,
) -> list[mx.array]:
    """The outputs of ``layers`` for ``norm(x)``, ``x`` [..., K]: each [..., N] in its dtype.

    ``None`` for a dtype is that of ``x``, for ``norm`` no norm.
    """
    weights = [weight_of(layer, dtype) for layer, dtype in zip(layers, dtypes, strict=True)]
    known = [weight for weight in weights if weight is not None]
    fused = norm_of(norm)
    if norm is not None and (fused is None or len(known) < len(layers)):
        x, fused = norm(x), None
    if len(known) == len(layers):
        return ops.matmul(x, known, norm=fused)
    return [
        layer(x if dtype is None else x.astype(dtype))
        for layer, dtype in zip(layers, dtypes, strict=True)
    ]


def add_product(residual: mx.array | None, x: mx.array, layer: Any) -> mx.array:
    """``residual + layer(x)``, [..., N]; rounded once where the layer is ours."""
    weight = weight_of(layer)
    if weight is not None:
        (y,) = ops.matmul(x, [weight], residual=residual)
        return y
    y = layer(x)
    return y if residual is None else residual + y
