"""Structured output: records from one notation into another, and questions about them."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from texts import Document, conversation, counted

Record = dict[str, Any]

_FIRST = ("Aiko", "Bence", "Carla", "Dawit", "Elif", "Farid", "Greta", "Hugo", "Imani", "Jonas",
          "Kavya", "Linh", "Marek", "Noor", "Oana", "Pavel")  # fmt: skip
_LAST = ("Abebe", "Bianchi", "Castillo", "Dvořák", "Ekström", "Fischer", "Gupta", "Haddad",
         "Ivanova", "Jansen", "Kowalski", "Lê", "Moreau", "Nakamura")  # fmt: skip
_TOWNS = ("Aarhus", "Bergamo", "Cádiz", "Daegu", "Essen", "Fes", "Gdańsk", "Haifa", "İzmir",
          "Jaipur", "Kyoto", "Lyon")  # fmt: skip
_PARTS = ("hinge", "bracket", "gasket", "bearing", "valve", "spring", "washer", "pulley", "fuse")
_SENSORS = ("inlet", "outlet", "boiler", "cellar", "roof")


def structured(rng: random.Random, count: int) -> list[Document]:
    """``count`` of them, of each sort in turn."""
    return [_SORTS[at % len(_SORTS)](rng) for at in range(count)]


def people(rng: random.Random, count: int) -> list[Record]:
    """People with an id, a town and a date of joining."""
    return [
        {
            "id": rng.randint(1000, 9999),
            "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
            "town": rng.choice(_TOWNS),
            "joined": _date(rng),
            "active": rng.random() < 0.7,
        }
        for _ in range(count)
    ]


def orders(rng: random.Random, count: int) -> list[Record]:
    """Orders of spare parts."""
    return [
        {
            "order": f"{rng.choice('ABCD')}-{rng.randint(10000, 99999)}",
            "part": rng.choice(_PARTS),
            "quantity": rng.randint(1, 48),
            "price": rng.randint(20, 9000) / 100,
            "date": _date(rng),
        }
        for _ in range(count)
    ]


def readings(rng: random.Random, count: int) -> list[Record]:
    """Temperatures of a heating system."""
    return [
        {
            "time": f"2026-02-{rng.randint(1, 28):02d}T{rng.randint(0, 23):02d}:"
            f"{rng.choice((0, 15, 30, 45)):02d}:00Z",
            "sensor": rng.choice(_SENSORS),
            "celsius": rng.randint(-80, 920) / 10,
        }
        for _ in range(count)
    ]


def as_csv(records: Sequence[Record]) -> str:
    """Comma-separated values with a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().strip()


def as_json(records: object) -> str:
    """JSON with two blanks a level."""
    return json.dumps(records, indent=2, ensure_ascii=False)


def as_yaml(records: Sequence[Record]) -> str:
    """A YAML list of mappings."""
    lines = []
    for record in records:
        for at, (key, value) in enumerate(record.items()):
            lines.append(f"{'- ' if at == 0 else '  '}{key}: {_scalar(value)}")
    return "\n".join(lines)


def as_xml(records: Sequence[Record], whole: str, one: str) -> str:
    """XML elements in elements."""
    lines = [f"<{whole}>"]
    for record in records:
        lines.append(f"  <{one}>")
        lines += [f"    <{k}>{escape(_scalar(v))}</{k}>" for k, v in record.items()]
        lines.append(f"  </{one}>")
    return "\n".join([*lines, f"</{whole}>"])


def as_markdown(records: Sequence[Record]) -> str:
    """A Markdown table."""
    rows = ["| " + " | ".join(records[0]) + " |", "|" + " --- |" * len(records[0])]
    rows += ["| " + " | ".join(map(_scalar, record.values())) + " |" for record in records]
    return "\n".join(rows)


def as_sql(records: Sequence[Record], table: str) -> str:
    """One INSERT statement."""
    rows = ",\n".join(f"  ({', '.join(map(_literal, r.values()))})" for r in records)
    return f"INSERT INTO {table} ({', '.join(records[0])}) VALUES\n{rows};"


