"""What the kernels need to know of a model on a device: addresses of weights, state and scratch, all fixed at load."""

import ctypes as C
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from clover_local.model.spec import Spec
from clover_local.runtime.cuda import arguments as A

MATRIX_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10, "q3_k": 11, "q4_k": 12,
    "q5_k": 13, "q6_k": 14, "iq3_xxs": 18, "iq4_nl": 20, "iq3_s": 21, "iq4_xs": 23, "bf16": 30,
}  # fmt: skip
"""Tensor types with a kernel, and ggml's ids of them."""
LOGIT_SPLITS = 256
RESIDENT_WORDS = A.MAX_EXPERTS // 32
Addresses = Callable[[int, str], np.ndarray]
"""Where the experts of a layer and part (gate, up, down) are read: uint64 [experts]."""
GDN_HEADS = (32, 64, 128)
ATTENTION_HEADS = (64, 128, 256)


@dataclass(frozen=True)
class Place:
    """Where a tensor lies on the device and of which ggml type it is.

    `stride`: bytes from one expert's matrix to the next; None when they follow each other.
    """

    address: int
    type: str
    stride: int | None = None


class Machine(Protocol):
    """A device that holds memory; addresses are plain integers."""

    processors: int
    shared_memory: int
    """Bytes of shared memory that one block may have."""

    def alloc(self, nbytes: int) -> int:
        """Reserve zeroed memory, aligned to 256 bytes."""
        ...

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy an array to the device; returns when it is there."""
        ...


@dataclass(frozen=True)
class StatePlaces:
    """Addresses of the committed state by layer, in the engine's layout.

    keys, values: halves [n_ctx][kv_heads * head_dim]; ring: float32 [channels][3], oldest first;
    memory: float32 [value heads][value][key].
    """

    keys: Mapping[int, int]
    values: Mapping[int, int]
    ring: Mapping[int, int]
    memory: Mapping[int, int]


@dataclass(frozen=True)
class Workspace:
    """Scratch of the passes. Rows are A.MAX_ROWS everywhere."""

    run: int  # the Pass structure
    x: int  # residual stream, float32 [rows, hidden]
    h: A.Acts  # normed rows [rows, hidden]
    mixed: A.Acts  # what a GDN layer hands to its output matrix [rows, value_size]
    attended: A.Acts  # and an attention layer [rows, heads * head_dim]
    heads: int  # GDN: float32 [rows, value_size] before the norm
    arrived: int  # GDN: uint32 [value heads], blocks of a head that are done
    projected: int  # attention: float32 [rows, q, gate, k, v]
    queries: int
    partial: int
    stats: int
    router: int  # float32 [rows, router_width]
    route: int
    act: A.Acts  # [slots, expert width]
    shares: int  # float32 [slots, hidden]: what an expert adds to a row
    logits: int  # float32 [rows, vocab]
    parts: int
    results: int
    processing: int
    seen: int
    counts: int
    stop_ids: int
    resident: int  # uint32 [layers, RESIDENT_WORDS]: bits of the experts that drafts may use
    usage: int  # uint32 [layers, experts]: rows of causal passes that picked each expert


@dataclass(frozen=True)
class Network:
    """One model on one device, ready to be launched."""

    spec: Spec
    places: Mapping[str, Place]
    state: StatePlaces
    work: Workspace
    gdn: Mapping[int, A.GdnLayer]
    gdn_table: int  # all GdnLayer structures on the device
    experts: Mapping[int, tuple[int, int, int]]  # tables of pointers: gate, up, down; the shared expert last
    processors: int
    shared_memory: int


def unsupported(spec: Spec, types: Mapping[str, str], kv_type: str = "f16") -> str | None:
    """Why this model cannot run on the kernels, as the end of a sentence; None when it can."""
    for name, kind in types.items():
        if name.endswith((".weight",)) and kind not in MATRIX_TYPES:
            return f"{name} has the type {kind}"
    checks = (
        (kv_type == "f16", f"the KV cache has the type {kv_type}"),
        (spec.gdn_head_dim in GDN_HEADS, f"GDN heads have {spec.gdn_head_dim} values"),
        (spec.head_dim in ATTENTION_HEADS, f"attention heads have {spec.head_dim} values"),
        (spec.experts < A.MAX_EXPERTS, f"there are {spec.experts} experts"),
        (spec.experts_used <= A.MAX_PICKS, f"a row uses {spec.experts_used} experts"),
        (spec.shared_width == spec.expert_width, "the shared expert is not as wide as the others"),
        (spec.hidden % 128 == 0 and spec.expert_width % 64 == 0, "its rows do not divide into blocks"),
    )
    return next((reason for holds, reason in checks if not holds), None)


GRAIN = 8
"""Blocks of 32 of the normed rows that share a scale."""


def head_grain(head: int) -> int:
    """Blocks that share a scale in the rows behind a mixer: 128 values, or a head that is smaller."""
    return min(head, 128) // 32


def _acts(machine: Machine, rows: int, k: int, grain: int) -> A.Acts:
    """Room for activations [rows, k] of which `grain` blocks share a scale (common.cuh, Acts)."""
    q, f = machine.alloc(rows * k), machine.alloc(rows * k * 4)
    if grain == 1:
        return A.Acts(q, machine.alloc(rows * k // 32 * 8), None, None, f)
    scales, sums = machine.alloc(rows * -(-k // (32 * grain)) * 4), machine.alloc(rows * -(-k // 256) * 16)
    return A.Acts(q, None, scales, sums, f)


def splits_of(tiles: int) -> int:
    """Blocks that share the context of one tile of queries, by tiles of 8 rows."""
    return 64 // tiles


def allocate(spec: Spec, machine: Machine, max_seen: int) -> Workspace:
    """Reserve the scratch. `max_seen`: distinct tokens a response may hold."""
    rows, inner = A.MAX_ROWS, spec.heads * spec.head_dim
    group = spec.heads // spec.kv_heads
    queries = (
        8 * splits_of(1) * spec.kv_heads * group
    )  # the product of splits and rows is the same for all widths
    return Workspace(
        run=machine.alloc(C.sizeof(A.Pass)),
        x=machine.alloc(rows * spec.hidden * 4),
        h=_acts(machine, rows, spec.hidden, GRAIN),
        mixed=_acts(machine, rows, spec.value_size, head_grain(spec.gdn_head_dim)),
        attended=_acts(machine, rows, inner, head_grain(spec.head_dim)),
        heads=machine.alloc(rows * spec.value_size * 4),
        arrived=machine.alloc(spec.value_heads * 4),
        projected=machine.alloc(rows * attention_width(spec) * 4),
        queries=machine.alloc(rows * inner * 2),
        partial=machine.alloc(queries * spec.head_dim * 4),
        stats=machine.alloc(queries * 8),
        router=machine.alloc(rows * router_width(spec) * 4),
        route=machine.alloc(C.sizeof(A.Route)),
        act=_acts(machine, most_slots(spec), spec.expert_width, 1),
        shares=machine.alloc(most_slots(spec) * spec.hidden * 4),
        logits=machine.alloc(rows * spec.vocab * 4),
        parts=machine.alloc(rows * LOGIT_SPLITS * C.sizeof(A.Choice)),
        results=machine.alloc(rows * C.sizeof(A.RowResult)),
        processing=machine.alloc(C.sizeof(A.Processing)),
        seen=machine.alloc(max_seen * 4),
        counts=machine.alloc(max_seen * 4),
        stop_ids=machine.alloc(64 * 4),
        resident=machine.alloc(spec.layers * RESIDENT_WORDS * 4),
        usage=machine.alloc(spec.layers * spec.experts * 4),
    )


def most_slots(spec: Spec) -> int:
    """Pairs of an expert and a row: an expert's begin at a multiple of 8, the shared one's come last."""
    picks = A.MAX_ROWS * spec.experts_used
    return min(picks * 8, picks + 7 * spec.experts) // 8 * 8 + A.MAX_ROWS


def router_width(spec: Spec) -> int:
    """Columns behind a layer's second norm: router, the shared expert's gate, its gate and up matrices."""
    return spec.experts + 1 + 2 * spec.shared_width


def attention_width(spec: Spec) -> int:
    """Columns of an attention layer's projections: query and gate per head, keys, values."""
    return 2 * (spec.heads + spec.kv_heads) * spec.head_dim


