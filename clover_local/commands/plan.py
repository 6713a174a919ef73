"""`clover plan`: what of a model goes where on a card of a given size, before anything is loaded."""

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clover_local.commands import options

if TYPE_CHECKING:
    from clover_local.ggml.gguf import GgufFile
    from clover_local.model.spec import Spec
    from clover_local.runtime.expect import Card, Expectation
    from clover_local.runtime.plan import Machine, Plan, Sizes

GIB = 1 << 30
OTHER_RECIPES = ("int4", "fit16")
SMALLER_CONTEXT = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover plan`."""
    parser.add_argument("model", help="a GGUF file, `demo`, or a hub id owner/name[:QUANT]")
    options.add_engine_options(parser.add_argument)
    parser.add_argument(
        "--memory-bandwidth", type=float, metavar="GB/S", help="of the card, for the speeds expected"
    )
    parser.add_argument(
        "--link-bandwidth", type=float, metavar="GB/S", help="between computer and card (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


@dataclass(frozen=True)
class Case:
    """One way to run the model: its plan, and what its speeds would be by the share of picks on the card."""

    name: str
    sizes: "Sizes"
    plan: "Plan"
    note: str | None
    speeds: "dict[float, Expectation]"


def main(args: argparse.Namespace) -> int:
    """Print where each class of bytes would lie."""
    from clover_local.ggml.backend import choose_device
    from clover_local.ggml.gguf import GgufFile
    from clover_local.model.spec import Spec
    from clover_local.names import resolve
    from clover_local.runtime.fitting import RESERVE
    from clover_local.runtime.memory import free_ram
    from clover_local.runtime.plan import DESKTOP, Machine, parse_size

    file = GgufFile.open(resolve(args.model, offline=args.offline))
    spec, device = Spec.from_gguf(file), choose_device(args.device)
    if not args.vram and not device.is_gpu:
        return _without_card(args, file, spec)
    room = parse_size(args.vram) - DESKTOP if args.vram else device.free - RESERVE
    machine, card = Machine(room, free_ram()), _card(args)
    here = _case("this plan", args, file, spec, machine, card)
    others = _others(here, args, file, spec, machine, card)
    free = device.free if device.is_gpu else None
    print(
        json.dumps(as_dict(here, others, spec, free)) if args.json else text(here, others, spec, card, free)
    )
    return 0


def _without_card(args: argparse.Namespace, file: "GgufFile", spec: "Spec") -> int:
    from clover_local.runtime.engine import context_size
    from clover_local.runtime.kernels import NO_CUDA, unused_card
    from clover_local.runtime.plan import plan, sizes_of

    n_ctx = context_size(spec, args.ctx_size)
    sizes = sizes_of(file, spec, n_ctx, (args.cache_type_k, args.cache_type_v))
    whole = sum(sizes.fixed.values()) + sum(sizes.experts)
    placed = plan(sizes, whole + GIB, n_ctx, host_layers=0, context=0)
    if args.json:
        print(json.dumps(_host_only(placed)))
        return 0
    why = (
        NO_CUDA
        if unused_card()
        else "no GPU was found and no --vram given: everything lies in the computer's memory"
    )
    print("\n".join([f"{spec.name}, {n_ctx:,} tokens of context", "", *_table(_host_only(placed)), "", why]))
    return 0


def _host_only(placed: "Plan") -> dict[str, Any]:
    parts = {part.name: {"card": 0, "host": part.card + part.host} for part in placed.parts}
    return {
        "context": placed.n_ctx,
        "budget": None,
        "card": 0,
        "host": placed.card + placed.host,
        "layers_with_experts_on_the_cpu": 0,
        "experts_on_the_card": None,
        "parts": parts,
    }


def _card(args: argparse.Namespace) -> "Card":
    from dataclasses import replace

    from clover_local.runtime.expect import RTX_5070_TI

    card = RTX_5070_TI
    if args.memory_bandwidth or args.link_bandwidth:
        memory = 1e9 * args.memory_bandwidth if args.memory_bandwidth else card.memory
        link = 1e9 * args.link_bandwidth if args.link_bandwidth else card.link
        card = replace(card, name="your figures", memory=memory, link=link)
    return card


def _case(
    name: str,
    args: argparse.Namespace,
    file: "GgufFile",
    spec: "Spec",
    machine: "Machine",
    card: "Card",
    *,
    n_ctx: int | None = None,
    recipe: str | None = None,
    cache: tuple[str, str] | None = None,
) -> Case:
    from clover_local.model.weights import check
    from clover_local.runtime.cuda.network import unsupported
    from clover_local.runtime.engine import context_size
    from clover_local.runtime.expect import SHARES, expect
    from clover_local.runtime.plan import decide, sizes_from

    infos = check(file, spec) if recipe is None else _as_recipe(file, spec, recipe)
    kinds = cache or (args.cache_type_k, args.cache_type_v)
    types = {tensor: info.type.name for tensor, info in infos.items()}
    ours = unsupported(spec, types, ", ".join(sorted(set(kinds)))) is None
    n_ctx = context_size(spec, n_ctx or args.ctx_size)
    sizes = sizes_from(infos, spec, n_ctx, kinds, own_kernels=ours)
    layers = args.n_cpu_moe if recipe is None else None
    placed, note = decide(sizes, machine, n_ctx, host_layers=layers)
    on_card = placed.on_card(spec.experts)
    shares = (on_card, *(share for share in SHARES if share > on_card)) if placed.slots else (1.0,)
    speeds = {share: expect(spec, sizes, placed, card, share) for share in shares}
    return Case(name, sizes, placed, note, {share: one for share, one in speeds.items() if one is not None})


def _as_recipe(file: "GgufFile", spec: "Spec", name: str) -> dict[str, Any]:
    """The tensors as another recipe would store them."""
    from dataclasses import replace
    from math import prod

    from clover_local.ggml.types import tensor_type
    from clover_local.model.weights import check
    from clover_local.quant.recipes import choose, recipe

    made, found = recipe(name, spec.layers), {}
    for tensor, info in check(file, spec).items():
        shape = info.shape[::-1]
        kind = tensor_type(choose(made, tensor, shape).type)
        size = prod(shape[:-1]) * kind.row_bytes(shape[-1])
        found[tensor] = replace(info, name=tensor, type=kind, nbytes=size)
    return found


def _others(
    here: Case, args: argparse.Namespace, file: "GgufFile", spec: "Spec", machine: "Machine", card: "Card"
) -> list[Case]:
    """What another context, cache or recipe would give; those that do not fit at all are left out."""
    from clover_local.errors import CloverError

    wishes: list[tuple[str, dict[str, Any]]] = [
        (f"-c {SMALLER_CONTEXT}", {"n_ctx": SMALLER_CONTEXT}),
        ("--cache-type-k q8_0 --cache-type-v q8_0", {"cache": ("q8_0", "q8_0")}),
        *((f"recipe {name}", {"recipe": name}) for name in OTHER_RECIPES),
    ]
    found = []
    for name, wish in wishes:
        try:
            case = _case(name, args, file, spec, machine, card, **wish)
        except CloverError:
            continue
        if case.sizes != here.sizes:
            found.append(case)
    return found


def as_dict(here: Case, others: list[Case], spec: "Spec", free: int | None) -> dict[str, Any]:
    """The plan as plain values; sizes in bytes, speeds in tokens a second by the share of picks on the card."""
    return {
        **_facts(here, spec),
        "free": free,
        "parts": {part.name: {"card": part.card, "host": part.host} for part in here.plan.parts},
        "alternatives": {one.name: _facts(one, spec) for one in others},
    }


def _facts(case: Case, spec: "Spec") -> dict[str, Any]:
    placed = case.plan
    return {
        "context": placed.n_ctx,
        "budget": placed.budget,
        "card": placed.card,
        "host": placed.host,
        "layers_with_experts_on_the_cpu": len(placed.host_layers),
        "experts_on_the_card": round(placed.on_card(spec.experts), 4) if not placed.host_layers else None,
        "note": case.note,
        "expected": {
            f"{share:.2f}": {"plain": round(one.plain, 1), "self": round(one.self_, 1)}
            for share, one in case.speeds.items()
        },
    }


def _table(facts: dict[str, Any]) -> list[str]:
    lines = [f"{'':40}{'card':>10}{'computer':>10}   GiB"]
    for part, where in facts["parts"].items():
        if where["card"] or where["host"]:
            lines.append(f"{part:40}{where['card'] / GIB:10.2f}{where['host'] / GIB:10.2f}")
    return [*lines, f"{'together':40}{facts['card'] / GIB:10.2f}{facts['host'] / GIB:10.2f}"]


def _where(case: Case, spec: "Spec") -> str:
    placed = case.plan
    if placed.host_layers:
        return f"the experts of {len(placed.host_layers)} of {spec.layers} layers with the CPU"
    if placed.slots:
        return f"{placed.on_card(spec.experts):.0%} of the experts on the card"
    return "all on the card"


def text(here: Case, others: list[Case], spec: "Spec", card: "Card", free: int | None) -> str:
    """The plan as a table, then what is expected of it and of others."""
    facts, placed = as_dict(here, others, spec, free), here.plan
    lines = [f"{spec.name}, {placed.n_ctx:,} tokens of context", "", *_table(facts), ""]
    lines.append(f"{placed.budget / GIB:.1f} GiB of the card may be used: {_where(here, spec)}.")
    if placed.slots:
        lines.append(
            f"{max(placed.slots)} of {spec.experts} experts a layer have copies there; all lie in locked memory, and "
            "the most used ones get the places between answers."
        )
    lines += [f"{here.note}."] if here.note else []
    if free is not None and free < placed.card:
        lines.append(
            f"Now {free / GIB:.1f} GiB are free there: other programs hold the rest, a run would use less."
        )
    lines += [
        "",
        f"Expected in tok/s ({card.name}: {card.memory / 1e9:.0f} GB/s, link {card.link / 1e9:.0f} GB/s):",
    ]
    lines.append(f"{'':42}{'uses on the card':>18}{'plain':>9}{'self':>9}")
    for case in (here, *others):
        for share, one in case.speeds.items():
            name = f"{case.name}: {_where(case, spec)}" if share == next(iter(case.speeds)) else ""
            if len(name) > 42:
                lines.append(name)
                name = ""
            lines.append(f"{name:42}{share:>17.0%} {one.plain:>9.0f}{one.self_:>9.0f}")
        if not case.speeds:
            lines += [
                f"{case.name}: {_where(case, spec)}",
                f"{'':42}{'as fast as the CPU computes them':>36}",
            ]
    return "\n".join(
        [*lines, "", "self: where 87 % of a draft's rows hold, as in math; estimates, not measurements."]
    )
