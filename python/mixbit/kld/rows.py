"""From statistics of vocabulary tiles to what is known of each token, in fp64.

For rows of logits ``x`` (reference, p) and ``y`` (candidate, q),

    KL(p || q) = sum_i exp(x_i - m) (x_i - y_i) / X - log X + log Y,  X = sum_i exp(x_i - m), ...

which is the definition with the softmax normalisers taken out of the sum. Each tile of the
vocabulary brings its sums relative to its own maximum; here they are brought to a common one and
added in the order of the tiles, so that neither rows nor threads are counted on for an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mixbit.ops import TOP, LogitFields
from mixbit.stock import logit_tiles

Array = npt.NDArray[np.float64]


class RowScores(NamedTuple):
    """What is kept of each row; every array has shape ``[rows]``, but for the last two."""

    kld: Array
    """KL(reference || candidate) in nats: inf or NaN where the logits make it so."""
    reverse: Array
    """KL(candidate || reference), likewise."""
    nll_reference: Array
    """Negative log likelihood of the target under the reference, nats."""
    nll_candidate: Array
    """The same under the candidate."""
    top_reference: npt.NDArray[np.int32]
    """The reference's five most likely tokens, ``[rows, 5]``, the likeliest (and of equals the
    first) first; -1 where the vocabulary has fewer."""
    top_candidate: npt.NDArray[np.int32]
    """The same of the candidate."""

    @classmethod
    def empty(cls, rows: int) -> RowScores:
        """Room for the scores of ``rows`` tokens, all 0, to be filled by :meth:`put`."""
        tops = [np.zeros((rows, TOP), dtype=np.int32) for _ in range(2)]
        return cls(np.zeros(rows), np.zeros(rows), np.zeros(rows), np.zeros(rows), *tops)

    def put(self, at: npt.NDArray[np.int64] | slice, scores: RowScores) -> None:
        """Write some rows in place."""
        arrays: Sequence[npt.NDArray[Any]] = self
        for own, new in zip(arrays, scores, strict=True):
            own[at] = new

    def part(self, at: slice) -> RowScores:
        """Some rows, as views."""
        return self.map(lambda own: own[at])

    def map(self, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> RowScores:
        """``function`` of each array."""
        arrays: Sequence[npt.NDArray[Any]] = self
        return RowScores._make(map(function, arrays))


def merge_tiles(tiles: Array) -> RowScores:
    """Scores of rows from the ``[rows, tiles, fields]`` of :func:`mixbit.ops.kl_divergence`."""
    fields = LogitFields(tiles)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        max_p, sum_p, forward = _common(fields.max_p, fields.sum_p, fields.forward)
        max_q, sum_q, reverse = _common(fields.max_q, fields.sum_q, fields.reverse)
        apart = (max_p - max_q) + np.log(sum_p / sum_q)
        return RowScores(
            kld=forward / sum_p - apart,
            reverse=reverse / sum_q + apart,
            nll_reference=max_p + np.log(sum_p) - _total(fields.target_p),
            nll_candidate=max_q + np.log(sum_q) - _total(fields.target_q),
            top_reference=_top(fields.top_p, fields.top_p_tokens),
            top_candidate=_top(fields.top_q, fields.top_q_tokens),
        )


def score_rows(
    reference: npt.NDArray[np.float32],
    candidate: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
) -> RowScores:
    """Compare two blocks of logits row by row.

    Args:
        reference: logits ``[rows, vocab]``, float32.
        candidate: logits ``[rows, vocab]``, float32.
        targets: the token that really follows, ``[rows]``.
    """
    return merge_tiles(logit_tiles(reference, candidate, targets))


def _common(maxima: Array, sums: Array, costs: Array) -> tuple[Array, Array, Array]:
    """Row maximum ``[rows]``, and sum and cost relative to it, from those of tiles."""
    top = maxima.max(axis=1)
    scale = np.exp(maxima - top[:, None])
    # A token that only the other side rules out costs infinity, however small its weight.
    scaled = np.where(np.isposinf(costs), np.inf, costs * scale)
    return top, _total(sums * scale), _total(scaled)


def _total(parts: Array) -> Array:
    """Sum over tiles in their order; ``np.sum`` would choose one by the shape."""
    return np.cumsum(parts, axis=1)[:, -1]


def _top(values: Array, tokens: Array) -> npt.NDArray[np.int32]:
    """The ``TOP`` largest of all tiles; tiles ascend, so of equals the first token comes first."""
    rows = np.arange(len(values))
    values = values.reshape(len(values), -1).copy()
    tokens = tokens.reshape(len(values), -1)
    chosen = np.empty((len(values), TOP), dtype=np.int32)
    for place in range(TOP):
        at = values.argmax(axis=1)
        chosen[:, place] = np.where(values[rows, at] == -np.inf, -1, tokens[rows, at])
        values[rows, at] = -np.inf
    return chosen
