"""Several candidates over the same tokens: who is better, by how much, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixbit.errors import MixbitError
from mixbit.kld.result import KLDResult

SCHEMA = "mixbit.kld-compare/1"
RESAMPLES = 4000


@dataclass(frozen=True)
class Candidate:
    """A measured model."""

    name: str
    nbytes: int
    """Bytes of its tensors."""
    result: KLDResult
    folder: Path | None = None
    """Where the model lies, for its plan and tokenizer."""


def compare(candidates: Sequence[Candidate], *, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Rows of all candidates, whether each is on the Pareto front of size and KLD, and all pairs.

    A pair's difference of mean KLD (first less second) comes with a 95 % interval from a bootstrap
    over documents, in which both are resampled together: the tokens are the same, so what is hard
    for one is hard for the other, and the difference is known far better than either mean. Tokens
    that are not finite for one of all candidates count for none.

    Raises:
        MixbitError: the candidates were not measured over the same tokens.
    """
    if len(candidates) < 2:
        raise MixbitError("A comparison needs two candidates or more.")
    first = candidates[0].result
    for other in candidates[1:]:
        if other.result.stream.describe() != first.stream.describe():
            raise MixbitError(
                f"{other.name} and {candidates[0].name} were measured over different tokens."
            )
    finite = np.logical_and.reduce([np.isfinite(c.result.kld) for c in candidates])
    if not finite.any():
        raise MixbitError("No token has a finite divergence for all candidates.")
    means = _resampled_means(candidates, finite, resamples)
    summaries = [candidate.result.summary() for candidate in candidates]
    return {
        "schema": SCHEMA,
        "common_tokens": int(np.count_nonzero(finite)),
        "resamples": resamples,
        "rows": [
            {
                "name": candidate.name,
                "bytes": candidate.nbytes,
                "pareto": _on_front(index, candidates, means[0]),
                **{key: value for key, value in summary.items() if key != "schema"},
            }
            for index, (candidate, summary) in enumerate(zip(candidates, summaries, strict=True))
        ],
        "pairs": [
            _pair(candidates[i].name, candidates[j].name, means[:, i] - means[:, j])
            for i in range(len(candidates))
            for j in range(i + 1, len(candidates))
        ],
    }


def _resampled_means(
    candidates: Sequence[Candidate], finite: npt.NDArray[np.bool_], resamples: int
) -> npt.NDArray[np.float64]:
    """Mean KLD ``[1 + resamples, candidates]``: as measured, then of documents drawn anew."""
    _, document = np.unique(candidates[0].result.document[finite], return_inverse=True)
    documents = int(document.max()) + 1
    sums = np.stack(
        [np.bincount(document, weights=c.result.kld[finite]) for c in candidates], axis=1
    )
    counts = np.bincount(document)
    rng = np.random.default_rng(0)
    means = np.empty((1 + resamples, len(candidates)))
    means[0] = sums.sum(axis=0) / counts.sum()
    for begin in range(0, resamples, 100):  # a table of draws at a time
        draws = rng.multinomial(documents, np.full(documents, 1 / documents), size=100)
        chosen = draws[: resamples - begin]
        means[1 + begin : 1 + begin + len(chosen)] = chosen @ sums / (chosen @ counts)[:, None]
    return means


def _pair(first: str, second: str, differences: npt.NDArray[np.float64]) -> dict[str, Any]:
    low, high = np.quantile(differences[1:], [0.025, 0.975])
    return {
        "first": first,
        "second": second,
        "difference": float(differences[0]),
        "low": float(low),
        "high": float(high),
        "significant": bool(low > 0 or high < 0),
    }


def _on_front(index: int, candidates: Sequence[Candidate], means: npt.NDArray[np.float64]) -> bool:
    """Whether no other candidate is at least as small and as close, and better in one of both."""
    own = (candidates[index].nbytes, float(means[index]))
    points = [(c.nbytes, float(m)) for c, m in zip(candidates, means, strict=True)]
    return not any(p[0] <= own[0] and p[1] <= own[1] and p != own for p in points)
