"""The passes as graphs: causal (prefill, step, verify), preview, and the commit that replays accepted rows.

A pass is built once per key and recomputed. Only a pass whose kind stores (prefill and step) and the commit
write the state; K and V rows beyond the committed length may be written by any pass, because no later pass
sees them before they are committed.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from clover_local.ggml.backend import Backend, Buffer, Context, upload
from clover_local.ggml.graph import Graph
from clover_local.ggml.lib import Node
from clover_local.model import experts, layers
from clover_local.model.draft import DraftSettings
from clover_local.model.experts import Coreset, Routing
from clover_local.model.layers import (
    LEFT_ROWS,
    AttentionState,
    Build,
    GdnRows,
    GdnState,
    Inputs,
    PreviewWeights,
)
from clover_local.model.processing import Processing
from clover_local.model.spec import CONV_TAPS, MAX_ROWS, RIGHT_TAPS, Spec
from clover_local.model.weights import Weights

NODES_PER_LAYER = 160
NODES_PER_CHUNK = 16  # of expert products, and as many again per two experts used
NODES_BESIDE = 256
PREVIEW_TAPS = 9  # a kernel size ggml has on every device; the outer two taps are zeros
FORBIDDEN = -1e30
"""Added to the mask token's logit: like minus infinity, but 0 * FORBIDDEN is still a number."""


class Kind(StrEnum):
    """What a pass does with its rows."""

    STORE = "store"  # causal, and the state moves on: prefill and single steps; judges its last row
    VERIFY = "verify"  # causal; rows are kept aside for a commit
    PREVIEW = "preview"


@dataclass(frozen=True)
class PassKey:
    """One graph object each."""

    kind: Kind
    rows: int
    kv: int  # rows of the cache that attention looks at
    processing: Processing | None = None  # penalties and ramps baked into the graph; None masks the mask only
    draft: DraftSettings | None = None  # a preview that is only a proposal, made so
    restricted: bool = False  # drafts: only the experts of Constants.allowed
    observed: bool = False  # the experts chosen are results too

    @property
    def first_judged(self) -> int:
        """The first row that the head looks at: a step's last, a draft's second (its first is known)."""
        if self.kind is Kind.STORE:
            return self.rows - 1
        return 1 if self.draft is not None and self.rows > 1 else 0


@dataclass
class State:
    """What a conversation leaves behind on the device, and scratch for rows that may still be committed."""

    attention: dict[int, AttentionState]
    gdn: dict[int, GdnState]
    scratch: dict[int, GdnRows]
    counts: Node  # float32 [vocab]: how often the response holds each token
    context: Context
    buffer: Buffer

    def free(self) -> None:
        self.buffer.free()
        self.context.free()


def new_state(spec: Spec, backend: Backend, n_ctx: int, kv_types: tuple[str, str]) -> State:
    """Allocate an empty state for `n_ctx` tokens; K and V are stored in `kv_types`."""
    context = Context(8 * spec.layers + 8)
    width = spec.kv_heads * spec.head_dim
    attention, gdn, scratch = {}, {}, {}
    for layer in range(spec.layers):
        if spec.is_attention(layer):
            k, v = (context.tensor(kind, width, n_ctx) for kind in kv_types)
            attention[layer] = AttentionState(k, v)
        else:
            d = spec.gdn_head_dim
            gdn[layer] = GdnState(
                context.tensor("f32", LEFT_ROWS, spec.channels), context.tensor("f32", d, d, spec.value_heads)
            )
            scratch[layer] = GdnRows(
                context.tensor("f32", spec.channels, MAX_ROWS),
                context.tensor("f32", spec.value_heads, MAX_ROWS),
                context.tensor("f32", spec.value_heads, MAX_ROWS),
            )
    counts = context.tensor("f32", spec.vocab)
    buffer = Buffer(context, backend)
    buffer.clear()
    return State(attention, gdn, scratch, counts, context, buffer)


