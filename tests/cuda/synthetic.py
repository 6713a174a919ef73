"""Random models of any shape straight in a machine's memory: quantized blocks with sane scales, no file between."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from clover_local.model.spec import Preview, Spec
from clover_local.model.weights import wanted
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import (
    BLOCKS,
    Machine,
    Network,
    Place,
    StatePlaces,
    build,
    matrix_bytes,
)

SMALL = Spec(
    name="small", architecture="qwen35moe", layers=4, attention_interval=4, hidden=256, vocab=640, context_length=4096,
    heads=4, kv_heads=2, head_dim=64, rope_dims=16, rope_sections=(3, 3, 2, 0), rope_theta=1e7, norm_eps=1e-6,
    experts=12, experts_used=3, expert_width=256, shared_width=256, key_heads=4, value_heads=8, gdn_head_dim=32,
    eos_ids=(1,), pad_id=2, mask_id=3, coreset_top_p=0.8,
)  # fmt: skip
FULL = replace(
    SMALL, name="full", layers=40, hidden=2048, vocab=248320, heads=16, head_dim=256, rope_dims=64,
    rope_sections=(11, 11, 10, 0), experts=256, experts_used=8, expert_width=512, shared_width=512, key_heads=16,
    value_heads=32, gdn_head_dim=128, coreset_top_p=None,
)  # fmt: skip
"""The shape of Clover-35B-A3B."""
SLICE = replace(FULL, name="slice", layers=4, vocab=1024, experts=24, coreset_top_p=0.8)
"""Four layers of it with fewer experts and a small vocabulary: every kernel at its real sizes."""

Q4 = {"_exps": "q4_k", "output.weight": "q6_k", "": "q4_k"}
INT4 = {
    "ffn_down_exps": "q4_k",
    "_exps": "q4_k",
    "_shexp": "q8_0",
    "token_embd": "q4_k",
    "ssm_alpha": "f32",
    "ssm_beta": "f32",
    "": "q6_k",
}
MIXED = {
    "gate_exps": "q5_k",
    "up_exps": "q4_k",
    "down_exps": "q5_0",
    "gate_shexp": "q8_0",
    "_shexp": "f16",
    "attn_k": "bf16",
    "ssm": "q5_k",
    "token_embd": "q8_0",
    "": "q6_k",
}
FIT16 = {
    "down_exps": "q3_k",
    "_exps": "q2_k",
    "_shexp": "q6_k",
    "token_embd": "q4_k",
    "output.weight": "q4_k",
    "ssm_alpha": "f32",
    "ssm_beta": "f32",
    "": "q5_k",
}
"""Recipes: the first key a tensor's name contains gives its type; vectors and the router stay f32."""


class Store(Machine, Protocol):
    """A machine that also hands its memory back and keeps copies of arrays."""

    def place(self, data: np.ndarray) -> int: ...

    def read(self, address: int, dtype: Any, *shape: int) -> np.ndarray: ...


def type_of(name: str, shape: tuple[int, ...], recipe: Mapping[str, str]) -> str:
    """The type of a tensor in a recipe."""
    if len(shape) == 1 or any(part in name for part in ("conv1d", "ffn_gate_inp")):
        return "f32"
    return next(kind for part, kind in recipe.items() if part in name)


SCALES = {
    "q4_k": (0, 53), "q5_k": (0, 108), "q6_k": (208, 550), "q8_0": (0, 74), "q5_0": (0, 9.2), "q2_k": (80, 14),
    "q3_k": (108, 43), "iq3_xxs": (0, 138), "iq3_s": (0, 160), "iq4_xs": (0, 1250), "iq4_nl": (0, 67), "q4_0": (0, 4.6),
    "q4_1": (0, 4.6), "q5_1": (0, 9.2),
}  # fmt: skip
"""Where the scale of a block lies, and the spread of random blocks of scale 1."""
MINIMA = {"q2_k": 1.5, "q4_1": -7.5, "q5_1": -15.5}


