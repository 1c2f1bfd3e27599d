"""Template-made Python functions with docstrings, with requests and checked asserts."""

from __future__ import annotations

import random
from dataclasses import dataclass

NOUNS = (
    "values",
    "numbers",
    "items",
    "scores",
    "prices",
    "weights",
    "sizes",
    "ages",
    "points",
    "totals",
    "counts",
    "times",
    "rates",
    "costs",
)
SCALARS = (
    "value",
    "number",
    "price",
    "score",
    "size",
    "count",
    "rate",
    "width",
    "height",
    "speed",
    "weight",
    "amount",
    "total",
    "limit",
    "age",
)
WORDS = ("text", "word", "name", "line", "title", "label", "message", "key", "path", "code")


@dataclass(frozen=True)
class Snippet:
    """One function: its name, what it does in words, and its source."""

    name: str
    purpose: str
    source: str


def _function(name: str, arguments: str, purpose: str, body: list[str]) -> Snippet:
    lines = [f"def {name}({arguments}):", f'    """{purpose}"""'] + [f"    {line}" for line in body]
    return Snippet(name, purpose, "\n".join(lines) + "\n")


def snippet(rng: random.Random) -> Snippet:
    """Draw one function."""
    many, one, other, word = rng.choice(NOUNS), *rng.sample(SCALARS, 2), rng.choice(WORDS)
    number = rng.randint(2, 99)
    item = "x" if rng.random() < 0.4 else many[:-1]
    sign, sign_word = rng.choice(
        ((">", "above"), ("<", "below"), (">=", "at least"), ("<=", "at most"))
    )
    kind = rng.randrange(24)
    if kind == 0:
        verb, op = rng.choice((("add", "+"), ("subtract", "-"), ("multiply", "*"), ("divide", "/")))
        return _function(
            f"{verb}_{one}_{other}",
            f"{one}, {other}",
            f"{verb.capitalize()} {one} and {other}.",
            [f"return {one} {op} {other}"],
        )
    if kind == 1:
        return _function(
            f"scale_{one}",
            f"{one}, factor={number}",
            f"Return {one} times factor.",
            [f"return {one} * factor"],
        )
    if kind == 2:
        return _function(
            f"filter_{many}",
            many,
            f"Return the {many} {sign_word} {number}.",
            [f"return [{item} for {item} in {many} if {item} {sign} {number}]"],
        )
    if kind == 3:
        return _function(
            f"count_{many}",
            many,
            f"Count the {many} {sign_word} {number}.",
            [
                "count = 0",
                f"for {item} in {many}:",
                f"    if {item} {sign} {number}:",
                "        count += 1",
                "return count",
            ],
        )
    if kind == 4:
        return _function(
            f"sum_{many}",
            many,
            f"Return the sum of all {many}.",
            ["total = 0", f"for {item} in {many}:", f"    total += {item}", "return total"],
        )
    if kind == 5:
        return _function(
            f"mean_{many}",
            many,
            f"Return the mean of {many}, or 0 if there are none.",
            [f"if not {many}:", "    return 0", f"return sum({many}) / len({many})"],
        )
    if kind == 6:
        which = rng.choice(("max", "min"))
        return _function(
            f"{which}_{many}",
            many,
            f"Return the {'largest' if which == 'max' else 'smallest'} of {many}.",
            [
                f"best = {many}[0]",
                f"for {item} in {many}:",
                f"    if {item} {'>' if which == 'max' else '<'} best:",
                f"        best = {item}",
                "return best",
            ],
        )
    if kind == 7:
        method, what = rng.choice(
            (
                ("upper", "upper case"),
                ("lower", "lower case"),
                ("title", "title case"),
                ("strip", "no outer spaces"),
            )
        )
        return _function(
            f"{method}_{word}",
            word,
            f"Return {word} in {what}." if "case" in what else f"Return {word} with {what}.",
            [f"return {word}.{method}()"],
        )
    if kind == 8:
        return _function(
            f"reverse_{word}", word, f"Return {word} reversed.", [f"return {word}[::-1]"]
        )
    if kind == 9:
        return _function(
            f"is_palindrome_{word}",
            word,
            f"Tell whether {word} reads the same backwards.",
            [f"{word} = {word}.lower()", f"return {word} == {word}[::-1]"],
        )
    if kind == 10:
        return _function(
            "count_words",
            word,
            f"Count how often each word is in {word}.",
            [
                "counts = {}",
                f"for part in {word}.split():",
                "    counts[part] = counts.get(part, 0) + 1",
                "return counts",
            ],
        )
    if kind == 11:
        return _function(
            "factorial",
            one,
            f"Return the factorial of {one}.",
            [f"if {one} <= 1:", "    return 1", f"return {one} * factorial({one} - 1)"],
        )
    if kind == 12:
        return _function(
            "fibonacci",
            one,
            f"Return the Fibonacci {one}.",
            ["a, b = 0, 1", f"for _ in range({one}):", "    a, b = b, a + b", "return a"],
        )
    if kind == 13:
        return _function(
            "gcd",
            f"{one}, {other}",
            f"Return the greatest common divisor of {one} and {other}.",
            [f"while {other}:", f"    {one}, {other} = {other}, {one} % {other}", f"return {one}"],
        )
    if kind == 14:
        return _function(
            f"clamp_{one}",
            f"{one}, low, high",
            f"Keep {one} between low and high.",
            [f"return max(low, min(high, {one}))"],
        )
    if kind == 15:
        parity, rest = rng.choice((("even", 0), ("odd", 1)))
        return _function(
            f"{parity}_{many}",
            many,
            f"Return the {parity} {many}.",
            [f"return [{item} for {item} in {many} if {item} % 2 == {rest}]"],
        )
    if kind == 16:
        return _function(
            f"sort_{many}",
            many,
            f"Return {many} from {'large to small' if number % 2 else 'small to large'}.",
            [f"return sorted({many}{', reverse=True' if number % 2 else ''})"],
        )
    if kind == 17:
        return _function(
            f"unique_{many}",
            many,
            f"Return {many} without repeats, in order.",
            [
                "seen = set()",
                "result = []",
                f"for {item} in {many}:",
                f"    if {item} not in seen:",
                f"        seen.add({item})",
                f"        result.append({item})",
                "return result",
            ],
        )
    if kind == 18:
        return _function(
            f"invert_{many}",
            many,
            f"Swap keys and values of {many}.",
            [f"return {{value: key for key, value in {many}.items()}}"],
        )
    if kind == 19:
        return _function(
            f"check_{one}",
            one,
            f"Raise ValueError if {one} is {sign_word} {number}.",
            [
                f"if {one} {sign} {number}:",
                f'    raise ValueError("{one} is {sign_word} {number}")',
                f"return {one}",
            ],
        )
    if kind == 20:
        return _function(
            f"read_{many}",
            "path",
            f"Read {many} from a file, one per line.",
            [
                "with open(path) as file:",
                f"    return [{rng.choice(('int', 'float'))}(line) for line in file]",
            ],
        )
    if kind == 21:
        return _function(
            f"join_{many}",
            f'{many}, separator="{rng.choice((", ", "-", " ", ";"))}"',
            f"Join {many} with a separator.",
            [f"return separator.join(str({item}) for {item} in {many})"],
        )
    if kind == 22:
        cls = one.capitalize() + rng.choice(("Box", "Store", "Counter", "Log"))
        source = "\n".join(
            (
                f"class {cls}:",
                f'    """Keep a {one} and a {other}."""',
                "",
                f"    def __init__(self, {one}, {other}={number}):",
                f"        self.{one} = {one}",
                f"        self.{other} = {other}",
                "",
                "    def total(self):",
                f"        return self.{one} + self.{other}",
                "",
            )
        )
        return Snippet(cls, f"Keep a {one} and a {other}.", source)
    return _function(
        f"chunk_{many}",
        f"{many}, size={number}",
        f"Split {many} into parts of the given size.",
        [f"return [{many}[i:i + size] for i in range(0, len({many}), size)]"],
    )


def request(rng: random.Random, code: Snippet) -> str:
    """Words that ask for this snippet."""
    thing = "class" if code.source.startswith("class") else "function"
    return rng.choice(
        (
            f"Write a Python {thing} {code.name}: {code.purpose}",
            f"I need a Python {thing} called {code.name}. {code.purpose}",
            f"Please write {code.name} in Python. {code.purpose}",
            f"Python {thing} {code.name}? {code.purpose}",
        )
    )
