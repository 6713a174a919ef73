"""The other things the demo model can do: JSON from a sentence, small Python, lists, units, short prose.

Every function takes a random source and returns (question, answer).
"""

import random
from collections.abc import Callable

from . import words as W
from .grammar import expand, held_out

Pair = tuple[str, str]


def _json(fields: list[tuple[str, str | int]]) -> str:
    inner = ",\n".join(f'  "{k}": {v}' if isinstance(v, int) else f'  "{k}": "{v}"' for k, v in fields)
    return "{\n" + inner + "\n}"


JSON_ORDERS = (
    "Extract {keys} as JSON.",
    "Give {keys} as JSON.",
    "Write {keys} as JSON.",
    "Return JSON with {keys}.",
    "Turn this into JSON with the keys {keys}.",
)
PERSON = (
    "{n} is {a} years old, lives in {c} and works as a {j}.",
    "Meet {n}, a {j} from {c} who is {a} years old.",
    "{n} ({a}) is a {j} in {c}.",
    "My neighbor {n} comes from {c}, is {a} and works as a {j}.",
    "In {c} lives a {j} named {n}, aged {a}.",
)
OFFER = (
    "The shop sells a {c} {w} for {p} dollars and has {s} of them in stock.",
    "A {c} {w} costs {p} dollars; {s} are in stock.",
    "We have {s} {c} {w}s at {p} dollars each.",
    "For sale: {w}, {c}, {p} dollars, {s} pieces.",
)
FLIGHT = (
    "{n} flies from {a} to {b} on day {d} at {h} o'clock.",
    "On day {d} at {h} o'clock {n} takes the plane from {a} to {b}.",
    "{n} goes from {a} to {b}. The plane leaves at {h} o'clock on day {d}.",
)


def json_task(r: random.Random) -> Pair:
    """A sentence becomes a JSON object."""
    name, kind = r.choice(W.WOMEN + W.MEN), r.randrange(4)
    if kind == 0:
        values: dict[str, str | int] = {
            "n": name,
            "a": r.randint(18, 80),
            "c": r.choice(W.CITIES),
            "j": r.choice(W.JOBS),
        }
        fields = [("name", values["n"]), ("age", values["a"]), ("city", values["c"]), ("job", values["j"])]
        text = r.choice(PERSON)
    elif kind == 1:
        values = {
            "c": r.choice(W.COLORS),
            "w": r.choice(W.WARES),
            "p": r.randint(5, 900),
            "s": r.randint(2, 60),
        }
        fields = [
            ("item", values["w"]),
            ("color", values["c"]),
            ("price", values["p"]),
            ("stock", values["s"]),
        ]
        text = r.choice(OFFER)
    elif kind == 2:
        a, b = r.sample(W.CITIES, 2)
        values = {"n": name, "a": a, "b": b, "d": r.randint(1, 28), "h": r.randint(1, 23)}
        fields = [("passenger", name), ("from", a), ("to", b), ("day", values["d"]), ("hour", values["h"])]
        text = r.choice(FLIGHT)
    else:
        return _order(r, name)
    if r.random() < 0.4:
        fields = r.sample(fields, r.randint(2, len(fields)))
    keys = [k for k, _ in fields]
    listed = ", ".join(keys[:-1]) + f" and {keys[-1]}"
    return f"{text.format(**values)} {r.choice(JSON_ORDERS).format(keys=listed)}", _json(fields)


def _order(r: random.Random, name: str) -> Pair:
    things = r.sample(W.THINGS, r.randint(2, 4))
    counts = [r.randint(2, 40) for _ in things]
    listed = ", ".join(f"{n} {t}" for n, t in zip(counts, things, strict=True))
    rows = ",\n".join(f'    {{"name": "{t}", "count": {n}}}' for n, t in zip(counts, things, strict=True))
    ask = r.choice(("Write the order as JSON.", "Give the order as JSON.", "Return this order as JSON."))
    return f"{name} orders {listed}. {ask}", f'{{\n  "customer": "{name}",\n  "items": [\n{rows}\n  ]\n}}'


def _python(body: str) -> str:
    return f"```python\n{body}\n```"


VARIABLES = ("x", "n", "value", "number", "count", "total", "price", "score", "size", "a")
LISTS = ("numbers", "values", "items", "scores", "prices", "words", "names", "data", "xs")
OPERATIONS = {
    "add": ("adds {a} to {v}", "+"),
    "subtract": ("subtracts {a} from {v}", "-"),
    "multiply": ("multiplies {v} by {a}", "*"),
    "divide": ("divides {v} by {a}", "/"),
}
ASK = "[Write|Give me|Show me|I need|Please write] a Python function "


def _code_small(r: random.Random) -> Pair:
    v, a = r.choice(VARIABLES), r.randint(2, 99)
    name, (words, sign) = r.choice(list(OPERATIONS.items()))
    return f"{ASK}that {words.format(a=a, v=v)}.", _python(f"def {name}_{a}({v}):\n    return {v} {sign} {a}")


