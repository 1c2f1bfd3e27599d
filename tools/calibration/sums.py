"""Sums with their working, some with the thinking before it; every answer is computed."""

from __future__ import annotations

import random
from fractions import Fraction
from math import comb, gcd, isqrt

from texts import Document, conversation, counted

NAMES = ("Amara", "Bojan", "Chloé", "Dilnoza", "Efe", "Fatou", "Goran", "Hana", "Ilse", "Jorge")
GOODS = (("notebook", "notebooks"), ("lamp", "lamps"), ("basket", "baskets"), ("rope", "ropes"))


def sums(rng: random.Random, count: int) -> list[Document]:
    """``count`` of them, of each sort in turn."""
    return [_SORTS[at % len(_SORTS)](rng) for at in range(count)]


def _answered(question: str, thinking: str, answer: str, rng: random.Random) -> Document:
    document = conversation("maths", ("user", question), ("assistant", answer))
    if rng.random() < 0.5:
        document["messages"][-1]["reasoning_content"] = thinking
    return document


def _plus(value: int, unit: str = "") -> str:
    """A further term of a sum."""
    if value == 0:
        return ""
    size = "" if unit and abs(value) == 1 else abs(value)
    return f" {'+' if value > 0 else '-'} {size}{unit}"


def _shopping(rng: random.Random) -> Document:
    who, (one, many) = rng.choice(NAMES), rng.choice(GOODS)
    count, cents, percent = rng.randint(3, 19), 20 * rng.randint(6, 100), rng.choice((5, 10, 20))
    whole = count * cents
    off = Fraction(whole * percent, 100)
    paid = whole - off
    question = (
        f"{who} buys {count} {many} at {cents / 100:.2f} each and gets {percent} % off the total. "
        "What does that come to?"
    )
    return _answered(
        question,
        f"Price of one {one}: {cents} cents. Times {count} is {whole}. {percent} % of it: "
        f"{float(off):g}. Left: {float(paid):g} cents.",
        f"Without the discount: {count} × {cents / 100:.2f} = {whole / 100:.2f}. The discount is "
        f"{percent} % of that, {float(off) / 100:.2f}. {who} pays **{float(paid) / 100:.2f}**.",
        rng,
    )


def _linear(rng: random.Random) -> Document:
    x, a, c = rng.randint(-12, 12), rng.randint(2, 9), rng.randint(2, 9)
    a += c
    b = rng.randint(1, 20)
    d = (a - c) * x + b
    return _answered(
        f"Solve {a}x + {b} = {c}x{_plus(d)} for x.",
        f"Bring the x to one side: ({a} - {c})x = {d} - {b}, so {a - c}x = {d - b}. "
        f"{d - b} / {a - c} = {x}. Check: {a} · ({x}) + {b} = {a * x + b}, {c} · ({x}){_plus(d)} "
        f"= {c * x + d}. Equal.",
        f"Subtract {c}x and {b} on both sides:\n\n{a - c}x = {d - b}\n\nDivide by {a - c}:\n\n"
        f"**x = {x}**\n\nCheck: both sides are {a * x + b}.",
        rng,
    )


def _divisors(rng: random.Random) -> Document:
    a, b = 6 * rng.randint(5, 60), 4 * rng.randint(5, 90)
    big, small = max(a, b), min(a, b)
    steps = []
    while small:
        steps.append(f"{big} = {big // small} · {small} + {big % small}")
        big, small = small, big % small
    found = gcd(a, b)
    lines = "\n".join(f"- {step}" for step in steps)
    return _answered(
        f"What are the greatest common divisor and the least common multiple of {a} and {b}?",
        f"Euclid: {'; '.join(steps)}. The last remainder that is not 0 is {found}.",
        f"By Euclid's algorithm:\n\n{lines}\n\nThe greatest common divisor is **{found}**, and the "
        f"least common multiple is {a} · {b} / {found} = **{a * b // found}**.",
        rng,
    )


