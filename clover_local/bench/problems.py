"""The demo model's held-out word problems: none has been trained on, each kind has its category.

`held-out pairs` are worded like the training data but need a pair of operands that training left out; `new wording`
was written apart from it. The problems lie in clover_local/data/problems.json, which scripts/make_problems.py draws
from a seed; the generator itself is no part of the package.
"""

import json
import random
from dataclasses import dataclass
from functools import cache
from importlib import resources

from clover_local.errors import UsageError


@dataclass(frozen=True)
class HeldOut:
    """One question, the number that answers it, and its category."""

    prompt: str
    answer: int
    category: str


@cache
def everything() -> tuple[HeldOut, ...]:
    """Every problem of the package, in the order of the file."""
    text = resources.files("clover_local.data").joinpath("problems.json").read_text("utf-8")
    return tuple(HeldOut(*row) for row in json.loads(text))


def held_out(seed: int, count: int) -> tuple[HeldOut, ...]:
    """`count` different problems in an order drawn from `seed`; the same every time and everywhere."""
    problems = everything()
    if not 1 <= count <= len(problems):
        raise UsageError(
            f"there are {len(problems)} demo problems; ask for 1 to {len(problems)}, not {count}"
        )
    return tuple(random.Random(seed).sample(problems, count))
