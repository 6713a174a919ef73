"""The numbers of a model, read once from its file, each with its type and whether it is required.

A missing or impossible number is an error that names the key and the file: a default would be another model.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clover_local.errors import ModelError
from clover_local.ggml.gguf import GgufFile, Keys
from clover_local.model.processing import Processing, Ramp

ARCHITECTURES = ("qwen35moe", "clover_moe", "clover-moe", "clovermoe")
CONV_TAPS = 4
RIGHT_TAPS = 3
MAX_ROWS = 32
"""Rows of the widest preview or verify pass."""


@dataclass(frozen=True)
class Preview:
    """Weights of the preview operator per GDN layer; heads and channels in the file's (tiled) order."""

    conv_right: np.ndarray  # float32 [gdn layers, channels, 3]
    logit_scale: np.ndarray  # float32 [gdn layers, value heads]
    history_bias: np.ndarray  # float32 [gdn layers, value heads]
    history_c: np.ndarray  # float32 [gdn layers, value heads]


@dataclass(frozen=True)
class Spec:
    """Shape and settings of one model. Sizes are counts of values, not bytes."""

    name: str
    architecture: str
    layers: int
    attention_interval: int
    hidden: int
    vocab: int
    context_length: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_sections: tuple[int, int, int, int]
    rope_theta: float
    norm_eps: float
    experts: int
    experts_used: int
    expert_width: int
    shared_width: int
    key_heads: int
    value_heads: int
    gdn_head_dim: int
    eos_ids: tuple[int, ...]
    pad_id: int | None
    mask_id: int | None
    block_size: int = MAX_ROWS
    algorithm: str = "low_confidence"
    threshold: float = 0.95
    coreset_top_p: float | None = None
    """Mass of experts kept in a preview; None when the coreset is off."""
    processing: Processing = field(default_factory=Processing)
    preview: Preview | None = None
    """None when the file holds no preview weights: it then runs one token at a time."""

    @property
    def can_draft(self) -> bool:
        return self.preview is not None and self.mask_id is not None

    @property
    def key_size(self) -> int:
        return self.key_heads * self.gdn_head_dim

    @property
    def value_size(self) -> int:
        return self.value_heads * self.gdn_head_dim

    @property
    def channels(self) -> int:
        """Channels of the GDN convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_interval == 0

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.layers) if self.is_attention(i))

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.layers) if not self.is_attention(i))

    @classmethod
    def from_gguf(cls, file: GgufFile) -> "Spec":
        """Read every number of a trunk and, from the file or its sidecar, the preview weights."""
        architecture = file.keys.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise ModelError(
                f"{file.path} holds the architecture {architecture!r}; this program runs Clover models "
                f"({', '.join(ARCHITECTURES)})"
            )
        read = _Reader(file.keys, file.path, f"{architecture}.")
        spec = _trunk(read, file, architecture)
        _check(spec, file.path)
        extra = _preview_keys(file)
        return spec if extra is None else _with_preview(spec, *extra)


@dataclass(frozen=True)
class _Reader:
    keys: Keys
    path: Path
    prefix: str

    def get(self, name: str, kind: type, *, at: str | None = None) -> Any:
        key = at if at is not None else self.prefix + name
        if key not in self.keys:
            raise ModelError(f"{self.path} lacks the key {key!r}; convert the model again")
        return self.cast(key, kind)

    def cast(self, key: str, kind: type) -> Any:
        value = self.keys[key]
        good = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if not good or (kind is int and isinstance(value, bool)):
            raise ModelError(f"{self.path}: the key {key!r} holds {value!r}, wanted {kind.__name__}")
        return kind(value)

    def maybe(self, key: str, kind: type, default: Any) -> Any:
        return self.cast(key, kind) if key in self.keys else default


def _trunk(read: _Reader, file: GgufFile, architecture: str) -> Spec:
    sections = file.keys.get(read.prefix + "rope.dimension_sections")
    if not isinstance(sections, np.ndarray) or not 3 <= len(sections) <= 4:
        raise ModelError(f"{file.path} lacks the key '{read.prefix}rope.dimension_sections'")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path} lacks the tensor 'token_embd.weight'")
    value_heads = read.get("ssm.time_step_rank", int)
    four = [int(x) for x in sections] + [0] * (4 - len(sections))
    eos = read.maybe("tokenizer.ggml.eos_token_id", int, None)
    return Spec(
        name=read.maybe("general.name", str, file.path.stem),
        architecture=architecture,
        layers=read.get("block_count", int),
        attention_interval=read.maybe(read.prefix + "full_attention_interval", int, 4),
        hidden=read.get("embedding_length", int),
        vocab=embedding.shape[1],
        context_length=read.get("context_length", int),
        heads=read.get("attention.head_count", int),
        kv_heads=read.get("attention.head_count_kv", int),
        head_dim=read.get("attention.key_length", int),
        rope_dims=read.get("rope.dimension_count", int),
        rope_sections=(four[0], four[1], four[2], four[3]),
        rope_theta=read.get("rope.freq_base", float),
        norm_eps=read.get("attention.layer_norm_rms_epsilon", float),
        experts=read.get("expert_count", int),
        experts_used=read.get("expert_used_count", int),
        expert_width=read.get("expert_feed_forward_length", int),
        shared_width=read.get("expert_shared_feed_forward_length", int),
        key_heads=read.get("ssm.group_count", int),
        value_heads=value_heads,
        gdn_head_dim=read.get("ssm.state_size", int),
        eos_ids=() if eos is None else (eos,),
        pad_id=read.maybe("tokenizer.ggml.padding_token_id", int, None),
        mask_id=read.maybe("tokenizer.ggml.mask_token_id", int, None),
    )


def _check(spec: Spec, path: Path) -> None:
    positive = {
        name: getattr(spec, name)
        for name in (
            "layers attention_interval hidden vocab context_length heads kv_heads head_dim rope_dims experts "
            "experts_used expert_width shared_width key_heads value_heads gdn_head_dim"
        ).split()
    }
    for name, value in positive.items():
        if value < 1:
            raise ModelError(f"{path}: the number {name.replace('_', ' ')} is {value}; the file is damaged")
    divides = (
        (spec.heads % spec.kv_heads == 0, "query heads are not a multiple of KV heads"),
        (spec.value_heads % spec.key_heads == 0, "value heads are not a multiple of key heads"),
        (spec.experts_used <= spec.experts, "more experts are used than there are"),
        (spec.rope_dims <= spec.head_dim, "more dimensions are rotated than a head has"),
    )
    for holds, sentence in divides:
        if not holds:
            raise ModelError(f"{path}: {sentence}; the file is damaged")


def sidecar_path(path: Path) -> Path:
    """Where the preview weights of somebody else's trunk file lie."""
    return path.with_name(path.stem + ".preview.gguf")


