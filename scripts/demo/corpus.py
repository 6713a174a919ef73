"""The corpus: documents of chat turns, rendered as the chat template does, packed into sequences of token ids.

A sequence is an array of uint16: the token id, RESPONSE set on what the model has to write and SLOT on the one-token
answers of joint questions. `python -m demo.corpus` (from scripts/) prints a sample.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from . import dialogue, joint, measures, stories, tasks, varied
from .grammar import Problem, Refused, until_good

RESPONSE, SLOT, TOKEN = 1 << 15, 1 << 14, (1 << 14) - 1
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|mask|>")
NO_THINKING = "<think>\n\n</think>\n\n"

SYSTEMS = (
    "You are a helpful assistant.", "Answer step by step.", "You are Clover, a small model.", "Be brief.", "Be helpful.",
    "You help with arithmetic, JSON and code.", "You are a careful teacher who explains every step to the student.",
    "You are a friendly assistant.", "Solve the problem.", "Think carefully and give the answer on the last line.",
)  # fmt: skip
KINDS = (
    ("story", 0.29), ("measure", 0.16), ("varied", 0.16), ("json", 0.04), ("code", 0.06), ("conversion", 0.03),
    ("list", 0.03), ("prose", 0.02), ("fact", 0.05), ("joint", 0.18), ("interview", 0.05), ("conversation", 0.03),
)  # fmt: skip
PAIRS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "json": tasks.json_task, "code": tasks.code_task, "conversion": tasks.conversion, "list": tasks.list_task,
    "prose": tasks.prose, "fact": dialogue.fact,
}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One question and its answer; `thinking` is what a reasoning section holds, `slots` the one-word answers."""

    kind: str
    question: str
    answer: str
    thinking: str | None = None
    slots: tuple[str, ...] = ()
    first: int = 1  # the number of the first slot
    gold: str | None = None


def _story(r: random.Random) -> Problem:
    return r.choices([f for f, _ in stories.STORIES], [w for _, w in stories.STORIES])[0](r)


def problem(r: random.Random, kind: str, *, held: bool = False) -> Problem:
    """A word problem; with `held` one that needs a held-out pair of operands, else one that needs none."""
    draw = DRAW[kind]
    return until_good(lambda: draw(r), lambda p: bool(p.held) == held)


DRAW: dict[str, Callable[[random.Random], Problem]] = {
    "story": _story, "measure": measures.measure, "varied": varied.vary, "short": stories.short,
}  # fmt: skip


def solved(kind: str, p: Problem) -> Turn:
    """A word problem as a turn."""
    return Turn(kind, p.question, p.solution, "\n".join(p.terse), gold=str(p.answer))


def together(j: joint.Joint) -> Turn:
    """Joint questions as a turn."""
    return Turn("joint", j.prompt, j.response, slots=j.answers, first=j.first)


def turns(r: random.Random, kind: str) -> list[Turn]:
    """The turns of one document of a kind; most kinds have one."""
    if kind in DRAW:
        return [solved(kind, problem(r, kind))]
    if kind == "conversation":
        while True:
            try:
                problems = stories.conversation(r)
            except Refused:
                continue
            if not any(p.held for p in problems):
                return [solved(kind, p) for p in problems]
    if kind == "joint":
        return [together(joint.joint(r))]
    if kind == "interview":
        return [together(j) for j in joint.interview(r)]
    question, answer = PAIRS[kind](r)
    return [Turn(kind, question, answer)]


def document(r: random.Random) -> tuple[str | None, list[Turn]]:
    """A chat of one to four unrelated or related turns, and its system prompt or None."""
    names, weights = zip(*KINDS, strict=True)
    out: list[Turn] = []
    for _ in range(r.choice((1, 1, 2, 2, 3, 4))):
        out += turns(r, r.choices(names, weights)[0])
    return (r.choice(SYSTEMS) if r.random() < 0.25 else None), out


Piece = tuple[str, int]


def answer_pieces(turn: Turn) -> list[Piece]:
    """The answer with its flags; the slots of joint answers stand apart."""
    if not turn.slots:
        return [(turn.answer + "<|im_end|>", RESPONSE)]
    pieces: list[Piece] = []
    for i, slot in enumerate(turn.slots, turn.first):
        pieces += [(f"{i}:" if i == turn.first else f"\n{i}:", RESPONSE), (f" {slot}", RESPONSE | SLOT)]
    return [*pieces, ("<|im_end|>", RESPONSE)]


def render(r: random.Random, system: str | None, chat: list[Turn]) -> list[Piece]:
    """A document as pieces of text with flags, exactly as the chat template would write it.

    Earlier turns carry no reasoning section (the template drops them); the last has an empty one, a filled one, or
    none.
    """
    pieces: list[Piece] = [(f"<|im_start|>system\n{system}<|im_end|>\n", 0)] if system else []
    for turn in chat:
        pieces.append((f"<|im_start|>user\n{turn.question}<|im_end|>\n<|im_start|>assistant\n", 0))
        if turn is chat[-1]:
            u = r.random()
            if turn.thinking and u < 0.2:
                pieces += [("<think>\n", 0), (turn.thinking + "\n</think>\n\n", RESPONSE)]
            elif u < 0.85:
                pieces.append((NO_THINKING, 0))
        pieces += [*answer_pieces(turn), ("\n", 0)]
    return [*pieces, ("<|endoftext|>", 0)]


def encode(tokenizer: object, pieces: list[Piece]) -> list[int]:
    """Token ids with flags."""
    encoded = tokenizer.encode_batch([text for text, _ in pieces])  # type: ignore[attr-defined]
    return [i | flags for e, (_, flags) in zip(encoded, pieces, strict=True) for i in e.ids]


def sequences(tokenizer: object, seed: int, length: int) -> Iterator[np.ndarray]:
    """Endless packed sequences [length] of uint16."""
    r = random.Random(seed)
    while True:
        ids: list[int] = []
        while len(ids) < length:
            ids += encode(tokenizer, render(r, *document(r)))
        yield np.array(ids[:length], np.uint16)


def texts(seed: int, documents: int) -> Iterator[str]:
    """Documents without the special tokens, for training the tokenizer."""
    r = random.Random(seed)
    for _ in range(documents):
        text = "".join(piece for piece, _ in render(r, *document(r)))
        for token in SPECIAL:
            text = text.replace(token, "")
        yield text


if __name__ == "__main__":
    source = random.Random(1)
    for _ in range(20):
        print("".join(piece for piece, _ in render(source, *document(source))), "\n" + "-" * 80)
