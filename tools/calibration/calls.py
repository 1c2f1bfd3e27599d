"""Conversations with tools: one call, several at once, several in turn, an error, none at all."""

from __future__ import annotations

import json
import random
from typing import Any

from texts import Document, Messages, counted

Tool = dict[str, Any]

_TOWNS = ("Bratislava", "Cork", "Dakar", "Eindhoven", "Fukuoka", "Ghent", "Hobart", "Iquitos",
          "Jena", "Kigali", "Lviv", "Mérida", "Nantes", "Oulu", "Porto", "Quito")  # fmt: skip
_STATIONS = (
    "Antwerp",
    "Basel",
    "Bratislava",
    "Dijon",
    "Eindhoven",
    "Ghent",
    "Graz",
    "Jena",
    "Turin",
)
_PEOPLE = ("Mr Adeyemi", "Dr Brandt", "Ms Cho", "Señora Duarte", "Professor Eriksen", "Mx Fynn")
_TOPICS = ("the audit", "the new heating", "onboarding", "spring prices", "the broken lift")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def _tool(name: str, description: str, required: int, /, **parameters: Any) -> Tool:
    """A tool whose first parameters are required; a value is a type, or a whole schema."""
    properties = {
        key: {"type": value} if isinstance(value, str) else value
        for key, value in parameters.items()
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:required],
            },
        },
    }


def _text(description: str) -> Tool:
    return {"type": "string", "description": description}


TOOLS = {
    tool["function"]["name"]: tool
    for tool in (
        _tool(
            "forecast", "Weather of a town for the next days.", 1, town="string",
            days={"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
            units={"type": "string", "enum": ["celsius", "fahrenheit"]},
        ),
        _tool(
            "find_connections", "Train connections between two stations.", 3,
            origin="string", destination="string", departure=_text("Local time, ISO 8601."),
            max_changes="integer", bicycle="boolean",
        ),
        _tool(
            "book_room", "Reserve a meeting room.", 3, room="string",
            start=_text("ISO 8601."), minutes="integer", topic="string",
            attendees={"type": "array", "items": {"type": "string"}},
        ),
        _tool(
            "list_rooms", "Rooms that are free for a time.", 2, start=_text("ISO 8601."),
            minutes="integer", seats="integer",
        ),
        _tool(
            "read_file", "Read a text file of the project.", 1, path="string",
            first_line="integer", last_line="integer",
        ),
        _tool(
            "replace_in_file", "Replace a text that occurs exactly once in a file.", 3,
            path="string", old="string", new="string",
        ),
        _tool(
            "run_tests", "Run the tests and return what they print.", 0,
            selection=_text("Names or a pattern."), stop_at_first="boolean",
        ),
        _tool(
            "query_database", "Run a read-only SQL query.", 1, sql="string",
            limit={"type": "integer", "default": 100},
        ),
        _tool(
            "convert_currency", "Convert an amount at today's rate.", 3, amount="number",
            source={"type": "string", "pattern": "^[A-Z]{3}$"},
            target={"type": "string", "pattern": "^[A-Z]{3}$"},
        ),
        _tool(
            "send_message", "Send a message to a person or channel.", 2, recipient="string",
            text="string", urgent="boolean",
        ),
        _tool(
            "add_reminder", "Remind the user of something.", 2, text="string",
            at=_text("ISO 8601."), repeat={"type": "string", "enum": ["never", "daily", "weekly"]},
        ),
        _tool(
            "search_articles", "Search the help centre.", 1, query="string",
            language={"type": "string", "enum": ["en", "de", "fr", "es", "ja"]},
            top="integer",
        ),
        _tool(
            "create_ticket", "Open a support ticket.", 3, title="string", body="string",
            priority={"type": "string", "enum": ["low", "normal", "high"]},
            labels={"type": "array", "items": {"type": "string"}},
        ),
        _tool(
            "plan_route", "Plan a route over several stops.", 2,
            stops={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "minutes": {"type": "integer"}},
                    "required": ["name"],
                },
            },
            vehicle={"type": "string", "enum": ["car", "bicycle", "on foot"]},
        ),
    )
}  # fmt: skip


