"""The training form of the model: a causal stream and previews of many of its blocks in one pass.

The stream is cut into chunks of 32; the gated delta rule runs chunk by chunk, so that the state before every chunk
is at hand, and a block can be previewed over the prefix at each. Everything but the order of computation is
tests/reference/layers.py; a test holds the two together.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from reference import layers as L
from torch import Tensor

CHUNK = 32
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one pass reads. Chunk c of a sequence is its tokens 32c … 32c + 31; block j previews chunk pick[j]."""

    tokens: Tensor  # [batch, length]
    pad: Tensor  # [batch] tokens of padding on the left
    pick: Tensor  # [batch, blocks] chunk index of each block
    block: Tensor  # [batch, blocks, 32] tokens of the block, masks in place
    width: Tensor  # [batch, blocks] valid rows of the block

    @property
    def valid(self) -> Tensor:
        """Which rows of a block count [batch, blocks, 32]."""
        return torch.arange(CHUNK, device=self.width.device) < self.width[..., None]


@dataclass(frozen=True)
class Context:
    """What the layers of one pass share."""

    length: int
    live: Tensor  # [batch, length] not padding
    pick: Tensor
    valid: Tensor
    log_b: Tensor  # [batch, blocks] ln(width / 32)
    causal_seen: Tensor  # [batch, 1, length, length]
    block_seen: Tensor  # [batch, 1, blocks * 32, length + blocks * 32]
    table: tuple[Tensor, Tensor]  # rotary table of all rows


def context(shape: L.Shape, batch: Batch) -> Context:
    """Masks and positions of a batch."""
    length, device = batch.tokens.shape[1], batch.tokens.device
    t = torch.arange(length, device=device)
    live = t[None] >= batch.pad[:, None]
    itself = t[:, None] == t[None]
    causal = ((t[:, None] >= t[None]) & live[:, None]) | itself
    valid = batch.valid
    blocks = batch.pick.shape[1]
    start = (batch.pick * CHUNK).repeat_interleave(CHUNK, 1)
    past = (t[None, None] < start[..., None]) & live[:, None]
    own = torch.arange(blocks, device=device).repeat_interleave(CHUNK)
    inside = (own[:, None] == own[None])[None] & valid.flatten(1)[:, None]
    rows = start + torch.arange(CHUNK, device=device).repeat(blocks)
    return Context(
        length=length,
        live=live,
        pick=batch.pick,
        valid=valid,
        log_b=torch.log(batch.width / CHUNK),
        causal_seen=causal[:, None],
        block_seen=torch.cat([past, inside], -1)[:, None],
        table=_tables(shape, t, rows),
    )


