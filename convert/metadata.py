"""Every key of the GGUF: what stock llama.cpp needs for qwen35moe, general.*, and the clover.* keys.

docs/format.md lists them for readers of the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from clover_local.convert.config import Config
from clover_local.convert.header import Key, Reserved
from clover_local.convert.mapping import PREVIEW, Part
from clover_local.convert.tokenizer import Tokenizer
from clover_local.version import __version__

ARCHITECTURE = "qwen35moe"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Origin:
    """Where the weights come from, for general.*; None for what the model card does not say."""

    name: str
    repo: str | None = None
    license: str | None = None
    base_models: tuple[str, ...] = ()


def keys(
    config: Config, tokenizer: Tokenizer, origin: Origin, parts: list[Part], file_type: int
) -> Iterator[tuple[str, Key]]:
    """All keys in the order they are written; the preview arrays come as places to be filled later."""
    yield from _general(origin, parts, config, file_type)
    yield from _trunk(config)
    yield from _clover(config, parts)
    yield from _tokenizer(tokenizer)


def size_label(parts: list[Part], config: Config) -> str:
    """Total and active parameters, as in 35B-A3B."""
    total = sum(p.row_count * p.row_length for p in parts)
    routed = sum(p.row_count * p.row_length for p in parts if p.target.endswith("_exps.weight"))
    active = total - routed + routed * config.experts_used // config.experts
    return f"{_rounded(total)}-A{_rounded(active)}"


def _rounded(count: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.0f}{letter}"
    return str(count)


def _general(origin: Origin, parts: list[Part], config: Config, file_type: int) -> Iterator[tuple[str, Key]]:
    yield "general.architecture", ARCHITECTURE
    yield "general.type", "model"
    yield "general.name", origin.name
    yield "general.size_label", size_label(parts, config)
    if origin.license:
        yield "general.license", origin.license
    if origin.repo:
        yield "general.source.url", f"https://huggingface.co/{origin.repo}"
    bases = origin.base_models or ((origin.repo,) if origin.repo else ())
    if bases:
        yield "general.base_model.count", len(bases)
    for i, base in enumerate(bases):
        owner, _, name = base.rpartition("/")
        yield f"general.base_model.{i}.name", name
        if owner:
            yield f"general.base_model.{i}.organization", owner
            yield f"general.base_model.{i}.repo_url", f"https://huggingface.co/{base}"
    yield "general.quantized_by", f"clover-local {__version__}"
    yield "general.quantization_version", 2
    yield "general.file_type", file_type


def _trunk(config: Config) -> Iterator[tuple[str, Key]]:
    numbers: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "vocab_size": config.vocab,
        "full_attention_interval": config.interval,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.rope_dims,
        "rope.dimension_sections": np.array(config.rope_sections, np.int32),
        "expert_count": config.experts,
        "expert_used_count": config.experts_used,
        "expert_feed_forward_length": config.expert_width,
        "expert_shared_feed_forward_length": config.shared_width,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": config.value_size,
        "ssm.state_size": config.gdn_head_dim,
        "ssm.time_step_rank": config.value_heads,
        "ssm.group_count": config.key_heads,
    }
    for name, value in numbers.items():
        yield f"{ARCHITECTURE}.{name}", value


def _clover(config: Config, parts: list[Part]) -> Iterator[tuple[str, Key]]:
    block = config.block
    if block is not None:
        yield "clover.format_version", FORMAT_VERSION
        yield "clover.block_size", block.size
        yield "clover.algorithm", block.algorithm
        yield "clover.threshold", block.threshold
        yield "clover.coreset.enabled", block.coreset_enabled
        yield "clover.coreset.top_p", block.coreset_top_p
    if config.eos_ids:
        yield "clover.generation.eos_token_id", np.array(config.eos_ids, np.int32)
    for name, value in config.generation:
        yield f"clover.generation.{name}", np.array(value, np.int32) if isinstance(value, tuple) else value
    arrays: dict[str, int] = {}
    for part in parts:
        if part.is_key:
            arrays[part.target] = arrays.get(part.target, 0) + part.row_count * part.row_length
    for name, count in arrays.items():
        assert name.startswith(PREVIEW)
        yield name, Reserved(count)


def _tokenizer(tokenizer: Tokenizer) -> Iterator[tuple[str, Key]]:
    yield "tokenizer.ggml.model", "gpt2"
    yield "tokenizer.ggml.pre", tokenizer.pre
    yield "tokenizer.ggml.tokens", tokenizer.tokens
    yield "tokenizer.ggml.token_type", np.array(tokenizer.types, np.int32)
    yield "tokenizer.ggml.merges", tokenizer.merges
    for name, number in tokenizer.ids:
        yield f"tokenizer.ggml.{name}", number
    yield "tokenizer.ggml.add_bos_token", tokenizer.add_bos
    named = [name for name, _ in tokenizer.templates if name != "default"]
    if named:
        yield "tokenizer.chat_templates", tuple(named)
    for name, text in tokenizer.templates:
        yield "tokenizer.chat_template" + ("" if name == "default" else f".{name}"), text
