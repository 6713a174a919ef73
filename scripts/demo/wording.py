"""Twenty problems in wording of their own, never trained on: the measure of what the demo model understands.

They were written before the training templates and share no sentence with them (a test holds that); the kinds of
problem are the same. Each is a question and a function from its numbers to the answer.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Wording:
    """A question with named numbers, how to draw them, and its answer."""

    text: str
    draw: Callable[[random.Random], Numbers]
    answer: Callable[[Numbers], int]


def _ranges(**bounds: tuple[int, int]) -> Callable[[random.Random], Numbers]:
    """Draw every number uniformly from its bounds."""
    return lambda r: {name: r.randint(low, high) for name, (low, high) in bounds.items()}


def _quotient(whole: str, part: str, parts: tuple[int, int], each: tuple[int, int]) -> Callable[..., Numbers]:
    """Draw a division without remainder."""

    def draw(r: random.Random) -> Numbers:
        k, m = r.randint(*parts), r.randint(*each)
        return {whole: k * m, part: k}

    return draw


WORDINGS = (
    Wording(
        "A library owns {a} novels. Over the winter {b} of them go missing, and in spring the city hands it {c} "
        "new ones. How large is the collection in the end?",
        _ranges(a=(100, 300), b=(5, 60), c=(5, 90)),
        lambda n: n["a"] - n["b"] + n["c"],
    ),
    Wording(
        "Every shelf in a pantry carries {m} jars, and the pantry has {k} shelves. The cook opens {n} jars for a "
        "feast. How many jars stay closed?",
        _ranges(m=(8, 30), k=(3, 9), n=(3, 20)),
        lambda n: n["m"] * n["k"] - n["n"],
    ),
    Wording(
        "Priya jogs {m} laps each morning. How many laps has she done once {k} mornings have passed, if she adds "
        "{n} laps on the last day?",
        _ranges(m=(3, 15), k=(3, 9), n=(2, 9)),
        lambda n: n["m"] * n["k"] + n["n"],
    ),
    Wording(
        "Two brothers go fishing. The elder one catches {a} trout, which is {d} more than the younger one. How "
        "many trout do the two bring home?",
        _ranges(a=(15, 60), d=(2, 12)),
        lambda n: 2 * n["a"] - n["d"],
    ),
    Wording(
        "A ticket to the aquarium is {p} dollars. A group of {k} pays with a {q} dollar voucher. How much of the "
        "voucher is unused?",
        _ranges(p=(6, 20), k=(3, 8), q=(180, 250)),
        lambda n: n["q"] - n["p"] * n["k"],
    ),
    Wording(
        "At dawn {a} birds sit on a wire. {b} fly off, and a little later {c} land next to the rest. How many "
        "birds are on the wire now?",
        _ranges(a=(20, 70), b=(3, 18), c=(3, 30)),
        lambda n: n["a"] - n["b"] + n["c"],
    ),
    Wording(
        "A gardener plants tulips in {k} lines, {m} in each line. Moles ruin {n} of the tulips. How many tulips "
        "bloom?",
        _ranges(k=(3, 9), m=(8, 30), n=(3, 20)),
        lambda n: n["k"] * n["m"] - n["n"],
    ),
    Wording(
        "Farah's notebook has {a} sheets. She tears out {b} on Monday and {c} on Tuesday. How many sheets does "
        "the notebook still have?",
        _ranges(a=(80, 200), b=(3, 30), c=(3, 30)),
        lambda n: n["a"] - n["b"] - n["c"],
    ),
    Wording(
        "A tank is filled with {a} liters of water. A pump drains {m} liters every minute. What is left in the "
        "tank after {k} minutes?",
        _ranges(a=(200, 400), m=(4, 20), k=(3, 9)),
        lambda n: n["a"] - n["m"] * n["k"],
    ),
    Wording(
        "{a} cherries are to be divided fairly between {k} cousins. What is each cousin's portion?",
        _quotient("a", "k", (3, 9), (6, 30)),
        lambda n: n["a"] // n["k"],
    ),
    Wording(
        "A baker ties rolls into bundles of {k}. With {a} rolls at hand, how many bundles come out?",
        _quotient("a", "k", (3, 9), (6, 30)),
        lambda n: n["a"] // n["k"],
    ),
    Wording(
        "Grandpa is {a} now. Nina was born when he was {b}. How old is Nina?",
        _ranges(a=(60, 90), b=(40, 58)),
        lambda n: n["a"] - n["b"],
    ),
    Wording(
        "The blue team scored {a} points and the green team {m} times that. What is the sum of both scores?",
        _ranges(a=(8, 40), m=(2, 5)),
        lambda n: n["a"] * (n["m"] + 1),
    ),
    Wording(
        "A cyclist covers {v} km in one hour and keeps that pace. He rides {h} hours before lunch and {g} hours "
        "after it. What distance is behind him at the end?",
        _ranges(v=(12, 30), h=(2, 4), g=(2, 4)),
        lambda n: n["v"] * (n["h"] + n["g"]),
    ),
    Wording(
        "A roll of ribbon measures {a} cm. Lena cuts {k} pieces, each {m} cm long. How much ribbon remains on "
        "the roll?",
        _ranges(a=(250, 500), k=(3, 8), m=(8, 25)),
        lambda n: n["a"] - n["k"] * n["m"],
    ),
    Wording(
        "There were {a} passengers when the ferry set off. At the island {b} stepped ashore and {c} climbed "
        "aboard. With how many passengers did it travel on?",
        _ranges(a=(60, 200), b=(5, 50), c=(5, 50)),
        lambda n: n["a"] - n["b"] + n["c"],
    ),
    Wording(
        "A poster costs {a} dollars, but today half of the price is taken off. Kofi buys {k} posters. How much "
        "does he spend?",
        lambda r: {"a": 2 * r.randint(4, 20), "k": r.randint(2, 9)},
        lambda n: n["a"] // 2 * n["k"],
    ),
    Wording(
        "Jars of honey come in cartons that hold {m}. A shop orders {k} cartons and already had {n} jars on the "
        "shelf. How many jars can it offer?",
        _ranges(m=(6, 24), k=(3, 9), n=(3, 30)),
        lambda n: n["m"] * n["k"] + n["n"],
    ),
    Wording(
        "In a vote, {a} people were for the plan and {b} against it. By how many votes did the plan win?",
        _ranges(a=(60, 200), b=(10, 59)),
        lambda n: n["a"] - n["b"],
    ),
    Wording(
        "To reach the summit Ines must climb {a} steps. So far she has done {b} in the morning and {c} after "
        "lunch. How many steps are ahead of her?",
        _ranges(a=(300, 600), b=(40, 130), c=(40, 130)),
        lambda n: n["a"] - n["b"] - n["c"],
    ),
)


def new_wording(r: random.Random, index: int) -> tuple[str, int]:
    """The question and answer of wording `index`, with numbers drawn from r."""
    wording = WORDINGS[index % len(WORDINGS)]
    numbers = wording.draw(r)
    return wording.text.format(**numbers), wording.answer(numbers)
