"""The numbers of a checkpoint, read once from its two config files, each with type and range.

A number that is missing or that stock qwen35moe cannot express is an error naming file and key: a default
would be another model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_local.convert.files import maybe_object, read_object
from clover_local.errors import ModelError

CLOVER_TYPES = ("clover_moe", "clover_moe_text")
TRUNK_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")
DEFAULT_SECTIONS = (11, 11, 10)  # what qwen3_5_moe means when rope_parameters lacks mrope_section
MAX_COUNT = 1 << 24  # no size of a real model comes near; keeps a damaged file from asking for terabytes


@dataclass(frozen=True)
class Block:
    """The block-diffusion settings of a Clover checkpoint."""

    size: int
    mask_id: int
    algorithm: str
    threshold: float
    coreset_enabled: bool
    coreset_top_p: float


@dataclass(frozen=True)
class Config:
    """Sizes (counts of values) and settings of one checkpoint."""

    model_type: str
    layers: int
    interval: int
    hidden: int
    vocab: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_sections: tuple[int, ...]
    rope_theta: float
    norm_eps: float
    conv_kernel: int
    key_heads: int
    value_heads: int
    gdn_head_dim: int
    experts: int
    experts_used: int
    expert_width: int
    shared_width: int
    tied: bool
    eos_ids: tuple[int, ...]
    pad_id: int | None
    block: Block | None
    generation: tuple[tuple[str, float | int | tuple[int, ...]], ...]
    """The penalties and ramps present in generation_config.json, by the names of docs/format.md."""

    one: int = 1
    right_taps: int = 3

    @property
    def key_size(self) -> int:
        return self.key_heads * self.gdn_head_dim

    @property
    def value_size(self) -> int:
        return self.value_heads * self.gdn_head_dim

    @property
    def channels(self) -> int:
        """Channels of the GDN convolution: queries, keys, values."""
        return 2 * self.key_size + self.value_size

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def gated_query_size(self) -> int:
        """Rows of q_proj: per head its query and its gate."""
        return 2 * self.query_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def gate_up_width(self) -> int:
        return 2 * self.expert_width

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.layers) if not self.is_attention(i))


@dataclass(frozen=True)
class _Reader:
    values: Mapping[str, Any]
    where: str

    def fail(self, key: str, wanted: str) -> ModelError:
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {str(value)[:60]!r}"
        return ModelError(f"{self.where}: {key!r} {found}, wanted {wanted}")

    def count(self, key: str, default: int | None = None, low: int = 1) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_COUNT:
            raise self.fail(key, f"a whole number from {low} to {MAX_COUNT:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 3e38:
            raise self.fail(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "a text")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them; empty when missing."""
        value = self.values.get(key)
        many = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 1 << 31 for i in many):
            raise self.fail(key, "a token id or a list of token ids")
        return tuple(many)

    def inner(self, key: str) -> "_Reader":
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return _Reader(value, f"{self.where}: {key}")


# What stock qwen35moe always does: a checkpoint that asks for something else cannot be expressed in it.
FIXED: tuple[tuple[str, Any], ...] = (
    ("hidden_act", "silu"),
    ("attention_bias", False),
    ("attn_output_gate", True),
    ("norm_topk_prob", True),
)

# generation_config.json key -> (key below clover.generation., kind)
GENERATION: tuple[tuple[str, str, type], ...] = (
    ("presence_penalty", "presence_penalty", float),
    ("frequency_penalty", "frequency_penalty", float),
    ("repetition_penalty", "repetition_penalty", float),
    ("dllm_length_penalty", "length_penalty", float),
    ("dllm_length_penalty_start", "length_penalty_start", int),
    ("dllm_length_penalty_window", "length_penalty_window", int),
    ("dllm_think_end_bias", "think_end_bias", float),
    ("dllm_think_end_start", "think_end_start", int),
    ("dllm_think_end_window", "think_end_window", int),
    ("dllm_think_end_token_id", "think_end_token_id", int),
)


def read_config(folder: Path) -> Config:
    """Read and check config.json and generation_config.json of a checkpoint folder."""
    path = folder / "config.json"
    outer = read_object(path)
    text = outer.get("text_config")
    merged = {**outer, **text} if isinstance(text, dict) else outer
    read = _Reader(merged, str(path))
    model_type = read.text("model_type")
    if model_type not in CLOVER_TYPES + TRUNK_TYPES:
        raise ModelError(
            f"{path}: the model type {model_type!r} cannot be converted",
            f"clover convert reads {', '.join(CLOVER_TYPES[:1] + TRUNK_TYPES[:1])} checkpoints",
        )
    for key, only in FIXED:
        if merged.get(key, only) != only:
            raise read.fail(key, f"{only!r}: nothing else can be expressed in a qwen35moe file")
    generation = _Reader(
        maybe_object(folder / "generation_config.json"), str(folder / "generation_config.json")
    )
    config = _config(read, generation, model_type)
    _check(config, read)
    return config


