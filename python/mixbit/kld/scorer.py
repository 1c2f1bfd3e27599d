"""Last hidden states of a model, piece by piece, and what its head makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache

from mixbit import ops
from mixbit.errors import MixbitError
from mixbit.integration import body_and_head, head_weight, rounds_activations
from mixbit.integration.heads import Head as HeadFunction
from mixbit.kld.rows import RowScores, merge_tiles, score_rows
from mixbit.kld.windows import Chunk
from mixbit.ops import Weight


@dataclass(frozen=True)
class Head:
    """An output head: a matrix, or a function where there is more to it."""

    rows: int
    """Logits that it gives, those that only pad the vocabulary included."""
    weight: Weight | None
    call: HeadFunction | None = None

    @classmethod
    def of_weight(cls, weight: Weight) -> Head:
        """The head that a matrix ``[rows, hidden]`` is."""
        return cls(weight.w.shape[0], weight)

    def logits(self, hidden: mx.array, vocab_size: int) -> npt.NDArray[np.float32]:
        """Logits ``[N, vocab_size]`` of hidden states ``[N, hidden]``, computed in fp32."""
        wide = hidden.astype(mx.float32)
        if self.call is not None:
            logits = self.call(wide)
        else:
            assert self.weight is not None
            (logits,) = ops.matmul(wide, [self.weight._replace(dtype=None)])
        if logits.dtype != mx.float32:
            raise MixbitError(
                f"An output head turns fp32 into {logits.dtype}, which is too coarse to measure a "
                "divergence from."
            )
        return np.asarray(logits)[:, :vocab_size]


class Scorer:
    """One model, run over the columns of one batch after another."""

    def __init__(self, model: nn.Module) -> None:
        """Take the model apart into body and head.

        Raises:
            MixbitError: if it rounds activations to 8 bits.
        """
        if rounds_activations(model):
            raise MixbitError(
                "A model that rounds activations to 8 bits cannot be measured; load it without "
                "activation_bits=8."
            )
        self._model = model
        self._body, call = body_and_head(model)
        self._cache: list[Any] = []
        weight = head_weight(model)
        self.probe = self._body(mx.array([[0]]))
        """Hidden states of one token, whose shape and dtype all others have."""
        probe = call(self.probe)
        _check_whole(model, probe)
        self.head = Head(int(probe.shape[-1]), weight, None if weight is not None else call)

    def hidden(self, chunk: Chunk) -> mx.array:
        """Hidden states ``[N, hidden]`` of a chunk's scored positions, evaluated, model's dtype.

        Chunks of a batch must come in order: each continues the ones before.
        """
        if chunk.is_first:
            self._cache = make_prompt_cache(self._model)
        states = self._body(mx.array(chunk.tokens), cache=self._cache)
        picked = states.reshape(-1, states.shape[-1])[mx.array(chunk.flat)]
        # The caches are evaluated too, or the graph of a long document would grow with it.
        mx.eval(picked, [entry.state for entry in self._cache])
        return picked


class Pair(Protocol):
    """How predictions of a reference and a candidate are compared."""

    def score(
        self, reference: mx.array, candidate: mx.array, targets: npt.NDArray[np.int64]
    ) -> RowScores:
        """Compare the predictions that hidden states ``[N, hidden]`` of both models make."""
        ...


class HeadPair:
    """The heads of a reference and a candidate, side by side."""

    def __init__(self, reference: Head, candidate: Head, vocab_size: int) -> None:
        """See whether both are one."""
        self._reference, self._candidate = reference, candidate
        self._vocab_size = vocab_size
        self._shared = _same(reference.weight, candidate.weight)

    def score(
        self, reference: mx.array, candidate: mx.array, targets: npt.NDArray[np.int64]
    ) -> RowScores:
        """Exact divergences, logits never stored where both heads are matrices."""
        p, q = self._reference, self._candidate
        if p.weight is None or q.weight is None:
            return score_rows(
                p.logits(reference, self._vocab_size),
                q.logits(candidate, self._vocab_size),
                targets,
            )
        return merge_tiles(
            ops.kl_divergence(
                reference,
                p.weight,
                candidate,
                None if self._shared else q.weight,
                mx.array(targets),
                vocabulary=self._vocab_size,
            )
        )


def _check_whole(model: nn.Module, probe: mx.array) -> None:
    """Refuse a model that does more to its logits than head and body show."""
    own = np.asarray(model(mx.array([[0]])).astype(mx.float32))
    if not np.allclose(
        own, np.asarray(probe.astype(mx.float32)), rtol=1e-2, atol=1e-2, equal_nan=True
    ):
        raise MixbitError(
            f"{type(model).__module__} changes its logits after the output head, which mixbit does "
            "not know how to repeat in fp32."
        )


def _same(one: Weight | None, other: Weight | None) -> bool:
    if one is None or other is None:
        return False
    for a, b in zip(one, other, strict=True):
        if isinstance(a, mx.array) and isinstance(b, mx.array):
            if a.shape != b.shape or a.dtype != b.dtype or not mx.array_equal(a, b).item():
                return False
        elif a != b:
            return False
    return True
