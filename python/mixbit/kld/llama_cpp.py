"""The numbers of llama.cpp's ``perplexity --kl-divergence``, with what its storage does to them.

Its reference file holds each row of log-probabilities in 16 bits: steps of 1/65535 of the span from
the largest logit down to 16 below it, where everything lower is clipped. Terms whose stored
log-probability is not above -16 are left out of the sum. Rounding and order of operations follow
its tools/perplexity/perplexity.cpp, in fp32 with fp64 sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mixbit.kld.result import KLDResult
from mixbit.kld.rows import RowScores
from mixbit.kld.scorer import Head
from mixbit.kld.stream import Protocol
from mixbit.ops import TOP

SPAN = np.float32(16)
_STEPS = np.float32(65535)

Logits = npt.NDArray[np.float32]


def protocol(window: int | None) -> Protocol:
    """Full windows, second half scored."""
    return Protocol(window=window, score="half", full_windows=True)


class Stored(NamedTuple):
    """Rows of log-probabilities as the reference file has them."""

    codes: npt.NDArray[np.uint16]
    """``[rows, vocab]``"""
    scale: Logits
    """``[rows, 1]``"""
    lowest: Logits
    """Log-probability of code 0, ``[rows, 1]``."""

    def log_probabilities(self) -> Logits:
        """What is read back, ``[rows, vocab]``."""
        return self.scale * self.codes.astype(np.float32) + self.lowest


class LlamaCppPair:
    """Compares predictions as llama.cpp does; takes the place of the exact comparison."""

    def __init__(self, reference: Head, candidate: Head, vocab_size: int) -> None:
        """Take two heads; the vocabulary is all their rows, as it is in a GGUF file."""
        self._reference, self._candidate, self._vocab_size = reference, candidate, vocab_size

    def score(
        self, reference: mx.array, candidate: mx.array, targets: npt.NDArray[np.int64]
    ) -> RowScores:
        """Compare hidden states ``[N, hidden]``; there is no reverse divergence."""
        return compare_rows(
            self._reference.logits(reference, self._vocab_size),
            self._candidate.logits(candidate, self._vocab_size),
            targets,
        )


def store(logits: Logits) -> Stored:
    """Rows of logits as they are written."""
    top = logits.max(axis=1, keepdims=True)
    lowest = np.maximum(logits.min(axis=1, keepdims=True), top - SPAN)
    scale = (top - lowest) / _STEPS
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint((np.float32(1) / scale) * (logits - lowest))
    codes = np.where((logits > lowest) & (scale > 0), steps, 0).astype(np.uint16)
    return Stored(codes, scale, lowest - top - _log_sum(logits, top))


def compare_rows(reference: Logits, candidate: Logits, targets: npt.NDArray[np.int64]) -> RowScores:
    """Scores of rows of logits, the reference stored and read back."""
    row = np.arange(len(targets))
    base = store(reference).log_probabilities()
    top = candidate.max(axis=1, keepdims=True)
    normaliser = top + _log_sum(candidate, top)
    terms = np.exp(base) * (base - candidate + normaliser)
    tops = np.full((2, len(targets), TOP), -1, dtype=np.int32)
    tops[0, :, 0], tops[1, :, 0] = base.argmax(axis=1), candidate.argmax(axis=1)
    return RowScores(
        kld=np.where(base > -SPAN, terms, 0).astype(np.float64).sum(axis=1),
        reverse=np.full(len(targets), np.nan),
        nll_reference=-base[row, targets].astype(np.float64),
        nll_candidate=(normaliser[:, 0] - candidate[row, targets]).astype(np.float64),
        top_reference=tops[0],
        top_candidate=tops[1],
    )


def llama_cpp_summary(result: KLDResult) -> dict[str, Any]:
    """What it prints, by its own formulas: errors take tokens for independent."""
    difference = result.nll_candidate - result.nll_reference
    kld, change = result.kld, result.delta_p
    ppl, base = np.exp(result.nll_candidate.mean()), np.exp(result.nll_reference.mean())
    return {
        "ppl": float(ppl),
        "ppl_error": float(ppl * _error(result.nll_candidate)),
        "ppl_base": float(base),
        "ppl_base_error": float(base * _error(result.nll_reference)),
        "log_ppl_ratio": float(difference.mean()),
        "log_ppl_ratio_error": _error(difference),
        "kld": float(kld.mean()),
        "kld_error": _error(kld),
        **{
            f"kld_{name}": float(np.quantile(kld.astype(np.float32), q))
            for name, q in (
                ("max", 1), ("p999", 0.999), ("p99", 0.99), ("p95", 0.95), ("p90", 0.9),
                ("median", 0.5), ("p10", 0.1), ("p5", 0.05), ("p1", 0.01), ("min", 0),
            )
        },
        "delta_p": float(change.mean()),
        "delta_p_error": _error(change),
        "delta_p_rms": float(np.sqrt(np.square(change).mean())),
        "same_top": float(result.top1.mean()),
    }  # fmt: skip


def _log_sum(logits: Logits, top: Logits) -> Logits:
    """Logarithm of the sum of exponentials of ``logits - top``, ``[rows, 1]``."""
    total = np.exp(logits - top).astype(np.float64).sum(axis=1, keepdims=True)
    return np.log(total).astype(np.float32)


def _error(values: npt.NDArray[np.float64]) -> float:
    """Standard error of the mean of independent values."""
    if len(values) < 2:
        return 0.0
    return float(np.sqrt(max(values.var(), 0.0) / (len(values) - 1)))
