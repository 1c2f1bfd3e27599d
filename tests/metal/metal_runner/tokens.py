"""A C++ source as tokens with matched brackets, and edits that keep every line where it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import SourceError

_TOKEN = re.compile(
    r"""(?P<skip>\s+|^[ \t]*\#[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
    |(?P<sign>::|->|&&|\|\||[-+*/%&|^=!<>]=|\+\+|--|.)""",
    re.MULTILINE | re.VERBOSE,
)
_LINE_MARKER = re.compile(r'^# (\d+) "([^"]*)"[^\n]*$', re.MULTILINE)
_LINE_OR_MARKER = re.compile(r"^[ \t]*#[^\n]*$|\n", re.MULTILINE)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(slots=True)
class Token:
    """One token: its text, its kind (text, name, number, sign), where it stands in the source."""

    text: str
    kind: str
    start: int
    end: int
    in_attribute: bool = False

    def is_sign(self, *texts: str) -> bool:
        """Whether this is one of these signs, outside of an attribute."""
        return self.kind == "sign" and not self.in_attribute and self.text in texts


class Source:
    """Tokens of a preprocessed source.

    ``partner[i]`` is the token that closes (or opens) the bracket at ``i``; ``opener[i]`` the
    innermost bracket open around ``i``, or -1; ``attributes`` the ranges (first, last) of
    ``[[...]]``.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [
            Token(m.group(), m.lastgroup or "", m.start(), m.end())
            for m in _TOKEN.finditer(text)
            if m.lastgroup != "skip"
        ]
        self.partner: dict[int, int] = {}
        self.opener: list[int] = []
        self.attributes: list[tuple[int, int]] = []
        self._edits: list[tuple[int, int, str]] = []
        self._match_brackets()
        self._mark_attributes()

    def _match_brackets(self) -> None:
        stack: list[int] = []
        for i, token in enumerate(self.tokens):
            self.opener.append(stack[-1] if stack else -1)
            if token.kind != "sign":
                continue
            if token.text in _CLOSING:
                stack.append(i)
            elif token.text in _CLOSING.values():
                if not stack or _CLOSING[self.tokens[stack[-1]].text] != token.text:
                    raise SourceError(f"{self.place(i)}: unbalanced {token.text!r}")
                j = stack.pop()
                self.partner[i], self.partner[j] = j, i
                self.opener[i] = self.opener[j]
        if stack:
            raise SourceError(f"{self.place(stack[-1])}: {self.tokens[stack[-1]].text!r} is open")

    def _mark_attributes(self) -> None:
        for i in range(len(self.tokens) - 1):
            a, b = self.tokens[i], self.tokens[i + 1]
            if (a.text, b.text) != ("[", "[") or a.end != b.start:
                continue
            if self.partner[i] == self.partner[i + 1] + 1:
                self.attributes.append((i, self.partner[i]))
                for j in range(i, self.partner[i] + 1):
                    self.tokens[j].in_attribute = True

    def place(self, i: int) -> str:
        """``file:line`` of token ``i``, by the preprocessor's line markers."""
        at = self.tokens[i].start
        file, line, counted_from = "source", 1, 0
        for marker in _LINE_MARKER.finditer(self.text, 0, at):
            file, line, counted_from = marker.group(2), int(marker.group(1)), marker.end() + 1
        return f"{file}:{line + self.text.count(chr(10), counted_from, at)}"

    def words(self, first: int, end: int) -> list[str]:
        """Texts of the tokens ``first`` to ``end`` - 1, without attributes."""
        return [t.text for t in self.tokens[first:end] if not t.in_attribute]

    def string(self, first: int, end: int) -> str:
        """The same as one string."""
        return " ".join(self.words(first, end))

    def replace(self, first: int, end: int, new: str = "") -> None:
        """Put ``new`` for the tokens ``first`` to ``end`` - 1; an outer edit wins over inner."""
        if first < end:
            self._edits.append((self.tokens[first].start, self.tokens[end - 1].end, new))

    def result(self) -> str:
        """The edited text. Line ends and line markers of replaced text stay."""
        pieces: list[str] = []
        at = 0
        for start, end, new in sorted(self._edits, key=lambda edit: (edit[0], -edit[1])):
            if start < at:
                continue
            kept = "".join(_LINE_OR_MARKER.findall(self.text, start, end))
            pieces += [self.text[at:start], new, kept]
            at = end
        return "".join([*pieces, self.text[at:]])

    def statement_start(self, i: int) -> int:
        """First token of the declaration or statement that token ``i`` is in."""
        j = i
        while j - 1 > self.opener[i]:
            before = self.tokens[j - 1]
            if before.is_sign(";", "{", "}", ":"):
                break
            j = self.partner[j - 1] if before.kind == "sign" and before.text in ")]" else j - 1
        return j

    def statement_end(self, i: int, *stops: str) -> int:
        """The first of the signs ``stops`` at the bracket depth of token ``i`` and after it."""
        j = i
        while j < len(self.tokens):
            token = self.tokens[j]
            if token.is_sign(*stops):
                return j
            j = self.partner[j] + 1 if token.text in _CLOSING and token.kind == "sign" else j + 1
        raise SourceError(f"{self.place(i)}: no {' or '.join(stops)} follows")

    def split_commas(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges between the commas at the depth of ``first``; ``<...>`` counts as a bracket."""
        start, angle, i = first, 0, first
        while i < end:
            token = self.tokens[i]
            if token.kind == "sign" and token.text in _CLOSING:
                i = self.partner[i]
            elif token.text == "<":
                angle += 1
            elif token.text == ">":
                angle -= 1
            elif token.text == "," and angle <= 0:
                yield start, i
                start = i + 1
            i += 1
        if start < end:
            yield start, end
