"""Writes small random checkpoints in Hugging Face layout, byte by byte, so that tests can bend any part."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clover_local.convert.config import Config, read_config
from clover_local.convert.mapping import Part, parts
from clover_local.convert.tokenizer import QWEN35

CONFIG: dict[str, Any] = {
    "model_type": "clover_moe",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 272,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "block_size": 32,
    "mask_token_id": 262,
    "denoising_config": {"algorithm": "low_confidence", "threshold": 0.9},
    "moe_block_coreset_enabled": True,
    "moe_block_coreset_top_p": 0.8,
    "eos_token_id": 260,
}
# The shape of Clover-35B-A3B: for sizes only, never filled with weights.
LARGE: dict[str, Any] = CONFIG | {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 248_320,
    "max_position_embeddings": 131_072,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN35}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(b if b in plain else next(spare)) for b in range(256)]


def tokenizer() -> dict[str, Any]:
    """A byte-level BPE with two merges, four control tokens and one that users may see."""
    words = [*byte_letters(), "in", "Ġa"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "<|mask|>"]
    added = [
        {"id": 258 + i, "content": text, "special": text != "<think>", "normalized": False}
        for i, text in enumerate(special)
    ]
    model = {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": ["i n", "Ġ a"]}
    return {"added_tokens": added, "normalizer": None, "pre_tokenizer": PRE_TOKENIZER, "model": model}


def settings() -> dict[str, Any]:
    """tokenizer_config.json."""
    return {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}


def encoded(values: np.ndarray, dtype: str) -> bytes:
    """Float32 values as a checkpoint stores them; bfloat16 rounds towards zero."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def safetensors(tensors: Mapping[str, np.ndarray], dtype: str = "BF16") -> bytes:
    """A whole safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, values in tensors.items():
        raw = encoded(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def write_config(folder: Path, config: Mapping[str, Any] = CONFIG) -> Config:
    """The small files of a checkpoint; returns the config as the converter reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings()))
    return read_config(folder)


def values_for(config: Config, *, split: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights by plain name, exactly representable in bfloat16 and in float16."""
    random = np.random.default_rng(seed)
    marker = {"model.layers.0.mlp.experts.0.x"} if split else set()
    shapes = {name: p.source_shape for p in parts(config, marker) for name in p.sources}
    drawn = {name: random.integers(-100, 100, shape) for name, shape in shapes.items()}
    return {name: (values / 128).astype(np.float32) for name, values in drawn.items()}


def split_experts(tensors: Mapping[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """The same weights with one tensor per expert."""
    out = {}
    for name, values in tensors.items():
        stem = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if ".mlp.experts." not in name:
            out[name] = values
            continue
        for e, expert in enumerate(values):
            if name.endswith("down_proj"):
                out[f"{stem}{e}.down_proj.weight"] = expert
            else:
                out[f"{stem}{e}.gate_proj.weight"] = expert[:width]
                out[f"{stem}{e}.up_proj.weight"] = expert[width:]
    return out


def checkpoint(
    folder: Path,
    *,
    config: Mapping[str, Any] = CONFIG,
    tensors: Mapping[str, np.ndarray] | None = None,
    dtype: str = "BF16",
    shards: int = 1,
    prefix: str = "model.",
) -> Path:
    """A whole checkpoint: `tensors` by plain name, dealt out over shards when there are several."""
    read = write_config(folder, config)
    plain = values_for(read) if tensors is None else tensors
    named = {prefix + n.removeprefix("model.") if n.startswith("model.") else n: v for n, v in plain.items()}
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(named, dtype))
        return folder
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    weight_map = {name: files[i * shards // len(named)] for i, name in enumerate(named)}
    for file in files:
        mine = {name: named[name] for name, where in weight_map.items() if where == file}
        (folder / file).write_bytes(safetensors(mine, dtype))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def no_preview(config: Mapping[str, Any] = CONFIG) -> dict[str, Any]:
    """The config of a bare Qwen trunk of the same shape."""
    return {
        k: v for k, v in config.items() if not k.startswith(("block", "mask", "denoising", "moe_block"))
    } | {"model_type": "qwen3_5_moe"}


def trunk_parts(config: Config) -> list[Part]:
    """The parts of the config without its block settings."""
    return list(parts(replace(config, block=None), set()))
