"""What fits where: from a file's metadata and a budget of bytes to a placement. Pure; others print it.

Every byte is accounted for by class. When the card is too small for all of it, copies of as many experts as fit
lie there and our kernels read the others from the computer's memory; where they do not run, whole layers' routed
experts stay there for the CPU to compute, from the last layer backwards, until the rest fits (docs/memory.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clover_local.errors import CardFullError, CloverError
from clover_local.ggml.gguf import GgufFile, TensorInfo
from clover_local.ggml.types import tensor_type
from clover_local.model.spec import MAX_ROWS, Spec
from clover_local.model.weights import HALVED, check, is_expert, layer_of, wanted
from clover_local.runtime.cuda.network import Place, StatePlaces, build, unsupported

GIB = 1 << 30
F32 = 4
CONTEXT_BYTES = 640 << 20
"""What a CUDA process takes before any tensor: the driver's context, ggml's kernels and scratch pool."""
DESKTOP = 820 << 20
"""Of a card given by its size (--vram 16G) what it keeps to itself and what a desktop needs: 0.8 GiB."""
MODULES = 64 << 20
"""Our own kernels' code on the card, and what their reservations round up to."""
KEPT_ROWS = 160
"""Rows of logits that kept graphs hold at once: steps, drafts and verifies of the usual widths."""
PREFILL_ROWS = 512
KEPT_LARGE = 6
"""Graphs of long prefills that are kept: views of 512 to 8,192 tokens and the rest of a prompt. Where fewer are kept
than are used in turn, each is built anew every time."""
PREFILL_LAYERS = 1
"""Layers' experts that ggml holds on the card at once while a long prompt runs through those of the CPU."""
PLACED_ROWS = 2048
"""Rows of a prefill piece when every expert passes the link in each: more rows share one journey."""
HOST_SPARE = 2 << 30
"""Memory of the computer that is left to others when experts are locked there."""
SLOWER = "whole layers' experts stay with the CPU, which is slower than single ones"
EMBEDDING, PASSES, KERNELS = "token embedding", "passes", "our kernels"
PASSING = "experts passing through in a prefill"


@dataclass(frozen=True)
class Part:
    """Bytes of one class on the card and in the computer's memory."""

    name: str
    card: int
    host: int


@dataclass(frozen=True)
class Plan:
    """A placement: which layers' experts stay with the CPU, or how many of each are on the card; bytes by class.

    `slots`: experts on the card by layer where our kernels read the others from the computer's memory; () otherwise.
    """

    parts: tuple[Part, ...]
    host_layers: frozenset[int]
    budget: int
    n_ctx: int
    slots: tuple[int, ...] = ()

    def on_card(self, experts: int) -> float:
        """Share of the experts that is on the card, of `experts` a layer."""
        return sum(self.slots) / (len(self.slots) * experts) if self.slots else 1.0

    @property
    def card(self) -> int:
        """Bytes on the card."""
        return sum(part.card for part in self.parts)

    @property
    def host(self) -> int:
        """Bytes in the computer's memory."""
        return sum(part.host for part in self.parts)


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model by class, before it is decided where they go."""

    fixed: dict[str, int]
    experts: tuple[int, ...]  # by layer
    count: int = 0  # experts of a layer
    picks: int = 0  # of them used by a row
    kernels: int = 0  # scratch of our own kernels, where they run
    placed_passes: int = 0  # what kept graphs take when experts are placed one by one
    obstacle: str | None = None  # why our kernels cannot place them one by one, as the end of a sentence


def sizes_of(
    file: GgufFile, spec: Spec, n_ctx: int, kv_types: tuple[str, str], *, own_kernels: bool = False
) -> Sizes:
    """Account for every byte of a model with a context of `n_ctx` tokens; reads metadata only.

    `own_kernels` says that they will run, so that experts may be placed one by one.
    """
    return sizes_from(check(file, spec), spec, n_ctx, kv_types, own_kernels=own_kernels)


def sizes_from(
    infos: Mapping[str, TensorInfo],
    spec: Spec,
    n_ctx: int,
    kv_types: tuple[str, str],
    *,
    own_kernels: bool = False,
) -> Sizes:
    """The same for tensors that need not be in a file yet."""
    experts = [0] * spec.layers
    tied = infos["output.weight"].name == infos["token_embd.weight"].name
    fixed = {
        EMBEDDING: 0,
        "output head": 0,
        "attention": 0,
        "Gated DeltaNet": 0,
        "shared experts, router, norms": 0,
    }
    for name, info in infos.items():
        layer = layer_of(name)
        if layer is None:
            movable = name == "token_embd.weight" and not tied
            fixed[EMBEDDING if movable else "output head"] += info.nbytes * (
                name != "token_embd.weight" or not tied
            )
        elif is_expert(name):
            experts[layer] += info.nbytes
        else:
            short = name.split(".", 2)[2]
            own = "attention" if spec.is_attention(layer) else "Gated DeltaNet"
            mixer = short.startswith(("attn_", "ssm_")) and short != "attn_norm.weight"
            copy = info.nbytes // 2 if short in (*HALVED, "ssm_beta.weight") else 0
            fixed[own if mixer else "shared experts, router, norms"] += info.nbytes + copy
    width = spec.kv_heads * spec.head_dim
    row = sum(tensor_type(kind).row_bytes(width) for kind in kv_types)
    fixed["KV cache"] = len(spec.attention_layers) * n_ctx * row
    scratch = MAX_ROWS * (spec.channels + 2 * spec.value_heads)
    states = spec.value_size * spec.gdn_head_dim + 3 * spec.channels
    fixed["GDN state and scratch"] = len(spec.gdn_layers) * F32 * (states + scratch)
    fixed[PASSES] = _pass_bytes(spec)
    if not own_kernels:
        obstacle = _obstacle(infos, spec, kv_types)
        return Sizes(fixed, tuple(experts), spec.experts, spec.experts_used, obstacle=obstacle)
    placed = _prefill_bytes(spec, PLACED_ROWS) + 2 * PLACED_ROWS * n_ctx + 2 * MAX_ROWS * spec.vocab * F32
    scratch = MODULES + scratch_bytes(spec, n_ctx)
    return Sizes(fixed, tuple(experts), spec.experts, spec.experts_used, scratch, placed)


def _obstacle(infos: Mapping[str, TensorInfo], spec: Spec, kv_types: tuple[str, str]) -> str | None:
    """What of the model or its cache keeps our kernels from running; None where it is neither."""
    types = {name: info.type.name for name, info in infos.items()}
    reason = unsupported(spec, types)
    if reason is not None:
        return f"our own kernels cannot run this model, {reason}"
    other = sorted({*kv_types} - {"f16"})
    if not other:
        return None
    return (
        f"our own kernels need an f16 KV cache, not {' and '.join(other)} "
        "(leave --cache-type-k and --cache-type-v out)"
    )


def _pass_bytes(spec: Spec) -> int:
    """Memory of the kept graphs: logits before and after the choice, and the prefills' activations."""
    logits = 3 * KEPT_ROWS * spec.vocab * F32
    return logits + KEPT_LARGE * _prefill_bytes(spec, PREFILL_ROWS)