def gdn_width(spec: Spec) -> int:
    """Columns of a GDN layer's projections: q, k, v channels, z, alpha, beta."""
    return spec.channels + spec.value_size + 2 * spec.value_heads


def build(
    spec: Spec,
    places: Mapping[str, Place],
    state: StatePlaces,
    machine: Machine,
    max_seen: int,
    addresses: Addresses | None = None,
) -> Network:
    """Reserve scratch and upload tables for a model whose weights and state the device already reaches.

    `addresses` tells where the routed experts of a layer and part lie when it is not one behind the other.
    """
    gdn = {
        layer: _gdn_layer(spec, i, layer, places, state, machine) for i, layer in enumerate(spec.gdn_layers)
    }
    table = np.frombuffer(b"".join(bytes(layer) for layer in gdn.values()), np.uint8)
    address = machine.alloc(max(len(table), 1))
    machine.write(address, table)
    experts = {layer: _expert_tables(spec, layer, places, machine, addresses) for layer in range(spec.layers)}
    work = allocate(spec, machine, max_seen)
    return Network(
        spec, places, state, work, gdn, address, experts, machine.processors, machine.shared_memory
    )


def _gdn_layer(
    spec: Spec, index: int, layer: int, places: Mapping[str, Place], state: StatePlaces, machine: Machine
) -> A.GdnLayer:
    preview = [0, 0, 0, 0]
    if spec.preview is not None:
        arrays = (
            spec.preview.conv_right,
            spec.preview.logit_scale,
            spec.preview.history_bias,
            spec.preview.history_c,
        )
        for i, array in enumerate(arrays):
            data = np.ascontiguousarray(array[index], np.float32)
            preview[i] = machine.alloc(data.nbytes)
            machine.write(preview[i], data)
    names = ("ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight")
    vectors = (places[f"blk.{layer}.{name}"].address for name in names)
    y = machine.alloc(A.MAX_ROWS * gdn_width(spec) * 4)
    return A.GdnLayer(y, state.ring[layer], state.memory[layer], *vectors, *preview)


