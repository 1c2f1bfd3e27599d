"""Per-token divergences and their summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mixbit.kld.rows import RowScores
from mixbit.kld.stream import Indices, Stream

SCHEMA = "mixbit.kld/1"
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999}

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KLDResult:
    """KL(reference || candidate) of every scored token, in the order of the data.

    Every array but the last two has shape ``[tokens]``. Which prediction a token stands for,
    ``stream`` tells.
    """

    kld: Array
    """Nats. Never clamped: round-off may make it slightly negative. May hold inf or NaN."""
    reverse: Array
    """KL(candidate || reference), nats."""
    nll_reference: Array
    """Negative log likelihood of the true token under the reference, nats."""
    nll_candidate: Array
    """The same under the candidate."""
    top_reference: npt.NDArray[np.int32]
    """The reference's five most likely tokens, likeliest first, ``[tokens, 5]``; -1 for none."""
    top_candidate: npt.NDArray[np.int32]
    """The candidate's."""
    stream: Stream
    """What was scored."""
    vocab_size: int
    """Number of tokens that the softmax ran over."""

    @classmethod
    def of(cls, scores: RowScores, stream: Stream, vocab_size: int) -> KLDResult:
        """The result that scores of all scored tokens make."""
        return cls(*scores, stream, vocab_size)

    @property
    def document(self) -> Indices:
        """Index of the document that each token is in."""
        return self.stream.document

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """The true token of each prediction."""
        return self.stream.tokens[self.stream.at + 1]

    @property
    def top1(self) -> npt.NDArray[np.bool_]:
        """Whether reference and candidate have the same most likely token."""
        return self.top_reference[:, 0] == self.top_candidate[:, 0]

    @property
    def top5(self) -> Array:
        """Share of the reference's five most likely tokens that are among the candidate's five."""
        wanted = self.top_reference >= 0
        found = (self.top_reference[:, :, None] == self.top_candidate[:, None, :]).any(axis=2)
        return (found & wanted).sum(axis=1) / np.maximum(wanted.sum(axis=1), 1)

    @property
    def delta_p(self) -> Array:
        """Probability of the true token under the candidate less that under the reference."""
        return np.exp(-self.nll_candidate) - np.exp(-self.nll_reference)

    def summary(self) -> dict[str, Any]:
        """The figures people compare, as JSON-ready values.

        Divergences in nats. ``nonfinite`` counts the tokens whose divergence is inf or NaN; they
        enter no average. ``se`` is the standard error of the mean with tokens clustered by
        document (tokens of one document are not independent), ``None`` below two documents.
        Quantiles interpolate linearly. A figure that has no finite value is ``None``.
        """
        finite = np.isfinite(self.kld)
        kld = self.kld[finite]
        ppl_reference = perplexity(self.nll_reference)
        ppl_candidate = perplexity(self.nll_candidate)
        return {
            "schema": SCHEMA,
            "tokens": len(self.kld),
            "documents": len(np.unique(self.document)),
            "vocab_size": self.vocab_size,
            "nonfinite": int(np.count_nonzero(~finite)),
            "mean": mean(kld),
            "se": clustered_error(kld, self.document[finite]),
            **{name: float(np.quantile(kld, q)) if len(kld) else None
               for name, q in QUANTILES.items()},
            "max": float(kld.max()) if len(kld) else None,
            "min": float(kld.min()) if len(kld) else None,
            "reverse_mean": mean(self.reverse[np.isfinite(self.reverse)]),
            "top1": mean(self.top1[finite]),
            "top5": mean(self.top5[finite]),
            "delta_p_mean": mean(self.delta_p[finite]),
            "delta_p_rms": _root(mean(np.square(self.delta_p[finite]))),
            "ppl_reference": ppl_reference,
            "ppl_candidate": ppl_candidate,
            "ppl_ratio": perplexity(self.nll_candidate - self.nll_reference),
            **self._tool_calls(),
        }  # fmt: skip

    def _tool_calls(self) -> dict[str, int]:
        """Expected calls that greedy decoding would write token for token, of all."""
        answers = self.stream.answers[self.document] >= 0
        if not answers.any():
            return {}
        documents = self.document[answers]
        counts = np.bincount(documents)

        def right(top: npt.NDArray[np.int32]) -> int:
            hits = np.bincount(documents, weights=top[answers, 0] == self.targets[answers])
            return int(np.count_nonzero((hits == counts) & (counts > 0)))

        return {
            "tool_calls_right": right(self.top_candidate),
            "tool_calls_right_reference": right(self.top_reference),
            "tool_calls_total": int(np.count_nonzero(counts)),
        }


def mean(values: npt.NDArray[Any]) -> float | None:
    """Mean, or ``None`` of nothing or of what is not finite."""
    return float(values.mean()) if len(values) and np.isfinite(values).all() else None


def clustered_error(values: Array, cluster: Indices) -> float | None:
    """Standard error of a mean over clusters of unequal size, ``None`` below two clusters.

    The mean is a ratio (sum of values over number of values), so this is the linearised ratio
    estimator's variance: with e_c the summed deviation of cluster c of C,
    se = sqrt(C / (C - 1) * sum_c e_c^2) / n (Cochran, Sampling Techniques, section 6.4).
    """
    clusters = len(np.unique(cluster))
    if clusters < 2:
        return None
    sums = np.bincount(cluster, weights=values - values.mean())
    spread = clusters / (clusters - 1) * float(np.square(sums).sum())
    return float(np.sqrt(spread)) / len(values)


def perplexity(nll: Array) -> float | None:
    """Exponential of the mean, ``None`` where that is not finite."""
    with np.errstate(over="ignore"):
        value = float(np.exp(nll.mean()))
    return value if np.isfinite(value) else None


def _root(value: float | None) -> float | None:
    return None if value is None else float(np.sqrt(value))
