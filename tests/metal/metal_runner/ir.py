"""LLVM IR as text: its functions and basic blocks, and code put in front of each block.

Text is enough, so that no LLVM library has to be installed beside the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_DEFINE = re.compile(r'^define .*?@("[^"]+"|[\w.$]+)\(')
_LABEL = re.compile(r'^("[^"]+"|[\w.$-]+):')
_MUST_BE_FIRST = re.compile(r'\s+%[\w.$"-]+ = (phi|alloca) ')


@dataclass(frozen=True)
class Block:
    """A basic block: its function, and its lines ``first`` to ``end`` - 1.

    ``entry`` is where new code may stand: behind what has to be first.
    """

    function: str
    first: int
    entry: int
    end: int


@dataclass(frozen=True)
class Function:
    """A function's name and the lines of its body."""

    name: str
    first: int
    end: int


class Module:
    """A module's lines."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")

    def functions(self) -> Iterator[Function]:
        """All functions with a body."""
        i = 0
        while i < len(self.lines):
            match = _DEFINE.match(self.lines[i])
            if match:
                end = self.lines.index("}", i)
                yield Function(match.group(1).strip('"'), i + 1, end)
                i = end
            i += 1

    def blocks(self, function: Function) -> Iterator[Block]:
        """The basic blocks of a function."""
        first = function.first
        for i in range(function.first, function.end + 1):
            if i < function.end and not (i > first and _LABEL.match(self.lines[i])):
                continue
            yield Block(function.name, first, self._entry(first, i), i)
            first = i

    def _entry(self, first: int, end: int) -> int:
        for i in range(first, end):
            line = self.lines[i]
            is_code = line.strip() and not _LABEL.match(line)
            if is_code and not _MUST_BE_FIRST.match(line) and not line.lstrip().startswith("#dbg"):
                return i
        return end

    def with_code(
        self, blocks: Sequence[Block], code: Callable[[int], Sequence[str]], behind: str
    ) -> str:
        """The text with ``code(i)`` at the entry of ``blocks[i]`` and ``behind`` at the end."""
        lines = list(self.lines)
        for i in range(len(blocks) - 1, -1, -1):
            lines[blocks[i].entry : blocks[i].entry] = code(i)
        return "\n".join([*lines, behind, ""])