def _tables(shape: L.Shape, t: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary tables [batch, length + block rows, 1, half] of the stream, then of the blocks."""
    cos, sin = L.rope_table(shape, t)
    both = (torch.cat([x.expand(len(rows), *x.shape), x[rows]], 1) for x in (cos, sin))
    cos, sin = both
    return cos, sin


def forward(
    shape: L.Shape, weights: Weights, batch: Batch, dtype: torch.dtype, layer: object = None
) -> tuple[Tensor, Tensor]:
    """Hidden rows [batch, length + blocks * 32, hidden] before the final norm, and the load-balancing loss.

    `layer` may be a compiled `one_layer`.
    """
    run = layer or one_layer
    shared = context(shape, batch)
    ids = torch.cat([batch.tokens, batch.block.flatten(1)], 1)
    x = F.embedding(ids, weights["embed_tokens.weight"]).to(dtype)
    balance = x.new_zeros((), dtype=torch.float32)
    for i, attention in enumerate(shape.attention):
        prefix = f"layers.{i}."
        p = {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
        x, extra = run(shape, p, x, shared, attention)  # type: ignore[operator]
        balance = balance + extra
    return x, balance / len(shape.attention)


def one_layer(shape: L.Shape, p: L.Layer, x: Tensor, c: Context, attention: bool) -> tuple[Tensor, Tensor]:
    """One layer over the stream and its blocks; also its load-balancing loss."""
    x = x + (_attention(shape, p, x, c) if attention else _gdn(shape, p, x, c))
    return _moe(shape, p, x, c)


def logits(shape: L.Shape, weights: Weights, x: Tensor) -> Tensor:
    """Final norm and head, f32."""
    return L.linear(L.rms_norm(x, 1 + weights["norm.weight"], shape.eps), weights["lm_head.weight"]).float()


def _attention(shape: L.Shape, p: L.Layer, x: Tensor, c: Context) -> Tensor:
    q, k, v, gate = L.attention_project(shape, p, x, c.table)
    n = c.length
    o = L.attend(shape, q[:, :n], k[:, :n], v[:, :n], c.causal_seen)
    blocks = L.attend(shape, q[:, n:], k, v, c.block_seen)
    return L.attention_output(p, torch.cat([o, blocks], 1), gate)


def _moe(shape: L.Shape, p: L.Layer, x: Tensor, c: Context) -> tuple[Tensor, Tensor]:
    h = L.rms_norm(x, 1 + p["post_attention_layernorm.weight"], shape.eps)
    router = L.router_logits(p, h)
    stream = L.top_k(router[:, : c.length], shape.active)
    blocks = router[:, c.length :].unflatten(1, (-1, CHUNK))
    inside = L.route_block(shape, blocks, c.valid).flatten(1, 2)
    weights = torch.cat([stream, inside], 1)
    share = (weights > 0).float().mean((0, 1)) / shape.active
    balance = shape.experts * (share * router.softmax(-1).mean((0, 1))).sum()
    return x + L.experts(shape, p, h, weights / weights.sum(-1, keepdim=True)), balance


def _gdn(shape: L.Shape, p: L.Layer, x: Tensor, c: Context) -> Tensor:
    rows = L.gdn_project(shape, p, x)
    n = c.length
    stream = F.pad(rows.qkv[:, :n] * c.live[..., None].to(x.dtype), (0, 0, 3, 0))
    q, k, v = L.gdn_heads(shape, L.convolve(stream, L.causal_taps(p)))
    o, states = delta_chunks(q, k, v, rows.g[:, :n], rows.beta[:, :n])

    g = rows.g[:, n:].unflatten(1, (-1, CHUNK))
    inside = rows.qkv[:, n:].unflatten(1, (-1, CHUNK)) * c.valid[..., None].to(x.dtype)
    rings = stream[:, :n].unflatten(1, (-1, CHUNK))[:, :, :3]
    ring = rings.gather(1, c.pick[..., None, None].expand(-1, -1, *rings.shape[2:]))
    window = torch.cat([ring, inside, torch.zeros_like(ring)], 2)
    q, k, v = L.gdn_heads(shape, L.convolve(window, L.preview_taps(p)))
    state = states.gather(1, c.pick[..., None, None, None].expand(-1, -1, *states.shape[2:]))
    blocks = L.block_softmax(p, q, k, v, g, state, c.valid, c.log_b)
    o = torch.cat([o, blocks.transpose(1, 2).flatten(2, 3)], 2)
    return L.gdn_output(shape, p, o, rows.z)


def delta_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The gated delta rule over a whole stream from an empty state, chunk by chunk.

    q, k, v [batch, heads, length, dim]; g, beta [batch, length, heads]. Outputs [batch, heads, length, dv] and the
    state before every chunk [batch, chunks, heads, dk, dv]. Inside a chunk the rule's rows are one triangular
    system (I + A) u = beta (v - decayed k S); see "Gated Delta Networks" (arXiv 2412.06464), section 3.
    """
    q, k, v = (x.unflatten(2, (-1, CHUNK)).transpose(1, 2) for x in (q, k, v))
    g, beta = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3) for x in (g, beta))
    q = q * q.shape[-1] ** -0.5
    total = g.cumsum(-1)
    i = torch.arange(CHUNK, device=q.device)
    low = i[:, None] >= i[None]
    decay = torch.exp(torch.where(low, total[..., :, None] - total[..., None, :], L.NEVER))
    past, last = total.exp()[..., None], total[..., -1:]
    gram = (k @ k.mT) * beta[..., None] * decay
    inverse = UnitTriangularInverse.apply(gram * (i[:, None] > i[None]))
    values, keys = inverse @ (beta[..., None] * v), inverse @ (beta[..., None] * past * k)
    writers = (k * (last - total).exp()[..., None]).mT
    eye = torch.eye(k.shape[-1], device=q.device)
    states = _scan(last.exp()[..., None] * eye - writers @ keys, writers @ values)
    new = values - keys @ states
    o = past * (q @ states) + ((q @ k.mT) * decay) @ new
    return o.transpose(1, 2).flatten(2, 3), states


def _scan(transition: Tensor, addition: Tensor) -> Tensor:
    """S[0] = 0, S[c + 1] = transition[c] S[c] + addition[c]; both [batch, chunks, heads, dk, ·]."""
    batch, chunks, heads = transition.shape[:3]
    step, add = (x.transpose(0, 1).flatten(1, 2) for x in (transition, addition))
    states = [torch.zeros_like(add[0])]
    for c in range(chunks - 1):
        states.append(torch.baddbmm(add[c], step[c], states[-1]))
    return torch.stack(states).unflatten(1, (batch, heads)).transpose(0, 1)


class UnitTriangularInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A [.., 32, 32], doubling the size of the inverted diagonal blocks."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, a: Tensor) -> Tensor:
        n = a.shape[-1]
        i = torch.arange(n, device=a.device)
        inverse = torch.eye(n, device=a.device, dtype=a.dtype) - a * (
            (i[:, None] // 2 == i[None] // 2) & (i[:, None] > i[None])
        )
        size = 2
        while size < n:
            below = (i[:, None] // size == i[None] // size + 1) & (
                i[:, None] // (2 * size) == i[None] // (2 * size)
            )
            inverse = inverse - inverse @ (a * below) @ inverse
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -torch.tril(inverse.mT @ grad @ inverse.mT, -1)