def calls(rng: random.Random, count: int) -> list[Document]:
    """``count`` of them, of each sort in turn, each with the tools that it needs and others."""
    return [_document(rng, *_SORTS[at % len(_SORTS)](rng)) for at in range(count)]


def _document(rng: random.Random, messages: Messages, needed: tuple[str, ...]) -> Document:
    others = [name for name in TOOLS if name not in needed]
    names = [*needed, *rng.sample(others, rng.randint(1, 5))]
    rng.shuffle(names)
    return {"kind": "tool calls", "messages": messages, "tools": [TOOLS[name] for name in names]}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _says(text: str, *calls: tuple[str, dict[str, Any]], thinking: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def _result(value: object) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"role": "tool", "content": text}


def _weather(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    towns = rng.sample(_TOWNS, rng.randint(1, 3))
    days = rng.randint(2, 7)
    asked = " and ".join(towns)
    low = [rng.randint(-8, 15) for _ in towns]
    high = [at + rng.randint(3, 12) for at in low]
    rain = [rng.randint(0, days) for _ in towns]
    results = [
        _result({"town": t, "min": a, "max": b, "days_with_rain": r})
        for t, a, b, r in zip(towns, low, high, rain, strict=True)
    ]
    told = "\n".join(
        f"- **{t}**: {a} to {b} °C, rain on {r} of {days} days"
        for t, a, b, r in zip(towns, low, high, rain, strict=True)
    )
    return [
        _user(f"What will the weather be like in {asked} over the next {days} days?"),
        _says("", *(("forecast", {"town": t, "days": days}) for t in towns)),
        *results,
        _says(told),
    ], ("forecast",)


def _train(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    origin, destination = rng.sample(_STATIONS, 2)
    day, hour = f"2026-0{rng.randint(4, 9)}-{rng.randint(10, 28)}", rng.randint(6, 18)
    found = [
        {"departure": f"{hour + at}:{rng.randint(10, 50)}", "changes": rng.randint(0, 3),
         "minutes": rng.randint(95, 420)}
        for at in range(3)
    ]  # fmt: skip
    best = min(found, key=lambda one: one["minutes"])
    arguments = {
        "origin": origin, "destination": destination, "departure": f"{day}T{hour:02d}:00",
        "bicycle": True,
    }  # fmt: skip
    return [
        {"role": "system", "content": "You plan journeys. Always look connections up."},
        _user(
            f"I want to go from {origin} to {destination} on {day}, after {hour} o'clock, and I "
            "have my bicycle with me."
        ),
        _says("", ("find_connections", arguments)),
        _result(found),
        _says(
            f"The fastest connection that takes bicycles leaves at {best['departure']} and needs "
            f"{best['minutes'] // 60} h {best['minutes'] % 60} min with "
            f"{counted(best['changes'], 'change')}."
        ),
        _user("Without changes?"),
        _says("", ("find_connections", arguments | {"max_changes": 0})),
        _result([one for one in found if not one["changes"]]),
        _says(
            "There is one: it leaves at "
            + next(str(one["departure"]) for one in found if not one["changes"])
            + "."
            if any(not one["changes"] for one in found)
            else "No, every connection of that afternoon has at least one change."
        ),
    ], ("find_connections",)


def _room(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    people, topic, day = rng.sample(_PEOPLE, 2), rng.choice(_TOPICS), rng.choice(_DAYS)
    start = f"2026-05-{4 + _DAYS.index(day):02d}T{rng.randint(9, 16):02d}:00"
    minutes = rng.choice((30, 45, 60, 90))
    rooms = rng.sample(("Birch", "Cedar", "Elm", "Fir", "Hazel"), 2)
    return [
        _user(
            f"Get us a room on {day}, {start[:10]}, at {start[11:]}, {minutes} minutes, for "
            f"{people[0]}, {people[1]} and me. It is about {topic}."
        ),
        _says("", ("list_rooms", {"start": start, "minutes": minutes, "seats": 3})),
        _result([{"room": rooms[0], "seats": 4}, {"room": rooms[1], "seats": 10}]),
        _says(
            "",
            (
                "book_room",
                {"room": rooms[0], "start": start, "minutes": minutes, "topic": topic,
                 "attendees": people},
            ),
            thinking=f"Two rooms are free; {rooms[0]} is the smaller one that fits three.",
        ),
        _result({"booked": True, "reference": f"R{rng.randint(1000, 9999)}"}),
        _says(f"{rooms[0]} is yours on {day} from {start[11:]} for {minutes} minutes."),
    ], ("list_rooms", "book_room")  # fmt: skip


def _mend(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    name, wrong, right = rng.choice(
        (
            ("mean", "sum(values) / (len(values) - 1)", "sum(values) / len(values)"),
            ("last", "values[len(values)]", "values[-1]"),
            ("is_leap", "year % 4 == 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
            ("clamp", "max(low, max(high, value))", "max(low, min(high, value))"),
        )
    )
    path, line = f"src/{rng.choice(('tools', 'core', 'util'))}/numbers.py", rng.randint(8, 90)
    return [
        _user(f"test_{name} fails. Please find out why and mend it."),
        _says("", ("run_tests", {"selection": f"test_{name}"})),
        _result(f"FAILED tests/test_numbers.py::test_{name}\n  {path}:{line}: in {name}\n1 failed"),
        _says("", ("read_file", {"path": path, "first_line": line - 1, "last_line": line})),
        _result(f"{line - 1}: def {name}(...):\n{line}:     return {wrong}"),
        _says(
            f"`{name}` should return `{right}`.",
            ("replace_in_file", {"path": path, "old": wrong, "new": right}),
        ),
        _result("replaced 1 occurrence"),
        _says("", ("run_tests", {})),
        _result(f"{rng.randint(40, 400)} passed"),
        _says(
            f"Mended: line {line} of `{path}` had `{wrong}` where `{right}` is right. All tests "
            "pass now."
        ),
    ], ("run_tests", "read_file", "replace_in_file")


def _database(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    year, top = rng.randint(2021, 2025), rng.randint(2, 4)
    rows = sorted(
        ((town, rng.randint(900, 90000)) for town in rng.sample(_TOWNS, top)), key=lambda r: -r[1]
    )
    broken = f"SELECT town, sum(total) AS revenue FROM sales WHERE year = {year}"
    whole = f"{broken} GROUP BY town ORDER BY revenue DESC LIMIT {top}"
    return [
        _user(f"Which {top} towns had the highest revenue in {year}?"),
        _says("", ("query_database", {"sql": broken})),
        _result('error: column "sales.town" must appear in the GROUP BY clause'),
        _says("", ("query_database", {"sql": whole})),
        _result([{"town": town, "revenue": revenue} for town, revenue in rows]),
        _says("\n".join(f"{at}. {t}: {r:,}" for at, (t, r) in enumerate(rows, start=1))),
    ], ("query_database",)


def _money(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    source, target = rng.sample(("EUR", "JPY", "CHF", "SEK", "BRL", "INR"), 2)
    amount, rate = rng.randint(10, 5000), rng.randint(50, 9000) / 1000
    return [
        _user(f"{amount} {source} in {target}?"),
        _says("", ("convert_currency", {"amount": amount, "source": source, "target": target})),
        _result({"amount": round(amount * rate, 2), "rate": rate}),
        _says(f"{amount} {source} are {amount * rate:,.2f} {target} at a rate of {rate}."),
    ], ("convert_currency",)


def _missing(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    who, topic = rng.choice(_PEOPLE), rng.choice(_TOPICS)
    time = f"2026-06-{rng.randint(10, 29)}T{rng.randint(8, 17):02d}:30"
    return [
        _user(f"Remind me to call {who} about {topic}."),
        _says("When shall I remind you?"),
        _user(f"On the {time[8:10]}th of June at {time[11:]}. And tell {who} that I'll call."),
        _says(
            "",
            ("add_reminder", {"text": f"Call {who} about {topic}", "at": time}),
            ("send_message", {"recipient": who, "text": f"I'll call you about {topic} on "
                              f"{time[:10]} at {time[11:]}.", "urgent": False}),
        ),
        _result({"ok": True}),
        _result({"ok": True, "delivered": True}),
        _says(f"Both done: the reminder is set for {time[:10]}, {time[11:]}, and {who} knows."),
    ], ("add_reminder", "send_message")  # fmt: skip


def _support(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    language, complaint, query, reply, title = rng.choice(
        (
            ("de", "Mein Drucker druckt seit dem Update nur noch leere Seiten.",
             "Drucker leere Seiten nach Update",
             "Dazu gibt es leider noch keinen Artikel. Ich habe ein Ticket eröffnet",
             "Leere Seiten nach Update"),
            ("fr", "Depuis hier, l'application se ferme dès que j'ouvre une photo.",
             "application se ferme ouverture photo",
             "Aucun article n'en parle encore. J'ai ouvert un ticket",
             "Fermeture à l'ouverture d'une photo"),
            ("es", "No puedo iniciar sesión: el código llega caducado.",
             "código de acceso caducado", "Aún no hay artículo al respecto. He abierto un ticket",
             "El código de acceso llega caducado"),
            ("ja", "更新してから通知がまったく届きません。", "更新後 通知 届かない",
             "該当する記事はまだありません。チケットを作成しました", "更新後に通知が届かない"),
        )
    )  # fmt: skip
    number = rng.randint(10000, 99999)
    return [
        _user(complaint),
        _says("", ("search_articles", {"query": query, "language": language, "top": 3})),
        _result([]),
        _says(
            "",
            (
                "create_ticket",
                {"title": title, "body": complaint, "priority": rng.choice(("normal", "high")),
                 "labels": [language, "app"]},
            ),
        ),
        _result({"ticket": number}),
        _says(f"{reply}: #{number}."),
    ], ("search_articles", "create_ticket")  # fmt: skip


def _route(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    names = rng.sample(("post office", "pharmacy", "library", "hardware shop", "market"), 3)
    stay = [rng.choice((5, 10, 15, 20)) for _ in names]
    way = rng.randint(20, 70)
    vehicle = rng.choice(("car", "bicycle", "on foot"))
    stops = [{"name": n, "minutes": m} for n, m in zip(names, stay, strict=True)]
    how = vehicle if vehicle == "on foot" else f"by {vehicle}"
    asked = ", then ".join(f"the {s['name']} ({s['minutes']} minutes)" for s in stops)
    return [
        _user(f"How long will this round take {how}: {asked}?"),
        _says("", ("plan_route", {"stops": stops, "vehicle": vehicle})),
        _result({"travel_minutes": way, "stop_minutes": sum(stay)}),
        _says(f"About {way + sum(stay)} minutes: {way} on the way and {sum(stay)} at the stops."),
    ], ("plan_route",)  # fmt: skip


def _none(rng: random.Random) -> tuple[Messages, tuple[str, ...]]:
    asked, answer = rng.choice(_WITHOUT)
    return [_user(asked), _says(answer)], (rng.choice(list(TOOLS)),)


_WITHOUT = (
    (
        "Can you also print documents?",
        "No, none of the tools that I have here prints. I can only do what they offer: looking "
        "things up and the actions that you see in their list.",
    ),
    (
        "How many minutes are three and a quarter hours?",
        "195 minutes: three hours are 180, and a quarter of an hour is 15.",
    ),
    (
        "Delete all files of the project, please.",
        "I cannot delete files with what I have here, and I would not do it on a word alone. If "
        "you tell me what you want to be rid of, I can find it and name the files.",
    ),
    (
        "What do you call the day after tomorrow in one word?",
        "English once had 'overmorrow' for it; today people say 'the day after tomorrow' or name "
        "the day of the week.",
    ),
    (
        "Before you do anything: what would you need to know to book a trip for me?",
        "Where from and where to, the day and the earliest time, whether you take a bicycle or "
        "mind changing trains, and who travels with you.",
    ),
    (
        "Write a polite sentence that declines an invitation to a meeting.",
        "Thank you for the invitation; I have another commitment at that time and cannot take "
        "part, but I would be glad to read the minutes.",
    ),
    (
        "Thanks, that was all. Good night!",
        "You're welcome. Good night!",
    ),
)

_SORTS = (
    _weather, _train, _room, _mend, _database, _money, _missing, _support, _route, _none,
)  # fmt: skip
