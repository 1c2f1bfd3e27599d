"""Per-token divergences and their summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SCHEMA = "mixbit.kld/1"
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class KLDResult:
    """KL(reference || candidate) of every scored token, in document order.

    Every array has shape ``[tokens]``. A token is scored when the model predicts it, so a document
    of n tokens has n - 1 scored ones.
    """

    kld: npt.NDArray[np.float64]
    """Nats. Never clamped: round-off may make it slightly negative. May hold inf or NaN."""
    nll_reference: npt.NDArray[np.float64]
    """Negative log likelihood of the true token under the reference, nats."""
    nll_candidate: npt.NDArray[np.float64]
    """The same under the candidate."""
    top1: npt.NDArray[np.bool_]
    """Whether reference and candidate have the same most likely token."""
    document: npt.NDArray[np.int64]
    """Index of the document that the token is in."""
    vocab_size: int
    """Number of tokens that the softmax ran over."""

    def summary(self) -> dict[str, Any]:
        """The figures people compare, as JSON-ready values.

        Divergences in nats. ``nonfinite`` counts the tokens whose divergence is inf or NaN; they
        enter no average. ``se`` is the standard error of the mean with tokens clustered by
        document (tokens of one document are not independent), ``None`` below two documents.
        Quantiles interpolate linearly. A figure that has no finite value is ``None``.
        """
        finite = np.isfinite(self.kld)
        kld = self.kld[finite]
        empty = len(kld) == 0
        mean = None if empty else float(kld.mean())
        return {
            "schema": SCHEMA,
            "tokens": len(self.kld),
            "documents": len(np.unique(self.document)),
            "vocab_size": self.vocab_size,
            "nonfinite": int(np.count_nonzero(~finite)),
            "mean": mean,
            "se": None if mean is None else _clustered_error(kld, self.document[finite], mean),
            **{
                name: None if empty else float(np.quantile(kld, q)) for name, q in QUANTILES.items()
            },
            "max": None if empty else float(kld.max()),
            "min": None if empty else float(kld.min()),
            "top1": None if empty else float(self.top1[finite].mean()),
            "ppl_reference": _perplexity(self.nll_reference),
            "ppl_candidate": _perplexity(self.nll_candidate),
        }


def _clustered_error(
    values: npt.NDArray[np.float64], cluster: npt.NDArray[np.int64], mean: float
) -> float | None:
    """Standard error of a mean over clusters of unequal size.

    The mean is a ratio (sum of values over number of values), so this is the linearised ratio
    estimator's variance: with e_c the summed deviation of cluster c of C,
    se = sqrt(C / (C - 1) * sum_c e_c^2) / n (Cochran, Sampling Techniques, section 6.4).
    """
    sums = np.bincount(cluster, weights=values - mean)
    clusters = len(np.unique(cluster))
    if clusters < 2:
        return None
    spread = clusters / (clusters - 1) * float(np.square(sums).sum())
    return float(np.sqrt(spread)) / len(values)


def _perplexity(nll: npt.NDArray[np.float64]) -> float | None:
    with np.errstate(over="ignore"):
        value = float(np.exp(nll.mean()))
    return value if np.isfinite(value) else None
