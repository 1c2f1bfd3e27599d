"""Template-made documents: tool dialogues, short questions and answers, code."""

from __future__ import annotations

import json
import random
from typing import Any

from code_pools import request, snippet
from tool_catalogue import PARAM_ALIASES, TOOLS, Tool
from value_pools import draw, join_words
from word_pools import CITIES, COLORS, COUNTRIES, FIRST, GROCERIES, LAST, PRODUCTS

Document = dict[str, Any]
SYSTEM = (
    "You are a helpful assistant.",
    "You are a careful assistant with tools.",
    "Answer briefly.",
    "You help with daily tasks.",
    "Be short and exact.",
)
LEAD = (
    "",
    "",
    "",
    "",
    "",
    "",
    "Please help: ",
    "Hi! ",
    "Hello, ",
    "One more thing: ",
    "Quick question. ",
    "OK, ",
)
TRAIL = ("", "", "", "", "", "", "", " Thanks!", " Thank you.")
FACTS = {
    "How many days are in a week?": "There are 7 days in a week.",
    "How many months are in a year?": "There are 12 months in a year.",
    "Which planet is closest to the sun?": "Mercury is closest to the sun.",
    "What is the largest planet?": "Jupiter is the largest planet.",
    "What do bees make?": "Bees make honey.",
    "What is frozen water called?": "Frozen water is called ice.",
    "How many legs has a spider?": "A spider has 8 legs.",
    "What color is the sky on a clear day?": "The sky is blue on a clear day.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "How many minutes are in an hour?": "There are 60 minutes in an hour.",
    "What is H2O?": "H2O is water.",
    "Which metal is liquid at room temperature?": "Mercury is liquid at room temperature.",
    "What gas do plants take in?": "Plants take in carbon dioxide.",
    "How many sides has a triangle?": "A triangle has 3 sides.",
    "How many hours are in a day?": "There are 24 hours in a day.",
    "What is the chemical symbol of gold?": "The symbol of gold is Au.",
    "What is the chemical symbol of iron?": "The symbol of iron is Fe.",
    "What is the first month of the year?": "January is the first month.",
    "What is a prime number?": "A prime number has no divisors but 1 and itself.",
    "What is the square root of 81?": "The square root of 81 is 9.",
    "What does a thermometer measure?": "A thermometer measures temperature.",
    "Which animal is the tallest?": "The giraffe is the tallest animal.",
    "What do cows drink?": "Cows drink water.",
    "How many zeros has one thousand?": "One thousand has 3 zeros.",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


class ToolView:
    """A tool as one document shows it: possibly under other tool and parameter names."""

    def __init__(self, tool: Tool, rng: random.Random) -> None:
        self.tool = tool
        self.name = rng.choice(tool.aliases) if tool.aliases and rng.random() < 0.25 else tool.name
        taken = {param.name for param in tool.params}
        self.names: dict[str, str] = {}
        for param in tool.params:
            options = [alias for alias in PARAM_ALIASES.get(param.name, ()) if alias not in taken]
            self.names[param.name] = (
                rng.choice(options) if options and rng.random() < 0.25 else param.name
            )
            taken.add(self.names[param.name])
        always = [
            p.name
            for p in tool.params
            if all("{" + p.name + "}" in phrase for phrase in tool.phrasings)
        ]
        self.required = [self.names[name] for name in always]

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style definition."""
        properties: dict[str, Any] = {}
        for param in self.tool.params:
            entry: dict[str, Any] = {"type": param.type}
            if param.enum:
                entry["enum"] = list(param.enum)
            properties[self.names[param.name]] = entry
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.tool.description,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": self.required,
                },
            },
        }

    def ask(self, rng: random.Random) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """A user request, the call's arguments (named as shown) and the raw values."""
        phrase = rng.choice(self.tool.phrasings)
        arguments: dict[str, Any] = {}
        raw: dict[str, Any] = {}
        for param in self.tool.params:
            spoken, value = draw(param.kind, rng, param.enum)
            mark = "{" + param.name + "}"
            if mark in phrase:
                phrase = phrase.replace(mark, spoken)
                arguments[self.names[param.name]] = value
                raw[param.name] = value
        if rng.random() < 0.1:
            phrase = phrase[0].lower() + phrase[1:]
        return phrase, arguments, raw

    def respond(self, rng: random.Random, raw: dict[str, Any]) -> tuple[str, str]:
        """A JSON result and an answer that quotes it."""
        result = {key: draw(kind, rng)[1] for key, kind in self.tool.result.items()}
        usable = []
        for answer in self.tool.answers:
            filled = answer
            for key, value in result.items():
                filled = filled.replace("{r." + key + "}", str(value))
            for key, value in raw.items():
                filled = filled.replace(
                    "{" + key + "}", join_words(value) if isinstance(value, list) else str(value)
                )
            if "{" not in filled:
                usable.append(filled)
        return json.dumps(result), rng.choice(usable) if usable else "Done."


def _views(rng: random.Random, count: int) -> list[ToolView]:
    return [ToolView(tool, rng) for tool in rng.sample(TOOLS, count)]


def _reason(name: str, arguments: dict[str, Any]) -> str:
    shown = ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in arguments.items()
    )
    return f"The user needs {name} with {shown}."


def tool_prompt(rng: random.Random) -> Document:
    """A request that needs exactly one call; ``expected`` is that call."""
    views = _views(rng, rng.choice((1, 1, 2, 2, 2, 3, 3, 4)))
    view = rng.choice(views)
    phrase, arguments, raw = view.ask(rng)
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    messages.append({"role": "user", "content": rng.choice(LEAD) + phrase + rng.choice(TRAIL)})
    return {
        "messages": messages,
        "tools": [v.schema() for v in views],
        "expected": {"name": view.name, "arguments": arguments},
        "_view": view,
        "_views": views,
        "_raw": raw,
    }


