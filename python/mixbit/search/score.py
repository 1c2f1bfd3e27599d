"""What a trial measures, kept as sums so that trials over other documents can be added to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mixbit.kld.rows import RowScores
from mixbit.kld.stream import Indices, Stream

Array = npt.NDArray[np.float64]

CONTEXTS = 24
"""Doublings of context that are told apart, from 1 token to 8 million."""
_RESAMPLES = 200


@dataclass(frozen=True)
class Counts:
    """How many tokens a stream scores."""

    documents: Indices
    """In each document, ``[documents]``."""
    contexts: Indices
    """By doublings of the context before them, ``[CONTEXTS]``."""

    @classmethod
    def of(cls, stream: Stream) -> Counts:
        """Count."""
        return cls(
            np.bincount(stream.document, minlength=len(stream.offsets) - 1),
            np.bincount(doublings(stream), minlength=CONTEXTS),
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            np.concatenate([self.documents, other.documents]), self.contexts + other.contexts
        )


@dataclass(frozen=True)
class Score:
    """The divergence of a trial from the reference, over the documents of one or more streams."""

    documents: Array
    """KLD summed over each document's tokens, nats, ``[documents]``; non-finite tokens count 0."""
    contexts: Array
    """The same by doublings of context, ``[CONTEXTS]``."""
    top1: float
    """Tokens whose most likely token is the reference's."""
    nonfinite: float
    """Tokens whose divergence is inf or NaN."""

    @classmethod
    def of(cls, rows: RowScores, stream: Stream) -> Score:
        """Sum up the scores of all scored tokens of a stream."""
        finite = np.isfinite(rows.kld)
        kld = np.where(finite, rows.kld, 0)
        return cls(
            _sums(stream.document, kld, len(stream.offsets) - 1),
            _sums(doublings(stream), kld, CONTEXTS),
            float(np.count_nonzero(rows.top_reference[:, 0] == rows.top_candidate[:, 0])),
            float(np.count_nonzero(~finite)),
        )

    def __add__(self, other: Score) -> Score:
        return Score(
            np.concatenate([self.documents, other.documents]),
            self.contexts + other.contexts,
            self.top1 + other.top1,
            self.nonfinite + other.nonfinite,
        )

    def mean(self, counts: Counts) -> float:
        """Mean KLD a token, nats; inf where a token's is not finite."""
        return np.inf if self.nonfinite else float(self.documents.sum() / counts.documents.sum())

    def error(self, counts: Counts) -> float:
        """Standard error of the mean, documents for independent, as in :mod:`mixbit.kld.result`.

        inf below two documents.
        """
        scored = counts.documents > 0
        documents = int(np.count_nonzero(scored))
        if documents < 2:
            return np.inf
        total = counts.documents.sum()
        apart = self.documents[scored] - counts.documents[scored] * self.documents.sum() / total
        return float(np.sqrt(documents / (documents - 1) * np.square(apart).sum()) / total)

    def difference_error(self, other: Score, counts: Counts) -> float:
        """Standard error of the difference of two means over the same documents."""
        return replace(self, documents=self.documents - other.documents).error(counts)

    def to_json(self) -> dict[str, Any]:
        """JSON values, from which :meth:`from_json` gives the same bits again."""
        return {
            "documents": self.documents.tolist(),
            "contexts": self.contexts.tolist(),
            "top1": self.top1,
            "nonfinite": self.nonfinite,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Score:
        """Read what :meth:`to_json` wrote."""
        return cls(
            np.array(document["documents"], np.float64),
            np.array(document["contexts"], np.float64),
            float(document["top1"]),
            float(document["nonfinite"]),
        )

    def packed(self) -> Array:
        """Everything in one array, for the way between ranks."""
        return np.concatenate([self.documents, self.contexts, [self.top1, self.nonfinite]])

    @classmethod
    def unpacked(cls, values: Array) -> Score:
        """The way back from :meth:`packed`."""
        documents, contexts, (top1, nonfinite) = np.split(values, [-2 - CONTEXTS, -2])
        return cls(documents, contexts, float(top1), float(nonfinite))


def doublings(stream: Stream) -> Indices:
    """The doubling that the context of each scored token is in, ``[scored]``: 0 for 1 token."""
    return np.floor(np.log2(np.maximum(stream.context, 1))).astype(np.int64)


def _sums(group: Indices, values: Array, groups: int) -> Array:
    return np.bincount(group, weights=values, minlength=groups).astype(np.float64)


def rank_correlation(one: Array, other: Array) -> float:
    """Spearman's, 1 for equal order; NaN where one of both is constant."""
    from scipy.stats import rankdata

    first, second = (rankdata(values) - (len(values) + 1) / 2 for values in (one, other))
    scale = np.sqrt(np.square(first).sum() * np.square(second).sum())
    return float((first * second).sum() / scale) if scale else np.nan


def stability(scores: Array, documents: Indices) -> float:
    """How surely the order of measurements is known, from a bootstrap over documents.

    Args:
        scores: KLD sums ``[measurements, documents]``.
        documents: tokens of each document.

    Returns:
        The mean rank correlation between the order as measured and the orders that as many
        documents, drawn anew, would have given: 1 where none would change anything.
    """
    measured = scores.sum(axis=1)
    drawn = np.random.default_rng(0).multinomial(
        len(documents), np.full(len(documents), 1 / len(documents)), size=_RESAMPLES
    )
    others = drawn @ scores.T / np.maximum(drawn @ documents, 1)[:, None]
    return float(np.mean([rank_correlation(measured, other) for other in others]))
