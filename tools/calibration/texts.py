"""Documents from the texts beside: talks, passages in many languages, programs."""

from __future__ import annotations

import random
import re
from itertools import permutations
from pathlib import Path
from typing import Any

Document = dict[str, Any]
Messages = list[dict[str, Any]]

TEXT = Path(__file__).parent / "text"
LANGUAGES = {
    "en": "English", "de": "German", "fr": "French", "es": "Spanish", "it": "Italian",
    "pt": "Portuguese", "nl": "Dutch", "pl": "Polish", "ru": "Russian", "tr": "Turkish",
    "zh": "Chinese", "ja": "Japanese", "ko": "Korean", "ar": "Arabic", "hi": "Hindi",
}  # fmt: skip
PROGRAMMING = {
    "python": "Python", "javascript": "JavaScript", "typescript": "TypeScript", "rust": "Rust",
    "go": "Go", "c": "C", "cpp": "C++", "java": "Java", "ruby": "Ruby", "swift": "Swift",
    "haskell": "Haskell", "bash": "Bash",
}  # fmt: skip

_SPEAKERS = {"S": "system", "U": "user", "A": "assistant"}


def conversation(kind: str, *messages: tuple[str, str], tools: Any = None) -> Document:
    """A document of ``(role, content)`` pairs."""
    document: Document = {
        "kind": kind,
        "messages": [{"role": role, "content": content} for role, content in messages],
    }
    return document if tools is None else document | {"tools": tools}


def counted(number: int, noun: str) -> str:
    """``1 piece``, ``2 pieces``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def talks() -> list[Document]:
    """Conversations as they stand in ``talks.txt``."""
    found = []
    for _, body in _sections("talks.txt", r"^# (.+)\n"):
        parts = re.split(r"^([SUA]): ", body, flags=re.MULTILINE)[1:]
        turns = zip(parts[::2], parts[1::2], strict=True)
        messages = [(_SPEAKERS[speaker], text.strip()) for speaker, text in turns]
        found.append(conversation("chat", *messages))
    return found


def languages(rng: random.Random, translations: int) -> list[Document]:
    """Each passage with its question in its own language, and translations between two of them."""
    found, pairs = [], []
    for _, body in _sections("passages.txt", r"^# (.+)\n"):
        told = {}
        for line in body.strip().splitlines():
            language, text, question, answer = line.split(" || ")
            told[language] = text
            asked = f"{text}\n\n{question}"
            found.append(conversation("languages", ("user", asked), ("assistant", answer)))
        pairs += [(told, *pair) for pair in permutations(told, 2)]
    for told, source, target in rng.sample(pairs, translations):
        ask = rng.choice(
            (
                f"Translate into {LANGUAGES[target]}:\n\n{told[source]}",
                f"{told[source]}\n\nPlease put this into {LANGUAGES[target]}.",
                f"How would you say this in {LANGUAGES[target]}? Give only the translation.\n\n"
                f"> {told[source]}",
            )
        )
        found.append(conversation("languages", ("user", ask), ("assistant", told[target])))
    return found


def programs(rng: random.Random, ports: int) -> list[Document]:
    """Each program as an answer to its task, and ports of it between two languages."""
    found, pairs = [], []
    for task, body in _sections("programs.txt", r"^# (.+)\n"):
        parts = re.split(r"^== (\w+)\n", body, flags=re.MULTILINE)[1:]
        own = {name: code.rstrip() for name, code in zip(parts[::2], parts[1::2], strict=True)}
        for name, code in own.items():
            ask = f"In {PROGRAMMING[name]}, please: {task[0].lower()}{task[1:]}"
            found.append(conversation("code", ("user", ask), ("assistant", _fenced(name, code))))
        pairs += [(task, own, *pair) for pair in permutations(own, 2)]
    for task, own, source, target in rng.sample(pairs, ports):
        ask = (
            f"Port this from {PROGRAMMING[source]} to {PROGRAMMING[target]} and keep what it does."
            f"\n\n{_fenced(source, own[source])}"
        )
        answer = f"{_fenced(target, own[target])}\n\nIt does the same: {task[0].lower()}{task[1:]}"
        found.append(conversation("code", ("user", ask), ("assistant", answer)))
    return found


def _fenced(language: str, code: str) -> str:
    return f"```{language}\n{code}\n```"


def _sections(name: str, heading: str) -> list[tuple[str, str]]:
    parts = re.split(heading, (TEXT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))
