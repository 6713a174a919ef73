"""Measure the shipped demo model with the product's own engine, on the CPU: python scripts/eval_demo.py -n 40

Prints right answers of plain and denoise, tokens a round of width 16 for exact and release acceptance by category,
acceptance by position, and joint answers per slot. Self with exact acceptance must give plain's text; the last line
counts where it does not.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from demo import corpus  # noqa: E402
from demo.grading import is_right  # noqa: E402
from demo.joint import Joint  # noqa: E402
from demo.questions import Question, joints, other, questions  # noqa: E402

from clover_local.api import Model, load  # noqa: E402
from clover_local.decoding.events import Done, Stats, Tokens  # noqa: E402
from clover_local.decoding.settings import Settings  # noqa: E402

WIDTH = 16
RUNS = {
    "plain": Settings(mode="plain", max_tokens=256),
    "exact": Settings(mode="self", policy="always", draft_max=WIDTH, max_tokens=256),
    "release": Settings(mode="self", accept="release", policy="always", draft_max=WIDTH, max_tokens=256),
    "denoise": Settings(mode="denoise", max_tokens=256),
}


@dataclass
class Tally:
    """What one way of decoding gave on one category."""

    right: int = 0
    asked: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: list[int] = field(default_factory=lambda: [0] * (WIDTH - 1))
    accepted: list[int] = field(default_factory=lambda: [0] * (WIDTH - 1))

    def add(self, right: bool, stats: Stats) -> None:
        self.right += right
        self.asked += 1
        self.tokens += stats.tokens
        self.rounds += stats.rounds
        for kept, counts in ((self.drafted, stats.drafted), (self.accepted, stats.accepted)):
            for i, n in enumerate(counts[: WIDTH - 1]):
                kept[i] += n


def answer(model: Model, question: Question, settings: Settings) -> tuple[str, Stats]:
    """The text after any reasoning, and the figures."""
    text, stats = "", Stats()
    messages = [{"role": "user", "content": question.turn.question}]
    for event in model.generate(messages, settings, thinking=question.thinking):
        if isinstance(event, Tokens):
            text += event.text
        elif isinstance(event, Done):
            stats = event.stats
    return text.split("</think>")[-1].strip(), stats


def chosen(n: int) -> Iterator[Question]:
    """`n` questions of every category, in a fixed order."""
    seen: dict[str, int] = {}
    for q in (
        *questions(max(n, 25)),
        *other(random.Random(9), "json", n),
        *other(random.Random(9), "code", n),
    ):
        if seen.setdefault(q.group, 0) < n:
            seen[q.group] += 1
            yield q


def joint_slots(model: Model, asked: Sequence[Joint]) -> float:
    """Share of slots right when one preview answers all the questions of a paragraph."""
    right = total = 0
    mask = model.spec.mask_id
    assert mask is not None
    for j in asked:
        model.engine.reset()
        model.engine.begin_response(None)
        model.engine.prefill(model.prompt_ids([{"role": "user", "content": j.prompt}], thinking=False))
        pieces = [
            (model.tokenizer.encode(text), flags) for text, flags in corpus.answer_pieces(corpus.together(j))
        ]
        rows = [(i, bool(flags & corpus.SLOT)) for ids, flags in pieces for i in ids]
        block = [mask if slot else token for token, slot in rows][:32]
        guesses = model.engine.preview(block).ids
        for (token, slot), guess in zip(rows, guesses, strict=False):
            right += slot and token == guess
            total += slot
    return right / total


def report(tallies: dict[tuple[str, str], Tally], different: int, slots: float) -> str:
    """A markdown table."""
    groups = list(dict.fromkeys(group for group, _ in tallies))
    heads = (
        "category",
        "n",
        "plain right",
        "denoise right",
        "tokens a round, exact",
        "release",
        "tokens a block",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for g in groups:
        t = {run: tallies[g, run] for run in RUNS}
        free = g == "prose"  # stories: any will do
        share = [
            "–" if free else f"{100 * t[run].right / t[run].asked:.1f} %" for run in ("plain", "denoise")
        ]
        speed = [f"{t[run].tokens / max(1, t[run].rounds):.1f}" for run in ("exact", "release", "denoise")]
        lines.append(f"| {g} | {t['plain'].asked} | {' | '.join(share + speed)} |")
    places = " | ".join(str(i) for i in range(1, WIDTH))
    lines += ["", f"| acceptance by position | {places} |", "|---" * WIDTH + "|"]
    for g in groups:
        t_exact = tallies[g, "exact"]
        shares = [
            f"{a / d:.2f}" if d else "–" for a, d in zip(t_exact.accepted, t_exact.drafted, strict=True)
        ]
        lines.append(f"| {g} | {' | '.join(shares)} |")
    lines += [
        "",
        f"joint answers per slot: {100 * slots:.1f} %",
        f"texts where exact differs from plain: {different}",
    ]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the shipped demo model.")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-n", type=int, default=40, help="questions of every category")
    parser.add_argument("--threads", type=int, default=1, help="more wait for each other on a busy machine")
    args = parser.parse_args()
    tallies: dict[tuple[str, str], Tally] = {}
    different = 0
    with load(args.model, device="cpu", threads=args.threads) as model:
        for q in chosen(args.n):
            texts = {}
            for run, settings in RUNS.items():
                text, stats = answer(model, q, settings)
                texts[run] = text
                tallies.setdefault((q.group, run), Tally()).add(is_right(q, text), stats)
            different += texts["plain"] != texts["exact"]
        slots = joint_slots(model, joints(4 * args.n))
    print(report(tallies, different, slots))
    return 0


if __name__ == "__main__":
    sys.exit(main())
