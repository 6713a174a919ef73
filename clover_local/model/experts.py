"""The mixture of experts as ggml nodes: whom a row is routed to, in a causal pass, a preview or a draft.

Free functions over a graph; shapes in ggml order (ne0 first), all float32 unless said. The causal form repeats
llama.cpp's order of operations. Formulas: docs/model.md. Twin: tests/reference/layers.py.
"""

import math
from dataclasses import dataclass

from clover_local.ggml.lib import Node
from clover_local.model.layers import F32, Build, linear

JOINT_EXPERT_ROWS = 8  # from here on one product for gate and up is faster on a GPU
FAR = 1e30  # added to or taken from a logit, nothing else matters any more
MIN_WEIGHT_SUM = 6.103515625e-5  # llama.cpp's floor below the sum of expert weights


@dataclass(frozen=True)
class Coreset:
    """A restriction to few experts: `top_p` of the mass; `order` [experts, experts] breaks ties."""

    top_p: float
    order: Node


@dataclass(frozen=True)
class Routing:
    """Which experts the rows of a pass may use. Both restrictions look at the whole block."""

    picks: int  # experts of a row
    coreset: Coreset | None = None
    budget: int | None = None  # experts of the block; instead of a coreset
    allowed: Node | None = None  # float32 [experts], 0 or far below: added to every row's router logits


def moe(b: Build, x: Node, layer: int, routing: Routing) -> Node:
    """Routed experts plus the gated shared expert of x [hidden, rows]; returns [hidden, rows]."""
    g, picks, prefix = b.g, routing.picks, f"blk.{layer}."
    (router,) = linear(b, x, f"{prefix}ffn_gate_inp.weight")
    if routing.allowed is not None:
        router = g.add(router, routing.allowed)
    if routing.budget is not None and routing.budget < picks * b.rows:
        router = within_budget(b, router, picks, routing.budget)
    elif routing.budget is None and routing.coreset is not None:
        router = restrict(b, router, picks, routing.coreset)
    ids, weights = route(b, router, picks)
    if b.routed is not None:
        b.routed.append(g.output(g.whole(ids)))
    total = g.clamp(g.sum_rows(g.reshape(weights, picks, b.rows)), MIN_WEIGHT_SUM, math.inf)
    weights = g.reshape(g.div(g.reshape(weights, picks, b.rows), total), 1, picks, b.rows)
    g.expand(weights)
    routed = experts(b, x, ids, weights, layer)
    shared = g.mul_mat(b.w[f"{prefix}ffn_down_shexp.weight"], shared_hidden(b, x, layer))
    shared_gate = g.sigmoid(g.mul_mat(b.w[f"{prefix}ffn_gate_inp_shexp.weight"], x))
    return g.add(routed, g.mul(shared, shared_gate))


def shared_hidden(b: Build, x: Node, layer: int) -> Node:
    """silu(gate) * up of the shared expert [shared width, rows]."""
    g, names = b.g, (f"blk.{layer}.ffn_gate_shexp.weight", f"blk.{layer}.ffn_up_shexp.weight")
    joint = b.w.merged.get(names)
    if joint is None or b.rows > 1:
        return g.swiglu_split(*linear(b, x, *names))
    gate, up = _halves(b, joint, (b.spec.hidden, b.spec.shared_width))  # one row: ggml fuses all three
    return g.swiglu_split(g.mul_mat(gate, x), g.mul_mat(up, x))


def route(b: Build, router: Node, picks: int) -> tuple[Node, Node]:
    """Top-k of a softmax over router logits [experts, rows]: ids int32 [k, rows] and weights [1, k, rows]."""
    g, s = b.g, b.spec
    probabilities = g.soft_max(router)
    table = g.reshape(probabilities, 1, s.experts, b.rows)
    ids = g.argsort_top_k(probabilities, picks)
    weights = g.get_rows(table, ids)
    g.expand(weights)
    return ids, weights


