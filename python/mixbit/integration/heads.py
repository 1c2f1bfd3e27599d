"""A language model as two parts: everything up to the final norm, and the output head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn as stock_nn

from mixbit import nn
from mixbit.errors import MixbitError
from mixbit.nn.linear import packed_weight
from mixbit.ops import Weight

__all__ = ["body_and_head", "head_weight"]

_DENSE = (stock_nn.Linear, nn.Linear, stock_nn.Embedding, nn.Embedding)
_PACKED = (
    stock_nn.QuantizedLinear,
    nn.QuantizedLinear,
    stock_nn.QuantizedEmbedding,
    nn.QuantizedEmbedding,
)

Head = Callable[[mx.array], mx.array]


def body_and_head(model: Any) -> tuple[Any, Head]:
    """Split an mlx-lm model.

    Returns:
        ``body(tokens [B, T], cache=None)`` -> hidden states after the final norm [B, T, hidden],
        and ``head(hidden)`` -> logits [B, T, vocabulary] in the dtype of ``hidden``: give it fp32
        for logits from fp32 sums.

    Raises:
        MixbitError: if the model is not built like mlx-lm's language models.
    """
    text, body = _parts(model)
    if hasattr(text, "lm_head"):
        return body, text.lm_head
    return body, body.embed_tokens.as_linear


def head_weight(model: Any) -> Weight | None:
    """The matrix [vocabulary, hidden] that is the whole output head of an mlx-lm model.

    ``None`` for a head that only knows itself what it computes: an adapter, somebody's subclass.

    Raises:
        MixbitError: as :func:`body_and_head`.
    """
    text, body = _parts(model)
    layer = text.lm_head if hasattr(text, "lm_head") else body.embed_tokens
    if type(layer) in _DENSE:
        return Weight(layer["weight"], bias=layer.get("bias"))
    if type(layer) in _PACKED and "global_scale" not in layer:
        return packed_weight(layer)
    return None


def _parts(model: Any) -> tuple[Any, Any]:
    text = getattr(model, "language_model", model)
    body = getattr(text, "model", None)
    if body is None or not hasattr(body, "embed_tokens"):
        raise MixbitError(
            f"{type(model).__module__} is not a language model with a body and a head that mixbit "
            "knows; use a model of mlx-lm such as qwen3_5, qwen3_5_moe or qwen3_next."
        )
    return text, body
