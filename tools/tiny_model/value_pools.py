"""Seeded value generators for tool arguments, results and small questions.

``draw(kind, rng)`` returns a pair ``(spoken, value)``: the words a user would write and the typed
value that belongs into the call. For nearly all kinds the two agree; dates and times are sometimes
spoken in another form, and lists are spoken with commas and "and".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from word_pools import (
    DOMAINS,
    FIRST,
    FOLDERS,
    LAST,
    MONTHS,
    NESTED,
    SIMPLE,
    STEMS,
    STREETS,
    SUFFIXES,
)


def _number(rng: random.Random, low: int, high: int) -> int:
    """Half uniform, half from the low end, so that short numbers occur often."""
    if rng.random() < 0.5:
        high = min(high, low + max(1, (high - low) // 10))
    return rng.randint(low, high)


def _date(rng: random.Random) -> tuple[str, str]:
    year, month, day = rng.randint(2024, 2029), rng.randint(1, 12), rng.randint(1, 28)
    iso = f"{year}-{month:02d}-{day:02d}"
    if rng.random() < 0.2:
        return f"{day} {MONTHS[month - 1]} {year}", iso
    return iso, iso


def _time(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.15:
        hour = rng.randint(1, 11)
        late = rng.random() < 0.5
        return f"{hour} {'pm' if late else 'am'}", f"{hour + 12 * late:02d}:00"
    hour, minute = rng.randint(0, 23), rng.choice((0, 0, 5, 10, 15, 20, 30, 30, 40, 45, 50, 55))
    return f"{hour:02d}:{minute:02d}", f"{hour:02d}:{minute:02d}"


def fill(template: str, rng: random.Random) -> str:
    """Fill the nested placeholders of a message-like template."""
    while "{" in template:
        start = template.index("{")
        end = template.index("}", start)
        kind = template[start + 1 : end]
        value = str(_number(rng, 2, 9999) if kind == "int" else draw(kind, rng)[1])
        template = template[:start] + value + template[end + 1 :]
    return template


def join_words(words: list[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def draw(kind: str, rng: random.Random, enum: tuple[str, ...] = ()) -> tuple[str, Any]:
    """Return ``(spoken, value)`` for one kind; ``enum`` holds the choices of the kind "enum"."""
    if kind.startswith("list:"):
        items = rng.sample(list(SIMPLE[kind[5:]]), rng.randint(1, 4))
        return join_words(items), items
    if kind in SPOKEN:
        return SPOKEN[kind](rng)
    value = _value(kind, rng, enum)
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return str(value), value


def _value(kind: str, rng: random.Random, enum: tuple[str, ...]) -> Any:
    if kind == "enum":
        return rng.choice(enum)
    if kind.startswith("int:"):
        _, low, high = kind.split(":")
        return _number(rng, int(low), int(high))
    if kind in SIMPLE:
        return rng.choice(SIMPLE[kind])
    if kind in NESTED:
        return fill(rng.choice(NESTED[kind]), rng)
    return MADE[kind](rng)


def _email(rng: random.Random) -> str:
    return f"{rng.choice(FIRST).lower()}.{rng.choice(LAST).lower()}@{rng.choice(DOMAINS)}"


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(2))
    return f"{letters}-{rng.randint(100, 9999)}"


def _money(rng: random.Random) -> float:
    if rng.random() < 0.6:
        return _number(rng, 2, 5000)
    return _number(rng, 1, 999) + rng.randint(1, 99) / 100


def _amount(rng: random.Random) -> float:
    return _number(rng, 1, 500) if rng.random() < 0.7 else rng.randint(11, 999) / 10


def _degrees(rng: random.Random) -> float:
    return rng.choice((17, 18, 19, 20, 21, 22, 23, 24, 18.5, 19.5, 20.5, 21.5, 22.5))


def _expression(rng: random.Random) -> str:
    parts = [str(_number(rng, 2, 999))]
    for _ in range(rng.randint(1, 3)):
        parts += [rng.choice("+-*/"), str(_number(rng, 2, 99))]
    return " ".join(parts)


SPOKEN: dict[str, Callable[[random.Random], tuple[str, Any]]] = {
    "date": _date,
    "time": _time,
    "bool": lambda _: ("true", True),
}
MADE: dict[str, Callable[[random.Random], Any]] = {
    "person": lambda rng: f"{rng.choice(FIRST)} {rng.choice(LAST)}",
    "email": _email,
    "phone": lambda rng: f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}",
    "code": _code,
    "money": _money,
    "rate": lambda rng: rng.randint(101, 999) / 1000,
    "degrees": _degrees,
    "quantity": _amount,
    "distance": _amount,
    "path": lambda rng: f"{rng.choice(FOLDERS)}/{rng.choice(STEMS)}.{rng.choice(SUFFIXES)}",
    "folder": lambda rng: "/" + "/".join(rng.sample(FOLDERS, rng.randint(1, 2))),
    "street": lambda rng: f"{rng.randint(1, 199)} {rng.choice(STREETS)}",
    "expression": _expression,
}
