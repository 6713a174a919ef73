"""How well drafts with fewer experts are accepted, on a real model's own answers, and what they cost here.

    python scripts/draft_settings.py [--model demo] [--problems 24] [--width 16] [--costs 35b.json]

Every setting drafts and verifies always, so the text is the same and only the rounds differ. A setting is worth its
tokens a round over the time of draft, verification and commit, in plain steps. `--costs` takes that time from a
table made with `clover bench speed --costs -o json` on another model, for what acceptance here would be worth there.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clover_local.api import Model, load
from clover_local.bench import options, render, tasks
from clover_local.bench.figures import total
from clover_local.decoding.events import Done, Stats
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Mode, Settings
from clover_local.model.draft import DraftSettings

ANSWER = 200  # tokens of an answer at most


@dataclass(frozen=True)
class Variant:
    """One way to draft. `resident`: only so many experts a layer, those that the prompt uses most."""

    name: str
    drafts: DraftSettings
    resident: int | None = None


def variants(model: Model) -> list[Variant]:
    """The model's own drafts, then ever cheaper ones."""
    used, experts = model.spec.experts_used, model.spec.experts
    found = [Variant("the model's own", DraftSettings())]
    budgets = sorted({max(used, experts // n) for n in (8, 4, 2)} | {experts * 3 // 4, experts})
    found += [Variant(f"budget {b}", DraftSettings(None, b)) for b in budgets]
    for few in sorted({max(1, used // 2), 1}):
        found.append(Variant(f"{few} experts a row", DraftSettings(few)))
        found += [Variant(f"{few} a row, budget {b}", DraftSettings(few, b)) for b in budgets if b < experts]
    return found + [Variant(f"{b} most used", DraftSettings(), b) for b in budgets if b < experts]


def most_used(model: Model, prompt: Sequence[int], count: int) -> np.ndarray:
    """Bool [layers, experts]: the experts that a prompt's tokens are sent to most often."""
    spec, engine = model.spec, model.engine
    usage = np.zeros((spec.layers, spec.experts))
    engine.reset()
    engine.begin_response(None)
    for start in range(0, len(prompt), 32):
        piece = prompt[start : start + 32]
        for layer, routed in enumerate(engine.routing(piece)):
            usage[layer] += np.bincount(routed.ravel(), minlength=spec.experts)
        engine.prefill(piece)
    order = np.argsort(-usage, axis=1, kind="stable")
    mask = np.zeros(usage.shape, bool)
    np.put_along_axis(mask, order[:, :count], True, axis=1)
    return mask


def answer(model: Model, prompts: Sequence[Sequence[int]], mode: Mode, width: int, variant: Variant) -> Stats:
    """Write every answer; returns their figures together."""
    settings = Settings(mode=mode, policy="always", draft_max=width, max_tokens=ANSWER)
    model.engine.drafts, stats = variant.drafts, []
    for prompt in prompts:
        resident = None if variant.resident is None else most_used(model, prompt, variant.resident)
        model.engine.restrict_drafts(resident)
        model.engine.reset()
        *_, done = generate(model.engine, prompt, settings)
        assert isinstance(done, Done)
        stats.append(done.stats)
    model.engine.restrict_drafts(None)
    return total(stats)


def milliseconds(stats: Stats, kind: str) -> float:
    """The mean time of a kind of pass."""
    return 1e3 * stats.pass_seconds.get(kind, 0.0) / max(stats.passes.get(kind, 0), 1)  # type: ignore[call-overload]


def elsewhere(path: Path, width: int) -> dict[str, float]:
    """Milliseconds of plain, draft, verify and commit of `width` rows from a cost table."""
    rows = json.loads(path.read_text())["passes"]
    found = {
        row["kind"]: row["ms"] for row in rows if row["rows"] == (1 if row["kind"] == "plain" else width)
    }
    return {kind: found[kind] for kind in ("plain", "draft", "verify", "commit")}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--costs", type=Path)
    args = parser.parse_args()
    with load(args.model, ctx=2048, threads=args.threads, device=args.device) as model:
        problems = tasks.select(tasks.demo(), sample=1, limit=args.problems).problems
        prompts = [model.tokenizer.encode(options.render(model, one, None)) for one in problems]
        own = Variant("", DraftSettings())
        plain = milliseconds(answer(model, prompts, "plain", args.width, own), "plain")
        other = elsewhere(args.costs, args.width) if args.costs else None
        lines = []
        for variant in variants(model):
            stats = answer(model, prompts, "self", args.width, variant)
            spent = [milliseconds(stats, kind) for kind in ("draft", "verify", "commit")]
            tokens = stats.tokens_per_round
            there = tokens * other["plain"] / (sum(other.values()) - other["plain"]) if other else None
            line = (tokens, spent[0], spent[0] / plain, tokens * plain / sum(spent), there)
            lines.append([variant.name, *(render.number(value, 2) for value in line)])
    head = ["drafts", "tokens/round", "draft, ms", "plain steps", "× plain here", "× plain there"]
    print(f"{len(prompts)} problems, width {args.width}, a plain step {plain:.2f} ms\n")
    print(render.table(head, lines))


if __name__ == "__main__":
    main()
