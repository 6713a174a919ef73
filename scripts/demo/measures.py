"""Word problems about prices, rates, sharing, comparing, shapes, ages and parts, and bare arithmetic.

A kind is a table row: the wordings, and a function that draws the numbers and works the answer out. The numbers'
names are those in the wordings; {it} and {jt} are things, {S} and {O} people.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import words as W
from .grammar import Problem, Refused, Teller, Working, sentences, somebody

Solve = Callable[[random.Random, Working, dict[str, object]], tuple[int, str]]


@dataclass(frozen=True)
class Kind:
    """One kind of problem: its wordings and how it is worked."""

    solve: Solve
    texts: tuple[str, ...]
    weight: float = 1.0


def _some(r: random.Random, low: int, high: int, near: int = 40) -> int:
    return r.randint(low, high if r.random() < 0.5 else min(high, low + near))


def _two_prices(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(2, 12), "p": r.randint(2, 40), "b": r.randint(2, 12), "q": r.randint(2, 40)})
    first, second = w.price(n["a"], str(v["it"]), n["p"]), w.price(n["b"], str(v["jt"]), n["q"])
    return w.total(first, second, "dollars"), "dollars"


def _one_price(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(2, 12), "p": r.randint(2, 60)})
    return w.price(n["a"], str(v["it"]), n["p"]), "dollars"


def _change(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(2, 12), "p": r.randint(2, 40)})
    cost = w.price(n["a"], str(v["it"]), n["p"])
    v["pay"] = pay = r.choice([x for x in (20, 50, 100, 200, 500) if x > cost] or [1000])
    if r.random() < 0.4:
        v["pay"] = pay = cost + r.randint(2, 90)
    return w.loss(pay, cost, "dollars"), "dollars"


def _money(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 10, 300), "b": _some(r, 2, 90), "c": _some(r, 2, 90)})
    return w.gain(w.loss(n["a"], n["b"], "dollars"), n["c"], "dollars"), "dollars"


def _two_spent(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 40, 400), "b": _some(r, 2, 90), "c": _some(r, 2, 90)})
    return w.loss(w.loss(n["a"], n["b"], "dollars"), n["c"], "dollars"), "dollars"


def _rate(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(2, 60)})
    return w.groups(n["k"], str(v["time"]), n["m"], str(v["unit"])), str(v["unit"])


def _rate_twice(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 9), "m": r.randint(2, 60), "l": r.randint(2, 9), "n": r.randint(2, 60)})
    time, unit = str(v["time"]), str(v["unit"])
    return w.total(w.groups(n["k"], time, n["m"], unit), w.groups(n["l"], time, n["n"], unit), unit), unit


def _rate_parts(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 9), "l": r.randint(2, 9), "m": r.randint(2, 60)})
    return w.groups(w.total(n["k"], n["l"], str(v["time"])), str(v["time"]), n["m"], str(v["unit"])), str(
        v["unit"]
    )


def _rate_plus(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(2, 40), "n": _some(r, 2, 99)})
    return w.gain(w.groups(n["k"], str(v["time"]), n["m"], str(v["unit"])), n["n"], str(v["unit"])), str(
        v["unit"]
    )


def _rate_rest(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(2, 40)})
    gone = w.groups(n["k"], str(v["time"]), n["m"], str(v["unit"]))
    v["a"] = a = gone + _some(r, 2, 200)
    return w.loss(a, gone, str(v["unit"])), str(v["unit"])


def _pieces(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(2, 40)})
    gone = w.groups(n["k"], "pieces", n["m"], str(v["unit"]))
    v["a"] = a = gone + _some(r, 2, 200)
    return w.loss(a, gone, str(v["unit"])), str(v["unit"])


def _flow(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 20, 500), "b": _some(r, 2, 150), "c": _some(r, 2, 150)})
    unit = str(v["unit"])
    return w.gain(w.loss(n["a"], n["b"], unit), n["c"], unit), unit


def _used_twice(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 30, 600), "b": _some(r, 2, 150), "c": _some(r, 2, 150)})
    unit = str(v["unit"])
    return w.loss(w.loss(n["a"], n["b"], unit), n["c"], unit), unit


def _hourly(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"h": r.randint(2, 9), "d": r.randint(2, 6), "p": r.randint(5, 30)})
    return w.groups(w.groups(n["d"], "days", n["h"], "hours"), "hours", n["p"], "dollars"), "dollars"


def _share(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    d, each = r.randint(2, 12), r.randint(2, 40)
    v |= {"a": d * each, "d": d}
    return w.share(d * each, d, str(v["it"])), str(v["it"])


def _share_boxes(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(2, 40), "d": r.randint(2, 10)})
    return w.share(w.groups(n["k"], str(v["box"]), n["m"], str(v["it"])), n["d"], str(v["it"])), str(v["it"])


def _packs(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    d, made = r.randint(2, 12), r.randint(2, 40)
    v |= {"a": d * made, "d": d}
    return w.packs(d * made, d, str(v["it"]), str(v["box"])), str(v["box"])


def _compare(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    b = _some(r, 2, 200)
    a = b + _some(r, 2, 150)
    v |= {"a": a, "b": b}
    return w.difference(a, b, str(v["it"])), str(v["it"])


def _more_total(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 3, 200), "d": _some(r, 2, 99)})
    return w.total(n["a"], w.more(n["a"], n["d"], str(v["it"])), str(v["it"])), str(v["it"])


def _more(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 3, 200), "d": _some(r, 2, 99)})
    return w.more(n["a"], n["d"], str(v["it"])), str(v["it"])


def _fewer_total(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    d = _some(r, 2, 99)
    v |= (n := {"a": d + _some(r, 2, 150), "d": d})
    return w.total(n["a"], w.fewer(n["a"], n["d"], str(v["it"])), str(v["it"])), str(v["it"])


def _fewer(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    d = _some(r, 2, 99)
    v |= (n := {"a": d + _some(r, 2, 150), "d": d})
    return w.fewer(n["a"], n["d"], str(v["it"])), str(v["it"])


def _times(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(2, 60), "m": r.randint(2, 9)})
    return w.times(n["m"], n["a"], str(v["it"])), str(v["it"])


def _times_total(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(2, 60), "m": r.randint(2, 9)})
    return w.total(n["a"], w.times(n["m"], n["a"], str(v["it"])), str(v["it"])), str(v["it"])


PARTS = (("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5), ("10 percent", 10), ("20 percent", 5),
         ("25 percent", 4), ("50 percent", 2), ("one third", 3), ("one quarter", 4), ("one half", 2))  # fmt: skip


def _part(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    name, d = r.choice(PARTS)
    a = d * r.randint(2, 240 // d)
    v |= {"a": a, "part": name}
    return w.part(name[0].upper() + name[1:], a, d, str(v["it"])), str(v["it"])


def _part_left(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    gone, noun = _part(r, w, v)
    return w.loss(int(str(v["a"])), gone, noun), noun


def _discount(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    name, d = r.choice([p for p in PARTS if p[1] in (2, 4, 5, 10)])
    a, k = d * r.randint(2, 100 // d), r.randint(2, 9)
    v |= {"a": a, "part": name, "k": k}
    off = w.part(name[0].upper() + name[1:], a, d, "dollars")
    return w.price(k, str(v["it"]), w.loss(a, off, "dollars") if d > 2 else off), "dollars"


def _area(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(3, 60), "b": r.randint(2, 12)})
    return w.plain("x", n["a"], n["b"], "The area is length times width, {}."), "square m"


def _perimeter(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(3, 90), "b": r.randint(2, 60)})
    side = w.plain("+", n["a"], n["b"], "Length plus width is {}.")
    return w.plain("x", 2, side, "The perimeter is twice that, {}."), "m"


def _older(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(3, 60), "d": r.randint(2, 30)})
    return w.more(n["a"], n["d"], "years"), "years"


def _younger(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    d = r.randint(2, 30)
    v |= (n := {"a": d + r.randint(2, 50), "d": d})
    return w.fewer(n["a"], n["d"], "years"), "years"


def _future(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(3, 60), "d": r.randint(2, 30), "y": r.randint(2, 20)})
    return w.gain(w.more(n["a"], n["d"], "years"), n["y"], "years"), "years"


def _age_gap(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    b = r.randint(2, 50)
    v |= {"a": (a := b + r.randint(2, 40)), "b": b}
    return w.difference(a, b, "years"), "years"


def _age_times(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(3, 30), "m": r.randint(2, 5)})
    return w.times(n["m"], n["a"], "years"), "years"


def _average(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    xs = [r.randint(3, 60) for _ in range(r.randint(2, 4))]
    v["xs"] = ", ".join(map(str, xs[:-1])) + f" and {xs[-1]}"
    v["k"] = len(xs)
    total = xs[0]
    for x in xs[1:]:
        total = w.plain("+", total, x, f"Adding {x} gives {{}}.")
    return w.plain("/", total, len(xs), f"Dividing by {len(xs)} gives {{}}."), str(v["unit"])


def _sum(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 2, 600), "b": _some(r, 2, 400)})
    return w.plain("+", n["a"], n["b"]), ""


def _minus(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    b = _some(r, 2, 400)
    v |= {"a": (a := b + _some(r, 2, 400)), "b": b}
    return w.plain("-", a, b), ""


def _product(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(2, 99), "b": r.randint(2, 12)})
    return w.plain("x", n["a"], n["b"]), ""


def _ratio(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    b, each = r.randint(2, 12), r.randint(2, 60)
    v |= {"a": b * each, "b": b}
    return w.plain("/", b * each, b), ""


def _chain(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 2, 500), "b": _some(r, 2, 300), "c": _some(r, 2, 300)})
    v["s"], v["t"] = s, t = r.choice("+-"), r.choice("+-")
    return w.plain(t, w.plain(s, n["a"], n["b"], "First {}."), n["c"], "Then {}."), ""


def _bracket(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 2, 60), "b": _some(r, 2, 60), "c": r.randint(2, 12)})
    v["s"] = s = r.choice("+-")
    return w.plain("x", w.plain(s, n["a"], n["b"], "First {}."), n["c"], "Then {}."), ""


def _first_times(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": _some(r, 2, 300), "b": r.randint(2, 12), "c": r.randint(2, 40)})
    v["s"] = s = r.choice("+-")
    return w.plain(s, n["a"], w.plain("x", n["b"], n["c"], "First {}."), "Then {}."), ""


def _equation(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    x, b = r.randint(2, 99), r.randint(2, 200)
    v |= {"b": b, "c": x + b}
    return w.plain("-", x + b, b, "x = {}."), ""


def _equation_minus(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    b = r.randint(2, 200)
    v |= (n := {"b": b, "c": r.randint(2, 200)})
    return w.plain("+", n["c"], b, "x = {}."), ""


def _equation_linear(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    x, a, b = r.randint(2, 60), r.randint(2, 12), r.randint(2, 99)
    v |= {"a": a, "b": b, "c": a * x + b}
    return w.plain("/", w.plain("-", a * x + b, b, f"{a}x = {{}}."), a, "x = {}."), ""


BUY = "[buys|orders|gets|wants|takes]"
ASK_COST = "[How much does {S} pay?|How much is that?|What does {S} pay in total?|How many dollars does {S} [spend|pay]?|What is the total cost?|How much money does {S} spend?]"
KINDS = (
    Kind(_two_prices, (
        "{S} " + BUY + " {a} {it} at {p} dollars each and {b} {jt} at {q} dollars each. " + ASK_COST,
        "{S} " + BUY + " {a} {it} for {p} dollars [each|a piece] and {b} {jt} for {q} dollars [each|a piece]. " + ASK_COST,
        "[One|A] {i1} costs {p} dollars and [one|a] {j1} costs {q} dollars. {S} buys {a} {it} and {b} {jt}. " + ASK_COST,
        "[In a shop|At the market], {it} cost {p} dollars each and {jt} cost {q} dollars each. What do {a} {it} and {b} {jt} cost?",
    ), 2.0),
    Kind(_one_price, (
        "{S} " + BUY + " {a} {it} at {p} dollars each. " + ASK_COST,
        "[A|One] {i1} costs {p} dollars. [How much do {a} {it} cost?|What do {a} cost?|What is the price of {a} {it}?|How much are {a} of them?]",
        "The price of [one|a] {i1} is {p} dollars. {S} " + BUY + " {a}[| of them]. " + ASK_COST,
        "{S} sells {a} {it} for {p} dollars each. How [much money|many dollars] does {S} [get|make|earn]?",
        "How much do {a} {it} cost at {p} dollars each?",
    ), 2.0),
    Kind(_change, (
        "{S} " + BUY + " {a} {it} at {p} dollars each and pays with {pay} dollars. How much [change does {S} get|money does {S} get back|is given back]?",
        "{S} has {pay} dollars and buys {a} {it} for {p} dollars each. How [much money|many dollars] [does {S} have left|are left|is left|remain]?",
        "[A|One] {i1} costs {p} dollars. {S} buys {a} and pays with a {pay} dollar bill. [What is the change?|How much change is there?]",
        "{S} [has|takes|brings] {pay} dollars to the shop. {S} [buys|gets] {a} {it}, each for {p} dollars. How much [money is left|is left over|does {S} have left|of the money is left]?",
        "With {pay} dollars, {S} pays for {a} {it} that cost {p} dollars each. How much is left?",
    ), 2.0),
    Kind(_money, (
        "{S} has {a} dollars[| in {his} pocket| in the bank| saved]. {S} [spends|pays|loses|uses] {b} dollars [for {it}|on {it}|for lunch|] and [gets|earns|receives|finds] {c} dollars[| from {O}]. How [much money|many dollars] does {S} have[| now]?",
        "There are {a} dollars in [a|the] [bank account|wallet|box]. {S} takes out {b} dollars and later [puts in|adds|pays in] {c}. How [much money|many dollars] is in it now?",
    )),
    Kind(_two_spent, (
        "{S} has {a} dollars. {S} [spends|pays] {b} dollars [on|for] {it} and {c} dollars [on|for] {jt}. How [much money|many dollars] [does {S} have left|is left|remains]?",
        "{S} starts with {a} dollars, buys {it} for {b} dollars and {jt} for {c} dollars. How much [does {S} still have|is left|money is left]?",
        "From {a} dollars {S} pays {b} dollars for [food|rent|a bus ticket] and {c} dollars for [clothes|toys|books]. What is left?",
    )),
    Kind(_rate, (
        "{S} [{does}|can {do}] {m} {unit} [a|per|each|every] {t1}. How many {unit} [is that in|does {S} {do} in] {k} {time}?",
        "A machine [makes|prints|packs] {m} {unit} [a|per|every|each] {t1}. How many [{unit} ][does it make|are made] in {k} {time}?",
        "In one {t1}, {S} {does} {m} {unit}. How many [{unit} ]in {k} {time}?",
        "{S} {does} {m} {unit} every {t1} for {k} {time}. How many {unit} is that[| in all| in total| altogether]?",
        "After {k} {time} at {m} {unit} [a|per] {t1}, how many {unit} has {S} [reached|done]?",
    ), 2.0),
    Kind(_rate_twice, (
        "{S} {does} {m} {unit} [a|per|every|each] {t1} for {k} {time} and then {n} {unit} [a|per|every|each] {t1} for {l} {time}. [How many {unit} is that[| in all| in total]?|What is the total?|How many {unit} does {S} {do}?]",
        "For {k} {time} {S} {does} {m} {unit} [a|per] {t1}, then for {l} {time} {n} {unit} [a|per] {t1}. How many {unit}[| in all]?",
    ), 1.0),
    Kind(_rate_parts, (
        "{S} {does} {m} {unit} [a|per|in one|every] {t1}. [First|In the morning|At first] {S} works {k} {time}, [then|in the afternoon|later] {l} [more|{time}]. How many {unit} [is that|are done] [in all|in total|altogether]?",
        "{S} {does} {m} {unit} [a|per|every] {t1}, {k} {time} [before noon|in the morning|before a break] and {l} {time} [after noon|in the evening|after it]. How many {unit} is that[| in all]?",
        "At {m} {unit} [a|per] {t1}, {S} goes on for {k} {time}, rests, and goes on for {l} {time}. How many {unit} [is that|has {S} done]?",
    ), 1.0),
    Kind(_rate_plus, (
        "{S} {does} {m} {unit} [a|per|every|each] {t1} for {k} {time} and then {n} {unit} more. How many {unit} is that[| in all| in total]?",
        "{S} [already has|has] {n} {unit} and {does} {m} {unit} [a|per|every|each] {t1}. How many {unit} [does {S} have|are there] after {k} {time}?",
        "{S} {does} {m} {unit} [a|per|every|each] {t1}. On the last {t1} {S} {does} {n} [{unit} ]extra. How many {unit} [is that|are there] after {k} {time}?",
    ), 1.0),
    Kind(_rate_rest, (
        "{S} has {a} {unit} and uses {m} [{unit} |of them ][a|per|every|each] {t1}. How many {unit} are left after {k} {time}?",
        "[A job|The goal|The plan] is {a} {unit}. {S} {does} {m} {unit} [a|per|every|each] {t1} for {k} {time}. How many [{unit} ][are left|remain|are still to do]?",
        "Of {a} {unit}, {m} are [used|taken|lost|gone] [every|each] {t1}. How many [{unit} ]are left after {k} {time}?",
    ), 1.0),
    Kind(_rate_rest, (
        "A [tank|barrel|pool|bucket|cistern] [holds|has|contains] {a} liters of [water|oil|milk|juice]. [Every|Each] {t1} {m} liters [run out|are used|flow out|leak out|are taken out]. How [much water|many liters] [is left|are left|remain] after {k} {time}?",
        "{a} liters of [water|oil|milk] are in a [tank|barrel|pool]. It loses {m} liters [a|per|every] {t1}. How many liters are [left|in it] after {k} {time}?",
    ), 1.0),
    Kind(_pieces, (
        "A [rope|ribbon|board|pipe|wire|string|cable|stick] is {a} {unit} long. {S} cuts off {k} pieces of {m} {unit}[| each]. How [long is the rest|many {unit} are left|much is left|long is what remains]?",
        "From a [rope|ribbon|board|roll of paper|wire] of {a} {unit}, {S} [cuts|takes] {k} pieces, each {m} {unit} long. How many {unit} [are left|remain]?",
        "{S} has {a} {unit} of [rope|cloth|wire|tape] and needs {m} {unit} for each of {k} [bags|boxes|gifts|shirts|dolls]. How many {unit} [are left|remain]?",
    ), 1.0),
    Kind(_flow, (
        "A [tank|barrel|pool|pot] [holds|has] {a} {unit} of [water|oil|milk]. {b} {unit} are [used|taken out|poured out] and {c} {unit} are [added|poured in|put in]. How many {unit} [are in it now|does it hold now|are there now]?",
        "{S} [has|had] {a} {unit} of [flour|sugar|rice|water|sand], uses {b} {unit} and [buys|gets] {c} {unit} [more|]. How many {unit} [are there|does {S} have] now?",
    ), 1.0),
    Kind(_used_twice, (
        "A [book|path|race|trip|road|job|lesson] has {a} {unit}. {S} [does|finishes|covers|completes] {b} [{unit} ][on Monday|in the morning|first] and {c} [{unit} ][on Tuesday|in the afternoon|then|later]. How many {unit} [are left|remain|are still to go|does {S} still have to do]?",
        "{S} has {a} {unit} to go. {S} has done {b} [before lunch|today|so far] and {c} [after lunch|tomorrow|more]. How many [{unit} ]are left?",
        "{S} needs {a} {unit}. {S} [has|gets] {b} [at first|from {O}] and {c} [later|more]. How many [{unit} ]are [missing|still needed]?",
        "A [shop|store|farm] has {a} {it}. It sells {b} on {d1} and {c} on {d2}. How many {it} [are left|does it still have]?",
        "A [book|album|pad|calendar] has {a} pages. {S} [reads|uses|fills|removes] {b} pages on {d1} and {c} on {d2}. How many pages are [left|still there]?",
    ), 1.5),
    Kind(_hourly, (
        "{S} works {h} hours a day for {d} days and earns {p} dollars [an|per] hour. How [much|many dollars] does {S} earn?",
        "{S} [earns|makes|gets] {p} dollars an hour and works {h} hours [a|each|every] day. How much [does {S} earn|is that] in {d} days?",
    ), 1.0),
    Kind(_share, (
        "{S} shares {a} {it} [equally|evenly|fairly] among {d} [friends|children|people|players]. How many[| {it}] does each [get|one get|of them get|child get]?",
        "{a} {it} are [divided|split|shared] [equally|evenly|fairly|] [among|between] {d} [children|friends|players|people|teams]. How many does each [get|one get]?",
        "{d} [friends|children|people|cousins|brothers] share {a} {it}[| equally| fairly]. [How many {it} does each get?|What does each of them get?|What is the share of each?]",
        "{S} puts {a} {it} into {d} [equal|] {box}[ with the same number in each|, the same number in each|]. How many are in each[| {b1}]?",
        "There are {a} {it} for {d} [children|guests|tables]. How many [{it} ]is that for each?",
        "{S} [cuts|divides|splits] {a} {it} into {d} equal parts. How [big|large] is each part?",
    ), 2.0),
    Kind(_share_boxes, (
        "There are {k} {box} with {m} {it} each. {d} [children|friends] share all [the {it}|of them] equally. How many does each get?",
        "{S} has {k} {box} of {m} {it} and [divides|shares] them among {d} [friends|children]. How many[| {it}] does each get?",
    ), 1.0),
    Kind(_packs, (
        "{S} puts {a} {it} into {box}, {d} in each[| {b1}]. How many {box} [are needed|does {S} need|are there|is that]?",
        "{a} {it} are packed in {box} of {d}. How many {box} [are there|is that|are filled|are needed]?",
        "[A|One|Each] {b1} holds {d} {it}. How many {box} [does {S} need|are needed] for {a} {it}?",
        "{S} [makes|fills|packs|ties] {box} of {d} {it} each. {S} has {a} {it}. How many {box} [can {S} make|does {S} get|are there|come out]?",
        "{S} has {a} {it} and puts {d} in every {b1}. How many {box} does {S} [fill|get|need]?",
        "With {a} {it}, how many {box} of {d} can {S} [make|fill|sell]?",
    ), 1.5),
    Kind(_compare, (
        "{S} has {a} {it} and {O} has {b}. How many more {it} does {S} have[| than {O}]?",
        "There are {a} {it} and {b} {jt}. How many more {it} than {jt} are there?",
        "{S} [sells|finds|makes|gets] {a} {it} and {O} {b}. What is the difference?",
        "How many more is {a} than {b}? {S} asks about {it}.",
        "The [red|first|old|big] [team|class|group] has {a} {it}, the [blue|second|new|small] one has {b}. [By how many {it} is the first ahead?|How many more does the first have?|How large is the difference?]",
        "{a} {it} are [for|in|on] one side and {b} [against|in the other|on the other]. By how many {it} is the first side ahead?",
    ), 1.5),
    Kind(_more_total, (
        "{S} has {a} {it}. {O} has {d} more[| than {S}| {it} than {S}]. How many {it} do they have [together|in all|in total]?",
        "{S} [finds|makes|buys|sells] {a} {it}, and {O} {d} more than that. How many [{it} ]is that [together|in all]?",
    ), 1.0),
    Kind(_more, (
        "{S} has {a} {it}. {O} has {d} more[| than {S}]. How many[| {it}] does {O2} have?",
        "There are {a} {it} and {d} more {jt} than {it}. How many {jt} are there?",
    ), 0.7),
    Kind(_fewer_total, (
        "{S} has {a} {it}. {O} has {d} [fewer|less][| than {S}| {it} than {S}]. How many {it} do they have [together|in all|in total]?",
        "{S} [finds|catches|makes|buys|sells] {a} {it}, which is {d} more than {O}. How many {it} [do they have|is that] [together|in all|in total]?",
        "{S} has {a} {it}, {d} more than {O}. How many {it} do [they|both|the two] have [together|in all]?",
    ), 1.2),
    Kind(_fewer, (
        "{S} has {a} {it}. {O} has {d} [fewer|less][| than {S}]. How many does {O2} have?",
        "{S} has {a} {it}, {d} more than {O}. How many does {O2} have?",
    ), 0.7),
    Kind(_times, (
        "{S} has {a} {it}. {O} has {times} as many[| {it}]. How many does {O2} have?",
        "{O} has {times} as many {it} as {S}. {S} has {a}. How many does {O2} have?",
        "A {b1} holds {a} {it}. A [bigger|larger] one holds {times} as many. How many is that?",
    ), 1.0),
    Kind(_times_total, (
        "{S} has {a} {it}. {O} has {times} as many[| {it}]. How many {it} do they have [together|in all|in total]?",
        "{S} [makes|finds|sells|scores|gets] {a} {it} and {O} {times} as many. How many [{it} ]is that [together|in all|in total]?",
        "One [team|class|shop|day] has {a} {it}, another {times} as many. [What is the sum?|How many are there in all?|How many {it} do both have?]",
    ), 1.0),
    Kind(_part, (
        "{S} has {a} {it} and [gives away|sells|uses] {part} of them. How many {it} is that?",
        "What is {part} of {a} {it}?",
        "{Part} of {a} {it} are [red|old|sold|broken]. How many is that?",
    ), 1.0),
    Kind(_part_left, (
        "{S} has {a} {it} and [gives away|sells|uses|eats|loses] {part} of [them|the {it}]. How many [are left|{it} are left|does {S} have left]?",
        "A shop has {a} {it} and sells {part} of them. How many {it} are left?",
        "{Part} of {a} {it} are [sold|broken|gone|eaten]. How many [are left|remain]?",
    ), 1.5),
    Kind(_discount, (
        "[A|One] {i1} costs {a} dollars. Today {part} of the price is [off|cut|deducted]. How much do {k} {it} cost?",
        "{It} cost {a} dollars each, but {part} is [cut|off] [this week|in the sale]. {S} buys {k}[| of them| {it}]. How much does {S} [pay|spend]?",
        "The price of a {i1} is {a} dollars. In a sale it is {part} [cheaper|off|less]. What do {k} {it} cost[| now]?",
    ), 1.0),
    Kind(_area, (
        "A [garden|room|field|yard|hall|park|floor] is {a} m long and {b} m wide. What is its area?",
        "What is the area of a [garden|room|field|rectangle] of {a} m by {b} m?",
    ), 0.7),
    Kind(_perimeter, (
        "A [garden|room|field|yard|hall|park] is {a} m long and {b} m wide. What is its perimeter?",
        "{S} builds a fence around a [garden|field|yard] of {a} m by {b} m. How long is the fence?",
    ), 0.7),
    Kind(_older, (
        "{S} is {a} years old. {O} is {d} years older[| than {S}]. How old is {O2}?",
        "{S} is {a}[| years old| now]. How old [will {S} be|is {S}] in {d} years?",
    ), 0.8),
    Kind(_younger, (
        "{S} is {a} years old. {O} is {d} years younger[| than {S}]. How old is {O2}?",
        "{S} is {a}[| years old| now]. How old was {S} {d} years ago?",
    ), 0.8),
    Kind(_future, (
        "{S} is {a} years old. {O} is {d} years older[| than {S}]. How old will {O2} be in {y} years?",
    ), 0.7),
    Kind(_age_gap, (
        "{S} is {a} years old and {O} is {b}. How many years [older is {S}|are between them]?",
        "{S} was {b} years old when {O} was born. Now {S} is {a}. How old is {O2}[| now]?",
        "When {O} was born, {S} was {b}. {S} is {a} [now|today]. How old is {O2}?",
    ), 0.8),
    Kind(_age_times, (
        "{S} is {a} years old. {O} is {times} as old. How old is {O2}?",
    ), 0.5),
    Kind(_average, (
        "{S} [counts|gets|scores|reads] {xs} {unit} on {k} days. What is the average[| per day]?",
        "What is the average of {xs} {unit}?",
    ), 0.8),
    Kind(_sum, ("What is {a} + {b}?", "[Add|Sum up] {a} and {b}.", "{a} + {b} = ?", "What is the sum of {a} and {b}?", "[Compute|Calculate] {a} plus {b}.", "How much is {a} + {b}?"), 1.2),
    Kind(_minus, ("What is {a} - {b}?", "Subtract {b} from {a}.", "{a} - {b} = ?", "[Compute|Calculate] {a} minus {b}.", "What is the difference of {a} and {b}?", "How much is {a} - {b}?"), 1.2),
    Kind(_product, ("What is {a} x {b}?", "Multiply {a} by {b}.", "{a} x {b} = ?", "[Compute|Calculate] {a} times {b}.", "What is the product of {a} and {b}?", "How much is {a} * {b}?"), 1.2),
    Kind(_ratio, ("What is {a} / {b}?", "Divide {a} by {b}.", "{a} / {b} = ?", "[Compute|Calculate] {a} divided by {b}.", "How many times does {b} go into {a}?"), 1.0),
    Kind(_chain, ("What is {a} {s} {b} {t} {c}?", "[Compute|Calculate] {a} {s} {b} {t} {c}.", "{a} {s} {b} {t} {c} = ?"), 1.0),
    Kind(_bracket, ("[Compute|Calculate] ({a} {s} {b}) x {c}.", "What is ({a} {s} {b}) x {c}?"), 0.7),
    Kind(_first_times, ("[Compute|Calculate] {a} {s} {b} x {c}.", "What is {a} {s} {b} x {c}?"), 0.7),
    Kind(_equation, ("Solve x + {b} = {c}.", "What is x if x + {b} = {c}?", "Find x: {b} + x = {c}."), 0.6),
    Kind(_equation_minus, ("Solve x - {b} = {c}.", "What is x if x - {b} = {c}?"), 0.5),
    Kind(_equation_linear, ("Solve {a}x + {b} = {c}.", "What is x if {a}x + {b} = {c}?", "Find x: {a}x + {b} = {c}."), 0.7),
)  # fmt: skip

# What is done at a rate: verb, third person, what is counted
RATES = (
    ("read", "reads", "pages"), ("walk", "walks", "km"), ("run", "runs", "km"), ("drive", "drives", "km"),
    ("ride", "rides", "km"), ("swim", "swims", "laps"), ("save", "saves", "dollars"), ("earn", "earns", "dollars"),
    ("write", "writes", "pages"), ("make", "makes", ""), ("bake", "bakes", ""), ("sell", "sells", ""), ("pick", "picks", ""),
    ("pack", "packs", ""), ("fill", "fills", "bottles"), ("climb", "climbs", "steps"), ("solve", "solves", "puzzles"),
    ("collect", "collects", ""), ("do", "does", "push-ups"), ("travel", "travels", "km"), ("drink", "drinks", "glasses"),
    ("plant", "plants", "trees"), ("type", "types", "words"), ("practice", "practices", "minutes"), ("eat", "eats", ""),
    ("cover", "covers", "km"), ("finish", "finishes", "tasks"), ("paint", "paints", "walls"), ("use", "uses", "liters"),
)  # fmt: skip
TIMES = ("hours", "days", "weeks", "minutes", "months", "mornings", "evenings", "years", "trips", "rounds")
UNITS = (
    "liters",
    "km",
    "m",
    "cm",
    "kg",
    "pages",
    "minutes",
    "points",
    "steps",
    "bottles",
    "cups",
    "tasks",
    "miles",
    "meters",
)


MANY = {2: ("twice", "two times", "2 times"), 3: ("three times", "3 times"), 4: ("four times", "4 times")}


def _values(r: random.Random, kind: Kind, teller: Teller) -> dict[str, object]:
    """The things, units and people of one problem, by the names the wordings use."""
    other = r.choice(W.THINGS)
    do, does, unit = r.choice(RATES)
    time, box = r.choice(TIMES), r.choice(W.BOXES)
    values: dict[str, object] = {
        "it": teller.noun,
        "jt": other,
        "do": do,
        "does": does,
        "time": time,
        "box": box,
    }
    if kind.solve in (_pieces, _flow, _used_twice, _average):
        unit = r.choice(UNITS)
    if kind.solve is _rate_rest and "liters" in kind.texts[0]:
        unit = "liters"
    values |= {
        "unit": unit or teller.noun,
        "t1": W.singular(time),
        "b1": W.singular(box),
        "j1": W.singular(other),
    }
    return values | dict(zip(("d1", "d2"), r.sample(W.DAYS, 2), strict=True))


def problem(r: random.Random, kind: Kind, extra: dict[str, object] | None = None) -> Problem:
    """One problem of a kind; `extra` are more words for its wordings."""
    teller = Teller(r, somebody(r), W.thing(r), "present")
    other = r.choice(W.WOMEN + W.MEN)
    if teller.who.plural or other == teller.who.name:
        raise Refused
    values = _values(r, kind, teller) | (extra or {})
    text = r.choice(kind.texts).replace("{O}", other).replace("{O2}", other)
    if kind.solve is _used_twice:
        values["unit"] = "pages" if "pages" in text else teller.noun if "{it}" in text else values["unit"]
    work = Working()
    answer, unit = kind.solve(r, work, values)
    if "m" in values:
        m = int(str(values["m"]))
        values["times"] = r.choice(MANY.get(m, (f"{m} times",)))
    values["Part"] = str(values.get("part", "")).capitalize()
    teller.noun = str(values.pop("it"))
    values |= {"i1": W.singular(teller.noun), "It": teller.noun.capitalize()}
    if unit == "" or kind.solve is _average:  # bare arithmetic is written in digits
        values = {k: str(v) for k, v in values.items()}
    return work.problem(sentences(teller.say(text, **values)), answer, unit)


def measure(r: random.Random) -> Problem:
    """One problem of any of the kinds."""
    return problem(r, r.choices(KINDS, WEIGHTS)[0])


WEIGHTS = [kind.weight for kind in KINDS]
