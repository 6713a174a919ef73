"""The layers as ggml nodes: attention and Gated DeltaNet, causal and in a preview.

Free functions over a graph; shapes in ggml order (ne0 first), all float32 unless said. The causal forms
repeat llama.cpp's order of operations, so that on one device the logits are equal bit for bit.
Formulas: docs/model.md. Twin: tests/reference/layers.py.
"""

import math
from dataclasses import dataclass

from clover_local.ggml.graph import Graph
from clover_local.ggml.lib import Node
from clover_local.model.spec import Spec
from clover_local.model.weights import Weights

F32 = 4  # bytes of a float32
LEFT_ROWS = 3  # committed rows a convolution looks back on
HALF_ROWS = 4


@dataclass(frozen=True)
class Inputs:
    """What the host fills in before a pass of n rows."""

    tokens: Node  # int32 [rows]
    positions: Node  # int32 [rows]
    kv_rows: Node  # int64 [rows], where K and V go
    mask: Node  # float16 [kv, rows], 0 or -inf


@dataclass(frozen=True)
class AttentionState:
    """K and V of one layer: [kv_heads * head_dim, context], float16 or q8_0."""

    k: Node
    v: Node


@dataclass(frozen=True)
class GdnState:
    """State of one GDN layer: ring [3, channels], the last rows before the convolution; s [d, d, heads]."""

    ring: Node
    s: Node


@dataclass(frozen=True)
class GdnRows:
    """What a causal pass must keep of its rows so that a commit can replay them."""

    qkv: Node  # [channels, rows]
    alpha: Node  # [value_heads, rows]
    beta: Node  # [value_heads, rows]


@dataclass(frozen=True)
class PreviewWeights:
    """The preview operator of one GDN layer: taps [9, channels] (a zero, 4 left, 3 right, a zero),
    scale [1, 1, key_heads, ratio], history [value_heads] with ln(b/32) already added."""

    taps: Node
    scale: Node
    history: Node


@dataclass(frozen=True)
class Build:
    """What every layer function needs: the graph, the model and the number of rows."""

    g: Graph
    spec: Spec
    w: Weights
    rows: int
    moe_chunk: int | None = None
    """Rows of one expert product; None takes all rows at once."""
    routed: list[Node] | None = None
    """Where given, takes each layer's experts in falling order, int32 [experts, rows], as results of the graph."""


def norm(b: Build, x: Node, name: str) -> Node:
    """RMSNorm over ne0 times a weight."""
    return b.g.mul(b.g.rms_norm(x, b.spec.norm_eps), b.w[name])


def linear(b: Build, x: Node, *names: str) -> list[Node]:
    """Matrices [n_in, n_out] times x [n_in, rows], one result [n_out, rows] each; one product where they lie
    behind each other, the results then being windows on it."""
    joint = b.w.merged.get(names)
    if joint is None:
        return [b.g.mul_mat(_form(b, name, b.w[name]), x) for name in names]
    y = b.g.mul_mat(_form(b, names[0], joint), x)
    stride, offset, parts = y.contents.nb[1], 0, []
    for size in b.w.parts[names]:
        parts.append(b.g.view(y, (size, b.rows), (stride,), offset * F32))
        offset += size
    return parts


def _form(b: Build, name: str, node: Node) -> Node:
    """The bf16 copy of a float32 matrix where there is one and the rows are enough for it to be faster."""
    return b.w.half.get(name, node) if b.rows >= HALF_ROWS else node


def flat(b: Build, x: Node) -> Node:
    """x without gaps between its rows, as elementwise operations need it."""
    return x if b.rows == 1 or x.contents.nb[1] == x.contents.ne[0] * F32 else b.g.cont(x)


# --- attention ---------------------------------------------------------------------------------------------