def _draws(rng: random.Random) -> Document:
    red, blue, drawn = rng.randint(3, 8), rng.randint(3, 8), rng.randint(2, 3)
    good, whole = comb(red, drawn), comb(red + blue, drawn)
    chance = Fraction(good, whole)
    return _answered(
        f"A bag holds {red} red and {blue} blue marbles. {drawn} are drawn without looking and not "
        "put back. How likely are all of them red?",
        f"Ways to draw {drawn} of {red + blue}: {whole}. Of {red}: {good}. {good}/{whole} is "
        f"{chance} in lowest terms.",
        f"There are C({red + blue}, {drawn}) = {whole} equally likely draws, and C({red}, {drawn}) "
        f"= {good} of them hold red marbles only. The probability is {good}/{whole}"
        f"{'' if chance.denominator == whole else f' = {chance}'}, about "
        f"**{float(chance):.1%}**.",
        rng,
    )


def _journey(rng: random.Random) -> Document:
    slow, fast, head = rng.randint(12, 18), rng.randint(20, 32), rng.randint(1, 4)
    lead = slow * head
    hours = Fraction(lead, fast - slow)
    minutes = round(hours * 60)
    return _answered(
        f"A barge leaves at {slow} km/h. A boat follows {counted(head, 'hour')} later at {fast} "
        "km/h. When and where does it catch up?",
        f"Lead: {slow} · {head} = {lead} km. Closing speed: {fast} - {slow} = {fast - slow} km/h. "
        f"Time: {lead}/{fast - slow} h = {minutes} minutes.",
        f"When the boat leaves, the barge is {slow} · {head} = {lead} km ahead. The gap closes at "
        f"{fast} - {slow} = {fast - slow} km/h, so it takes {lead}/{fast - slow} h, about "
        f"{minutes} minutes. By then the boat has gone {fast} · {lead}/{fast - slow} ≈ "
        f"**{float(fast * hours):.1f} km**.",
        rng,
    )


def _quadratic(rng: random.Random) -> Document:
    low, high = sorted(rng.sample([root for root in range(-9, 13) if root], 2))
    b, c = -(low + high), low * high
    square = b * b - 4 * c
    return _answered(
        f"Find the roots of x²{_plus(b, 'x')}{_plus(c)}.",
        f"Two numbers with sum {low + high} and product {c}: {low} and {high}.",
        f"The discriminant is ({b})² - 4 · ({c}) = {square} = {isqrt(square)}², so the roots are "
        f"({-b} ± {isqrt(square)}) / 2, that is **{low}** and **{high}**.",
        rng,
    )


def _statistics(rng: random.Random) -> Document:
    values = [rng.randint(10, 99) for _ in range(rng.choice((5, 7, 9)))]
    order = sorted(values)
    mean = Fraction(sum(values), len(values))
    spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return _answered(
        f"Give mean, median and sample standard deviation of {', '.join(map(str, values))}.",
        f"Sum {sum(values)} over {len(values)} is {float(mean):.3f}. In order: {order}. "
        f"Sample variance {float(spread):.3f}.",
        f"- Mean: {sum(values)} / {len(values)} = **{float(mean):.2f}**\n- Median: in order "
        f"{', '.join(map(str, order))}, the middle one is **{order[len(order) // 2]}**\n- Sample "
        f"standard deviation: √{float(spread):.2f} = **{float(spread) ** 0.5:.2f}**",
        rng,
    )


def _bases(rng: random.Random) -> Document:
    number = rng.randint(60, 4000)
    powers = [1 << at for at in range(12, -1, -1) if number >> at & 1]
    return _answered(
        f"Write {number} in binary and in hexadecimal.",
        f"{number} = {' + '.join(map(str, powers))}.",
        f"{number} = {' + '.join(map(str, powers))}, so in binary it is **{number:b}**. In groups "
        f"of four from the right that is hexadecimal **{number:X}**.",
        rng,
    )


_SORTS = (
    _shopping, _linear, _divisors, _draws, _journey, _quadratic, _statistics, _bases,
)  # fmt: skip
