"""A language model as two parts: everything up to the final norm, and the output head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mixbit.errors import MixbitError

__all__ = ["body_and_head"]

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
    text = getattr(model, "language_model", model)
    body = getattr(text, "model", None)
    if body is None or not hasattr(body, "embed_tokens"):
        raise MixbitError(
            f"{type(model).__module__} is not a language model with a body and a head that mixbit "
            "knows; use a model of mlx-lm such as qwen3_5, qwen3_5_moe or qwen3_next."
        )
    if hasattr(text, "lm_head"):
        return body, text.lm_head
    return body, body.embed_tokens.as_linear