def _prefill_bytes(spec: Spec, rows: int) -> int:
    expert = spec.experts_used * (3 * spec.expert_width + 2 * spec.hidden)
    return rows * F32 * (2 * spec.channels + 2 * spec.value_size + 4 * spec.hidden + expert)


class _Counter:
    """A machine that only counts what is reserved on it."""

    processors, shared_memory = 1, 0

    def __init__(self) -> None:
        self.bytes = 0

    def alloc(self, nbytes: int) -> int:
        self.bytes += -(-nbytes // 512) * 512
        return 0

    def write(self, address: int, data: np.ndarray) -> None: ...


def scratch_bytes(spec: Spec, n_ctx: int) -> int:
    """Memory that our own kernels reserve beside weights and state."""
    places = {name: Place(0, "f32") for name in wanted(spec)}
    nowhere = dict.fromkeys(range(spec.layers), 0)
    counter = _Counter()
    build(spec, places, StatePlaces(nowhere, nowhere, nowhere, nowhere), counter, n_ctx + MAX_ROWS)
    return counter.bytes


def plan(
    sizes: Sizes, budget: int, n_ctx: int, *, host_layers: int | None = None, context: int = CONTEXT_BYTES
) -> Plan:
    """Place a model on a card with `budget` bytes for everything, the process's own `context` included.

    `host_layers` asks for that many layers' experts in the computer's memory; None takes as few as needed.
    Raises CloverError with what would help when not even the rest fits.
    """
    fixed, layers = sum(sizes.fixed.values()) + context + sizes.kernels, len(sizes.experts)
    borrowed = PREFILL_LAYERS * max(sizes.experts)

    def needs(moved: int) -> int:
        return fixed + sum(sizes.experts[: layers - moved]) + (borrowed if moved else 0)

    if host_layers is not None and not 0 <= host_layers <= layers:
        raise CloverError(f"--n-cpu-moe {host_layers} is impossible: the model has {layers} layers")
    least = next((n for n in range(layers + 1) if needs(n) <= budget), None)
    if least is None:
        raise CardFullError(
            f"{gib(budget)} of video memory are too little: {gib(needs(layers))} are needed without any expert",
            "use a smaller --ctx-size, --cache-type-k q8_0 --cache-type-v q8_0, or --device cpu",
        )
    moved = least if host_layers is None else host_layers
    if needs(moved) > budget:
        raise CloverError(
            f"--n-cpu-moe {moved} needs {gib(needs(moved))} of video memory, {gib(budget)} are there",
            f"use --n-cpu-moe {least} or leave it out",
        )
    kept, left = sum(sizes.experts[: layers - moved]), sum(sizes.experts[layers - moved :])
    parts = [Part(name, size, 0) for name, size in sizes.fixed.items()]
    parts += [Part("routed experts", kept, left), Part("CUDA context", context, 0)]
    if sizes.kernels:
        parts.append(Part(KERNELS, sizes.kernels, 0))
    if moved:
        parts.append(Part(PASSING, borrowed, 0))
    return Plan(tuple(parts), frozenset(range(layers - moved, layers)), budget, n_ctx)


def place(
    sizes: Sizes, budget: int, n_ctx: int, *, slots: int | None = None, context: int = CONTEXT_BYTES
) -> Plan:
    """Place single experts: all of them in the computer's memory, copies of as many as fit on the card.

    `slots` asks for that many a layer. Raises CardFullError where not even the rest fits with the experts of one row.
    """
    fixed = {name: size for name, size in sizes.fixed.items() if name not in (EMBEDDING, PASSES)}
    borrowed, layers = PREFILL_LAYERS * max(sizes.experts), len(sizes.experts)
    rest = sum(fixed.values()) + sizes.placed_passes + sizes.kernels + borrowed + context
    each = [size // sizes.count for size in sizes.experts]
    room = budget - rest
    if slots is None:
        level = min(max(room, 0) // sum(each), sizes.count)
        counts = [level] * layers
        left = room - level * sum(each)
        for layer in range(layers if level < sizes.count else 0):
            counts[layer] += each[layer] <= left
            left -= each[layer] * (counts[layer] - level)
    else:
        counts = [slots] * layers
    kept = sum(n * size for n, size in zip(counts, each, strict=True))
    if kept > room or (slots is None and min(counts) < sizes.picks):
        need = rest + (slots if slots is not None else sizes.picks) * sum(each)
        raise CardFullError(
            f"{gib(budget)} of video memory are too little: {gib(need)} are needed with only the experts of one row",
            "use a smaller --ctx-size, --cache-type-k q8_0 --cache-type-v q8_0, or --device cpu",
        )
    parts = [Part(name, size, 0) for name, size in fixed.items()]
    parts += [
        Part(EMBEDDING, 0, sizes.fixed.get(EMBEDDING, 0)),
        Part("routed experts", kept, sum(sizes.experts)),
        Part(PASSES, sizes.placed_passes, 0),
        Part(KERNELS, sizes.kernels, 0),
        Part(PASSING, borrowed, 0),
        Part("CUDA context", context, 0),
    ]
    return Plan(tuple(parts), frozenset(), budget, n_ctx, tuple(counts))


@dataclass(frozen=True)
class Machine:
    """What there is: bytes for the process on the card, and free bytes of the computer's memory (None: unknown)."""

    budget: int
    ram: int | None = None


def decide(
    sizes: Sizes,
    machine: Machine,
    n_ctx: int,
    *,
    host_layers: int | None = None,
    slots: int | None = None,
    context: int = CONTEXT_BYTES,
) -> tuple[Plan, str | None]:
    """The best plan for a machine, and a sentence about what it could not use.

    All on the card where it fits; else experts one by one where our kernels run and the computer's memory is large
    enough; else whole layers' experts with the CPU. `host_layers` and `slots` ask for one of the latter two.
    Raises CloverError when nothing fits.
    """
    whole = sum(sizes.fixed.values()) + sizes.kernels + context + sum(sizes.experts)
    if host_layers is not None or not sizes.kernels or (slots is None and whole <= machine.budget):
        layered = plan(sizes, machine.budget, n_ctx, host_layers=host_layers, context=context)
        told = layered.host_layers and host_layers is None and sizes.obstacle
        return layered, f"{SLOWER}: {sizes.obstacle}" if told else None
    try:
        placed = place(sizes, machine.budget, n_ctx, slots=slots, context=context)
    except CardFullError:
        if slots is not None:
            raise
        return plan(sizes, machine.budget, n_ctx, context=context), None
    if machine.ram is None or placed.host + HOST_SPARE <= machine.ram:
        return placed, None
    layered = plan(sizes, machine.budget, n_ctx, context=context)
    return layered, (
        f"{SLOWER}: locking all of them needs "
        f"{gib(placed.host + HOST_SPARE)} of free memory, {gib(machine.ram)} are there"
    )


def gib(size: int) -> str:
    """Bytes as a person reads them on a card's box."""
    return f"{size / GIB:.1f} GiB"


def parse_size(text: str) -> int:
    """Bytes of a size like 16G, 15.5GiB or 800M (powers of 1024, as video memory is counted)."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    body = text.strip().upper().removesuffix("B").removesuffix("I")
    shift = units.get(body[-1:], 0)
    try:
        value = float(body[:-1] if shift else body)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6 * (1 if shift else 1 << 30):
        raise CloverError(f"{text!r} is not a size", "write it like 16G or 15500M")
    return int(value * (1 << shift))
