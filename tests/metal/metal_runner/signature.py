"""What a kernel function takes: buffers, threadgroup memory, positions."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import SourceError
from .tokens import Source

ADDRESS_SPACES = ("device", "constant", "threadgroup", "thread")
_NO_TYPE = {*ADDRESS_SPACES, "const", "volatile", "restrict", "&", "*"}
# Positions are three numbers each; every other attribute that is no buffer is one number.
POSITIONS = (
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_grid",
    "threadgroups_per_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
)


@dataclass(frozen=True)
class Parameter:
    """One parameter: ``kind`` is "buffer", "threadgroup" or the name of a thread attribute."""

    name: str
    element: str
    kind: str
    index: int
    space: str
    is_const: bool
    is_reference: bool

    def argument(self) -> str:
        """The C++ expression that passes it, from buffers ``b``, memory ``t``, thread ``c``."""
        if self.kind in ("buffer", "threadgroup"):
            wrapper = "Reference" if self.is_reference else "Pointer"
            return f"runner::{wrapper}{{{self.kind[0]}[{self.index}]}}"
        position = f"c->{self.kind}"
        return f"runner::Position{{{position}}}" if self.kind in POSITIONS else position


@dataclass(frozen=True)
class Signature:
    """A kernel function or template."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def buffers(self) -> tuple[Parameter, ...]:
        """Its buffers in the order of their indices."""
        found = (p for p in self.parameters if p.kind == "buffer")
        return tuple(sorted(found, key=lambda p: p.index))


def read_parameters(source: Source, bracket: int) -> tuple[Parameter, ...]:
    """The parameters in the brackets that token ``bracket`` opens.

    Buffers without an index get the free ones in order, as Metal gives them.
    """
    spans = source.split_commas(bracket + 1, source.partner[bracket])
    read = [_parameter(source, *span) for span in spans]
    taken = {p.index for p in read if p.kind == "buffer"}
    free = (i for i in range(len(read)) if i not in taken)
    return tuple(
        Parameter(p.name, p.element, p.kind, next(free), p.space, p.is_const, p.is_reference)
        if p.kind == "buffer" and p.index < 0
        else p
        for p in read
    )


def _parameter(source: Source, first: int, end: int) -> Parameter:
    attribute, index = _attribute(source, first, end)
    words = source.words(first, end)
    words = words[: words.index("=")] if "=" in words else words
    if len(words) < 2 or not words[-1].isidentifier():
        raise SourceError(f"{source.place(first)}: cannot read the parameter {' '.join(words)!r}")
    declared = words[:-1]
    space = next((w for w in declared if w in ADDRESS_SPACES), "")
    if space == "threadgroup":
        kind = "threadgroup"
    elif space in ("device", "constant"):
        kind = "buffer"
    elif attribute:
        kind = attribute
    else:
        raise SourceError(
            f"{source.place(first)}: parameter {words[-1]} has neither address space nor attribute"
        )
    return Parameter(
        name=words[-1],
        element=" ".join(w for w in declared if w not in _NO_TYPE),
        kind=kind,
        index=max(index, 0) if kind == "threadgroup" else index,
        space=space,
        is_const=space == "constant" or "const" in declared,
        is_reference="&" in declared,
    )


def _attribute(source: Source, first: int, end: int) -> tuple[str, int]:
    """Name and index of the attribute within a parameter; -1 stands for no index."""
    for opening, closing in source.attributes:
        if first <= opening < end:
            name = source.tokens[opening + 2].text
            has_index = closing - opening > 5 and source.tokens[opening + 3].text == "("
            return name, int(source.tokens[opening + 4].text) if has_index else -1
    return "", -1
