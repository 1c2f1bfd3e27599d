"""A plan as a heat map: layers by classes of modules, coloured by bits."""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mixbit.checkpoint import write_bytes
from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.report import module_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg", ".pdf")
_DENSE_BITS = 16
_STEPS = (2, 3, 4, 5, 6, 8, _DENSE_BITS)


def draw(plan: Plan, path: Path | str) -> None:
    """Write the heat map as PNG, SVG or PDF, whichever the file's name asks for.

    Raises:
        MixbitError: the name asks for something else, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise MixbitError(f"{path} must end in {', '.join(_SUFFIXES)}.")
    content = io.BytesIO()
    heat_map(plan).savefig(content, format=path.suffix.lower().removeprefix("."), dpi=150)
    write_bytes(path, content.getvalue())


def heat_map(plan: Plan) -> "Figure":
    """The picture of a plan.

    A row is a class of modules, a column a layer; modules outside of layers have a column of their
    own at the left. The number in a cell is bits, and 16 stands for not quantised.
    """
    from matplotlib.figure import Figure

    cells = _cells(plan)
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = sorted({column for _, column in cells})
    # Bits are few, so the steps between them are even, and the same in every plan's picture.
    steps = sorted({*_STEPS, *cells.values()})
    grid = [
        [steps.index(cells[row, column]) if (row, column) in cells else float("nan")
         for column in columns]
        for row in rows
    ]  # fmt: skip
    figure = Figure(figsize=(3 + 0.24 * len(columns), 1.2 + 0.26 * len(rows)), layout="tight")
    axes = figure.subplots()
    axes.imshow(grid, cmap="viridis", vmin=0, vmax=len(steps) - 1, aspect="auto")
    for (row, column), bits in cells.items():
        axes.text(
            columns.index(column),
            rows.index(row),
            str(bits),
            ha="center",
            va="center",
            fontsize=6,
            color="white" if steps.index(bits) < len(steps) / 2 else "black",
        )
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.set_xticks(
        range(len(columns)), ["–" if column < 0 else str(column) for column in columns], fontsize=6
    )
    axes.set_xlabel("layer", fontsize=8)
    axes.set_title(f"{plan.name}: bits", fontsize=9)
    return figure


def _cells(plan: Plan) -> dict[tuple[str, int], int]:
    """(class, layer) to bits; layer -1 for modules outside of layers."""
    paths = (
        [shape.path for shape in plan.structure.modules] if plan.structure else list(plan.modules)
    )
    cells = {}
    for path in paths:
        layer = re.search(r"\blayers\.(\d+)\.", path)
        spec = plan.modules.get(path)
        column = int(layer[1]) if layer else -1
        cells[module_class(path), column] = _DENSE_BITS if spec is None else spec.bits
    return cells