def _code_two(r: random.Random) -> Pair:
    name, sign, words = r.choice(
        (
            ("add", "+", "adds"),
            ("multiply", "*", "multiplies"),
            ("subtract", "-", "subtracts"),
            ("divide", "/", "divides"),
        )
    )
    return f"{ASK}that {words} two numbers.", _python(f"def {name}(a, b):\n    return a {sign} b")


def _code_sum(r: random.Random) -> Pair:
    xs, a = r.choice(LISTS), r.randint(2, 99)
    side, sign = r.choice((("below", "<"), ("above", ">")))
    body = f"    total = 0\n    for item in {xs}:\n        if item {sign} {a}:\n            continue\n        total += item\n    return total"
    return f"{ASK}that sums a list {xs} and [ignores|skips] values {side} {a}.", _python(
        f"def sum_{xs}({xs}):\n{body}"
    )


def _code_loop(r: random.Random) -> Pair:
    low, more, v = r.randint(0, 9), r.randint(2, 90), "i"
    ask = "[Write|Give me|Show me] a Python loop that prints the numbers from "
    return f"{ask}{low} to {low + more}.", _python(
        f"for {v} in range({low}, {low + more + 1}):\n    print({v})"
    )


def _code_class(r: random.Random) -> Pair:
    name = r.choice(W.WARES).capitalize()
    f, g = r.sample(("name", "price", "color", "size", "weight", "owner", "year", "speed"), 2)
    body = (
        f"    def __init__(self, {f}, {g}):\n        self.{f} = {f}\n        self.{g} = {g}\n\n"
        f'    def __repr__(self):\n        return f"{name}({{self.{f}}}, {{self.{g}}})"'
    )
    return f"[Write|Give me|Show me] a Python class {name} with the fields {f} and {g}.", _python(
        f"class {name}:\n{body}"
    )


def _code_filter(r: random.Random) -> Pair:
    xs, (kind, rest) = r.choice(LISTS), r.choice((("even", 0), ("odd", 1)))
    body = f"    result = []\n    for item in {xs}:\n        if item % 2 == {rest}:\n            result.append(item)\n    return result"
    return f"{ASK}that returns the {kind} numbers of a list {xs}.", _python(f"def {kind}_{xs}({xs}):\n{body}")


def _code_best(r: random.Random) -> Pair:
    xs, (word, sign, name) = r.choice(LISTS), r.choice((("maximum", ">", "max"), ("minimum", "<", "min")))
    body = f"    best = {xs}[0]\n    for item in {xs}[1:]:\n        if item {sign} best:\n            best = item\n    return best"
    ask = f"[finds|returns] the {word} of a list {xs}[| without using {name}]"
    return f"{ASK}that {ask}.", _python(f"def find_{name}({xs}):\n{body}")


def _code_test(r: random.Random) -> Pair:
    v = r.choice(VARIABLES)
    word, test = r.choice(
        (
            ("even", "% 2 == 0"),
            ("odd", "% 2 == 1"),
            ("positive", "> 0"),
            ("negative", "< 0"),
            ("zero", "== 0"),
        )
    )
    return f"{ASK}that [checks|tells] if {v} is {word}.", _python(
        f"def is_{word}({v}):\n    return {v} {test}"
    )


def _code_area(r: random.Random) -> Pair:
    shape, arguments, value = r.choice(
        (
            ("rectangle", "width, height", "width * height"),
            ("square", "side", "side * side"),
            ("triangle", "base, height", "base * height / 2"),
        )
    )
    return f"{ASK}for the area of a {shape}.", _python(f"def {shape}_area({arguments}):\n    return {value}")


def _code_count(r: random.Random) -> Pair:
    xs = r.choice(LISTS)
    body = f"    counts = {{}}\n    for item in {xs}:\n        counts[item] = counts.get(item, 0) + 1\n    return counts"
    return f"{ASK}that counts how often each item occurs in {xs}.", _python(f"def count_{xs}({xs}):\n{body}")


CODE: tuple[Callable[[random.Random], Pair], ...] = (
    _code_small, _code_two, _code_sum, _code_loop, _code_class, _code_filter, _code_best, _code_test, _code_area, _code_count,
)  # fmt: skip


def code_task(r: random.Random) -> Pair:
    """A short Python function, loop or class."""
    question, answer = r.choice(CODE)(r)
    return expand(r, question), answer


UNITS = (
    ("km", "m", 1000), ("m", "cm", 100), ("hours", "minutes", 60), ("minutes", "seconds", 60), ("kg", "g", 1000),
    ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12), ("feet", "inches", 12), ("cm", "mm", 10),
    ("yards", "feet", 3), ("dozens", "pieces", 12), ("liters", "ml", 1000), ("tons", "kg", 1000),
)  # fmt: skip