def blocks(kind: str, count: int, std: float, rng: np.random.Generator) -> np.ndarray:
    """Random blocks of a type [count, bytes] whose values have about this standard deviation."""
    if kind in ("f32", "f16"):
        return rng.normal(0, std, count).astype(kind.replace("f", "float")).view(np.uint8).reshape(count, -1)
    if kind == "bf16":
        bits = rng.normal(0, std, count).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16).view(np.uint8).reshape(count, 2)
    out = rng.integers(0, 256, (count, BLOCKS[kind][1]), dtype=np.uint8)
    at, spread = SCALES[kind]
    scales = (std / spread * rng.uniform(0.7, 1.3, count)).astype(np.float16)
    out[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    if kind in ("q4_k", "q5_k"):
        middle = 7.5 if kind == "q4_k" else 15.5
        out[:, 2:4] = (scales.astype(np.float32) * middle).astype(np.float16).view(np.uint8).reshape(count, 2)
        s = rng.integers(8, 63, (count, 8), dtype=np.uint8)
        low = (s[:, 4:] & 15) | s[:, 4:] << 4  # a block's minimum is its scale: zero mean
        high = s[:, 4:] >> 4 << 6
        out[:, 4:8], out[:, 8:12], out[:, 12:16] = s[:, :4] | high, s[:, :4] | high, low
    if kind in MINIMA:  # the mean of what they are subtracted from, or added to
        share = (scales.astype(np.float32) * MINIMA[kind]).astype(np.float16)
        out[:, at + 2 : at + 4] = share.view(np.uint8).reshape(count, 2)
    if kind == "q6_k":
        out[:, 192:208] = rng.integers(20, 41, (count, 16), dtype=np.int8).view(np.uint8)
    return out


def _vector(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.endswith("ssm_a"):
        return -np.exp(rng.normal(-1, 0.5, shape)).astype(np.float32)
    if name.endswith("norm.weight"):
        return rng.normal(1, 0.1, shape).astype(np.float32)
    scale = 0.5 if "conv1d" in name or "dt" in name else shape[0] ** -0.5
    return rng.normal(0, scale, shape[::-1]).astype(np.float32)


def tensor(name: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    """The bytes of one random tensor of a trunk, uint8."""
    if kind == "f32":
        return _vector(name, shape, rng).reshape(-1).view(np.uint8)
    output = any(part in name for part in ("ssm_out", "attn_output", "ffn_down"))
    std = 1.0 if "token_embd" in name else shape[0] ** -0.5 / (3 if output else 1)
    return blocks(kind, int(np.prod(shape)) // BLOCKS[kind][0], std, rng).reshape(-1)


def with_preview(spec: Spec, rng: np.random.Generator) -> Spec:
    """The same shape with random preview weights."""
    layers, heads = len(spec.gdn_layers), spec.value_heads
    made = Preview(
        rng.normal(0, 0.4, (layers, spec.channels, 3)).astype(np.float32),
        rng.uniform(2, 9, (layers, heads)).astype(np.float32),
        rng.uniform(-1, 4, (layers, heads)).astype(np.float32),
        rng.uniform(0.2, 1.5, (layers, heads)).astype(np.float32),
    )
    return replace(spec, preview=made)


def empty_state(spec: Spec, machine: Store, n_ctx: int) -> StatePlaces:
    """Zeroed KV caches, rings and states."""
    kv = n_ctx * spec.kv_heads * spec.head_dim * 2
    return StatePlaces(
        {layer: machine.alloc(kv) for layer in spec.attention_layers},
        {layer: machine.alloc(kv) for layer in spec.attention_layers},
        {layer: machine.alloc(spec.channels * 12) for layer in spec.gdn_layers},
        {layer: machine.alloc(spec.value_heads * spec.gdn_head_dim**2 * 4) for layer in spec.gdn_layers},
    )


def network(spec: Spec, recipe: Mapping[str, str], machine: Store, n_ctx: int, seed: int = 0) -> Network:
    """A whole random model."""
    rng = np.random.default_rng(seed)
    spec = with_preview(spec, rng)
    places = {}
    for name, shape in wanted(spec).items():
        kind = type_of(name, shape, recipe)
        data = tensor(name, shape, kind, rng)
        assert len(shape) == 1 or data.nbytes == matrix_bytes(kind, shape[0], int(np.prod(shape[1:])))
        places[name] = Place(machine.place(data), kind)
    return build(spec, places, empty_state(spec, machine, n_ctx), machine, max_seen=512)


def tiled(blocks: np.ndarray) -> np.ndarray:
    """Blocks [rows, blocks of a row, ...] in the kernels' order: block b of rows 8i .. 8i+7, then their block b + 1."""
    rows = -(-len(blocks) // 8) * 8
    padded = np.zeros((rows, *blocks.shape[1:]), blocks.dtype)
    padded[: len(blocks)] = blocks
    return np.ascontiguousarray(np.swapaxes(padded.reshape(-1, 8, *blocks.shape[1:]), 1, 2))


def place_acts(machine: Store, q: np.ndarray, scale: np.ndarray, x: np.ndarray) -> A.Acts:
    """Activations whose bytes are q, int8 [rows, k], with a scale for every group, float32 [rows, groups]."""
    rows, k = q.shape
    sums = q.reshape(rows, -1, 32).astype(np.int32).sum(-1)
    data, values = machine.place(tiled(q.reshape(rows, -1, 32))), machine.place(x.astype(np.float32))
    if scale.shape[1] == k // 32:
        pairs = np.stack([scale, scale * sums], -1).astype(np.float32)
        return A.Acts(data, machine.place(tiled(pairs)), None, None, values)
    steps = np.zeros((rows, -(-k // 256) * 8), np.int16)
    steps[:, : k // 32] = sums
    scales = machine.place(tiled(scale.astype(np.float32)))
    return A.Acts(data, None, scales, machine.place(tiled(steps.reshape(rows, -1, 8))), values)


def quantized(x: np.ndarray, grain: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kernels' 8-bit form of rows: bytes, scales of groups of `grain` blocks of 32, and what they stand for."""
    rows, k = x.shape
    groups = -(-k // (32 * grain))
    parts = np.zeros((rows, groups * 32 * grain))
    parts[:, :k] = x
    parts = parts.reshape(rows, groups, -1)
    scale = np.abs(parts).max(-1) / 127
    q = np.rint(parts / np.maximum(scale, 1e-30)[..., None])
    cut = lambda v: v.reshape(rows, -1)[:, :k]  # noqa: E731
    return cut(q).astype(np.int8), scale, cut(q * scale[..., None])
