"""A page with what a search found, and what it knew."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from mixbit import kld
from mixbit.checkpoint import write_bytes
from mixbit.kld.plots import COLOURS, picture, plan_map
from mixbit.plan.report import module_class
from mixbit.search import tables
from mixbit.search.result import SearchResult
from mixbit.search.table import Sensitivity


def write_report(result: SearchResult, folder: Path) -> None:
    """Write ``report.html``, which needs nothing else.

    Raises:
        MixbitError: it cannot be written.
    """
    write_bytes(folder / "report.html", html(result).encode())


def html(result: SearchResult) -> str:
    """The page."""
    folders = [Path(__file__).parent, Path(kld.__file__).parent]
    page = Environment(autoescape=True, trim_blocks=True, loader=FileSystemLoader(folders))
    files = [result.file_of(found.limit) for found in result.found]
    return page.get_template("search.html.jinja").render(
        title=f"Plans for {result.identity['model']['name']}",
        version=importlib.metadata.version("mixbit"),
        table=result.table,
        tokens=result.tokens,
        documents=result.documents,
        plans=dict(zip(("header", "rows"), tables.plans(result), strict=True)),
        tables=_tables(result.table),
        plots=[
            {"caption": "Mean KLD against size of the whole model", "svg": _front(result)},
            {"caption": "Sum of sensitivities against what whole plans measure",
             "svg": _predictions(result)},
            {"caption": "Mean KLD of each class alone, all layers together, by width",
             "svg": _widths(result.table)},
        ],
        maps=[
            {"name": file, "svg": plan_map(result.named(result.files[file], file), index)}
            for index, file in enumerate(files)
        ],
    )  # fmt: skip


def _tables(table: Sensitivity) -> list[dict[str, Any]]:
    proxies = ", ".join(f"{name} {value:.3f}" for name, value in table.correlations().items())
    return [
        _table("Sensitivity by class", "Sum over the groups of a class.", tables.by_class(table)),
        _table(
            "Sensitivity by tokens of context", "At the lowest width that was measured.",
            tables.by_context(table),
        ),
        _table(
            "Measurements", f"Rank correlation of the proxies with mean KLD: {proxies}.",
            tables.by_cell(table),
        ),
    ]  # fmt: skip


def _table(title: str, note: str, rows: tables.Rows) -> dict[str, Any]:
    header, body = rows
    return {"title": title, "note": note, "header": header, "rows": body}


def _front(result: SearchResult) -> str:
    def draw(axes: Any) -> None:
        points = [(p.nbytes / 1e6, p.predicted) for p in result.front if p.predicted > 0]
        axes.plot(*zip(*points, strict=True), color=COLOURS[0], lw=1.2, label="predicted")
        for name, tried, marker, colour in (
            ("measured", result.tried, ".", COLOURS[7]),
            ("given", result.inputs, "s", COLOURS[1]),
            ("found", [found.best for found in result.found], "o", COLOURS[2]),
        ):
            if tried:
                axes.errorbar(
                    [one.nbytes / 1e6 for one in tried], [one.mean for one in tried],
                    yerr=[1.96 * one.error for one in tried], color=colour, marker=marker, ls="",
                    capsize=3, label=name,
                )  # fmt: skip
        for one in result.inputs:
            axes.annotate(
                one.plan.name, (one.nbytes / 1e6, one.mean), xytext=(6, 4),
                textcoords="offset points", fontsize=8,
            )  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("MB")
        axes.set_ylabel("mean KLD, nats (95 %)")
        axes.legend(fontsize=8)

    return picture("front", draw)


def _predictions(result: SearchResult) -> str:
    def draw(axes: Any) -> None:
        known = [one for one in [*result.tried, *result.inputs] if one.predicted]
        axes.plot(
            [one.predicted for one in known], [one.mean for one in known], ".", color=COLOURS[0]
        )
        axes.axline((1e-3, 1e-3), slope=1, color=COLOURS[7], lw=0.8, ls="--")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(0.1)
        axes.set_xlabel("predicted, nats")
        axes.set_ylabel("measured, nats")

    return picture("predictions", draw)


def _widths(table: Sensitivity) -> str:
    def draw(axes: Any) -> None:
        sums: dict[str, dict[float, float]] = {}
        for cell in table.cells:
            line = sums.setdefault(module_class(cell.group.name), {})
            bits = cell.spec.bits_per_weight
            line[bits] = line.get(bits, 0.0) + cell.mean
        for index, (name, line) in enumerate(sums.items()):
            points = sorted(line.items())
            axes.plot(
                *zip(*points, strict=True), marker=".", lw=1, color=COLOURS[index % len(COLOURS)],
                ls="-" if index < len(COLOURS) else "--", label=name,
            )  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("bits per weight, scales included")
        axes.set_ylabel("mean KLD, nats")
        axes.legend(fontsize=6, ncols=2)

    return picture("widths", draw)
