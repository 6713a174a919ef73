"""The formulas of a Clover layer as free functions; shapes are [..., rows, features], any leading batch.

Weights are a mapping from the checkpoint's names inside one layer ("linear_attn.A_log") to tensors,
untransformed. Source of the formulas: docs/model.md. Matrix products run in the dtype of the rows, everything
delicate (norms, softmax, router, decay, state) in f32: the same code is the f32 oracle and trains in bf16.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Layer = Mapping[str, Tensor]
NEVER = -1e30  # a logit that loses every softmax without making NaN of a row that has nothing else


@dataclass(frozen=True)
class Shape:
    """The numbers of a checkpoint's config.json that the formulas need."""

    hidden: int
    vocab: int
    attention: tuple[bool, ...]  # per layer: full attention, else Gated DeltaNet
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    theta: float
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    experts: int
    active: int
    expert_width: int
    shared_width: int
    eps: float
    block: int
    mask: int
    coreset: float | None  # top_p of the block coreset; None when it is off

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Shape":
        """Read a checkpoint's config.json."""
        rope = config["rope_parameters"]
        return cls(
            hidden=config["hidden_size"],
            vocab=config["vocab_size"],
            attention=tuple(kind == "full_attention" for kind in config["layer_types"]),
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            rotated=round(config["head_dim"] * rope["partial_rotary_factor"]),
            theta=rope["rope_theta"],
            key_heads=config["linear_num_key_heads"],
            value_heads=config["linear_num_value_heads"],
            key_dim=config["linear_key_head_dim"],
            value_dim=config["linear_value_head_dim"],
            experts=config["num_experts"],
            active=config["num_experts_per_tok"],
            expert_width=config["moe_intermediate_size"],
            shared_width=config["shared_expert_intermediate_size"],
            eps=config["rms_norm_eps"],
            block=config["block_size"],
            mask=config["mask_token_id"],
            coreset=config["moe_block_coreset_top_p"] if config["moe_block_coreset_enabled"] else None,
        )

    @property
    def channels(self) -> int:
        """Convolution channels of a GDN layer: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


def linear(x: Tensor, *weights: Tensor) -> Tensor:
    """x times the weights [out, in], their outputs side by side."""
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    return F.linear(x, weight.to(x.dtype))


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the features, in f32, handed back in x's dtype."""
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * scale).to(x.dtype)


def l2_norm(x: Tensor) -> Tensor:
    """Unit length in f32; 1e-6 is added to the sum of squares."""
    y = x.float()
    return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)


# --- Gated DeltaNet -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GdnRows:
    """Projections of a GDN layer: qkv [.., rows, channels], z, log decay g and beta [.., rows, heads]."""

    qkv: Tensor
    z: Tensor
    g: Tensor
    beta: Tensor


def gdn_project(shape: Shape, p: Layer, x: Tensor) -> GdnRows:
    """Input norm and the four projections of a GDN layer."""
    h = rms_norm(x, 1 + p["input_layernorm.weight"], shape.eps)
    names = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b")
    out = linear(h, *(p[f"linear_attn.{name}.weight"] for name in names))
    n = shape.value_heads
    qkv, z, a, b = out.split([shape.channels, n * shape.value_dim, n, n], -1)
    g = -p["linear_attn.A_log"].exp() * F.softplus(a.float() + p["linear_attn.dt_bias"])
    return GdnRows(qkv, z, g, torch.sigmoid(b.float()))


def convolve(window: Tensor, taps: Tensor) -> Tensor:
    """Per channel sum over taps, then SiLU: window [.., rows + taps - 1, channels], taps [channels, taps]."""
    taps = taps.to(window.dtype)
    rows = window.shape[-2] - taps.shape[1] + 1
    total = window[..., :rows, :] * taps[:, 0]
    for j in range(1, taps.shape[1]):
        total = total + window[..., j : j + rows, :] * taps[:, j]
    return F.silu(total)


def causal_taps(p: Layer) -> Tensor:
    """The trained causal convolution [channels, 4]; the last tap meets the row itself."""
    return p["linear_attn.conv1d.weight"][:, 0]