def tool_document(rng: random.Random, respond: float = 0.5, further: float = 0.6) -> Document:
    """A complete tool dialogue.

    ``respond`` is the chance that a call is followed by its result and an answer,
    ``further`` the chance that another request then follows.
    """
    prompt = tool_prompt(rng)
    messages, expected = prompt["messages"], prompt["expected"]
    kind = rng.random()
    if kind < 0.06:  # two calls at once
        phrase, arguments, _ = prompt["_view"].ask(rng)
        messages[-1]["content"] += " And: " + phrase
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [_call(**expected), _call(expected["name"], arguments)],
            }
        )
    elif kind < 0.12:  # no call needed
        question, answer = rng.choice(list(FACTS.items()))
        messages[-1]["content"] = question
        messages.append({"role": "assistant", "content": answer})
    else:
        turn: dict[str, Any] = {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call(**expected)],
        }
        if rng.random() < 0.3:
            turn["reasoning_content"] = _reason(**expected)
        messages.append(turn)
        view, raw = prompt["_view"], prompt["_raw"]
        while rng.random() < respond and len(messages) < 14:
            result, answer = view.respond(rng, raw)
            messages += [
                {"role": "tool", "content": result},
                {"role": "assistant", "content": answer},
            ]
            if rng.random() < 1 - further:
                break
            view = rng.choice(prompt["_views"])  # a further request in the same dialogue
            phrase, arguments, raw = view.ask(rng)
            messages += [
                {"role": "user", "content": phrase},
                {"role": "assistant", "content": "", "tool_calls": [_call(view.name, arguments)]},
            ]
    return {"messages": messages, "tools": prompt["tools"]}


def drill_document(rng: random.Random) -> Document:
    """Several requests in a row with one or two tools, calls only: practice in copying."""
    views = _views(rng, rng.choice((1, 1, 2)))
    messages: list[dict[str, Any]] = []
    for _ in range(rng.randint(3, 5)):
        view = rng.choice(views)
        phrase, arguments, _ = view.ask(rng)
        messages += [
            {"role": "user", "content": rng.choice(LEAD) + phrase + rng.choice(TRAIL)},
            {"role": "assistant", "content": "", "tool_calls": [_call(view.name, arguments)]},
        ]
    return {"messages": messages, "tools": [v.schema() for v in views]}


def _small_talk(rng: random.Random) -> tuple[str, str]:
    kind = rng.randrange(12)
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    first, last, city = rng.choice(FIRST), rng.choice(LAST), rng.choice(CITIES)
    if kind == 0:
        country, capital = rng.choice(list(COUNTRIES.items()))
        question = rng.choice((f"What is the capital of {country}?", f"Capital of {country}?"))
        return question, f"The capital of {country} is {capital}."
    if kind == 1:
        country, capital = rng.choice(list(COUNTRIES.items()))
        return (
            f"{capital} is the capital of which country?",
            f"{capital} is the capital of {country}.",
        )
    if kind == 2:
        return rng.choice(list(FACTS.items()))
    if kind == 3:
        return f"What is {a} plus {b}?", f"{a} + {b} = {a + b}"
    if kind == 4:
        high, low = max(a, b), min(a, b)
        return f"What is {high} minus {low}?", f"{high} - {low} = {high - low}"
    if kind == 5:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        return f"What is {a} times {b}?", f"{a} * {b} = {a * b}"
    if kind == 6:
        larger = f"{max(a, b)} is larger than {min(a, b)}."
        return f"Which is larger, {a} or {b}?", "They are equal." if a == b else larger
    if kind == 7:
        data = {"name": f"{first} {last}", "age": rng.randint(18, 90), "city": city}
        return (
            f"Give me JSON for this person: {data['name']}, {data['age']} years old, from {city}.",
            json.dumps(data),
        )
    if kind == 8:
        product, price, count = rng.choice(PRODUCTS), rng.randint(2, 500), rng.randint(1, 20)
        return f"As JSON: {count} pieces of {product} at {price} each.", json.dumps(
            {"item": product, "quantity": count, "price": price}
        )
    if kind == 9:
        words = rng.sample(GROCERIES + COLORS, rng.randint(3, 5))
        return f"Sort these words: {', '.join(words)}", ", ".join(sorted(words))
    if kind == 10:
        words = rng.sample(GROCERIES, rng.randint(2, 4))
        return f"Make a bullet list of {join_words(words)}.", "\n".join(
            f"- {word}" for word in words
        )
    index = rng.randrange(7)
    return (
        f"Which day comes after {DAYS[index]}?",
        f"After {DAYS[index]} comes {DAYS[(index + 1) % 7]}.",
    )


def chat_document(rng: random.Random) -> Document:
    """One to three short questions with answers."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    for _ in range(rng.choice((1, 1, 2, 3))):
        question, answer = _small_talk(rng)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return {"messages": messages}


def code_document(rng: random.Random) -> Document:
    """A request for a function and the function."""
    code = snippet(rng)
    return {
        "messages": [
            {"role": "user", "content": request(rng, code)},
            {"role": "assistant", "content": f"```python\n{code.source}```"},
        ]
    }


def module_document(rng: random.Random) -> Document:
    """Plain text: a few functions as one module."""
    return {"text": "\n\n".join(snippet(rng).source for _ in range(rng.randint(1, 3)))}


def mixed_document(rng: random.Random) -> Document:
    """A document in messages form: half tools, the rest chat and code."""
    kind = rng.random()
    if kind < 0.5:
        return tool_document(rng)
    return chat_document(rng) if kind < 0.75 else code_document(rng)
