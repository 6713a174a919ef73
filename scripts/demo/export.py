"""Write and read checkpoints in the Hugging Face layout."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARD = 15_000_000
"""Bytes of a shard at most."""


def _names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name if name.startswith("lm_head") else f"model.{name}": w for name, w in weights.items()}


def save(weights: dict[str, Tensor], folder: Path, config: dict[str, Any], *, dtype: torch.dtype) -> None:
    """Write sharded safetensors with an index, config.json and generation_config.json."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, weight in _names(weights).items():
        tensor = weight.detach().to("cpu", dtype).contiguous()
        if size + tensor.nbytes > SHARD and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    places: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, str(folder / file))
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    config = config | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {
        "eos_token_id": [config["eos_token_id"], config["pad_token_id"]],
        "pad_token_id": config["pad_token_id"],
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def digest(folder: Path) -> str:
    """One SHA-256 over the checkpoint's safetensors files, in the order of their names."""
    total = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        total.update(file.read_bytes())
    return total.hexdigest()
