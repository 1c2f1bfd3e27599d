"""The report's pictures, as SVG that takes its text colour from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from mixbit.kld.compare import Candidate
from mixbit.kld.tables import by_context
from mixbit.plan import Plan
from mixbit.plan.picture import heat_map

# Okabe and Ito's colours, told apart by colour-blind eyes and on light and dark alike.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
_INK = "#010203"  # stands for the page's own text colour


def histogram(candidates: Sequence[Candidate]) -> str:
    """How many tokens have which KLD, on a log axis, where those at or below zero have no place."""

    def draw(axes: Any) -> None:
        edges = np.logspace(-12, 2, 71)
        for candidate, colour in _coloured(candidates):
            axes.hist(
                _positive(candidate), bins=edges.tolist(), histtype="step", color=colour, lw=1.5,
                label=_plain(candidate.name),
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("KLD, nats")
        axes.set_ylabel("tokens")
        _legend(axes, candidates)

    return picture("histogram", draw)


def tail(candidates: Sequence[Candidate]) -> str:
    """Share of tokens whose KLD is above a value, both on log axes."""

    def draw(axes: Any) -> None:
        for candidate, colour in _coloured(candidates):
            kld = np.sort(_positive(candidate))
            # Points further apart than a thousandth of what is left look the same as all.
            left = np.unique(np.round(np.geomspace(1, max(len(kld), 1), 7000)).astype(int))
            kept = len(kld) - left[left <= len(kld)][::-1]
            above = (len(kld) - np.arange(len(kld))) / len(candidate.result.kld)
            axes.step(kld[kept], above[kept], where="pre", color=colour, lw=1.5,
                      label=_plain(candidate.name))  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("KLD, nats")
        axes.set_ylabel("share of tokens above")
        _legend(axes, candidates)

    return picture("tail", draw)


def by_position(candidates: Sequence[Candidate]) -> str:
    """Mean KLD against the context that predictions were made from."""

    def draw(axes: Any) -> None:
        for candidate, colour in _coloured(candidates):
            rows = [row for row in by_context(candidate.result) if row["mean"] is not None]
            axes.errorbar(
                [int(row["name"].split()[0]) for row in rows],
                [row["mean"] for row in rows],
                yerr=[1.96 * (row["se"] or 0) for row in rows],
                color=colour, marker="o", ms=4, lw=1.2, capsize=3, label=_plain(candidate.name),
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("tokens of context, from")
        axes.set_ylabel("mean KLD, nats (95 %)")
        _legend(axes, candidates)

    return picture("position", draw)


def pareto(candidates: Sequence[Candidate], comparison: dict[str, Any]) -> str:
    """Mean KLD against size; a line joins the front."""

    def draw(axes: Any) -> None:
        for row, (_, colour) in zip(comparison["rows"], _coloured(candidates), strict=True):
            point = (row["bytes"] / 1e9, row["mean"])
            axes.errorbar(*point, yerr=1.96 * (row["se"] or 0), color=colour, marker="o", capsize=3)
            axes.annotate(_plain(row["name"]), point, xytext=(6, 4), textcoords="offset points")
        front = sorted((r["bytes"] / 1e9, r["mean"]) for r in comparison["rows"] if r["pareto"])
        axes.plot(*zip(*front, strict=True), color=_INK, lw=0.8, ls="--", zorder=0)
        if all(row["mean"] > 0 for row in comparison["rows"]):
            axes.set_yscale("log")
        axes.margins(x=0.15)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("GB")
        axes.set_ylabel("mean KLD, nats (95 %)")

    return picture("pareto", draw)


def plan_map(plan: Plan, index: int) -> str:
    """The heat map of a plan."""
    with _style(f"plan-{index}"):
        return _text(heat_map(plan))


def picture(name: str, draw: Callable[[Any], None]) -> str:
    """What ``draw`` makes of a pair of axes; ``name`` is unlike that of any other of the page."""
    with _style(name):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.grid(alpha=0.25, lw=0.6)
        draw(axes)
        return _text(figure)


@contextmanager
def _style(salt: str) -> Iterator[None]:
    settings: dict[Any, Any] = {
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "axes.titlecolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _INK,
        # Ids repeat from run to run, and differ from picture to picture of a page.
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 11,  # still to be read on a phone
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with rc_context(settings):
        yield


def _text(figure: Figure) -> str:
    content = io.StringIO()
    figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    text = content.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    # As wide as the page allows, up to the size that it was drawn in.
    return re.sub(
        r'width="([\d.]+pt)" height="[^"]*"',
        r'style="max-width: calc(1.4 * \1)"',
        text,
        count=1,
    )


def _positive(candidate: Candidate) -> Any:
    kld = candidate.result.kld
    return kld[np.isfinite(kld) & (kld > 0)]


def _coloured(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, str]]:
    for index, candidate in enumerate(candidates):
        yield candidate, COLOURS[index % len(COLOURS)]


def _legend(axes: Any, candidates: Sequence[Candidate]) -> None:
    if len(candidates) > 1:
        axes.legend(fontsize=8)


def _plain(name: str) -> str:
    """A name that matplotlib does not take for mathematics."""
    return name.replace("$", r"\$")
