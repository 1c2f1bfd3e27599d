"""Several linear layers that read the same activations, as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mixbit import ops
from mixbit.nn.linear import Linear, QuantizedLinear, packed_weight

__all__ = ["project", "weight_of"]


def weight_of(layer: Any, dtype: mx.Dtype | None = None) -> ops.Weight | None:
    """What :func:`mixbit.ops.matmul` needs of a layer of ours; ``None`` for any other.

    Others are adapters around a layer, or somebody's subclass: only they know how to be called.
    """
    if type(layer) is QuantizedLinear:
        return packed_weight(layer, dtype)
    if type(layer) is Linear:
        return ops.Weight(layer["weight"], bias=layer.get("bias"), dtype=dtype)
    return None


def project(
    x: mx.array, layers: Sequence[Any], dtypes: Sequence[mx.Dtype | None]
) -> list[mx.array]:
    """The outputs of ``layers`` for ``x`` [..., K], each [..., N] in its dtype (``None``: x's)."""
    weights = [weight_of(layer, dtype) for layer, dtype in zip(layers, dtypes, strict=True)]
    known = [weight for weight in weights if weight is not None]
    if len(known) == len(layers):
        return ops.matmul(x, known)
    return [
        layer(x if dtype is None else x.astype(dtype))
        for layer, dtype in zip(layers, dtypes, strict=True)
    ]
