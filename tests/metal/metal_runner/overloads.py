"""Overloads that differ in address space only are one function in C++: keep the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .signature import ADDRESS_SPACES
from .tokens import Source

_SCOPES = {"namespace", "struct", "class", "union"}
_ACCESS = {"public", "private", "protected"}


@dataclass(frozen=True)
class Declaration:
    """One declaration of a namespace or class: its tokens, and where its body begins."""

    first: int
    end: int
    head_end: int
    is_definition: bool
    is_function: bool


def declarations(source: Source, first: int = 0, end: int | None = None) -> Iterator[Declaration]:
    """All declarations of the file's, namespaces' and classes' scopes, outermost first."""
    stop = len(source.tokens) if end is None else end
    at = first
    while at < stop:
        found, inner = _declaration(source, at, stop)
        yield found
        for span in inner:
            yield from declarations(source, *span)
        at = found.end


def _declaration(
    source: Source, first: int, stop: int
) -> tuple[Declaration, list[tuple[int, int]]]:
    """The declaration that begins at ``first``, and the scopes inside it."""
    tokens = source.tokens
    inner: list[tuple[int, int]] = []
    head_end: int | None = None
    is_function = has_initialisers = is_definition = False
    i = first
    while i < stop:
        token = tokens[i]
        if token.kind != "sign" or token.in_attribute:
            i += 1
        elif token.text == ";" or (token.text == ":" and tokens[i - 1].text in _ACCESS):
            i += 1
            break
        elif token.text in ("(", "["):
            is_function |= token.text == "(" and tokens[i - 1].text != "alignas"
            i = source.partner[i] + 1
        elif token.text == ":" and is_function and head_end is None:
            head_end, has_initialisers = i, True
            i += 1
        elif token.text == "{" and has_initialisers and tokens[i - 1].kind == "name":
            i = source.partner[i] + 1  # member{value}
        elif token.text == "{":
            head_end, is_definition = (i if head_end is None else head_end), True
            closing = source.partner[i]
            words = source.words(first, i)
            is_scope = not is_function and not _SCOPES.isdisjoint(words)
            if is_scope:
                inner.append((i + 1, closing))
            i = closing + 1
            if is_function:
                i += i < stop and tokens[i].is_sign(";")
                break
            if "namespace" in words:
                break
        else:
            i += 1
    end = max(i, first + 1)
    head = end if head_end is None else head_end
    return Declaration(first, end, head, is_definition, is_function), inner


def coinciding(source: Source, after_methods: set[int]) -> Iterator[Declaration]:
    """Definitions that repeat an earlier one once address spaces are gone.

    ``after_methods`` are the tokens that qualify the ``this`` of a method.
    """
    seen: dict[tuple[int, str], int] = {}
    for found in declarations(source):
        words = _host_words(source, found, after_methods)
        is_type = "struct" in words.split()
        if not words or not found.is_definition or not (found.is_function or is_type):
            continue
        key = (source.opener[found.first], words)
        if key in seen:
            yield found
        seen.setdefault(key, found.first)


def _host_words(source: Source, found: Declaration, after_methods: set[int]) -> str:
    words = []
    for i in range(found.first, found.head_end):
        token = source.tokens[i]
        if token.in_attribute:
            continue
        if token.text == "constant" and i not in after_methods:
            words.append("const")
        elif token.text not in ADDRESS_SPACES:
            words.append(token.text)
    return " ".join(words)


def clashing_methods(
    source: Source, after_methods: set[int], in_thread: set[int]
) -> Iterator[Declaration]:
    """Methods that clash once ``this`` of every space but thread's is the generic one."""
    seen: set[tuple[int, str]] = set()
    for found in declarations(source):
        head = range(found.first, found.head_end)
        generic = [i for i in head if i in after_methods and i not in in_thread]
        if not generic:
            continue
        words = " ".join(
            source.tokens[i].text
            for i in head
            if not source.tokens[i].in_attribute and i not in after_methods
        )
        key = (source.opener[found.first], words)
        if key in seen or source.tokens[generic[0]].text == "constant":
            yield found
        seen.add(key)