def experts(b: Build, x: Node, ids: Node, weights: Node, layer: int) -> Node:
    """Weighted sum of each row's experts, in chunks of at most `moe_chunk` rows."""
    g, s, k = b.g, b.spec, ids.contents.ne[0]
    if b.moe_chunk is None or b.rows <= b.moe_chunk:
        return _experts(b, g.reshape(x, s.hidden, 1, b.rows), ids, weights, layer, b.rows)
    pieces, start = [], 0
    chunks = -(-b.rows // b.moe_chunk)
    for index in range(chunks):
        n = b.rows // chunks + (index < b.rows % chunks)
        part_x = g.view(x, (s.hidden, 1, n), (x.contents.nb[1], x.contents.nb[1]), start * x.contents.nb[1])
        part_ids = g.view(ids, (k, n), (ids.contents.nb[1],), start * ids.contents.nb[1])
        strides = (weights.contents.nb[1], weights.contents.nb[2])
        part_weights = g.view(weights, (1, k, n), strides, start * weights.contents.nb[2])
        pieces.append(_experts(b, part_x, part_ids, part_weights, layer, n))
        start += n
    while len(pieces) > 1:
        pairs = [pieces[i : i + 2] for i in range(0, len(pieces), 2)]
        pieces = [g.concat(*pair, 1) if len(pair) == 2 else pair[0] for pair in pairs]
    return pieces[0]


def _experts(b: Build, x: Node, ids: Node, weights: Node, layer: int, n: int) -> Node:
    g, s, prefix = b.g, b.spec, f"blk.{layer}."
    names = (f"{prefix}ffn_gate_exps.weight", f"{prefix}ffn_up_exps.weight")
    joint = b.w.merged.get(names)
    if joint is not None and n >= JOINT_EXPERT_ROWS:
        active = g.swiglu(g.mul_mat_id(joint, x, ids))
    else:
        shape = (s.hidden, s.expert_width, s.experts)
        gate, up = (b.w[name] for name in names) if joint is None else _halves(b, joint, shape)
        active = g.swiglu_split(g.mul_mat_id(gate, x, ids), g.mul_mat_id(up, x, ids))
    down = g.mul_mat_id(b.w[f"{prefix}ffn_down_exps.weight"], active, ids)
    each = g.mul(down, weights)  # [hidden, k, rows]
    g.expand(each)
    views = []
    for index in range(ids.contents.ne[0]):
        views.append(g.view(each, (s.hidden, n), (each.contents.nb[2],), index * each.contents.nb[1]))
        g.expand(views[-1])
    total = views[0]
    for view in views[1:]:
        total = g.add(total, view)
        g.expand(total)
    return total if len(views) > 1 else g.cont(total)


def _halves(b: Build, joint: Node, shape: tuple[int, ...]) -> tuple[Node, Node]:
    """Gate and up as windows of a shape on matrices that hold both behind each other."""
    strides, matrix = tuple(joint.contents.nb[1 : len(shape)]), joint.contents.nb[2]
    first, second = (b.g.view(joint, shape, strides, offset) for offset in (0, matrix // 2))
    b.g.expand(first)
    b.g.expand(second)  # both before the products: ggml fuses them only when nothing lies between
    return first, second


def _mass(b: Build, router: Node, picks: int) -> Node:
    """How much the block's rows want each expert [1, experts]: the sum of their top-k probabilities."""
    g, e, n = b.g, b.spec.experts, b.rows
    ids, weights = route(b, router, picks)
    dense = g.fill(g.new("f32", n, e), 0.0)
    g.expand(dense)
    scattered = g.set_rows(g.view(dense, (1, e, n), (n * F32, F32)), weights, ids)
    return g.sum_rows(g.view(scattered, (n, e), (n * F32,), 0))


def restrict(b: Build, router: Node, picks: int, coreset: Coreset) -> Node:
    """Router logits [experts, rows] with every expert outside the block's coreset far below the rest.

    An expert is kept while the mass of those ranked before it is below `top_p` of all (docs/model.md, "The
    coreset"). Ranks come from comparing all pairs, which needs no sort; `order` ranks the lower index first.
    """
    g, e = b.g, b.spec.experts
    mass = _mass(b, router, picks)
    row = g.reshape(mass, e)
    ahead = g.step(g.add(g.sub(g.repeat_4d(row, e, e, 1, 1), mass), coreset.order))  # [f, e]: f before e
    before = g.reshape(g.mul_mat(ahead, row), e)
    limit = g.scale(g.sum_rows(row), coreset.top_p)
    keep = g.step(g.sub(g.repeat_4d(limit, e, 1, 1, 1), before))
    return g.add(router, g.scale_bias(keep, FAR, -FAR))


def within_budget(b: Build, router: Node, picks: int, budget: int) -> Node:
    """Router logits [experts, rows] with all but the `budget` experts of most mass far below the rest."""
    g, e = b.g, b.spec.experts
    best = g.argsort_top_k(g.reshape(_mass(b, router, picks), e), budget)
    outside = g.fill(g.new("f32", 1, e), -FAR)
    inside = g.fill(g.new("f32", 1, budget), 0.0)
    g.expand(outside)
    return g.add(router, g.reshape(g.set_rows(outside, inside, best), e))
