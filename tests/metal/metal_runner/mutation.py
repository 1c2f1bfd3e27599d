"""Plants faults in kernels: a test that does not notice them proves nothing.

    survivors([*dropped_barriers(text), *off_by_one(text), *wrong_lanes(text)], trial)

names the faults with which ``trial(text)`` still passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .errors import KernelError, SourceError
from .tokens import Source

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BARRIERS = ("threadgroup_barrier", "simdgroup_barrier")
_LANE_FUNCTION = re.compile(r"(simd|quad)_(shuffle|broadcast)\w*")
_BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


@dataclass(frozen=True)
class Mutant:
    """A source with one fault, and what the fault is."""

    name: str
    text: str


def mutate(text: str, old: str, new: str) -> str:
    """``text`` with ``new`` for ``old``. Raises ValueError unless ``old`` stands there once."""
    if text.count(old) != 1:
        raise ValueError(f"{old!r} stands {text.count(old)} times in the source, not once")
    return text.replace(old, new)


def dropped_barriers(text: str) -> Iterator[Mutant]:
    """Each barrier left out."""
    source = _tokens(text)
    for i, token in enumerate(source.tokens):
        if token.text in _BARRIERS and source.tokens[i + 1].is_sign("("):
            last = source.partner[i + 1]
            yield _mutant(source, text, i, last, "", f"without {token.text}")


def off_by_one(text: str) -> Iterator[Mutant]:
    """Each comparison in a condition of if, for and while with its bound moved by one."""
    source = _tokens(text)
    for i, token in enumerate(source.tokens):
        if token.text not in ("if", "for", "while") or not source.tokens[i + 1].is_sign("("):
            continue
        for j in range(i + 2, source.partner[i + 1]):
            sign = source.tokens[j]
            if sign.kind == "sign" and sign.text in _BOUNDS:
                new = _BOUNDS[sign.text]
                yield _mutant(source, text, j, j, new, f"{new} for {sign.text}")


def wrong_lanes(text: str) -> Iterator[Mutant]:
    """Each shuffle and broadcast with its last argument's lowest bit turned over."""
    source = _tokens(text)
    for i, token in enumerate(source.tokens):
        if not _LANE_FUNCTION.fullmatch(token.text) or not source.tokens[i + 1].is_sign("("):
            continue
        *_, (first, end) = source.split_commas(i + 2, source.partner[i + 1])
        argument = text[source.tokens[first].start : source.tokens[end - 1].end]
        new = f"({argument}) ^ 1"
        yield _mutant(source, text, first, end - 1, new, f"{token.text} from lane {new}")


def survivors(mutants: Iterable[Mutant], trial: Callable[[str], None]) -> list[str]:
    """Names of the mutants that ``trial`` takes without an AssertionError or a KernelError.

    One that does not compile, such as an angle bracket taken for a comparison, is none.
    """
    alive = []
    for mutant in mutants:
        try:
            trial(mutant.text)
        except (AssertionError, KernelError, SourceError):
            continue
        alive.append(mutant.name)
    return alive


def _tokens(text: str) -> Source:
    """The tokens at their places in ``text``, which may hold comments."""
    return Source(_COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text))


def _mutant(source: Source, text: str, first: int, last: int, new: str, what: str) -> Mutant:
    start, end = source.tokens[first].start, source.tokens[last].end
    line = text.count("\n", 0, start) + 1
    return Mutant(f"line {line}: {what}", text[:start] + new + text[end:])
