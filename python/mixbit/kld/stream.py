"""The tokens that a measurement runs over, and which of them it scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mixbit.errors import MixbitError
from mixbit.kld.documents import Document

# Scored tokens of a unit: what is finished at once, kept at once and given to a process at once. At
# 5120 hidden values of 16 bits a unit of the reference cache is 42 MB.
UNIT_TOKENS = 4096

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Protocol:
    """How documents are cut and scored.

    llama.cpp's ``perplexity`` has windows of 512 tokens, each from an empty context, of which the
    second half is scored, and drops what does not fill a window.
    """

    window: int | None = 512
    """Tokens of a window; ``None`` takes each document whole."""
    score: str = "half"
    """Which predictions of a window count: the second half of its tokens, or all."""
    full_windows: bool = False
    """Leave out what does not fill a window, as llama.cpp does."""

    def check(self) -> None:
        """Refuse what cannot be."""
        if self.window is not None and self.window < 2:
            raise MixbitError(f"window must be at least 2, not {self.window}.")
        if self.score not in ("half", "all"):
            raise MixbitError(f"score must be 'half' or 'all', not {self.score!r}.")
        if self.full_windows and self.window is None:
            raise MixbitError("Only windows of a given size can be full; name a window.")


@dataclass(frozen=True)
class Stream:
    """Documents and a protocol. The same for every model that is held against one reference."""

    tokens: npt.NDArray[np.int32]
    """All documents, one after the other."""
    offsets: Indices
    """Where each document begins, and the end of the last; ``[documents + 1]``."""
    answers: Indices
    """Where in its document the expected answer to a tool-call prompt begins, else -1."""
    kinds: npt.NDArray[np.int32]
    """Kind of each document, an index into ``kind_names``."""
    kind_names: tuple[str, ...]
    protocol: Protocol
    unit_tokens: int
    """Scored tokens of a unit, about."""

    @classmethod
    def of(cls, documents: Sequence[Document], protocol: Protocol) -> Stream:
        """Take documents together."""
        protocol.check()
        names = sorted({document.kind for document in documents})
        tokens = [_int32(document.tokens, index) for index, document in enumerate(documents)]
        return cls(
            tokens=np.concatenate([np.zeros(0, np.int32), *tokens]),
            offsets=np.cumsum([0, *map(len, tokens)], dtype=np.int64),
            answers=np.array([-1 if d.answer is None else d.answer for d in documents], np.int64),
            kinds=np.array([names.index(document.kind) for document in documents], np.int32),
            kind_names=tuple(names),
            protocol=protocol,
            unit_tokens=UNIT_TOKENS,
        )

    @cached_property
    def windows(self) -> Indices:
        """``[windows, 4]``: document; first token, first scored token and end, in ``tokens``.

        A window scores the predictions that its tokens ``first scored`` to ``end - 2`` make. A
        tool-call prompt is one window whatever its length, and its answer is what is scored.
        """
        found = [
            (document, begin, first, end)
            for document in range(len(self.offsets) - 1)
            for begin, first, end in self._windows_of(document)
            if first < end - 1
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 4)

    def _windows_of(self, document: int) -> Iterator[tuple[int, int, int]]:
        start, stop = int(self.offsets[document]), int(self.offsets[document + 1])
        if self.answers[document] >= 0:
            yield start, start + int(self.answers[document]) - 1, stop
            return
        size = self.protocol.window or max(stop - start, 1)
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            if self.protocol.full_windows and end - begin < size:
                return
            yield begin, begin + ((end - begin) // 2 if self.protocol.score == "half" else 0), end

    @cached_property
    def rows(self) -> Indices:
        """Where each window's scored tokens begin among all scored ones; ``[windows + 1]``."""
        return np.cumsum([0, *(self.windows[:, 3] - 1 - self.windows[:, 2])], dtype=np.int64)

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return int(self.rows[-1])

    @cached_property
    def at(self) -> Indices:
        """Index in ``tokens`` of the token that makes each scored prediction; ``[scored]``."""
        spans = [np.arange(first, end - 1) for _, _, first, end in self.windows]
        return np.concatenate([np.zeros(0, np.int64), *spans])

    @cached_property
    def document(self) -> Indices:
        """Document of each scored token; ``[scored]``."""
        return np.repeat(self.windows[:, 0], np.diff(self.rows))

    @cached_property
    def context(self) -> Indices:
        """Tokens that the model saw before each scored prediction; ``[scored]``."""
        return self.at - np.repeat(self.windows[:, 1], np.diff(self.rows)) + 1

    @cached_property
    def units(self) -> list[range]:
        """Windows in runs of about ``unit_tokens`` scored tokens."""
        units, begin = [], 0
        for index in range(len(self.windows)):
            if self.rows[index + 1] - self.rows[begin] >= self.unit_tokens:
                units.append(range(begin, index + 1))
                begin = index + 1
        if begin < len(self.windows):
            units.append(range(begin, len(self.windows)))
        return units

    def only(self, documents: Sequence[int]) -> Stream:
        """The stream of some of the documents, in the order given."""
        spans = [self.tokens[self.offsets[d] : self.offsets[d + 1]] for d in documents]
        chosen = np.array(documents, np.int64)
        return replace(
            self,
            tokens=np.concatenate([np.zeros(0, np.int32), *spans]),
            offsets=np.cumsum([0, *map(len, spans)], dtype=np.int64),
            answers=self.answers[chosen],
            kinds=self.kinds[chosen],
        )

    def unit_rows(self, unit: range) -> slice:
        """The scored tokens of a unit among all."""
        return slice(int(self.rows[unit.start]), int(self.rows[unit.stop]))

    def check(self, vocab_size: int) -> None:
        """Refuse tokens outside ``[0, vocab_size)`` and data without a token to predict."""
        bad = np.flatnonzero((self.tokens < 0) | (self.tokens >= vocab_size))
        if len(bad):
            document = int(np.searchsorted(self.offsets, bad[0], side="right")) - 1
            raise MixbitError(
                f"Document {document} holds the token {self.tokens[bad[0]]}, but the vocabulary is "
                f"0 to {vocab_size - 1}; was it made with another tokenizer?"
            )
        if self.scored == 0:
            raise MixbitError(
                "The data has nothing to predict: no document is long enough for this protocol."
            )

    def describe(self) -> dict[str, Any]:
        """What identifies the stream, JSON-ready."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.offsets, self.answers, self.kinds):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(json.dumps(self.kind_names).encode())
        return {
            "sha256": digest.hexdigest(),
            "tokens": len(self.tokens),
            "documents": len(self.offsets) - 1,
            "scored": self.scored,
            "unit_tokens": self.unit_tokens,
            "protocol": asdict(self.protocol),
        }


def _int32(tokens: Sequence[int], document: int) -> npt.NDArray[np.int32]:
    limits = np.iinfo(np.int32)
    if len(tokens) and not limits.min <= min(tokens) <= max(tokens) <= limits.max:
        raise MixbitError(f"Document {document} holds numbers that no vocabulary has.")
    return np.asarray(tokens, dtype=np.int32)
