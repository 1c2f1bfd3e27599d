"""Where a command's results go: a table or JSON on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixbit.errors import MixbitError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

# Wide enough that a pipe or a file gets every column of every table whole.
_PLAIN_WIDTH = 200


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json FILE|-``, the same in every command."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the results as JSON to FILE, or with '-' to stdout and nothing else there",
    )


class Output:
    """What a command prints.

    With ``--json -`` everything but the JSON, also what libraries print, goes to stderr.
    """

    def __init__(self, json_target: str | None) -> None:
        """Check the target, so that a long run does not end in an unwritable file."""
        self._target = json_target
        self._to_stdout = json_target == "-"
        if json_target not in (None, "-"):
            _check_writable(Path(json_target))

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Keep stdout clean for the JSON while the work runs."""
        if not self._to_stdout:
            yield
            return
        with contextlib.redirect_stdout(sys.stderr):
            yield

    def show(self, *parts: RenderableType) -> None:
        """Print tables and lines for a person; nothing with ``--json -``."""
        if self._to_stdout:
            return
        from rich.console import Console

        if sys.stdout.isatty():
            console = Console(file=sys.stdout, highlight=False)
            for part in parts:
                console.print(part, markup=False)
            return
        plain = Console(file=io.StringIO(), width=_PLAIN_WIDTH, highlight=False, color_system=None)
        with plain.capture() as capture:
            for part in parts:
                plain.print(part, markup=False, soft_wrap=True)
        for line in capture.get().splitlines():
            print(line.rstrip())

    def write(self, result: Mapping[str, Any]) -> None:
        """Write the JSON to where ``--json`` says, if it was given."""
        if self._target is None:
            return
        document = finite(result)
        if self._to_stdout:
            print(json.dumps(document, indent=2, allow_nan=False))
            return
        from mixbit.checkpoint import write_json

        write_json(Path(self._target), document)


def finite(value: Any) -> Any:
    """A copy with NaN and infinities, which JSON lacks, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> Any:
    """A table without frame lines; the first ``text_columns`` columns stand left, others right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(header):
        left = index < text_columns
        # Names and numbers cut short are worth nothing, so no cell is ever wrapped or clipped.
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, shown only when a person looks at it; yields its (done, total) callback."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with _bar() as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def named_progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """As ``progress_bar``, for work that names its present step: (done, total, name)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _name: None
        return
    with _bar() as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(
            task, completed=done, total=total, description=name
        )


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise MixbitError(f"--json {path} is a folder; give the name of a file.")
    if not path.absolute().parent.is_dir():
        raise MixbitError(f"--json {path} lies in a folder that does not exist.")
