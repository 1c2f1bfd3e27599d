"""fp32 logits of a model, block by block."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache

from mixbit.errors import MixbitError
from mixbit.integration import body_and_head


class Scorer:
    """One model, run over the columns of one batch after another."""

    def __init__(self, model: nn.Module) -> None:
        """Take the model apart into body and head."""
        self._model = model
        self._body, self._head = body_and_head(model)
        self._cache: list[Any] = []

    def start(self) -> None:
        """Forget everything: the next chunk is the beginning of a batch."""
        self._cache = make_prompt_cache(self._model)

    def hidden(self, tokens: npt.NDArray[np.int32], flat: npt.NDArray[np.int64]) -> mx.array:
        """Hidden states of a chunk's scored positions.

        Args:
            tokens: the chunk ``[B, t]``, which continues the chunks since ``start``.
            flat: indices ``[N]`` into ``[B * t]``.

        Returns:
            Evaluated array ``[N, hidden]`` in the model's dtype.
        """
        states = self._body(mx.array(tokens), cache=self._cache)
        picked = states.reshape(-1, states.shape[-1])[mx.array(flat)]
        # The caches are evaluated too, or the graph of a long document would grow with it.
        mx.eval(picked, [entry.state for entry in self._cache])
        return picked

    def logits(self, hidden: mx.array, vocab_size: int) -> npt.NDArray[np.float32]:
        """Logits ``[N, vocab_size]`` of some hidden states ``[N, hidden]``, computed in fp32."""
        logits = self._head(hidden.astype(mx.float32))
        if logits.dtype != mx.float32:
            raise MixbitError(
                f"The output head of {type(self._model).__name__} turns fp32 into {logits.dtype}, "
                "which is too coarse to measure a divergence from."
            )
        mx.eval(logits)
        return np.asarray(logits)[:, :vocab_size]

    def vocab_size(self) -> int:
        """Number of logits of the head, padding rows included."""
        probe = self._head(self._body(mx.array([[0]]))[:, -1].astype(mx.float32))
        return int(probe.shape[-1])