def attention(b: Build, x: Node, layer: int, state: AttentionState, inputs: Inputs, kv: int) -> Node:
    """Gated attention of x [hidden, rows] over the first `kv` rows of the cache, its own rows included.

    Who sees whom is the mask's business: causal or, in a preview, every row of the block.
    Returns [hidden, rows].
    """
    g, s, prefix = b.g, b.spec, f"blk.{layer}."
    dim, heads, groups = s.head_dim, s.heads, s.kv_heads
    names = (f"{prefix}attn_q.weight", f"{prefix}attn_k.weight", f"{prefix}attn_v.weight")
    full, k, v = linear(b, x, *names)
    step, pair = full.contents.nb[1], 2 * dim * F32
    q = g.view(full, (dim, heads, b.rows), (pair, step))
    gate = g.cont_2d(g.view(full, (dim, heads, b.rows), (pair, step), dim * F32), dim * heads, b.rows)
    k = g.view(k, (dim, groups, b.rows), (dim * F32, k.contents.nb[1]))
    q = g.rope(
        norm(b, q, f"{prefix}attn_q_norm.weight"),
        inputs.positions,
        s.rope_dims,
        s.rope_theta,
    )
    g.expand(q)
    k = g.rope(
        norm(b, k, f"{prefix}attn_k_norm.weight"),
        inputs.positions,
        s.rope_dims,
        s.rope_theta,
    )
    g.expand(g.set_rows(state.k, g.view(k, (dim * groups, b.rows), (k.contents.nb[2],)), inputs.kv_rows))
    g.expand(g.set_rows(state.v, v, inputs.kv_rows))
    seen = [
        g.view(cache, (dim, kv, groups), (cache.contents.nb[1], cache.contents.nb[1] // groups))
        for cache in (state.k, state.v)
    ]
    out = g.flash_attn_ext(g.permute(q, 0, 2, 1, 3), *seen, inputs.mask, 1 / math.sqrt(dim), 0.0, 0.0)
    g.precise(out)
    out = g.mul(g.reshape(out, dim * heads, b.rows), g.sigmoid(gate))
    return g.mul_mat(b.w[f"{prefix}attn_output.weight"], out)


# --- Gated DeltaNet ----------------------------------------------------------------------------------------


def gdn_rows(b: Build, x: Node, layer: int) -> tuple[GdnRows, Node]:
    """Project x [hidden, rows] to the rows a GDN layer works on, and the output gate z [value_size, rows]."""
    prefix = f"blk.{layer}."
    qkv, z = linear(b, x, f"{prefix}attn_qkv.weight", f"{prefix}attn_gate.weight")
    alpha, beta = linear(b, x, f"{prefix}ssm_alpha.weight", f"{prefix}ssm_beta.weight")
    return GdnRows(qkv, alpha, beta), z


def _gate(b: Build, alpha: Node, layer: int) -> Node:
    """g = ssm_a * softplus(alpha + dt) [value_heads, rows], the logarithm of a row's decay."""
    prefix = f"blk.{layer}."
    return b.g.mul(b.g.softplus(b.g.add(alpha, b.w[f"{prefix}ssm_dt.bias"])), b.w[f"{prefix}ssm_a"])


def _unit(b: Build, x: Node) -> Node:
    """L2-normalised heads: x / sqrt(sum x^2 + eps), written as the RMS norm llama.cpp uses."""
    d = b.spec.gdn_head_dim
    return b.g.scale(b.g.rms_norm(x, b.spec.norm_eps / d), 1 / math.sqrt(d))


def gdn_recurrence(b: Build, rows: GdnRows, layer: int, state: GdnState) -> tuple[Node, Node]:
    """Run rows through convolution and delta rule from a state, which is read only.

    Returns (result, convolution input): the result holds the outputs [d, value_heads, rows] and behind them
    the new S; columns rows…rows+2 of the convolution input [3 + rows, channels] are the new ring.
    """
    g, s, n, d = b.g, b.spec, b.rows, b.spec.gdn_head_dim
    beta = g.sigmoid(g.reshape(flat(b, rows.beta), 1, s.value_heads, n, 1))
    gate = g.reshape(_gate(b, rows.alpha, layer), 1, s.value_heads, n, 1)
    window = g.concat(state.ring, g.transpose(rows.qkv), 0)
    y = g.silu(g.ssm_conv(window, b.w[f"blk.{layer}.ssm_conv1d.weight"]))
    step = y.contents.nb[1]
    heads = _unit(b, g.view(y, (d, 2 * s.key_heads, n), (d * F32, step)))  # queries and keys at once
    row = heads.contents.nb[2]
    q, k = (
        g.view(heads, (d, s.key_heads, n, 1), (d * F32, row, row * n), part * s.key_size * F32)
        for part in range(2)
    )
    v = g.view(y, (d, s.value_heads, n, 1), (d * F32, step, step * n), 2 * s.key_size * F32)
    return g.gated_delta_net(q, k, v, gate, beta, state.s, 1), window


def gdn_store(b: Build, result: Node, window: Node, state: GdnState) -> None:
    """Write what `gdn_recurrence` found into the state; S first: ggml fuses a copy only right after."""
    g, s, n = b.g, b.spec, b.rows
    size = s.gdn_head_dim * s.gdn_head_dim * s.value_heads
    new = g.view(result, (size,), (), s.value_size * n * F32)
    g.expand(g.cpy(new, g.view(state.s, (size,), (), 0)))
    last = g.view(window, (LEFT_ROWS, s.channels), (window.contents.nb[1],), n * F32)
    g.expand(g.cpy(last, state.ring))


def gdn_output(b: Build, out: Node, z: Node, layer: int) -> Node:
    """RMSNorm of out [d, value_heads, rows] per head, times silu(z), projected to [hidden, rows]."""
    g, s, prefix = b.g, b.spec, f"blk.{layer}."
    normed = norm(b, out, f"{prefix}ssm_norm.weight")
    z = g.reshape(flat(b, z), s.gdn_head_dim, s.value_heads, b.rows)
    gated = g.reshape(g.swiglu_split(z, normed), s.value_size, b.rows)
    return g.mul_mat(b.w[f"{prefix}ssm_out.weight"], gated)


def gdn_causal(b: Build, rows: GdnRows, layer: int, state: GdnState, *, store: bool) -> Node:
    """Outputs [d, value_heads, rows] of the causal path; with `store` the state moves on as well."""
    result, window = gdn_recurrence(b, rows, layer, state)
    if store:
        gdn_store(b, result, window, state)
    d, heads = b.spec.gdn_head_dim, b.spec.value_heads
    return b.g.view(result, (d, heads, b.rows), (d * F32, d * heads * F32), 0)


def gdn_preview(b: Build, rows: GdnRows, layer: int, state: GdnState, extra: PreviewWeights) -> Node:
    """Outputs [d, value_heads, rows] of the preview: each row sees all rows and the history; no writes.

    In the tiled order value head h = j * key_heads + k reads key head k: dimensions [key_heads, ratio].
    """
    g, s, n, d = b.g, b.spec, b.rows, b.spec.gdn_head_dim
    ratio = s.value_heads // s.key_heads
    window = g.pad_ext(g.concat(state.ring, g.transpose(rows.qkv), 0), 1, 4, 0, 0, 0, 0, 0, 0)
    y = g.silu(g.ssm_conv(window, extra.taps))
    step = y.contents.nb[1]
    heads = _unit(b, g.view(y, (d, 2 * s.key_heads, n), (d * F32, step)))
    row, key = heads.contents.nb[2], s.key_heads * d * F32
    q = g.repeat_4d(g.view(heads, (d, n, s.key_heads), (row, d * F32)), d, n, s.key_heads, ratio)
    k = g.view(heads, (d, n, s.key_heads), (row, d * F32), key)
    logits = g.mul_mat(k, g.mul(q, extra.scale))  # [slot, row, key_heads, ratio]
    weights = g.soft_max(g.reshape(logits, n, n, s.value_heads))
    g.add_sinks(weights, extra.history)
    root = 1 / math.sqrt(d)
    past = g.scale_bias(g.sum_rows(weights), -root, root)  # history's weight / sqrt(d)
    decay = g.exp(_gate(b, rows.alpha, layer))
    past = g.mul(past, g.view(decay, (1, n, s.value_heads), (s.value_heads * F32, F32)))
    v = g.view(y, (d, s.value_heads, n), (d * F32, step), 2 * s.key_size * F32)
    inside = g.mul_mat(g.cont(g.permute(v, 1, 2, 0, 3)), weights)
    history = g.mul_mat(state.s, g.reshape(q, d, n, s.value_heads))
    return g.permute(g.add(inside, g.mul(history, past)), 0, 2, 1, 3)