def preview_taps(p: Layer) -> Tensor:
    """The preview's convolution [channels, 7]: the causal taps, then three that look right."""
    return torch.cat([causal_taps(p), p["linear_attn.conv_right_weight"]], 1)


def gdn_heads(shape: Shape, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit queries and keys and plain values per value head, f32, each [.., value heads, rows, dim].

    Value head h reads key head h // (value heads / key heads): the checkpoint's grouped order.
    """
    n = shape.key_heads * shape.key_dim
    q, k, v = y.split([n, n, shape.value_heads * shape.value_dim], -1)
    repeat = shape.value_heads // shape.key_heads
    q, k = (
        l2_norm(t.unflatten(-1, (shape.key_heads, shape.key_dim))).repeat_interleave(repeat, -2)
        for t in (q, k)
    )
    v = v.unflatten(-1, (shape.value_heads, shape.value_dim)).float()
    return q.transpose(-3, -2), k.transpose(-3, -2), v.transpose(-3, -2)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule row by row: outputs [.., heads, rows, dv] and the state [.., heads, dk, dv] after.

    q, k, v as from `gdn_heads`; g and beta [.., rows, heads].
    """
    g, beta = g.transpose(-1, -2), beta.transpose(-1, -2)
    outputs = []
    for t in range(q.shape[-2]):
        state = state * g[..., t, None, None].exp()
        key, value = k[..., t, :, None], v[..., t, None, :]
        state = state + key * (beta[..., t, None, None] * (value - (key * state).sum(-2, keepdim=True)))
        outputs.append((q[..., t, :, None] * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, -2), state


def block_softmax(
    p: Layer, q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, valid: Tensor, log_b: Tensor
) -> Tensor:
    """The preview operator: each row of a block sees all valid rows, and the state as one more slot.

    q, k, v as from `gdn_heads`; g [.., rows, heads]; valid [.., rows] bool; log_b [..] = ln(valid rows / 32).
    """
    scale, bias, slope = (
        p[f"linear_attn.bd_softmax_{name}"] for name in ("logit_scale", "history_bias", "history_c")
    )
    slots = (q @ k.mT) * scale[:, None, None]
    slots = slots.masked_fill(~valid[..., None, None, :], NEVER)
    history = (bias + slope * log_b[..., None])[..., None, None].expand(*slots.shape[:-1], 1)
    weights = torch.cat([slots, history], -1).softmax(-1)
    past = (q * q.shape[-1] ** -0.5) @ state * g.transpose(-1, -2).exp()[..., None]
    return weights[..., :-1] @ v + weights[..., -1:] * past


def gdn_output(shape: Shape, p: Layer, o: Tensor, z: Tensor) -> Tensor:
    """Gated norm, then the projection back: o [.., heads, rows, dv], z [.., rows, heads * dv]."""
    o = rms_norm(o.transpose(-3, -2), p["linear_attn.norm.weight"], shape.eps)
    o = o * F.silu(z.unflatten(-1, (shape.value_heads, shape.value_dim)).float())
    return linear(o.flatten(-2).to(z.dtype), p["linear_attn.out_proj.weight"])


# --- Gated attention ----------------------------------------------------------------------------------------


def rope_table(shape: Shape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [rows, 1, rotated / 2] of the rotary embedding."""
    exponents = (
        torch.arange(0, shape.rotated, 2, device=positions.device, dtype=torch.float32) / shape.rotated
    )
    angles = positions.float()[:, None, None] * shape.theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first features of each head [.., rows, heads, dim], halves paired (the NeoX order)."""
    cos, sin = table
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def attention_project(
    shape: Shape, p: Layer, x: Tensor, table: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys (normed, rotated), values and the output gate, each [.., rows, heads, dim]."""
    h = rms_norm(x, 1 + p["input_layernorm.weight"], shape.eps)
    out = linear(h, *(p[f"self_attn.{name}.weight"] for name in ("q_proj", "k_proj", "v_proj")))
    n = shape.kv_heads * shape.head_dim
    both, k, v = out.split([2 * shape.heads * shape.head_dim, n, n], -1)
    q, gate = both.unflatten(-1, (shape.heads, 2 * shape.head_dim)).chunk(2, -1)
    k, v = (t.unflatten(-1, (shape.kv_heads, shape.head_dim)) for t in (k, v))
    q = rotate(rms_norm(q, 1 + p["self_attn.q_norm.weight"], shape.eps), table)
    k = rotate(rms_norm(k, 1 + p["self_attn.k_norm.weight"], shape.eps), table)
    return q, k, v, gate


def attend(shape: Shape, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Softmax attention -> [.., rows, heads, dim]; seen [.., 1, rows, keys] is what each row reads."""
    repeat = shape.heads // shape.kv_heads
    q = q.transpose(-3, -2)
    k, v = (t.repeat_interleave(repeat, -2).transpose(-3, -2) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(-3, -2)


def attention_output(p: Layer, o: Tensor, gate: Tensor) -> Tensor:
    """Gate the attention's output and project it back: [.., rows, heads, dim] -> [.., rows, hidden]."""
    return linear((o * torch.sigmoid(gate)).flatten(-2), p["self_attn.o_proj.weight"])


# --- Mixture of experts -------------------------------------------------------------------------------------


def top_k(logits: Tensor, k: int) -> Tensor:
    """Softmax over all experts, everything but the k largest set to zero (not renormalised)."""
    probabilities = logits.softmax(-1)
    rest = probabilities
    for _ in range(k):
        least = rest.amax(-1, keepdim=True)
        rest = torch.where(rest >= least, -1.0, rest)
    return torch.where(probabilities >= least, probabilities, 0.0)


def coreset(weights: Tensor, valid: Tensor, top_p: float) -> Tensor:
    """Which experts a block keeps [.., 1, experts], from its top-k probabilities [.., rows, experts].

    Experts in falling order of their mass over the valid rows (lower index first on ties) are kept while the
    mass before them is below top_p; the first always is.
    """
    mass = (weights * valid[..., None]).sum(-2)
    mass = mass / mass.sum(-1, keepdim=True)
    index = torch.arange(mass.shape[-1], device=mass.device)
    mine, other = mass[..., :, None], mass[..., None, :]
    ahead = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
    before = (other * ahead).sum(-1)
    return ((before < top_p) | (ahead.sum(-1) == 0))[..., None, :]


def route_block(shape: Shape, logits: Tensor, valid: Tensor) -> Tensor:
    """A block's routing weights [.., rows, experts], inside its coreset when the model has one."""
    weights = top_k(logits, shape.active)
    if shape.coreset is None:
        return weights
    keep = coreset(weights.detach(), valid, shape.coreset)
    return top_k(logits.masked_fill(~keep, NEVER), shape.active)


def router_logits(p: Layer, h: Tensor) -> Tensor:
    """Router logits in f32 from normed rows."""
    return F.linear(h.float(), p["mlp.gate.weight"].float())


def experts(shape: Shape, p: Layer, h: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of the experts plus the shared one; every expert is computed, which is fine at this size.

    h [.., rows, hidden] normed; weights [.., rows, experts] summing to 1.
    """
    width = shape.expert_width
    up = linear(h, p["mlp.experts.gate_up_proj"].flatten(0, 1)).unflatten(-1, (shape.experts, 2 * width))
    active = F.silu(up[..., :width]) * up[..., width:] * weights[..., None].to(h.dtype)
    y = linear(active.flatten(-2), p["mlp.experts.down_proj"].transpose(0, 1).flatten(1))
    shared = linear(h, p["mlp.shared_expert.gate_proj.weight"], p["mlp.shared_expert.up_proj.weight"])
    gate, value = shared.chunk(2, -1)
    opened = F.silu(gate) * value * torch.sigmoid(linear(h, p["mlp.shared_expert_gate.weight"]))
    return y + linear(opened, p["mlp.shared_expert.down_proj.weight"])


def log_block(rows: int | float) -> float:
    """ln(b / 32): how much shorter than a full block this one is."""
    return math.log(rows / 32)
