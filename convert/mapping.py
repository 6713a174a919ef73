"""Which tensor of a checkpoint becomes which tensor or key of the GGUF, and how: one table.

Every tensor of a checkpoint meets one row, or DROPPED. A transform is a permutation of rows or columns (an
index array) and a function of each value, so any slice of rows can be made alone. Value heads go from grouped
order (key head, value head of it) to tiled order (value head of it, key head), as stock llama.cpp wants:
there value head h reads key head h mod key_heads. Source: docs/model.md, "Weight transforms to GGUF".
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from clover_local.convert.config import Config

Index = Callable[[Config], np.ndarray]
Value = Callable[[np.ndarray], np.ndarray]
Layers = Literal["once", "all", "gdn", "attention"]

PREVIEW = "clover.preview."


def plus_one(x: np.ndarray) -> np.ndarray:
    """A norm weight stored as its distance from 1."""
    return x + np.float32(1)


def negative_exp(x: np.ndarray) -> np.ndarray:
    """A_log to the factor the recurrence uses."""
    return -np.exp(x)


@cache
def tiled_heads(config: Config) -> np.ndarray:
    """For each value head in tiled order, its number in the checkpoint's grouped order."""
    per_key = config.value_heads // config.key_heads
    return np.arange(config.value_heads).reshape(config.key_heads, per_key).T.reshape(-1)


@cache
def tiled_values(config: Config) -> np.ndarray:
    """The same for every channel of the value heads."""
    dim = config.gdn_head_dim
    return (tiled_heads(config)[:, None] * dim + np.arange(dim)).reshape(-1)


@cache
def tiled_channels(config: Config) -> np.ndarray:
    """The same for the channels of the convolution: queries and keys stay, values move."""
    keys = 2 * config.key_size
    return np.concatenate([np.arange(keys), keys + tiled_values(config)])


def _half(config: Config, offset: int) -> np.ndarray:
    first = np.arange(config.experts)[:, None] * config.gate_up_width + offset
    return (first + np.arange(config.expert_width)).reshape(-1)


@cache
def gate_rows(config: Config) -> np.ndarray:
    """Rows of the fused gate_up_proj, seen as [experts * 2 * width, hidden], that are gates."""
    return _half(config, 0)


@cache
def up_rows(config: Config) -> np.ndarray:
    """The other half of them."""
    return _half(config, config.expert_width)


@dataclass(frozen=True)
class Row:
    """One line of the table: `shape` is the checkpoint's, by names of Config; `out` the GGUF's if it differs.

    `{i}` in `source` stands for the layer, `{e}` for an expert: such a tensor exists once per expert and all
    of them make up one target. A target below `clover.preview.` is a metadata array.
    """

    source: str
    target: str
    shape: tuple[str, ...]
    layers: Layers = "all"
    out: tuple[str, ...] | None = None
    rows: Index | None = None
    cols: Index | None = None
    value: Value | None = None


_GDN = "model.layers.{i}.linear_attn."
_ATT = "model.layers.{i}.self_attn."
_MLP = "model.layers.{i}.mlp."
_BLK = "blk.{i}."

TRUNK = (
    Row("model.embed_tokens.weight", "token_embd.weight", ("vocab", "hidden"), "once"),
    Row("model.norm.weight", "output_norm.weight", ("hidden",), "once", value=plus_one),
    Row("lm_head.weight", "output.weight", ("vocab", "hidden"), "once"),
    Row("model.layers.{i}.input_layernorm.weight", _BLK + "attn_norm.weight", ("hidden",), value=plus_one),
    Row("model.layers.{i}.post_attention_layernorm.weight", _BLK + "post_attention_norm.weight", ("hidden",),
        value=plus_one),
    Row(_GDN + "in_proj_qkv.weight", _BLK + "attn_qkv.weight", ("channels", "hidden"), "gdn",
        rows=tiled_channels),
    Row(_GDN + "in_proj_z.weight", _BLK + "attn_gate.weight", ("value_size", "hidden"), "gdn",
        rows=tiled_values),
    Row(_GDN + "in_proj_a.weight", _BLK + "ssm_alpha.weight", ("value_heads", "hidden"), "gdn",
        rows=tiled_heads),
    Row(_GDN + "in_proj_b.weight", _BLK + "ssm_beta.weight", ("value_heads", "hidden"), "gdn",
        rows=tiled_heads),
    Row(_GDN + "conv1d.weight", _BLK + "ssm_conv1d.weight", ("channels", "one", "conv_kernel"), "gdn",
        out=("channels", "conv_kernel"), rows=tiled_channels),
    Row(_GDN + "A_log", _BLK + "ssm_a", ("value_heads",), "gdn", cols=tiled_heads, value=negative_exp),
    Row(_GDN + "dt_bias", _BLK + "ssm_dt.bias", ("value_heads",), "gdn", cols=tiled_heads),
    Row(_GDN + "norm.weight", _BLK + "ssm_norm.weight", ("gdn_head_dim",), "gdn"),
    Row(_GDN + "out_proj.weight", _BLK + "ssm_out.weight", ("hidden", "value_size"), "gdn",
        cols=tiled_values),
    Row(_ATT + "q_proj.weight", _BLK + "attn_q.weight", ("gated_query_size", "hidden"), "attention"),
    Row(_ATT + "k_proj.weight", _BLK + "attn_k.weight", ("kv_size", "hidden"), "attention"),
    Row(_ATT + "v_proj.weight", _BLK + "attn_v.weight", ("kv_size", "hidden"), "attention"),
    Row(_ATT + "o_proj.weight", _BLK + "attn_output.weight", ("hidden", "query_size"), "attention"),
    Row(_ATT + "q_norm.weight", _BLK + "attn_q_norm.weight", ("head_dim",), "attention", value=plus_one),
    Row(_ATT + "k_norm.weight", _BLK + "attn_k_norm.weight", ("head_dim",), "attention", value=plus_one),
    Row(_MLP + "gate.weight", _BLK + "ffn_gate_inp.weight", ("experts", "hidden")),
    Row(_MLP + "shared_expert_gate.weight", _BLK + "ffn_gate_inp_shexp.weight", ("one", "hidden"),
        out=("hidden",)),
    Row(_MLP + "shared_expert.gate_proj.weight", _BLK + "ffn_gate_shexp.weight", ("shared_width", "hidden")),
    Row(_MLP + "shared_expert.up_proj.weight", _BLK + "ffn_up_shexp.weight", ("shared_width", "hidden")),
    Row(_MLP + "shared_expert.down_proj.weight", _BLK + "ffn_down_shexp.weight", ("hidden", "shared_width")),
)  # fmt: skip

