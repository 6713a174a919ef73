"""Whole passes as lists of kernel launches: causal (with or without its commit), preview, commit.

A pass is made for a width of 1, 8, 16 or 32 rows; how many of them count, the positions and the tokens are read on the
device, so one captured graph serves every context length and every row count up to its width.
"""

import ctypes as C
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import (
    GRAIN,
    LOGIT_SPLITS,
    MATRIX_TYPES,
    RESIDENT_WORDS,
    Network,
    attention_width,
    expert_shape,
    gdn_width,
    head_grain,
    matrix_bytes,
    router_width,
    splits_of,
)

WIDTHS = (1, 8, 16, 32)
TILE = 16
"""Output rows of a block of a quantized matrix."""
FLOATS = frozenset({"f32", "f16", "bf16"})
NO_CORESET = 2.0
PARTS = 4
"""Blocks that share a value head."""
TWINS = 4
"""Groups of threads of a block that each hold its part of the state, for some rows of a preview."""
STAGE_BLOCKS = 8  # that copy one expert
DOWN_ROWS, DOWN_BLOCKS = 64, 4
"""Output rows of an item of moe_down, and blocks of it that share a multiprocessor."""


@dataclass(frozen=True)
class Launch:
    """One kernel with its arguments. `values` are the numbers its source is compiled with."""

    source: str
    kernel: str
    grid: tuple[int, int]
    block: int
    args: C.Structure
    shared: int = 0
    values: tuple[tuple[str, int], ...] = ()


def width_for(rows: int) -> int:
    """The narrowest pass that holds so many rows."""
    return next(width for width in WIDTHS if rows <= width)


def _columns(width: int) -> int:
    """Rows of activations that tensor cores take at once: whole tiles of 8."""
    return max(width, 8)


def causal(net: Network, width: int, *, keep_state: bool) -> list[Launch]:
    """Row i predicts token i + 1. With `keep_state` the pass also commits its rows (`Pass.replay` = n)."""
    launches = [*_trunk(net, width, preview=False, keep_state=keep_state), *_head(net, width)]
    return [*launches, _ring(net)] if keep_state else launches


def preview(net: Network, width: int) -> list[Launch]:
    """Row i predicts token i; only rows of the KV cache beyond the committed length are written."""
    return [*_trunk(net, width, preview=True, keep_state=False), *_head(net, width)]


def commit(net: Network) -> list[Launch]:
    """Replay the first `Pass.replay` rows of the last causal pass into every GDN state."""
    heads, layers = net.spec.value_heads, len(net.gdn)
    kernel = _gdn_launch(net, "gdn_replay", (heads, layers), _replay_args(net), A.MAX_ROWS)
    return [kernel, _ring(net)]


def stage(net: Network, layer: int, targets: Sequence[int]) -> list[Launch]:
    """All experts of a layer side by side at `targets` (gate, up, down), from wherever each lies."""
    launches = []
    for part, table, target in zip(("gate", "up", "down"), net.experts[layer], targets, strict=True):
        kind = net.places[f"blk.{layer}.ffn_{part}_exps.weight"].type
        size = matrix_bytes(kind, *expert_shape(net.spec, part))
        args = A.StageArgs(table, target, size, size)
        launches.append(Launch("stage", "stage_experts", (STAGE_BLOCKS, net.spec.experts), 256, args))
    return launches