def as_toml(records: Sequence[Record], name: str) -> str:
    """An array of tables."""
    return "\n\n".join(
        f"[[{name}]]\n" + "\n".join(f"{k} = {json.dumps(v, ensure_ascii=False)}"
                                    for k, v in record.items())
        for record in records
    )  # fmt: skip


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(19, 26)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _convert(rng: random.Random) -> Document:
    name, one, records = rng.choice(
        (
            ("members", "member", people(rng, rng.randint(3, 7))),
            ("orders", "order", orders(rng, rng.randint(3, 7))),
            ("readings", "reading", readings(rng, rng.randint(3, 7))),
        )
    )
    notations = {
        "CSV": ("csv", as_csv(records)),
        "JSON": ("json", as_json(records)),
        "YAML": ("yaml", as_yaml(records)),
        "XML": ("xml", as_xml(records, name, one)),
        "TOML": ("toml", as_toml(records, name)),
        "a Markdown table": ("markdown", as_markdown(records)),
        "an SQL INSERT": ("sql", as_sql(records, name)),
    }
    source, target = rng.sample(list(notations), 2)
    ask = f"Turn this into {target}. Reply with the result only.\n\n{_fenced(*notations[source])}"
    return conversation("structured", ("user", ask), ("assistant", _fenced(*notations[target])))


def _extract(rng: random.Random) -> Document:
    (person,), (order,) = people(rng, 1), orders(rng, 1)
    mail = (
        f"Hello, this is {person['name']} from {person['town']}. On {order['date']} I ordered "
        f"{counted(order['quantity'], 'piece')} of the {order['part']} under number "
        f"{order['order']}, and the invoice says {order['price']:.2f} a piece. "
        f"Could you confirm the total? My customer "
        f"number is {person['id']}. Best wishes, {person['name'].split()[0]}"
    )
    schema = {
        "type": "object",
        "properties": {
            "customer": {"type": "object", "properties": {
                "id": {"type": "integer"}, "name": {"type": "string"}, "town": {"type": "string"}}},
            "order": {"type": "string"},
            "part": {"type": "string"},
            "quantity": {"type": "integer"},
            "total": {"type": "number"},
        },
        "required": ["customer", "order", "part", "quantity", "total"],
        "additionalProperties": False,
    }  # fmt: skip
    found = {
        "customer": {key: person[key] for key in ("id", "name", "town")},
        "order": order["order"],
        "part": order["part"],
        "quantity": order["quantity"],
        "total": round(order["quantity"] * order["price"], 2),
    }
    return conversation(
        "structured",
        ("system", f"Answer with JSON that fits this schema and nothing else.\n{as_json(schema)}"),
        ("user", mail),
        ("assistant", json.dumps(found, ensure_ascii=False)),
    )


def _query(rng: random.Random) -> Document:
    records = orders(rng, rng.randint(5, 9))
    part = rng.choice(records)["part"]
    least = rng.randint(2, 20)
    found = [r for r in records if r["part"] == part and r["quantity"] >= least]
    found.sort(key=lambda record: record["date"], reverse=True)
    table = as_markdown(found) if found else "No row fits."
    ask = (
        f"Given the table `orders`:\n\n{as_markdown(records)}\n\nWrite a query for all orders of "
        f"at least {least} pieces of the part {part}, the newest first, and say what it returns."
    )
    answer = (
        f"```sql\nSELECT *\nFROM orders\nWHERE part = '{part}'\n  AND quantity >= {least}\n"
        f"ORDER BY date DESC;\n```\n\n{table}"
    )
    return conversation("structured", ("user", ask), ("assistant", answer))


def _settings(rng: random.Random) -> Document:
    service, port = rng.choice(("mailer", "search", "billing", "thumbs")), rng.randint(3000, 9000)
    replicas, memory = rng.randint(1, 6), rng.choice((128, 256, 512, 1024))
    level = rng.choice(("debug", "info", "warning"))
    ask = (
        f"A configuration in YAML for a service named {service}: port {port}, {replicas} replicas, "
        f"at most {memory} MiB of memory each, log level {level}, and a health check on /healthz "
        "every ten seconds."
    )
    answer = (
        f"```yaml\nservice: {service}\nport: {port}\nreplicas: {replicas}\nresources:\n  limits:\n"
        f"    memory: {memory}Mi\nlogging:\n  level: {level}\nhealth:\n  path: /healthz\n"
        f"  interval: 10s\n```\n\nAll replicas together may take {replicas * memory} MiB."
    )
    return conversation("structured", ("user", ask), ("assistant", answer))


_SORTS = (_convert, _extract, _convert, _query, _settings)
