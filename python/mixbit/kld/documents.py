"""Held-out text as token lists."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixbit.errors import MixbitError
from mixbit.kld.toolcalls import case_of, encode


@dataclass(frozen=True)
class Document:
    """Tokens that belong together."""

    tokens: list[int]
    kind: str = "tokens"
    """What sort of text it is; results are told for each sort."""
    answer: int | None = None
    """Of a tool-call prompt: where the expected answer begins."""


def read_documents(path: Path, tokenizer: Any) -> list[Document]:
    """Tokenise a data file.

    ``.txt`` and ``.raw`` are one document of plain text, ``.npy`` is token ids (a document, or one
    a row). Anything else is JSONL, where a line is

    - a conversation, ``{"messages": [...], "tools": [...]}`` with ``tools`` optional, which the
      tokenizer's chat template renders;
    - a tool-call prompt, the same with ``"expected": {"name": ..., "arguments": {...}}``: its
      expected answer is appended and is what counts;
    - plain text, ``{"text": ...}``; or token ids, ``{"tokens": [...]}``.

    A line's ``"kind"`` names its sort of text; else it is "tool calls" (a conversation with one),
    "chat", "text" or "tokens".

    Raises:
        MixbitError: the file is missing or empty, or a line is none of these.
    """
    if path.suffix == ".npy":
        return _token_file(path)
    text = _read(path)
    if path.suffix in (".txt", ".raw"):
        return [Document(list(tokenizer.encode(text)), "text")]
    documents = [
        _document(line, tokenizer, f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    if not documents:
        raise MixbitError(f"The data file {path} has no documents in it.")
    return documents


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MixbitError(f"Cannot read the data file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise MixbitError(f"The data file {path} is not UTF-8 text.") from error


def _token_file(path: Path) -> list[Document]:
    try:
        tokens = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise MixbitError(f"The data file {path} is no array of tokens: {error}.") from error
    if tokens.ndim not in (1, 2) or not np.issubdtype(tokens.dtype, np.integer):
        raise MixbitError(f"The data file {path} must hold integers, a document or one a row.")
    return [Document(row.tolist()) for row in np.atleast_2d(tokens)]


def _document(line: str, tokenizer: Any, where: str) -> Document:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise MixbitError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(record, dict):
        raise MixbitError(f'{where} has neither "messages" nor "text" nor "tokens".')
    kind = record.get("kind")
    if not isinstance(kind, str | None):
        raise MixbitError(f'{where}: "kind" must be a text.')
    if isinstance(record.get("text"), str):
        return Document(list(tokenizer.encode(record["text"])), kind or "text")
    if isinstance(record.get("tokens"), list):
        if not all(type(token) is int for token in record["tokens"]):
            raise MixbitError(f'{where}: "tokens" must be integers.')
        return Document(record["tokens"], kind or "tokens")
    if not isinstance(record.get("messages"), list):
        raise MixbitError(f'{where} has neither "messages" nor "text" nor "tokens".')
    if not getattr(tokenizer, "chat_template", None):
        raise MixbitError(f"{where} is a conversation, but the model has no chat template.")
    return _conversation(record, kind, tokenizer, where)


def _conversation(record: dict[str, Any], kind: str | None, tokenizer: Any, where: str) -> Document:
    has_call = any(isinstance(m, dict) and m.get("tool_calls") for m in record["messages"])
    try:
        if "expected" in record:
            prompt, answer = encode(case_of(record, where), tokenizer)
            return Document(prompt + answer, kind or "tool calls", len(prompt))
        text = tokenizer.apply_chat_template(
            record["messages"], tools=record.get("tools"), tokenize=False
        )
    except MixbitError:
        raise
    except Exception as error:  # templates raise whatever they like
        raise MixbitError(f"The chat template refuses {where}: {error}") from error
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    return Document(tokens, kind or ("tool calls" if has_call else "chat"))
