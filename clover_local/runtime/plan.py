"""What fits where: from a file's metadata and a budget of bytes to a placement. Pure; others print it.

Every byte is accounted for by class. When the card is too small for all of it, whole layers' routed experts
stay in the computer's memory for the CPU to compute, from the last layer backwards, until the rest fits.
"""

from dataclasses import dataclass

from clover_local.errors import CloverError
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.types import tensor_type
from clover_local.model.spec import MAX_ROWS, Spec
from clover_local.model.weights import HALVED, check, is_expert, layer_of

GIB = 1 << 30
F32 = 4
CONTEXT_BYTES = 640 << 20
"""What a CUDA process takes before any tensor: the driver's context, ggml's kernels and scratch pool."""
KEPT_ROWS = 160
"""Rows of logits that kept graphs hold at once: steps, drafts and verifies of the usual widths."""
PREFILL_ROWS, KEPT_LARGE = 512, 4
PREFILL_LAYERS = 1
"""Layers' experts that ggml holds on the card at once while a long prompt runs through those of the CPU."""


@dataclass(frozen=True)
class Part:
    """Bytes of one class on the card and in the computer's memory."""

    name: str
    card: int
    host: int


@dataclass(frozen=True)
class Plan:
    """A placement: which layers' experts stay with the CPU, and the bytes of every class."""

    parts: tuple[Part, ...]
    host_layers: frozenset[int]
    budget: int
    n_ctx: int

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


def sizes_of(file: GgufFile, spec: Spec, n_ctx: int, kv_types: tuple[str, str]) -> Sizes:
    """Account for every byte of a model with a context of `n_ctx` tokens; reads metadata only."""
    infos = check(file, spec)
    experts = [0] * spec.layers
    fixed = {"embedding and head": 0, "attention": 0, "Gated DeltaNet": 0, "shared experts, router, norms": 0}
    for name, info in infos.items():
        layer = layer_of(name)
        if layer is None:
            fixed["embedding and head"] += info.nbytes
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
    fixed["passes"] = _pass_bytes(spec)
    return Sizes(fixed, tuple(experts))


def _pass_bytes(spec: Spec) -> int:
    """Memory of the kept graphs: logits before and after the choice, and the prefills' activations."""
    logits = 3 * KEPT_ROWS * spec.vocab * F32
    expert = spec.experts_used * (3 * spec.expert_width + 2 * spec.hidden)
    prefill = PREFILL_ROWS * F32 * (2 * spec.channels + 2 * spec.value_size + 4 * spec.hidden + expert)
    return logits + KEPT_LARGE * prefill


def plan(
    sizes: Sizes, budget: int, n_ctx: int, *, host_layers: int | None = None, context: int = CONTEXT_BYTES
) -> Plan:
    """Place a model on a card with `budget` bytes for everything, the process's own `context` included.

    `host_layers` asks for that many layers' experts in the computer's memory; None takes as few as needed.
    Raises CloverError with what would help when not even the rest fits.
    """
    fixed, layers = sum(sizes.fixed.values()) + context, len(sizes.experts)
    borrowed = PREFILL_LAYERS * max(sizes.experts)

    def needs(moved: int) -> int:
        return fixed + sum(sizes.experts[: layers - moved]) + (borrowed if moved else 0)

    if host_layers is not None and not 0 <= host_layers <= layers:
        raise CloverError(f"--n-cpu-moe {host_layers} is impossible: the model has {layers} layers")
    least = next((n for n in range(layers + 1) if needs(n) <= budget), None)
    if least is None:
        raise CloverError(
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
    if moved:
        parts.append(Part("experts passing through in a prefill", borrowed, 0))
    return Plan(tuple(parts), frozenset(range(layers - moved, layers)), budget, n_ctx)


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