_UP, _DOWN = ("experts", "expert_width", "hidden"), ("experts", "hidden", "expert_width")
FUSED_EXPERTS = (
    Row(_MLP + "experts.gate_up_proj", _BLK + "ffn_gate_exps.weight", ("experts", "gate_up_width", "hidden"),
        out=_UP, rows=gate_rows),
    Row(_MLP + "experts.gate_up_proj", _BLK + "ffn_up_exps.weight", ("experts", "gate_up_width", "hidden"),
        out=_UP, rows=up_rows),
    Row(_MLP + "experts.down_proj", _BLK + "ffn_down_exps.weight", _DOWN),
)  # fmt: skip
SPLIT_EXPERTS = (
    Row(
        _MLP + "experts.{e}.gate_proj.weight",
        _BLK + "ffn_gate_exps.weight",
        ("expert_width", "hidden"),
        out=_UP,
    ),
    Row(
        _MLP + "experts.{e}.up_proj.weight", _BLK + "ffn_up_exps.weight", ("expert_width", "hidden"), out=_UP
    ),
    Row(
        _MLP + "experts.{e}.down_proj.weight",
        _BLK + "ffn_down_exps.weight",
        ("hidden", "expert_width"),
        out=_DOWN,
    ),
)
PREVIEW_ROWS = (
    Row(
        _GDN + "conv_right_weight",
        PREVIEW + "conv_right",
        ("channels", "right_taps"),
        "gdn",
        rows=tiled_channels,
    ),
    Row(_GDN + "bd_softmax_logit_scale", PREVIEW + "logit_scale", ("value_heads",), "gdn", cols=tiled_heads),
    Row(
        _GDN + "bd_softmax_history_bias", PREVIEW + "history_bias", ("value_heads",), "gdn", cols=tiled_heads
    ),
    Row(_GDN + "bd_softmax_history_c", PREVIEW + "history_c", ("value_heads",), "gdn", cols=tiled_heads),
)

DROPPED = re.compile(
    r"(model\.)?mtp\.|(model\.)?(visual|vision_tower|vision_model)\.|.*\.rotary_emb\.inv_freq$"
)
_PREFIX = re.compile(r"^(model\.language_model\.|language_model\.model\.)")


@dataclass(frozen=True)
class Part:
    """One target of one layer: its sources in the checkpoint (plain names) and how they become it."""

    row: Row
    target: str
    sources: tuple[str, ...]
    source_shape: tuple[int, ...]
    shape: tuple[int, ...]
    """Outermost dimension first, as numpy counts."""
    layer: int | None

    @property
    def is_key(self) -> bool:
        """Whether it goes into a metadata array instead of a tensor."""
        return self.target.startswith(PREVIEW)

    @property
    def row_length(self) -> int:
        return self.shape[-1]

    @property
    def row_count(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=np.int64))


def plain_name(name: str) -> str | None:
    """A checkpoint's tensor name as the table writes it; None for tensors that are left out."""
    if DROPPED.match(name):
        return None
    name = _PREFIX.sub("model.", name)
    return name.removeprefix("language_model.") if name.startswith("language_model.lm_head") else name


def parts(config: Config, names: set[str]) -> Iterator[Part]:
    """Everything the GGUF needs, in file order; `names` (plain) tell in which way experts are stored."""
    split = any(".mlp.experts.0." in name for name in names)
    table = (
        TRUNK
        + (SPLIT_EXPERTS if split else FUSED_EXPERTS)
        + (PREVIEW_ROWS if has_preview(config, names) else ())
    )
    for row in table:
        if row.layers == "once":
            yield _part(_untied(row, config, names), config, None)
    for layer in range(config.layers):
        kind = "attention" if config.is_attention(layer) else "gdn"
        for row in table:
            if row.layers in ("all", kind):
                yield _part(row, config, layer)


def has_preview(config: Config, names: set[str]) -> bool:
    """Whether preview weights are expected: of a Clover checkpoint always, of a trunk if one is there."""
    return config.block is not None or any(name.endswith("conv_right_weight") for name in names)


def _untied(row: Row, config: Config, names: set[str]) -> Row:
    if row.source == "lm_head.weight" and config.tied and row.source not in names:
        return Row("model.embed_tokens.weight", row.target, row.shape, row.layers)
    return row


def _part(row: Row, config: Config, layer: int | None) -> Part:
    def sizes(names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(getattr(config, name) for name in names)

    def fill(pattern: str, expert: int | None = None) -> str:
        return pattern.replace("{i}", str(layer)).replace("{e}", str(expert))

    experts = range(config.experts) if "{e}" in row.source else (None,)
    return Part(
        row=row,
        target=fill(row.target),
        sources=tuple(fill(row.source, e) for e in experts),
        source_shape=sizes(row.shape),
        shape=sizes(row.out or row.shape),
        layer=layer,
    )
