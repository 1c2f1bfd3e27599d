"""Line coverage of the sources in metal/: which of their statements checked runs executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ir import Block, Module
from .overloads import declarations
from .tokens import Source

Lines = dict[str, list[int]]  # by file
Statements = dict[str, list[tuple[int, int]]]  # first and last lines, by file

METAL = Path(__file__).resolve().parents[3] / "metal"

_CONTROL = {"if", "for", "while", "switch"}
_NO_CODE = {
    "using", "typedef", "static_assert", "constexpr", "constant", "template", "struct", "public",
    "private",
}  # fmt: skip
_LOCATION = re.compile(r"^!(\d+) = (?:distinct )?!DILocation\(line: (\d+),.*?scope: !(\d+)")
_SCOPE = re.compile(r"^!(\d+) = (?:distinct )?!DI(?:LexicalBlock\w*|Subprogram)\(.*?file: !(\d+)")
_FILE = re.compile(r'^!(\d+) = !DIFile\(filename: "([^"]*)", directory: "([^"]*)"')
_DEBUG = re.compile(r"!dbg !(\d+)")


def statements(source: Source, folder: str) -> Statements:
    """Statements in function bodies of the files in ``folder``, of a preprocessed source."""
    found: Statements = {}
    for declaration in declarations(source):
        if not (declaration.is_function and declaration.is_definition):
            continue
        for first, last in _in_body(source, declaration.head_end, declaration.end):
            file, _, line = source.place(first).rpartition(":")
            if file.startswith(folder):
                end = int(line) + _lines_between(source, first, last)
                found.setdefault(file, []).append((int(line), end))
    return found


def _lines_between(source: Source, first: int, last: int) -> int:
    return source.text.count("\n", source.tokens[first].start, source.tokens[last].start)


def _in_body(source: Source, first: int, end: int) -> Iterator[tuple[int, int]]:
    """First and last tokens of the statements between ``first`` and ``end`` that have code."""
    tokens = source.tokens
    i = next(j for j in range(first, end) if tokens[j].is_sign("{"))
    start: int | None = None
    while i < end:
        token = tokens[i]
        if token.is_sign("{", "}", ";"):
            if start is not None and _has_code(source.words(start, i)):
                yield start, i - 1
            start = None
        elif token.in_attribute:
            pass
        elif start is None and token.text in _CONTROL:
            closing = source.partner[next(j for j in range(i, end) if tokens[j].is_sign("("))]
            if token.text != "if":  # clang emits nothing for a condition that is constant
                yield i, closing
            i = closing
        elif start is None and token.text in ("else", "do"):
            pass
        else:
            start = i if start is None else start
            if token.is_sign("(", "["):
                i = source.partner[i]
        i += 1


def _has_code(words: Sequence[str]) -> bool:
    # Nor need there be code where a variable is returned: it may live in the caller's memory.
    returns_variable = words[0] == "return" and all(w.isidentifier() for w in words[:3])
    return _NO_CODE.isdisjoint(words[:2]) and not returns_variable


def instrument(text: str, folder: str) -> tuple[str, list[Lines]]:
    """IR that marks its blocks in ``runner_lines``, and which lines of ``folder`` each holds."""
    module = Module(text)
    line_of = _locations(module.lines, folder)
    blocks: list[Block] = []
    held: list[Lines] = []
    for function in module.functions():
        for block in module.blocks(function):
            lines: dict[str, set[int]] = {}
            for i in range(block.first, block.end):
                for number in _DEBUG.findall(module.lines[i]):
                    if number in line_of:
                        file, line = line_of[number]
                        lines.setdefault(file, set()).add(line)
            if lines:
                blocks.append(block)
                held.append({file: sorted(found) for file, found in lines.items()})
    count = max(len(blocks), 1)

    def code(i: int) -> list[str]:
        place = f"getelementptr inbounds ([{count} x i8], ptr @runner_lines, i64 0, i64 {i})"
        return [f"  store i8 1, ptr {place}, align 1, !nosanitize !{2**31}"]

    behind = (
        f"@runner_lines = dso_local global [{count} x i8] zeroinitializer, align 1\n"
        f"!{2**31} = !{{}}"
    )
    return module.with_code(blocks, code, behind), held


def _locations(lines: Sequence[str], folder: str) -> dict[str, tuple[str, int]]:
    """File and line of every debug location in ``folder``."""
    files: dict[str, str] = {}
    scopes: dict[str, str] = {}
    places: dict[str, tuple[str, str]] = {}
    for text in lines:
        if not text.startswith("!"):
            continue
        if match := _LOCATION.match(text):
            places[match.group(1)] = (match.group(3), match.group(2))
        elif match := _SCOPE.match(text):
            scopes[match.group(1)] = match.group(2)
        elif match := _FILE.match(text):
            name, directory = match.group(2), match.group(3)
            files[match.group(1)] = name if name.startswith("/") else f"{directory}/{name}"
    result = {}
    for number, (scope, line) in places.items():
        file = files.get(scopes.get(scope, ""), "")
        if file.startswith(folder):
            result[number] = (file, int(line))
    return result


@dataclass
class Coverage:
    """Statements known and lines executed, by file, over many libraries."""

    known: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    executed: dict[str, set[int]] = field(default_factory=dict)

    def add_known(self, found: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Take in the statements of a library."""
        for file, spans in found.items():
            self.known.setdefault(file, set()).update((first, last) for first, last in spans)

    def add_executed(self, ran: Mapping[str, Sequence[int]]) -> None:
        """Take in lines that ran."""
        for file, numbers in ran.items():
            self.executed.setdefault(file, set()).update(numbers)

    def missed(self, file: str) -> list[tuple[int, int]]:
        """First and last lines of a file's statements of which nothing was executed."""
        ran = self.executed.get(file, set())
        known = sorted(self.known.get(file, ()))
        return [(a, b) for a, b in known if ran.isdisjoint(range(a, b + 1))]

    def share(self) -> float:
        """Executed statements of all files, from 0 to 1."""
        total = sum(map(len, self.known.values()))
        return 1 - sum(len(self.missed(file)) for file in self.known) / total if total else 0.0

    def to_json(self) -> dict[str, Any]:
        """For :meth:`add_known` and :meth:`add_executed` of another process."""
        return {
            "known": {file: sorted(spans) for file, spans in self.known.items()},
            "executed": {file: sorted(ran) for file, ran in self.executed.items()},
        }


_watched: list[tuple[Statements, list[Lines], NDArray[np.uint8]]] = []


def watch(known: Statements, held: list[Lines], flags: NDArray[np.uint8]) -> None:
    """Remember a loaded library: its statements, the lines of its blocks, the blocks' marks."""
    _watched.append((known, held, flags))


def collected() -> Coverage:
    """What all checked runs of this process executed."""
    result = Coverage()
    for known, held, flags in _watched:
        result.add_known(known)
        for i in np.flatnonzero(flags[: len(held)]):
            result.add_executed(held[i])
    return result