@dataclass
class Constants:
    """Small tensors of the model that no file holds: the preview operator's and the choice's."""

    preview: dict[int, tuple[Node, Node]]  # layer -> taps, scale
    history: dict[int, dict[int, Node]]  # rows -> layer -> history logits
    coreset: Coreset | None
    allowed: Node | None  # float32 [experts, layers], added to a restricted draft's router logits
    forbidden: Node  # float32 [vocab], FORBIDDEN at the mask token
    stops: Node  # float32 [vocab], 1 at the tokens the length ramp lifts
    think_end: Node  # float32 [vocab], 1 at the end of reasoning
    spec: Spec
    backend: Backend
    owned: list[tuple[Context, Buffer]]

    def history_for(self, rows: int) -> dict[int, Node]:
        """The history's logit per value head of a block of `rows`: bias + c * ln(rows / 32)."""
        if rows not in self.history:
            spec, preview = self.spec, self.spec.preview
            assert preview is not None
            context = Context(len(spec.gdn_layers))
            nodes = {layer: context.tensor("f32", spec.value_heads) for layer in spec.gdn_layers}
            self.owned.append((context, Buffer(context, self.backend)))
            for index, layer in enumerate(spec.gdn_layers):
                value = preview.history_bias[index] + preview.history_c[index] * math.log(rows / 32)
                upload(nodes[layer], value.astype(np.float32))
            self.history[rows] = nodes
        return self.history[rows]

    def free(self) -> None:
        for context, buffer in self.owned:
            buffer.free()
            context.free()


def new_constants(spec: Spec, backend: Backend, conv: dict[int, np.ndarray]) -> Constants:
    """Upload the constants; `conv` holds each GDN layer's left taps, float32 [channels, 4]."""
    context = Context(2 * spec.layers + 8)
    vocab = [context.tensor("f32", spec.vocab) for _ in range(3)]
    coreset = allowed = None
    preview: dict[int, tuple[Node, Node]] = {}
    if spec.preview is not None:
        allowed = context.tensor("f32", spec.experts, spec.layers)
        ratio = spec.value_heads // spec.key_heads
        for layer in spec.gdn_layers:
            taps = context.tensor("f32", PREVIEW_TAPS, spec.channels)
            preview[layer] = (taps, context.tensor("f32", 1, 1, spec.key_heads, ratio))
        if spec.coreset_top_p is not None:
            coreset = Coreset(spec.coreset_top_p, context.tensor("f32", spec.experts, spec.experts))
    buffer = Buffer(context, backend)
    buffer.clear()
    if spec.mask_id is not None:
        upload(vocab[0], np.array([FORBIDDEN], np.float32), 4 * spec.mask_id)
    for token in spec.processing.stop_ids:
        upload(vocab[1], np.ones(1, np.float32), 4 * token)
    if spec.processing.think_end_id is not None:
        upload(vocab[2], np.ones(1, np.float32), 4 * spec.processing.think_end_id)
    if spec.preview is not None:
        for index, layer in enumerate(spec.gdn_layers):
            taps = np.zeros((spec.channels, PREVIEW_TAPS), np.float32)
            taps[:, 1 : 1 + CONV_TAPS] = conv[layer]
            taps[:, 1 + CONV_TAPS : 1 + CONV_TAPS + RIGHT_TAPS] = spec.preview.conv_right[index]
            upload(preview[layer][0], taps)
            upload(preview[layer][1], spec.preview.logit_scale[index])
    if coreset is not None:
        ranks = np.arange(spec.experts, dtype=np.float32)
        upload(coreset.order, (ranks[:, None] - ranks[None, :]) * np.float32(1e-12))
    forbidden, stops, think_end = vocab
    owned = [(context, buffer)]
    return Constants(preview, {}, coreset, allowed, forbidden, stops, think_end, spec, backend, owned)


@dataclass(frozen=True)
class Processed:
    """Host inputs of the response processing; None where a pass does not need one."""

    cells: Node | None = None  # int64 [rows, rows]: per row, tokens whose count differs from the response's
    times: Node | None = None  # float32 [1, rows, rows]: those counts
    length_bias: Node | None = None  # float32 [1, rows]
    think_bias: Node | None = None  # float32 [1, rows]


@dataclass
class Pass:
    """A graph ready to run, with its inputs and results."""

    key: PassKey
    graph: Graph
    inputs: Inputs
    processed: Processed
    next_ids: Node | None  # int32 [1, rows]: whose probability each row is asked for
    logits: Node  # float32 [vocab, rows], after the response processing
    ids: Node  # int32 [rows]
    p: Node | None  # float32 [rows]; a step has none, a softmax of the vocabulary being 2 % of it
    entropy: Node | None
    next_p: Node | None
    routed: list[Node]  # int32 [experts, rows] per layer where observed: best first
    bytes: int = 0


