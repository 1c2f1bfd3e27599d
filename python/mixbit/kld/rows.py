"""Log-softmax, KL divergence and target likelihood of rows of logits, in fp64.

For a row of reference logits ``x`` and candidate logits ``y``, both shifted by their maximum,

    KL(p || q) = sum_i exp(x_i) (x_i - y_i) / X - log X + log Y,  X = sum_i exp(x_i),  Y likewise,

which is the definition with the softmax normalisers taken out of the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Rows are worked off in groups of about this many logits, so that the fp64 temporaries stay small.
_GROUP_ELEMENTS = 1 << 18


class RowScores(NamedTuple):
    """What is kept of each row; every array has shape ``[rows]``."""

    kld: Array
    """KL(reference || candidate) in nats: inf or NaN where the logits make it so."""
    nll_reference: Array
    """Negative log likelihood of the target under the reference, nats."""
    nll_candidate: Array
    """The same under the candidate."""
    top1: npt.NDArray[np.bool_]
    """Whether both rows have their (first) maximum at the same token."""


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
    rows, vocab = reference.shape
    step = max(1, _GROUP_ELEMENTS // vocab)
    groups = [
        _score_group(reference[i : i + step], candidate[i : i + step], targets[i : i + step])
        for i in range(0, rows, step)
    ]
    return RowScores(*(np.concatenate(column) for column in zip(*groups, strict=True)))


def _score_group(
    reference: npt.NDArray[np.float32],
    candidate: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
) -> RowScores:
    with np.errstate(invalid="ignore", over="ignore"):
        x, x_sum, x_log_sum = _shifted(reference)
        y, _, y_log_sum = _shifted(candidate)
        weights = np.exp(x)
        difference = x - y
        # A token that the reference rules out adds nothing, whatever the candidate says.
        difference[np.isneginf(x)] = 0.0
        kld = (weights * difference).sum(axis=1) / x_sum - x_log_sum + y_log_sum
        # A token that only the candidate rules out makes the divergence infinite, also where its
        # weight underflows to zero.
        impossible = (np.isneginf(y) & ~np.isneginf(x)).any(axis=1)
        kld[impossible & ~np.isnan(x_log_sum + y_log_sum)] = np.inf
        row = np.arange(len(targets))
        nll_reference = x_log_sum - x[row, targets]
        nll_candidate = y_log_sum - y[row, targets]
    top1 = reference.argmax(axis=1) == candidate.argmax(axis=1)
    return RowScores(kld, nll_reference, nll_candidate, top1)


def _shifted(logits: npt.NDArray[np.float32]) -> tuple[Array, Array, Array]:
    """Logits less their row maximum, the sum of their exponentials and its logarithm, fp64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1)
    return shifted, total, np.log(total)