def _expert_tables(
    spec: Spec, layer: int, places: Mapping[str, Place], machine: Machine, addresses: Addresses | None
) -> tuple[int, int, int]:
    tables = []
    for part in ("gate", "up", "down"):
        shared = places[f"blk.{layer}.ffn_{part}_shexp.weight"]
        routed = addresses(layer, part) if addresses is not None else _in_a_row(spec, layer, part, places)
        data = np.append(routed, np.uint64(shared.address))
        tables.append(machine.alloc(data.nbytes))
        machine.write(tables[-1], data)
    return tables[0], tables[1], tables[2]


def _in_a_row(spec: Spec, layer: int, part: str, places: Mapping[str, Place]) -> np.ndarray:
    routed = places[f"blk.{layer}.ffn_{part}_exps.weight"]
    size = routed.stride or matrix_bytes(routed.type, *expert_shape(spec, part))
    return np.array([routed.address + e * size for e in range(spec.experts)], np.uint64)


def repoint(net: Network, machine: Machine, layer: int, addresses: Addresses) -> None:
    """Tell the passes where the routed experts of a layer lie now; none may be running."""
    for part, table in zip(("gate", "up", "down"), net.experts[layer], strict=True):
        machine.write(table, addresses(layer, part))


def expert_shape(spec: Spec, part: str) -> tuple[int, int]:
    """Inputs and outputs of one expert matrix."""
    wide = (spec.hidden, spec.expert_width)
    return wide if part != "down" else (wide[1], wide[0])


BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q5_0": (32, 22),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "iq4_xs": (256, 136),
    "iq4_nl": (32, 18),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_1": (32, 24),
}
"""Values and bytes of a block of each type with a kernel."""


def matrix_bytes(kind: str, k: int, rows: int) -> int:
    """Bytes of a matrix of `rows` rows of k values."""
    values, size = BLOCKS[kind]
    return math.prod((rows, k)) // values * size
