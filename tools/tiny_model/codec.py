"""Documents as token ids with loss weights, packed into rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from jinja_env import document_text
from tokenizers import Tokenizer

Row = tuple[list[int], list[float]]


def load_jsonl(path: Path) -> list[dict[str, Any]]:
    """All documents of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Codec:
    """Tokenizer plus chat template, with loss weights per token."""

    def __init__(self, folder: Path, other_weight: float = 1.0, plain_weight: float = 1.0) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self.end_of_text = self.tokenizer.token_to_id("<|endoftext|>")
        self.start = self.tokenizer.token_to_id("<|im_start|>")
        self.end = self.tokenizer.token_to_id("<|im_end|>")
        self.assistant = self.tokenizer.encode("assistant\n").ids
        self.other_weight, self.plain_weight = other_weight, plain_weight

    def text(self, document: dict[str, Any]) -> str:
        """The document as the model sees it."""
        return document_text(self.template, document)

    def weights(self, ids: list[int], plain: bool) -> list[float]:
        """Full weight for assistant turns, smaller ones for other turns and for plain text."""
        if plain:
            return [self.plain_weight] * len(ids)
        result = [self.other_weight] * len(ids)
        inside = False
        width = len(self.assistant)
        for index, token in enumerate(ids):
            if token == self.start:
                inside = ids[index + 1 : index + 1 + width] == self.assistant
            elif inside:
                result[index] = 1.0
                if token == self.end:
                    inside = False
        return result

    def encode(self, documents: list[dict[str, Any]]) -> list[Row]:
        """Token ids and weights of all documents."""
        rows: list[Row] = []
        for begin in range(0, len(documents), 4096):
            part = documents[begin : begin + 4096]
            for document, encoding in zip(
                part, self.tokenizer.encode_batch([self.text(d) for d in part]), strict=True
            ):
                ids = [*encoding.ids, self.end_of_text]
                rows.append((ids, self.weights(ids, "text" in document)))
        return rows


def pack(rows: list[Row], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit packing of short documents into rows of ``length`` tokens (longer ones are cut)."""
    open_rows: list[list[Row]] = []
    space: list[int] = []
    window = 0
    for row in rows:
        size = min(len(row[0]), length)
        best, best_left = -1, length + 1
        for index in range(window, len(space)):
            left = space[index] - size
            if 0 <= left < best_left:
                best, best_left = index, left
        if best < 0:
            open_rows.append([])
            space.append(length)
            best = len(space) - 1
            window = max(window, best - 96)
        open_rows[best].append(row)
        space[best] -= size
    ids = np.full((len(open_rows), length), pad, dtype=np.int16)
    weights = np.zeros((len(open_rows), length), dtype=np.float32)
    for index, group in enumerate(open_rows):
        at = 0
        for tokens, token_weights in group:
            size = min(len(tokens), length - at)
            ids[index, at : at + size] = tokens[:size]
            weights[index, at : at + size] = token_weights[:size]
            at += size
    return ids, weights
