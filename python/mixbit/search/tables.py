"""The figures of a sweep and a search as rows of text, for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mixbit.checkpoint import stem_of
from mixbit.plan import QuantSpec
from mixbit.plan.report import module_class
from mixbit.search.result import SearchResult, Tried
from mixbit.search.table import Cell, Sensitivity

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""A header, and rows under it."""


def by_class(table: Sensitivity) -> Rows:
    """Mean KLD of each class at each width, summed over its groups, the most sensitive first."""
    classes = _classes(table)
    specs = sorted({cell.spec for cell in table.cells}, key=lambda spec: spec.bits_per_weight)
    sums = {
        name: [sum(c.mean for c in cells if c.spec == spec) if _has(cells, spec) else math.nan
               for spec in specs]
        for name, cells in classes.items()
    }  # fmt: skip
    order = sorted(sums, key=lambda name: -np.nansum(sums[name]))
    header = ("class", "groups", *(f"{spec.bits}/{spec.group_size}" for spec in specs))
    rows = [
        (name, str(len({c.group for c in classes[name]})), *map(_figure, sums[name]))
        for name in order
    ]
    return header, rows


def by_context(table: Sensitivity) -> Rows:
    """Mean KLD of each class at its lowest width by the context before a prediction.

    Where the error builds up in the recurrent state it grows from left to right.
    """
    used = [at for at, count in enumerate(table.contexts) if count]
    rows = []
    for name, cells in _classes(table).items():
        lowest = min((cell.spec for cell in cells), key=lambda spec: spec.bits_per_weight)
        own = np.sum([cell.contexts for cell in cells if cell.spec == lowest], axis=0)
        rows.append(
            (name, f"{lowest.bits}/{lowest.group_size}", *(_figure(own[at]) for at in used))
        )
    header = ("class", "width", *(f"from {1 << at}" for at in used))
    return header, rows


def by_cell(table: Sensitivity) -> Rows:
    """Every measurement, the most sensitive first."""
    header = ("group", "width", "bytes", "mean KLD", "error", "top-1", *table.cells[0].proxies)
    rows = [
        (
            stem_of(cell.group.name),
            f"{cell.spec.bits}/{cell.spec.group_size}",
            f"{cell.nbytes:,}",
            _figure(cell.mean),
            f"{cell.error:.2g}",
            f"{cell.top1:.2%}",
            *map(_figure, cell.proxies.values()),
        )
        for cell in sorted(table.cells, key=lambda cell: -cell.mean)
    ]
    return header, rows


def plans(result: SearchResult) -> Rows:
    """What was given and, by their files, what was found."""
    rows = [_plan(one, one.plan.name) for one in result.inputs]
    rows += [_plan(found.best, result.file_of(found.limit)) for found in result.found]
    rows += [
        _plan(small, f"{result.file_like(at)}, as good as {given.plan.name}")
        for at, (given, small) in enumerate(zip(result.inputs, result.smaller, strict=True))
    ]
    return ("plan", "bytes", "bits per weight", "predicted", "mean KLD", "error", "top-1"), rows


def _plan(one: Tried, name: str) -> tuple[str, ...]:
    return (
        name,
        f"{one.nbytes:,}",
        f"{one.bpw:.3f}",
        "–" if one.predicted is None else _figure(one.predicted),
        _figure(one.mean),
        f"{one.error:.2g}",
        f"{one.top1:.2%}",
    )


def _classes(table: Sensitivity) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in table.cells:
        found.setdefault(module_class(cell.group.name), []).append(cell)
    return found


def _has(cells: Sequence[Cell], spec: QuantSpec) -> bool:
    return any(cell.spec == spec for cell in cells)


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
