"""Damaging input, one place at a time."""

import random
from typing import Any

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 7, 16, 64, 10**30, 0.5, float("nan"), "", "x", "re:(", "-:*",
    "affine", "mxfp4", "q4_k", "sym8", [], [1], ["a", 2], {}, {"bits": 4}, {"a": {"b": []}},
    "language_model.lm_head", "\ud800", [[["lm_head", 4]]],
]  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value in which one place is replaced, dropped, doubled or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        kept = dict(value)
        match rng.randrange(6):
            case 0:
                del kept[key]
            case 1:
                kept[str(rng.choice(JUNK))] = kept.pop(key)
            case 2:
                kept[rng.choice(list(value))] = value[key]
            case _:
                kept[key] = mutated(value[key], rng)
        return kept
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        return [*value[:index], mutated(value[index], rng), *value[index + rng.randrange(2) :]]
    if isinstance(value, str) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(["", ".", "(", "\\", "0", "=", ",", " "]) + value[at + 1 :]
    return rng.choice(JUNK)


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        # Most of what can go wrong in a header stands at its beginning.
        at = min(int(rng.expovariate(1 / 200)), len(damaged) - 1)
        damaged[at] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
    return bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