def _config(read: _Reader, generation: _Reader, model_type: str) -> Config:
    rope = _rope(read)
    head_dim = read.count("head_dim")
    layers = read.count("num_hidden_layers")
    eos = generation.ids("eos_token_id") or read.ids("eos_token_id")
    pad = generation.ids("pad_token_id") or read.ids("pad_token_id")
    return Config(
        model_type=model_type,
        layers=layers,
        interval=_interval(read, layers),
        hidden=read.count("hidden_size"),
        vocab=read.count("vocab_size"),
        context=read.count("max_position_embeddings"),
        heads=read.count("num_attention_heads"),
        kv_heads=read.count("num_key_value_heads"),
        head_dim=head_dim,
        rope_dims=int(head_dim * rope.number("partial_rotary_factor")),
        rope_sections=_sections(rope),
        rope_theta=rope.number("rope_theta"),
        norm_eps=read.number("rms_norm_eps"),
        conv_kernel=read.count("linear_conv_kernel_dim"),
        key_heads=read.count("linear_num_key_heads"),
        value_heads=read.count("linear_num_value_heads"),
        gdn_head_dim=read.count("linear_key_head_dim"),
        experts=read.count("num_experts"),
        experts_used=read.count("num_experts_per_tok"),
        expert_width=read.count("moe_intermediate_size"),
        shared_width=read.count("shared_expert_intermediate_size"),
        tied=read.flag("tie_word_embeddings", False),
        eos_ids=eos,
        pad_id=pad[0] if pad else None,
        block=_block(read) if model_type in CLOVER_TYPES else None,
        generation=_generation(generation),
    )


def _rope(read: _Reader) -> _Reader:
    """The rope settings, whether nested (rope_parameters) or, as older files have them, beside the rest."""
    inner = read.inner("rope_parameters")
    if inner.values.get("rope_type", inner.values.get("type", "default")) != "default":
        raise inner.fail("rope_type", "'default': scaled positions are not supported")
    beside = {k: read.values[k] for k in ("rope_theta", "partial_rotary_factor") if k in read.values}
    return _Reader({**beside, **inner.values}, inner.where)


def _sections(rope: _Reader) -> tuple[int, ...]:
    value = rope.values.get("mrope_section", list(DEFAULT_SECTIONS))
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(isinstance(x, int) and 0 <= x < 4096 for x in value)
    ):
        raise rope.fail("mrope_section", "three whole numbers")
    return (*value, 0)


def _interval(read: _Reader, layers: int) -> int:
    """Every how many layers one is full attention; layer_types, where given, must agree."""
    interval = read.count("full_attention_interval", 4)
    types = read.values.get("layer_types")
    if types is not None:
        regular = [
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(min(layers, 1 << 16))
        ]
        if types != regular:
            raise ModelError(
                f"{read.where}: 'layer_types' does not say that every layer number {interval} of {layers} "
                "is full attention and the others linear; other patterns are not supported"
            )
    return interval


def _block(read: _Reader) -> Block:
    denoising = read.inner("denoising_config")
    enabled = read.flag("moe_block_coreset_enabled", False)
    return Block(
        size=read.count("block_size"),
        mask_id=read.count("mask_token_id", low=0),
        algorithm=denoising.text("algorithm", "low_confidence"),
        threshold=denoising.number("threshold", 0.95),
        coreset_enabled=enabled,
        coreset_top_p=read.number("moe_block_coreset_top_p", None if enabled else 1.0),
    )


def _generation(read: _Reader) -> tuple[tuple[str, float | int | tuple[int, ...]], ...]:
    out: list[tuple[str, float | int | tuple[int, ...]]] = []
    for key, name, kind in GENERATION:
        if read.values.get(key) is not None:
            out.append((name, read.number(key) if kind is float else read.count(key, low=0)))
    if stops := read.ids("stop_token_ids"):
        out.append(("stop_token_ids", stops))
    return tuple(out)


def _check(config: Config, read: _Reader) -> None:
    value_dim = read.count("linear_value_head_dim")
    ids = [*config.eos_ids, *([] if config.block is None else [config.block.mask_id])]
    ids += [] if config.pad_id is None else [config.pad_id]
    holds = (
        (value_dim == config.gdn_head_dim, "linear_key_head_dim and linear_value_head_dim differ"),
        (config.value_heads % config.key_heads == 0, "value heads are not a multiple of key heads"),
        (config.heads % config.kv_heads == 0, "query heads are not a multiple of KV heads"),
        (config.experts_used <= config.experts, "more experts are used than there are"),
        (
            2 <= config.rope_dims <= config.head_dim,
            "partial_rotary_factor rotates an impossible part of a head",
        ),
        (
            config.rope_dims == 2 * sum(config.rope_sections),
            "mrope_section does not add up to the rotated part",
        ),
        (config.rope_theta > 0 and config.norm_eps > 0, "rope_theta and rms_norm_eps must be above 0"),
        (all(i < config.vocab for i in ids), "a special token id (eos, pad or mask) lies beyond vocab_size"),
        (config.layers <= 4096 and config.experts <= 1 << 16, "there are impossibly many layers or experts"),
        (config.block is None or config.block.size <= 1024, "block_size is impossibly large"),
    )
    for good, sentence in holds:
        if not good:
            raise ModelError(f"{read.where}: {sentence}")