def _preview_keys(file: GgufFile) -> tuple[Keys, Path] | None:
    if "clover.preview.conv_right" in file.keys:
        return file.keys, file.path
    side = sidecar_path(file.path)
    if side.is_file():
        return GgufFile.open(side).keys, side
    return None


def _with_preview(spec: Spec, keys: Keys, path: Path) -> Spec:
    read = _Reader(keys, path, "clover.")
    version = read.get("format_version", int)
    if version != 1:
        raise ModelError(f"{path} has format version {version}; this program reads 1: update clover-local")
    n = len(spec.gdn_layers)
    enabled = read.maybe("clover.coreset.enabled", bool, False)
    ids = keys.get("clover.generation.stop_token_ids")
    eos = keys.get("clover.generation.eos_token_id")
    many = tuple(int(i) for i in eos) if isinstance(eos, np.ndarray) else spec.eos_ids
    stops = tuple(int(i) for i in ids) if isinstance(ids, np.ndarray) else ()
    spec = replace(
        spec,
        eos_ids=tuple(dict.fromkeys((*many, *stops))),
        mask_id=read.maybe("tokenizer.ggml.mask_token_id", int, spec.mask_id),
        block_size=read.get("block_size", int),
        algorithm=read.get("algorithm", str),
        threshold=read.get("threshold", float),
        coreset_top_p=read.get("coreset.top_p", float) if enabled else None,
        preview=Preview(
            conv_right=_floats(keys, path, "clover.preview.conv_right", (n, spec.channels, RIGHT_TAPS)),
            logit_scale=_floats(keys, path, "clover.preview.logit_scale", (n, spec.value_heads)),
            history_bias=_floats(keys, path, "clover.preview.history_bias", (n, spec.value_heads)),
            history_c=_floats(keys, path, "clover.preview.history_c", (n, spec.value_heads)),
        ),
    )
    if not 1 <= spec.block_size <= MAX_ROWS:
        raise ModelError(f"{path}: blocks of {spec.block_size} rows; this program runs up to {MAX_ROWS}")
    return replace(spec, processing=_processing(read, spec))


def _floats(keys: Keys, path: Path, key: str, shape: tuple[int, ...]) -> np.ndarray:
    value = keys.get(key)
    want = int(np.prod(shape))
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.size != want:
        size = value.size if isinstance(value, np.ndarray) else None
        raise ModelError(
            f"{path}: the key {key!r} holds {size} numbers, wanted {want}; convert the model again"
        )
    return value.reshape(shape)


def _processing(read: _Reader, spec: Spec) -> Processing:
    def number(name: str, kind: type, default: float) -> Any:
        return read.maybe(f"clover.generation.{name}", kind, default)

    lifted = [*spec.eos_ids, *([] if spec.pad_id is None else [spec.pad_id])]
    return Processing(
        presence=number("presence_penalty", float, 0.0),
        frequency=number("frequency_penalty", float, 0.0),
        repetition=number("repetition_penalty", float, 1.0),
        length=Ramp(
            number("length_penalty", float, 0.0),
            number("length_penalty_start", int, 8192),
            number("length_penalty_window", int, 8192),
        ),
        think_end=Ramp(
            number("think_end_bias", float, 0.0),
            number("think_end_start", int, 4096),
            number("think_end_window", int, 4096),
        ),
        think_end_id=read.maybe("clover.generation.think_end_token_id", int, None),
        stop_ids=tuple(dict.fromkeys(lifted)),
    )