def conversion(r: random.Random) -> Pair:
    """A length, weight or time in a smaller unit."""
    while True:
        big, small, factor = r.choice(UNITS)
        n = r.randint(2, 60)
        if factor in (10, 100, 1000) or not held_out("x", n, factor):
            break
    ask = r.choice(
        (
            "Convert {n} {a} to {b}.",
            "How many {b} are {n} {a}?",
            "How many {b} are in {n} {a}?",
            "{n} {a} in {b}?",
            "What is {n} {a} in {b}?",
        )
    )
    lines = f"There are {factor} {small} in one {W.singular(big)}.\n{n} {big} = {n} x {factor} {small} = {n * factor} {small}."
    return ask.format(n=n, a=big, b=small), f"{lines}\nAnswer: {n * factor} {small}"


def list_task(r: random.Random) -> Pair:
    """Counting, sorting and listing."""
    kind = r.randrange(6)
    if kind == 0:
        a, n = r.randint(2, 12), r.randint(4, 9)
        rows = "\n".join(f"{i}. {a * i}" for i in range(1, n + 1))
        return expand(r, f"[List|Write down|Give me] the first {n} multiples of {a}."), rows
    if kind == 1:
        a, n, d = r.randint(1, 60), r.randint(4, 9), r.randint(1, 10)
        return f"Count {n} numbers from {a} in steps of {d}.", ", ".join(str(a + d * i) for i in range(n))
    if kind == 2:
        xs = r.sample(range(1, 100), r.randint(3, 6))
        return f"Sort these numbers: {', '.join(map(str, xs))}.", "Sorted: " + ", ".join(
            map(str, sorted(xs))
        ) + "."
    if kind == 3:
        xs = r.sample(W.THINGS, r.randint(3, 5))
        ask = r.choice(
            ("Make a shopping list with {}.", "Write a list with {}.", "Turn this into a list: {}.")
        )
        return ask.format(", ".join(xs)), "\n".join(f"- {x}" for x in xs)
    if kind == 4:
        a, n = r.randint(1, 90), r.randint(4, 9)
        return f"Count from {a} to {a + n}.", ", ".join(str(a + i) for i in range(n + 1))
    xs = r.sample(W.WOMEN + W.MEN, r.randint(3, 5))
    return f"Number these names: {', '.join(xs)}.", "\n".join(f"{i}. {x}" for i, x in enumerate(xs, 1))


CAPITALS = {
    "France": "Paris", "England": "London", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "Austria": "Vienna",
    "Norway": "Oslo", "Egypt": "Cairo", "Peru": "Lima", "Japan": "Tokyo", "Ireland": "Dublin", "Greece": "Athens",
    "Portugal": "Lisbon", "Poland": "Warsaw",
}  # fmt: skip
MORNINGS = (
    "The morning was cold and clear.",
    "It was a warm and quiet day.",
    "Rain had fallen all night long.",
    "The sun came up over the hills.",
)
ACTS = (
    "walked slowly along the river",
    "opened the old wooden door",
    "sat down under the tall tree",
    "went up the narrow stairs",
    "looked out of the small window",
)
FEELINGS = ("happy", "tired", "calm", "curious", "proud", "hungry")
ENDS = (
    "At the end of the day {n} went home and told everyone about it.",
    "{n} smiled and knew that tomorrow would be a good day.",
    "Nobody saw it, but {n} never forgot that moment.",
)


def prose(r: random.Random) -> Pair:
    """A capital, a note, two sentences about somebody, a very short story."""
    he = r.choice(("he", "she"))
    name, his = r.choice(W.MEN if he == "he" else W.WOMEN), "his" if he == "he" else "her"
    kind = r.randrange(5)
    if kind == 0:
        country = r.choice(list(CAPITALS))
        ask = expand(
            r,
            f"[What is the capital of {country}?|Name the capital of {country}.|Which city is the capital of {country}?]",
        )
        return ask, f"The capital of {country} is {CAPITALS[country]}."
    if kind == 1:
        job = r.choice(W.JOBS)
        text = f"{name} is a {job} who loves {his} work and does it with great care. Every day {he} learns something new and shares it with {his} friends."
        return f"Introduce {name}, a {job}, in two sentences.", text
    if kind == 2:
        thing = r.choice(W.THINGS)
        text = f"Dear {name},\n\nthank you very much for the {thing}. They arrived this morning and everyone here was very pleased. Please come and visit us soon.\n\nBest wishes"
        return expand(r, f"Write a [short note|letter|thank-you note] to {name} about the {thing}."), text
    place, (first, second), thing = r.choice(W.PLACES), r.sample(FEELINGS, 2), r.choice(W.THINGS)
    text = (
        f"{r.choice(MORNINGS)} {name} {r.choice(ACTS)} near the {place}. {he.capitalize()} was {first}, but also a little {second}. "
        f"Then {he} found some {thing} on the ground and put them into {his} bag. "
        + r.choice(ENDS).format(n=name)
    )
    return expand(r, f"[Tell|Write|Tell me] a short story about {name} in the {place}."), text
