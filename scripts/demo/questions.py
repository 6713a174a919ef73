"""The held-out questions the model is measured on, drawn from a seed of their own."""

import random
from dataclasses import dataclass

from . import corpus, joint, stories
from .corpus import Turn
from .grammar import until_good
from .wording import WORDINGS, new_wording

SEED = 20_000_101


@dataclass(frozen=True)
class Question:
    """A turn to be answered; `gold` is the number after `Answer:`, else the answer must match word for word."""

    group: str
    turn: Turn
    thinking: bool = False


def held_pairs(r: random.Random, count: int) -> list[Question]:
    """Word problems of trained kinds, each with a pair of operands never trained on."""
    kinds = [r.choice(("story", "story", "measure", "varied")) for _ in range(count)]
    return [Question("held-out pairs", corpus.solved(k, corpus.problem(r, k, held=True))) for k in kinds]


def wordings(r: random.Random, each: int) -> list[Question]:
    """Problems worded apart from everything in training."""
    out = []
    for i in range(len(WORDINGS) * each):
        text, answer = new_wording(r, i)
        out.append(Question("new wording", Turn("wording", text, "", gold=str(answer))))
    return out


def readme(r: random.Random, count: int) -> list[Question]:
    """The README's example with other names, things and numbers."""
    problems = [until_good(lambda: stories.short(r), lambda p: True) for _ in range(count)]
    return [Question("README shape", corpus.solved("short", p)) for p in problems]


def other(r: random.Random, kind: str, count: int) -> list[Question]:
    """Questions of another kind; their answers are fixed texts."""
    return [Question(kind, corpus.turns(r, kind)[0]) for _ in range(count)]


def questions(count: int, seed: int = SEED) -> list[Question]:
    """The whole measure; `count` is the number of held-out-pair problems."""
    r = random.Random(seed)
    out = held_pairs(r, count) + wordings(r, max(1, count // 25)) + readme(r, count // 2)
    fresh = [corpus.solved(k, corpus.problem(r, k)) for k in ("story", "measure") for _ in range(count // 4)]
    out += [Question("fresh numbers", turn) for turn in fresh]
    out += [Question("thinking", turn, thinking=True) for turn in fresh[: count // 8]]
    for kind in ("json", "code", "conversion", "list", "prose", "fact"):
        out += other(r, kind, max(1, count // 6))
    return out


def joints(count: int, seed: int = SEED) -> list[joint.Joint]:
    """Paragraphs never trained on, with joint questions."""
    r = random.Random(seed + 1)
    return [joint.joint(r, held=True) for _ in range(count)]
