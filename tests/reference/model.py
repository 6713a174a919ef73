"""The model as three passes over a state: causal and preview read it, commit alone makes the next one.

Everything is batched: ids are [batch, rows]. Sequences of different length are padded on the left; the pad
rows neither enter the recurrent state nor are seen by attention. The default is one sequence without pads.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import layers as L


@dataclass(frozen=True)
class State:
    """What `length` committed rows leave behind, per layer index; tensors are never written in place."""

    length: int
    pad: Tensor  # [batch] rows of padding on the left
    keys: dict[int, Tensor]  # attention layers: [batch, length, kv heads, head dim]
    values: dict[int, Tensor]
    ring: dict[int, Tensor]  # GDN layers: the last three convolution inputs [batch, 3, channels]
    memory: dict[int, Tensor]  # GDN layers: [batch, value heads, key dim, value dim]


@dataclass(frozen=True)
class Model:
    """Shape and weights (checkpoint names after `model.`, plus `lm_head.weight`)."""

    shape: L.Shape
    weights: Mapping[str, Tensor]

    def layer(self, i: int) -> dict[str, Tensor]:
        """The weights of one layer by their names inside it."""
        prefix = f"layers.{i}."
        return {name[len(prefix) :]: w for name, w in self.weights.items() if name.startswith(prefix)}


def load(folder: Path, device: str = "cpu") -> Model:
    """Read a Hugging Face checkpoint folder, single file or shards, into f32."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file, device=device).items():
            name = name.removeprefix("model.").removeprefix("language_model.")
            weights[name] = tensor.float()
    return Model(L.Shape.from_config(config), weights)


def empty_state(model: Model, pad: Sequence[int] = (0,)) -> State:
    """The state before the first token, for a batch with these left paddings."""
    shape, device = model.shape, model.weights["lm_head.weight"].device
    batch = len(pad)
    kv = torch.zeros(batch, 0, shape.kv_heads, shape.head_dim, device=device)
    ring = torch.zeros(batch, 3, shape.channels, device=device)
    memory = torch.zeros(batch, shape.value_heads, shape.key_dim, shape.value_dim, device=device)
    full = [i for i, attention in enumerate(shape.attention) if attention]
    gdn = [i for i, attention in enumerate(shape.attention) if not attention]
    return State(
        length=0,
        pad=torch.tensor(pad, device=device),
        keys=dict.fromkeys(full, kv),
        values=dict.fromkeys(full, kv),
        ring=dict.fromkeys(gdn, ring),
        memory=dict.fromkeys(gdn, memory),
    )


def causal(model: Model, state: State, ids: Tensor) -> tuple[Tensor, State]:
    """Logits [batch, rows, vocab] judging the token after each row, and the state with the rows committed."""
    x, after = _embed(model, ids), _Next(state)
    table = L.rope_table(model.shape, _positions(state, ids))
    live = _positions(state, ids)[None] >= state.pad[:, None]
    seen = _visible(state, ids, block=False)
    for i, attention in enumerate(model.shape.attention):
        p = model.layer(i)
        if attention:
            x = x + _attention(model.shape, p, x, table, seen, state, i, after)
        else:
            x = x + _gdn_causal(model.shape, p, x, live, state, i, after)
        x = x + _moe(model.shape, p, x, block=False)
    return head(model, x), after.state(state.length + ids.shape[1])


def preview(model: Model, state: State, ids: Tensor) -> Tensor:
    """Logits [batch, rows, vocab] in which row i predicts token i itself; the state is only read."""
    x = _embed(model, ids)
    table = L.rope_table(model.shape, _positions(state, ids))
    seen = _visible(state, ids, block=True)
    for i, attention in enumerate(model.shape.attention):
        p = model.layer(i)
        if attention:
            x = x + _attention(model.shape, p, x, table, seen, state, i, None)
        else:
            x = x + _gdn_preview(model.shape, p, x, state, i)
        x = x + _moe(model.shape, p, x, block=True)
    return head(model, x)