def _trunk(net: Network, width: int, *, preview: bool, keep_state: bool) -> Iterator[Launch]:
    spec, work = net.spec, net.work
    table = net.places["token_embd.weight"]
    args = A.EmbedArgs(table.address, work.x, work.run, MATRIX_TYPES[table.type], spec.hidden)
    yield Launch("rows", "embed", (width, -(-spec.hidden // 256)), 256, args)
    for layer in range(spec.layers):
        yield _norm(net, f"blk.{layer}.attn_norm.weight", width, after_experts=layer > 0)
        if spec.is_attention(layer):
            yield from _attention(net, layer, width, preview)
        else:
            yield from _gdn(net, layer, width, preview, keep_state)
        yield _norm(net, f"blk.{layer}.post_attention_norm.weight", width, after_experts=False)
        yield from _moe(net, layer, width, preview)


def _norm(net: Network, weight: str, width: int, *, after_experts: bool) -> Launch:
    spec, work = net.spec, net.work
    shares = (0, 0, 0)
    if after_experts:
        shares = (work.shares, work.route + A.Route.slot.offset, work.route + A.Route.picks.offset)
    args = A.NormArgs(
        work.x, net.places[weight].address, work.h, work.run, *shares, A.MAX_PICKS + 1, spec.norm_eps
    )
    return Launch("rows", "rms_norm", (width, 1), 256, args, 0, (("HIDDEN", spec.hidden),))


def staged_bytes(kind: str, k: int, rows: int) -> int:
    """Shared memory of `rows` rows on their way to the tensor cores (tile.cuh, staged_stride)."""
    if kind in FLOATS:
        return 0
    size = matrix_bytes(kind, k, 1)
    return rows * (size if size % 64 else size + 32)


def _dense(
    net: Network,
    x: A.Acts,
    k: int,
    parts: Sequence[tuple[str, int]],
    out: int,
    ld: int,
    width: int,
    *,
    grain: int = GRAIN,
    add: bool = False,
) -> Launch:
    """Matrices (name, rows) behind one input, their outputs side by side in rows of ld values at `out`."""
    kinds = [net.places[name].type for name, _ in parts]
    least = sum(-(-rows // TILE) for _, rows in parts)
    shape = _dense_shape(net, k, width, kinds, least)
    room = shape.resident * net.processors
    float_rows = 2 if least <= room else 4
    sizes = [float_rows if kind in FLOATS else TILE for kind in kinds]
    tiles = [-(-rows // size) for (_, rows), size in zip(parts, sizes, strict=True)]
    segments, column = (A.Segment * A.SEGMENTS)(), 0
    for i, (name, rows) in enumerate(parts):
        place = net.places[name]
        segments[i] = A.Segment(place.address, MATRIX_TYPES[place.type], rows, sum(tiles[:i]), column)
        column += rows
    args = A.DenseArgs(segments, x, out, net.work.run, len(parts), ld, sum(tiles), int(add))
    values = (
        *_tiles(width, *(MATRIX_TYPES[kind] for kind in kinds)), ("INPUTS", k), ("X_GRAIN", grain),
        ("WARPS", shape.warps), ("FLOAT_ROWS", float_rows), ("BUFFERS", shape.buffers),
        ("STAGED", int(shape.buffers > 0)), ("RESIDENT", shape.resident), ("REUSED", int(sum(tiles) > room)),
    )  # fmt: skip
    return Launch("dense", "dense", (min(sum(tiles), room), 1), 32 * shape.warps, args, shape.shared, values)


@dataclass(frozen=True)
class _DenseShape:
    """Blocks of a dense launch: their warps, how many share a multiprocessor, tiles that each has on their way."""

    warps: int
    resident: int
    buffers: int
    shared: int


def _dense_shape(net: Network, k: int, width: int, kinds: Sequence[str], tiles: int) -> _DenseShape:
    """What was fastest on an H200 (docs/kernels.md) among what fits: blocks of one tile, of some or of many."""
    tile, steps = max(staged_bytes(kind, k, TILE) for kind in kinds), -(-k // 256)
    if tiles <= 2 * net.processors:
        warps = min(max(steps, 4), 16)
        wanted = [(warps, 2 if width <= 8 or warps <= 8 else 1, 1)]
    elif tiles < 16 * net.processors:
        wanted = [(8, 3, 1)] if width == 1 else [(8, 2, 2)]
    else:
        wanted = [(4, 6, 1)] if width <= 8 else [(4, 4, 1)]
    warps, most, _ = wanted[0]
    for warps, resident, buffers in (*wanted, *((warps, resident, 1) for resident in range(most, 0, -1))):
        shared = warps * TILE * _columns(width) * 4 + buffers * tile
        if shared <= net.shared_memory // resident - 1024 * (resident > 1):
            return _DenseShape(warps, resident, buffers, shared)
    return _DenseShape(warps, most, 0, warps * TILE * _columns(width) * 4)


def _tiles(width: int, *types: int) -> tuple[tuple[str, int], ...]:
    """Definitions for tile.cuh: the width in tiles of 8 rows and the set of matrix types."""
    return (("NT", _columns(width) // 8), ("TYPES", sum(1 << kind for kind in set(types))))


def _gdn(net: Network, layer: int, width: int, preview: bool, keep_state: bool) -> Iterator[Launch]:
    spec, work, prefix = net.spec, net.work, f"blk.{layer}."
    parts = [
        (f"{prefix}attn_qkv.weight", spec.channels),
        (f"{prefix}attn_gate.weight", spec.value_size),
        (f"{prefix}ssm_alpha.weight", spec.value_heads),
        (f"{prefix}ssm_beta.weight", spec.value_heads),
    ]
    inputs = net.gdn[layer]
    yield _dense(net, work.h, spec.hidden, parts, inputs.y, gdn_width(spec), width)
    args = A.GdnArgs(
        inputs,
        work.mixed,
        work.heads,
        work.arrived,
        work.run,
        spec.key_heads,
        spec.value_heads,
        gdn_width(spec),
        int(keep_state),
        spec.norm_eps,
    )
    shape = (TWINS, 2) if preview else (1, 1 if width <= 8 else 2)
    kernel = "gdn_preview" if preview else "gdn_causal"
    yield _gdn_launch(net, kernel, (spec.value_heads, 1), args, width, *shape)
    out = [(f"{prefix}ssm_out.weight", spec.hidden)]
    grain = head_grain(spec.gdn_head_dim)
    yield _dense(net, work.mixed, spec.value_size, out, work.x, spec.hidden, width, grain=grain, add=True)


def _gdn_launch(
    net: Network,
    kernel: str,
    grid: tuple[int, int],
    args: C.Structure,
    width: int,
    twins: int = 1,
    stretches: int = 1,
) -> Launch:
    head = net.spec.gdn_head_dim
    shared = 4 * (3 * width * (head + 4) + 3 * A.MAX_ROWS + A.MAX_ROWS * (A.MAX_ROWS + 4))
    channels = _whole_warps(2 * head + head // PARTS)
    threads = max(stretches * channels + 32, twins * 4 * head // PARTS)
    values = (("HEAD", head), ("PARTS", PARTS), ("TWINS", twins), ("STRETCHES", stretches))
    return Launch("gdn", kernel, (PARTS * grid[0], grid[1]), threads, args, shared, values)


def _whole_warps(threads: int) -> int:
    return -(-threads // 32) * 32


def _replay_args(net: Network) -> A.ReplayArgs:
    spec = net.spec
    return A.ReplayArgs(net.gdn_table, net.work.run, spec.key_heads, spec.value_heads, gdn_width(spec))


def _ring(net: Network) -> Launch:
    grid = (-(-net.spec.channels // 256), len(net.gdn))
    return Launch(
        "gdn",
        "gdn_ring",
        grid,
        256,
        _replay_args(net),
        0,
        (("HEAD", net.spec.gdn_head_dim), ("PARTS", PARTS), ("TWINS", 1), ("STRETCHES", 1)),
    )


def _attention(net: Network, layer: int, width: int, preview: bool) -> Iterator[Launch]:
    spec, work, prefix = net.spec, net.work, f"blk.{layer}."
    inner, kv, ld = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, attention_width(spec)
    parts = [
        (f"{prefix}attn_q.weight", 2 * inner),
        (f"{prefix}attn_k.weight", kv),
        (f"{prefix}attn_v.weight", kv),
    ]
    yield _dense(net, work.h, spec.hidden, parts, work.projected, ld, width)
    keys, values, head = net.state.keys[layer], net.state.values[layer], (("HEAD", spec.head_dim),)
    norms = (net.places[f"{prefix}attn_{part}_norm.weight"].address for part in "qk")
    prepare = A.PrepareArgs(
        work.projected, *norms, work.queries, keys, values, work.run,
        spec.heads, spec.kv_heads, ld, spec.rope_dims, spec.norm_eps, math.log2(spec.rope_theta),
    )  # fmt: skip
    heads = -(-(spec.heads + 2 * spec.kv_heads) // 4)
    yield Launch("attention", "attention_prepare", (width, heads), 128, prepare, 0, head)
    splits = splits_of(_columns(width) // 8)
    args = A.AttentionArgs(
        work.queries, keys, values, work.partial, work.stats, work.projected, work.attended, work.run,
        spec.heads, spec.kv_heads, ld, splits, width, int(not preview),
    )  # fmt: skip
    tiles = -(-width * (spec.heads // spec.kv_heads) // TILE)
    yield Launch("attention", "attention", (tiles * spec.kv_heads, splits), 128, args, 0, head)
    yield Launch(
        "attention", "attention_combine", (spec.heads, width), max(32, spec.head_dim // 4), args, 0, head
    )
    out = [(f"{prefix}attn_output.weight", spec.hidden)]
    grain = head_grain(spec.head_dim)
    yield _dense(net, work.attended, inner, out, work.x, spec.hidden, width, grain=grain, add=True)


def _moe(net: Network, layer: int, width: int, preview: bool) -> Iterator[Launch]:
    spec, work, prefix, ld = net.spec, net.work, f"blk.{layer}.", router_width(net.spec)
    router = [
        (f"{prefix}ffn_gate_inp.weight", spec.experts),
        (f"{prefix}ffn_gate_inp_shexp.weight", 1),
        (f"{prefix}ffn_gate_shexp.weight", spec.shared_width),
        (f"{prefix}ffn_up_shexp.weight", spec.shared_width),
    ]
    yield _dense(net, work.h, spec.hidden, router, work.router, ld, width)
    top_p = spec.coreset_top_p if preview and spec.coreset_top_p is not None else NO_CORESET
    route = A.RouteArgs(
        work.router, work.route, work.run, *net.experts[layer],
        work.resident + layer * RESIDENT_WORDS * 4, work.usage + layer * spec.experts * 4,
        spec.experts_used, ld, int(preview), top_p,
    )  # fmt: skip
    values = (("NT", _columns(width) // 8), ("EXPERTS", spec.experts))
    threads = max(_whole_warps(spec.experts + 1), 32 * width)
    yield Launch("moe", "moe_route", (1, 1), threads, route, 0, values)
    yield from _experts(net, layer, width)


def _experts(net: Network, layer: int, width: int) -> Iterator[Launch]:
    spec, work, prefix = net.spec, net.work, f"blk.{layer}."
    kind = lambda part, group: net.places[f"{prefix}ffn_{part}_{group}.weight"].type  # noqa: E731
    gate, up, down, shared = (
        kind("gate", "exps"),
        kind("up", "exps"),
        kind("down", "exps"),
        kind("down", "shexp"),
    )
    number = MATRIX_TYPES
    args = A.ExpertArgs(
        work.h, work.act, work.router + (spec.experts + 1) * 4, work.shares, work.route, work.run,
        number[gate], number[up], (C.c_int * 2)(number[down], number[shared]),
        router_width(spec),
    )  # fmt: skip
    sizes = (("HIDDEN", spec.hidden), ("WIDTH", spec.expert_width))
    shape = _gate_up_shape(net, width, gate, up)
    entries = min(spec.experts, width * spec.experts_used) + 1
    grid = min(entries * spec.expert_width // 32, 2 * net.processors)
    values = (*_tiles(width, number[gate], number[up]), *sizes, *shape.values)
    yield Launch("moe", "moe_gate_up", (grid, 1), 256, args, shape.size, values)
    weights = max(staged_bytes(one, spec.expert_width, DOWN_ROWS) for one in (down, shared))
    acts = _columns(width) * spec.expert_width * 5 // 4
    staged = weights + acts <= net.shared_memory and not {down, shared} & FLOATS
    values = (*_tiles(width, number[down], number[shared]), *sizes, ("DOWN_STAGED", int(staged)))
    grid = min(entries * -(-spec.hidden // DOWN_ROWS), DOWN_BLOCKS * net.processors)
    yield Launch("moe", "moe_down", (grid, 1), 128, args, staged * weights + acts, values)


@dataclass(frozen=True)
class _Shape:
    """Definitions and shared memory of a kernel."""

    values: tuple[tuple[str, int], ...]
    size: int


def _gate_up_shape(net: Network, width: int, gate: str, up: str) -> _Shape:
    """How weights and activations pass through shared memory: both, if that leaves room for two blocks."""
    hidden, columns = net.spec.hidden, _columns(width)
    sums = 4 * TILE * columns * 4
    weights = sum(staged_bytes(one, hidden, 2 * TILE) for one in (gate, up)) + sums
    both = weights + columns * (hidden + 4 * -(-hidden // (32 * GRAIN)) + 16 * -(-hidden // 256))
    if {gate, up} & FLOATS or weights > net.shared_memory:
        return _Shape((("STAGED", 0),), sums)
    if both <= net.shared_memory // 2 - 1024:
        return _Shape((("STAGED", 1), ("STAGED_X", 1)), both)
    return _Shape((("STAGED", 1),), weights)


def _head(net: Network, width: int) -> Iterator[Launch]:
    spec, work = net.spec, net.work
    yield _norm(net, "output_norm.weight", width, after_experts=True)
    yield _dense(net, work.h, spec.hidden, [("output.weight", spec.vocab)], work.logits, spec.vocab, width)
    process = A.ProcessArgs(
        work.logits, work.processing, work.seen, work.counts, work.stop_ids, work.run, spec.vocab
    )
    yield Launch("head", "process", (width, 1), 256, process)
    splits = LOGIT_SPLITS if width == 1 else LOGIT_SPLITS // 4
    args = A.ChooseArgs(work.logits, work.parts, work.results, work.run, spec.vocab, splits)
    yield Launch("head", "choose_part", (splits, width), 256, args)
    yield Launch("head", "choose", (width, 1), 256, args)
