"""Results as tables: the summary, by kind of data, context and document, and the worst tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mixbit.kld.result import KLDResult, clustered_error, mean
from mixbit.kld.stream import Indices

_SHOWN_CONTEXT = 40

SUMMARY = (
    ("mean KLD, nats", "mean", ".6g"),
    ("standard error", "se", ".2g"),
    ("median", "p50", ".6g"),
    ("90 %", "p90", ".6g"),
    ("95 %", "p95", ".6g"),
    ("99 %", "p99", ".6g"),
    ("99.9 %", "p999", ".6g"),
    ("max", "max", ".6g"),
    ("min", "min", ".6g"),
    ("mean KL(candidate ‖ reference)", "reverse_mean", ".6g"),
    ("top-1 agreement", "top1", ".3%"),
    ("top-5 overlap", "top5", ".3%"),
    ("Δp of the true token, mean", "delta_p_mean", ".3%"),
    ("Δp of the true token, RMS", "delta_p_rms", ".3%"),
    ("perplexity, reference", "ppl_reference", ".6g"),
    ("perplexity, candidate", "ppl_candidate", ".6g"),
    ("perplexity ratio", "ppl_ratio", ".6g"),
    ("tokens without a finite KLD", "nonfinite", "d"),
    ("tool calls right", "tool_calls_right", "d"),
    ("tool calls right, reference", "tool_calls_right_reference", "d"),
    ("tool calls", "tool_calls_total", "d"),
)
"""Lines of a summary: what it says, its key in :meth:`KLDResult.summary`, its form."""


def summary_rows(summaries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A line's name and its figure of each summary, for the lines that any of them has."""
    return [
        (label, *(number(summary.get(key), form) for summary in summaries))
        for label, key, form in SUMMARY
        if any(key in summary for summary in summaries)
    ]


def number(value: float | None, form: str) -> str:
    """A figure, or a dash for none."""
    return "–" if value is None else format(value, form)


def by_kind(result: KLDResult) -> list[dict[str, Any]]:
    """A row for each kind of data, in alphabetical order."""
    kinds = result.stream.kinds[result.document].astype(np.int64)
    return _rows(result, kinds, result.stream.kind_names)


def by_context(result: KLDResult) -> list[dict[str, Any]]:
    """A row for each doubling of the context that predictions were made from."""
    context = result.stream.context
    doubling = np.floor(np.log2(np.maximum(context, 1))).astype(np.int64)
    names = [f"{1 << k}" if k == 0 else f"{1 << k} to {(2 << k) - 1}" for k in range(64)]
    return _rows(result, doubling, names)


def by_document(result: KLDResult) -> list[dict[str, Any]]:
    """A row for each document with a scored token."""
    names = [str(index) for index in range(len(result.stream.offsets) - 1)]
    return _rows(result, result.document, names)


def worst_tokens(result: KLDResult, tokenizer: Any, count: int) -> list[dict[str, Any]]:
    """The ``count`` predictions with the largest divergence, those without a finite one first.

    Each with the text before it, the true token, each model's likeliest one, and the probability
    that each model gave the true one.
    """
    order = np.argsort(-np.nan_to_num(result.kld, nan=np.inf), kind="stable")[:count]
    stream = result.stream
    rows = []
    for index in order.tolist():
        at, document = int(stream.at[index]), int(stream.document[index])
        begin = max(at + 1 - min(_SHOWN_CONTEXT, int(stream.context[index])), 0)

        def text(*tokens: int) -> str:
            return "" if -1 in tokens else str(tokenizer.decode(list(tokens)))

        rows.append(
            {
                "kld": float(result.kld[index]),
                "document": document,
                "position": at - int(stream.offsets[document]),
                "kind": stream.kind_names[stream.kinds[document]],
                "context": text(*stream.tokens[begin : at + 1].tolist()),
                "target": text(int(stream.tokens[at + 1])),
                "reference": text(int(result.top_reference[index, 0])),
                "candidate": text(int(result.top_candidate[index, 0])),
                "p_reference": float(np.exp(-result.nll_reference[index])),
                "p_candidate": float(np.exp(-result.nll_candidate[index])),
            }
        )
    return rows


def _rows(result: KLDResult, group: Indices, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": names[value], **_figures(result, group == value)}
        for value in np.unique(group).tolist()
    ]


def _figures(result: KLDResult, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
    finite = chosen & np.isfinite(result.kld)
    kld = result.kld[finite]
    return {
        "tokens": int(np.count_nonzero(chosen)),
        "nonfinite": int(np.count_nonzero(chosen & ~finite)),
        "mean": mean(kld),
        "se": clustered_error(kld, result.document[finite]),
        "p50": float(np.quantile(kld, 0.5)) if len(kld) else None,
        "p99": float(np.quantile(kld, 0.99)) if len(kld) else None,
        "max": float(kld.max()) if len(kld) else None,
        "top1": mean(result.top1[finite]),
    }
