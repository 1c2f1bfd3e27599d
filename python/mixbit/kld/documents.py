"""Held-out text as token lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixbit.errors import MixbitError

Documents = list[list[int]]


def read_documents(path: Path, tokenizer: Any) -> Documents:
    """Tokenise a JSONL file.

    A line is a conversation, ``{"messages": [...], "tools": [...]}`` with ``tools`` optional, that
    the tokenizer's chat template renders, or plain text, ``{"text": ...}``.

    Raises:
        MixbitError: the file is missing or empty, or a line is none of both.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MixbitError(f"Cannot read the data file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise MixbitError(f"The data file {path} is not UTF-8 text.") from error
    documents = [
        _encode(line, tokenizer, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not documents:
        raise MixbitError(f"The data file {path} has no documents in it.")
    return documents


def _encode(line: str, tokenizer: Any, where: str) -> list[int]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise MixbitError(f"{where} is not valid JSON: {error}.") from error
    if isinstance(record, dict) and isinstance(record.get("text"), str):
        return list(tokenizer.encode(record["text"]))
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise MixbitError(f'{where} has neither "messages" nor "text".')
    if not getattr(tokenizer, "chat_template", None):
        raise MixbitError(f"{where} is a conversation, but the model has no chat template.")
    try:
        text = tokenizer.apply_chat_template(
            record["messages"], tools=record.get("tools"), tokenize=False
        )
    except Exception as error:  # templates raise whatever they like
        raise MixbitError(f"The chat template refuses {where}: {error}") from error
    return list(tokenizer.encode(text, add_special_tokens=False))


def check_documents(documents: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse token ids outside ``[0, vocab_size)`` and data without a single token to predict."""
    for index, document in enumerate(documents):
        if len(document) and not 0 <= min(document) <= max(document) < vocab_size:
            raise MixbitError(
                f"Document {index} holds token ids from {min(document)} to {max(document)}, "
                f"but the vocabulary is 0 to {vocab_size - 1}; was it made with another tokenizer?"
            )
    if all(len(document) < 2 for document in documents):
        raise MixbitError("The data has no document of two or more tokens, so nothing to predict.")