def commit(model: Model, state: State, ids: Tensor) -> State:
    """The state after these tokens."""
    return causal(model, state, ids)[1]


def head(model: Model, x: Tensor) -> Tensor:
    """Final norm and logits, f32."""
    h = L.rms_norm(x, 1 + model.weights["norm.weight"], model.shape.eps)
    return L.linear(h, model.weights["lm_head.weight"]).float()


class _Next:
    """Collects what the layers of one causal pass leave behind, so that the old state stays whole."""

    def __init__(self, state: State) -> None:
        self.pad = state.pad
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.ring: dict[int, Tensor] = {}
        self.memory: dict[int, Tensor] = {}

    def state(self, length: int) -> State:
        return State(length, self.pad, self.keys, self.values, self.ring, self.memory)


def _embed(model: Model, ids: Tensor) -> Tensor:
    return F.embedding(ids, model.weights["embed_tokens.weight"])


def _positions(state: State, ids: Tensor) -> Tensor:
    return state.length + torch.arange(ids.shape[1], device=ids.device)


def _visible(state: State, ids: Tensor, *, block: bool) -> Tensor:
    """Which keys [batch, 1, rows, length + rows] a row reads: the past but its pads, and this pass's rows."""
    rows = _positions(state, ids)
    keys = torch.arange(state.length + ids.shape[1], device=ids.device)
    real = keys[None, None] >= state.pad[:, None, None]
    itself = rows[:, None] == keys[None]  # a pad row reads itself, or its softmax would be empty
    ahead = (keys >= state.length) if block else (keys[None] <= rows[:, None])
    allowed = (keys < state.length) | ahead
    return ((real & allowed) | itself)[:, None]


def _attention(
    shape: L.Shape,
    p: L.Layer,
    x: Tensor,
    table: tuple[Tensor, Tensor],
    seen: Tensor,
    state: State,
    i: int,
    after: _Next | None,
) -> Tensor:
    q, k, v, gate = L.attention_project(shape, p, x, table)
    keys, values = torch.cat([state.keys[i], k], 1), torch.cat([state.values[i], v], 1)
    if after is not None:
        after.keys[i], after.values[i] = keys, values
    return L.attention_output(p, L.attend(shape, q, keys, values, seen), gate)


def _gdn_causal(
    shape: L.Shape, p: L.Layer, x: Tensor, live: Tensor, state: State, i: int, after: _Next
) -> Tensor:
    rows = L.gdn_project(shape, p, x)
    window = torch.cat([state.ring[i], rows.qkv * live[..., None]], 1)
    q, k, v = L.gdn_heads(shape, L.convolve(window, L.causal_taps(p)))
    o, after.memory[i] = L.delta_rule(q, k, v, rows.g, rows.beta, state.memory[i])
    after.ring[i] = window[:, -3:]
    return L.gdn_output(shape, p, o, rows.z)


def _gdn_preview(shape: L.Shape, p: L.Layer, x: Tensor, state: State, i: int) -> Tensor:
    rows = L.gdn_project(shape, p, x)
    window = F.pad(torch.cat([state.ring[i], rows.qkv], 1), (0, 0, 0, 3))
    q, k, v = L.gdn_heads(shape, L.convolve(window, L.preview_taps(p)))
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    log_b = torch.full(x.shape[:1], L.log_block(x.shape[1]), device=x.device)
    o = L.block_softmax(p, q, k, v, rows.g, state.memory[i], valid, log_b)
    return L.gdn_output(shape, p, o, rows.z)


def _moe(shape: L.Shape, p: L.Layer, x: Tensor, *, block: bool) -> Tensor:
    h = L.rms_norm(x, 1 + p["post_attention_layernorm.weight"], shape.eps)
    logits = L.router_logits(p, h)
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    weights = L.route_block(shape, logits, valid) if block else L.top_k(logits, shape.active)
    return L.experts(shape, p, h, weights / weights.sum(-1, keepdim=True))
