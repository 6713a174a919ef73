"""`clover plan`: what of a model goes where on a card of a given size, before anything is loaded."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from clover_local.commands import options

if TYPE_CHECKING:
    from clover_local.runtime.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover plan`."""
    parser.add_argument("model", help="a GGUF file, `demo`, or a hub id owner/name[:QUANT]")
    options.add_engine_options(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def main(args: argparse.Namespace) -> int:
    """Print where each class of bytes would lie."""
    from clover_local.ggml.backend import choose_device
    from clover_local.ggml.gguf import GgufFile
    from clover_local.model.spec import Spec
    from clover_local.names import resolve
    from clover_local.runtime.engine import context_size
    from clover_local.runtime.fitting import RESERVE
    from clover_local.runtime.plan import parse_size, plan, sizes_of

    file = GgufFile.open(resolve(args.model, offline=args.offline))
    spec = Spec.from_gguf(file)
    n_ctx = context_size(spec, args.ctx_size)
    device = choose_device(args.device)
    budget = parse_size(args.vram) if args.vram else device.free - RESERVE if device.is_gpu else None
    sizes = sizes_of(file, spec, n_ctx, (args.cache_type_k, args.cache_type_v))
    if budget is None:
        whole = sum(sizes.fixed.values()) + sum(sizes.experts)
        budget = whole + (1 << 30)  # no card and no --vram: everything in the computer's memory
        placed = plan(sizes, budget, n_ctx, host_layers=0, context=0)
    else:
        placed = plan(sizes, budget, n_ctx, host_layers=args.n_cpu_moe)
    on_card = bool(args.vram) or device.is_gpu
    print(json.dumps(as_dict(placed, on_card)) if args.json else text(placed, spec.name, on_card))
    return 0


def as_dict(placed: "Plan", on_card: bool) -> dict[str, Any]:
    """The plan as plain values; sizes in bytes."""
    parts = {part.name: {"card": part.card, "host": part.host} for part in placed.parts}
    if not on_card:
        parts = {part.name: {"card": 0, "host": part.card + part.host} for part in placed.parts}
    return {
        "context": placed.n_ctx,
        "budget": placed.budget if on_card else None,
        "card": placed.card if on_card else 0,
        "host": placed.host if on_card else placed.card + placed.host,
        "layers_with_experts_on_the_cpu": len(placed.host_layers),
        "parts": parts,
    }


def text(placed: "Plan", name: str, on_card: bool) -> str:
    """The plan as a table."""
    facts = as_dict(placed, on_card)
    gib = 1 << 30
    lines = [f"{name}, {placed.n_ctx:,} tokens of context", "", f"{'':32}{'card':>10}{'computer':>10}   GiB"]
    for part, where in facts["parts"].items():
        if where["card"] or where["host"]:
            lines.append(f"{part:32}{where['card'] / gib:10.2f}{where['host'] / gib:10.2f}")
    lines.append(f"{'together':32}{facts['card'] / gib:10.2f}{facts['host'] / gib:10.2f}")
    if not on_card:
        lines += ["", "No GPU was found and no --vram given: everything lies in the computer's memory."]
    elif placed.host_layers:
        n = len(placed.host_layers)
        lines += [
            "",
            f"The card holds {placed.budget / gib:.1f} GiB: the experts of {n} layers stay with the CPU.",
            "A smaller context (-c), a q8_0 cache (--cache-type-k, --cache-type-v) or a smaller file keeps more there.",
        ]
    else:
        lines += ["", f"All of it fits into {placed.budget / gib:.1f} GiB."]
    return "\n".join(lines)