@dataclass(frozen=True)
class Model:
    """Everything a pass is built from."""

    spec: Spec
    weights: Weights
    constants: Constants
    state: State
    backend: Backend
    moe_chunk: int | None = None
    host: Backend | None = None
    """The CPU, where some layers' experts stay in its memory."""


def build_pass(model: Model, key: PassKey) -> Pass:
    """Build and allocate the graph of a pass."""
    spec, n = model.spec, key.rows
    few = key.kind is Kind.PREVIEW or n > MAX_ROWS  # few experts a row, so one product of all rows is faster
    chunk = None if few else model.moe_chunk
    chunks = -(-n // chunk) if chunk else 1
    per_layer = NODES_PER_LAYER + chunks * (NODES_PER_CHUNK + 2 * spec.experts_used)
    g = Graph(per_layer * spec.layers + NODES_BESIDE)
    inputs = Inputs(g.input("i32", n), g.input("i32", n), g.input("i64", n), g.input("f16", key.kv, n))
    routed: list[Node] = []
    b = Build(g, spec, model.weights, n, chunk, routed if key.observed else None)
    x = g.get_rows(model.weights["token_embd.weight"], inputs.tokens)
    for layer in range(spec.layers):
        x = _layer(b, model, key, inputs, x, layer)
    if key.first_judged:
        n -= key.first_judged
        x = g.view(x, (spec.hidden, n), (x.contents.nb[1],), key.first_judged * x.contents.nb[1])
    b = Build(g, spec, model.weights, n)
    logits = g.mul_mat(model.weights["output.weight"], layers.norm(b, x, "output_norm.weight"))
    result = _choose(b, model, key, logits, inputs)
    result.routed += routed
    result.bytes = g.allocate(model.backend, model.host)
    return result


def _layer(b: Build, model: Model, key: PassKey, inputs: Inputs, x: Node, layer: int) -> Node:
    g, state = b.g, model.state
    h = layers.norm(b, x, f"blk.{layer}.attn_norm.weight")
    if b.spec.is_attention(layer):
        mixed = layers.attention(b, h, layer, state.attention[layer], inputs, key.kv)
    else:
        mixed = _gdn(b, model, key, h, layer)
    x = g.add(mixed, x)
    h = layers.norm(b, x, f"blk.{layer}.post_attention_norm.weight")
    return g.add(experts.moe(b, h, layer, _routing(b, model, key, layer)), x)


def _routing(b: Build, model: Model, key: PassKey, layer: int) -> Routing:
    """All experts in a causal pass, the coreset in a preview, a draft's own choice in a draft."""
    spec, constants = model.spec, model.constants
    if key.kind is not Kind.PREVIEW:
        return Routing(spec.experts_used)
    if key.draft is None:
        return Routing(spec.experts_used, constants.coreset)
    allowed = None
    if key.restricted:
        assert constants.allowed is not None, "a model that can draft has the mask"
        allowed = b.g.view(constants.allowed, (spec.experts,), (), layer * constants.allowed.contents.nb[1])
    return Routing(key.draft.picks(spec), constants.coreset, key.draft.budget, allowed)


def _gdn(b: Build, model: Model, key: PassKey, h: Node, layer: int) -> Node:
    state = model.state.gdn[layer]
    rows, z = layers.gdn_rows(b, h, layer)
    if key.kind is Kind.PREVIEW:
        taps, scale = model.constants.preview[layer]
        extra = PreviewWeights(taps, scale, model.constants.history_for(b.rows)[layer])
        out = layers.gdn_preview(b, rows, layer, state, extra)
    else:
        if key.kind is Kind.VERIFY:
            _keep(b, rows, model.state.scratch[layer])
        out = layers.gdn_causal(b, rows, layer, state, store=key.kind is Kind.STORE)
    return layers.gdn_output(b, out, z, layer)


def _keep(b: Build, rows: GdnRows, scratch: GdnRows) -> None:
    for source, target in zip(_parts(rows), _parts(scratch), strict=True):
        b.g.expand(b.g.cpy(source, _first(b.g, target, b.rows)))


def _parts(rows: GdnRows) -> tuple[Node, Node, Node]:
    return rows.qkv, rows.alpha, rows.beta


def _first(g: Graph, node: Node, rows: int) -> Node:
    return g.view(node, (node.contents.ne[0], rows), (node.contents.nb[1],), 0)


def build_commit(model: Model, rows: int) -> Graph:
    """The graph that replays the first `rows` rows of the last verify pass into the GDN states."""
    g = Graph(24 * model.spec.layers + 16)
    b = Build(g, model.spec, model.weights, rows)
    for layer in model.spec.gdn_layers:
        kept = GdnRows(*(_first(g, node, rows) for node in _parts(model.state.scratch[layer])))
        result, window = layers.gdn_recurrence(b, kept, layer, model.state.gdn[layer])
        layers.gdn_store(b, result, window, model.state.gdn[layer])
    g.allocate(model.backend)
    return g


# --- the choice --------------------------------------------------------------------------------------------


def _choose(b: Build, model: Model, key: PassKey, logits: Node, inputs: Inputs) -> Pass:
    """From raw logits [vocab, rows] to argmax, probability and, in verify, entropy and asked probability."""
    g, n, vocab = b.g, b.rows, b.spec.vocab
    processed = Processed()
    if key.processing is not None:
        processed = _processed_inputs(b, key, key.processing)
        logits = _penalize(b, model, logits, key.processing, processed)
        logits = _ramp(b, logits, model.constants.stops, processed.length_bias)
        logits = _ramp(b, logits, model.constants.think_end, processed.think_bias)
    logits = g.output(g.add(logits, model.constants.forbidden))
    ids = g.output(g.argmax(logits))
    p = entropy = next_p = next_ids = None
    if key.kind is not Kind.STORE:
        probabilities = g.soft_max(logits)
        table = g.reshape(probabilities, 1, vocab, n)
        p = g.output(g.get_rows(table, g.reshape(ids, 1, n)))
    if key.kind is Kind.VERIFY:
        next_ids = g.input("i32", 1, n)
        next_p = g.output(g.get_rows(table, next_ids))
        best = g.get_rows(g.reshape(logits, 1, vocab, n), g.reshape(ids, 1, n))
        total = g.sub(g.reshape(best, 1, n), g.log(g.reshape(p, 1, n)))  # logsumexp
        entropy = g.output(g.sub(total, g.sum_rows(g.mul(probabilities, logits))))
    return Pass(key, g, inputs, processed, next_ids, logits, ids, p, entropy, next_p, [])


def _processed_inputs(b: Build, key: PassKey, processing: Processing) -> Processed:
    g, n = b.g, b.rows
    cells = processing.penalizes and key.kind is not Kind.PREVIEW
    return Processed(
        cells=g.input("i64", n, n) if cells else None,
        times=g.input("f32", 1, n, n) if cells else None,
        length_bias=g.input("f32", 1, n) if processing.length.strength else None,
        think_bias=g.input("f32", 1, n) if processing.think_end.strength else None,
    )


def _penalize(b: Build, model: Model, logits: Node, processing: Processing, inputs: Processed) -> Node:
    """Penalties over [vocab, rows]; the readable twin is `processing.process`."""
    g, n, vocab = b.g, b.rows, b.spec.vocab
    if not processing.penalizes:
        return logits
    counts = g.repeat_4d(model.state.counts, vocab, n, 1, 1)
    if inputs.cells is not None:  # a causal row also counts the rows up to its own
        g.expand(counts)
        cells = g.set_rows(g.view(counts, (1, vocab, n), (4, 4 * vocab), 0), inputs.times, inputs.cells)
        counts = g.view(cells, (vocab, n), (4 * vocab,), 0)
    seen = g.step(counts)
    logits = g.sub(logits, g.scale(counts, processing.frequency))
    logits = g.sub(logits, g.scale(seen, processing.presence))
    if processing.repetition == 1.0:
        return logits
    up = g.relu(logits)
    down = g.scale(g.sub(logits, up), processing.repetition)
    changed = g.add(g.scale(up, 1 / processing.repetition), down)
    return g.add(logits, g.mul(seen, g.sub(changed, logits)))


def _ramp(b: Build, logits: Node, indicator: Node, bias: Node | None) -> Node:
    """Add a bias per row [1, rows] to the tokens that an indicator [vocab] marks."""
    if bias is None:
        return logits
    g = b.g
    return g.add(logits, g.mul(g.repeat_4d(indicator, b.spec.vocab, b.rows, 1, 1), bias))
