"""Long documents with a question at the end that only a look back can answer."""

from __future__ import annotations

import random
from collections import Counter

from records import as_csv, orders
from texts import Document, conversation, languages, programs, talks

_KINDS = ("GET", "GET", "GET", "POST", "DELETE")
_PATHS = ("/items", "/items/{}", "/users/{}", "/login", "/orders", "/orders/{}/lines", "/healthz")


def longer(rng: random.Random) -> list[Document]:
    """Logs, tables, a file of programs, conversations and passages in a row."""
    return [
        *(_log(rng, lines) for lines in (150, 300)),
        *(_table(rng, rows) for rows in (150, 350)),
        _listing(rng),
        *(_book(rng) for _ in range(2)),
        _talk(rng),
    ]


def _log(rng: random.Random, lines: int) -> Document:
    seconds, told, slow, errors = 0, [], (0, ""), Counter[str]()
    for _ in range(lines):
        seconds += rng.randint(0, 40)
        path = rng.choice(_PATHS).format(rng.randint(100, 999))
        status = rng.choices((200, 201, 304, 404, 500), (70, 8, 8, 9, 5))[0]
        took = int(rng.lognormvariate(3, 1)) + 1
        clock = f"{8 + seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        told.append(
            f"2026-03-11 {clock} web-{rng.randint(1, 4)} {rng.choice(_KINDS)} {path} {status} "
            f"{took}ms"
        )
        slow = max(slow, (took, told[-1]))
        errors[path] += status == 500
    path, count = max(errors.items(), key=lambda item: (item[1], item[0]))
    ask = "Which request took longest, and which path failed (500) most often?"
    answer = (
        f"The slowest request took {slow[0]} ms:\n\n```\n{slow[1]}\n```\n\n"
        f"`{path}` failed most often, {count} time{'s' * (count != 1)}."
    )
    text = "\n".join(told)
    return conversation("long", ("user", f"```\n{text}\n```\n\n{ask}"), ("assistant", answer))


def _table(rng: random.Random, rows: int) -> Document:
    records = orders(rng, rows)
    sums: Counter[str] = Counter()
    for record in records:
        sums[record["part"]] += record["quantity"]
    listed = "\n".join(f"- {part}: {count}" for part, count in sums.most_common())
    first = min(records, key=lambda record: record["date"])
    ask = "How many pieces of each part were ordered in all, and which order is the oldest?"
    answer = f"{listed}\n\nThe oldest order is {first['order']} of {first['date']}."
    return conversation("long", ("user", f"{as_csv(records)}\n\n{ask}"), ("assistant", answer))


def _listing(rng: random.Random) -> Document:
    found = programs(rng, 0)
    rng.shuffle(found)
    parts = [d["messages"][1]["content"] for d in found]
    at = rng.randrange(len(parts))
    text = "\n\n".join(f"Listing {n}\n{part}" for n, part in enumerate(parts, start=1))
    ask = f"{text}\n\nRepeat listing {at + 1} and say what it was asked to do."
    answer = f"{parts[at]}\n\nThe task was: {found[at]['messages'][0]['content']}"
    return conversation("long", ("user", ask), ("assistant", answer))


def _book(rng: random.Random) -> Document:
    found = languages(rng, 0)
    rng.shuffle(found)
    asked = rng.sample(found, 6)
    text = "\n\n".join(d["messages"][0]["content"].split("\n\n")[0] for d in found)
    turns = [("system", f"Answer from these texts.\n\n{text}")]
    for document in asked:
        question = document["messages"][0]["content"].split("\n\n")[1]
        turns += [("user", question), ("assistant", document["messages"][1]["content"])]
    return conversation("long", *turns)


def _talk(rng: random.Random) -> Document:
    found = [d for d in talks() if d["messages"][0]["role"] == "user"]
    rng.shuffle(found)
    turns = [(m["role"], m["content"]) for d in found for m in d["messages"]]
    first = found[0]["messages"]
    ask = "What was my very first question, and what did you begin your answer with?"
    answer = (
        f'You asked: "{first[0]["content"]}" My answer began: '
        f'"{first[1]["content"].splitlines()[0]}"'
    )
    return conversation("long", *turns, ("user", ask), ("assistant", answer))
