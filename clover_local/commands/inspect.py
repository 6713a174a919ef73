"""`clover inspect`: what a model file holds, from its header alone."""

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clover_local.ggml.gguf import GgufFile

# Name in the report, key below the architecture's prefix.
NUMBERS = (
    ("layers", "block_count"),
    ("hidden", "embedding_length"),
    ("context", "context_length"),
    ("query heads", "attention.head_count"),
    ("KV heads", "attention.head_count_kv"),
    ("head size", "attention.key_length"),
    ("full attention every", "full_attention_interval"),
    ("GDN key heads", "ssm.group_count"),
    ("GDN value heads", "ssm.time_step_rank"),
    ("GDN head size", "ssm.state_size"),
    ("experts", "expert_count"),
    ("experts used", "expert_used_count"),
    ("expert width", "expert_feed_forward_length"),
)
GENERAL = ("name", "size_label", "license", "quantized_by", "source.url")
BLOCK = ("format_version", "block_size", "algorithm", "threshold", "coreset.enabled", "coreset.top_p")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover inspect`."""
    parser.add_argument("file", help="a GGUF file")
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def main(args: argparse.Namespace) -> int:
    """Print shape, types, sizes and block-diffusion settings of a file."""
    from clover_local.ggml.gguf import GgufFile

    facts = describe(GgufFile.open(args.file))
    print(json.dumps(facts) if args.json else text(facts))
    return 0


def describe(file: "GgufFile") -> dict[str, Any]:
    """What a file holds, as plain values; sizes in bytes."""
    keys = file.keys
    architecture = str(keys.get("general.architecture", "unknown"))
    drafts, reason = can_draft(file)
    return {
        "file": str(file.path),
        "bytes": file.path.stat().st_size,
        "architecture": architecture,
        "general": {n: _plain(keys[f"general.{n}"]) for n in GENERAL if f"general.{n}" in keys},
        "parameters": sum(_count(t.shape) for t in file.tensors.values()),
        "vocabulary": keys.count("tokenizer.ggml.tokens"),
        "shape": {
            label: _plain(keys[k]) for label, name in NUMBERS if (k := f"{architecture}.{name}") in keys
        },
        "tensors": len(file.tensors),
        "classes": classes(file),
        "block": {n: _plain(keys[f"clover.{n}"]) for n in BLOCK if f"clover.{n}" in keys},
        "generation": {
            key.removeprefix("clover.generation."): _plain(keys[key])
            for key in keys
            if key.startswith("clover.generation.")
        },
        "special ids": {
            key.removeprefix("tokenizer.ggml.").removesuffix("_token_id"): _plain(keys[key])
            for key in keys
            if key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        },
        "chat template": "tokenizer.chat_template" in keys,
        "can draft": drafts,
        "why not": reason,
    }


def classes(file: "GgufFile") -> dict[str, dict[str, dict[str, int]]]:
    """Tensors and bytes per class and type, the largest class first."""
    from clover_local.quant.classes import tensor_class

    sizes: dict[str, Counter[str]] = {}
    counts: dict[str, Counter[str]] = {}
    for tensor in file.tensors.values():
        kind = tensor_class(tensor.name)
        sizes.setdefault(kind, Counter())[tensor.type.name] += tensor.nbytes
        counts.setdefault(kind, Counter())[tensor.type.name] += 1
    order = sorted(sizes, key=lambda kind: -sizes[kind].total())
    return {k: {t: {"tensors": counts[k][t], "bytes": n} for t, n in sizes[k].most_common()} for k in order}


def can_draft(file: "GgufFile") -> tuple[bool, str | None]:
    """Whether the runtime can preview blocks with this file, and the reason when it cannot."""
    from clover_local.errors import ModelError
    from clover_local.model.spec import Spec

    try:
        spec = Spec.from_gguf(file)
    except ModelError as error:
        return False, str(error)
    if spec.preview is None:
        return False, "the file has no preview weights: it runs one token at a time"
    return (True, None) if spec.can_draft else (False, "the file names no mask token")


def text(facts: dict[str, Any]) -> str:
    """The report for people."""
    general = facts["general"]
    lines = [
        f"{general.get('name', facts['file'])}",
        f"  {facts['architecture']}, {_short(facts['parameters'])} parameters, {facts['tensors']} tensors, "
        f"{facts['bytes'] / 1e9:.3f} GB, vocabulary {facts['vocabulary']:,}",
        *(f"  {name.replace('_', ' ')}: {value}" for name, value in general.items() if name != "name"),
        "",
        "Shape",
        *(f"  {name:<24}{value:>12,}" for name, value in facts["shape"].items()),
        "",
        "Weights",
        *_weights(facts),
        "",
        f"Block diffusion: {'can draft' if facts['can draft'] else 'cannot draft: ' + str(facts['why not'])}",
        *(f"  {name:<32}{value}" for name, value in (facts["block"] | facts["generation"]).items()),
        "",
        "Text",
        f"  chat template {'present' if facts['chat template'] else 'missing'}",
        *(f"  {name} token {value}" for name, value in facts["special ids"].items()),
    ]
    return "\n".join(lines)


def _weights(facts: dict[str, Any]) -> list[str]:
    rows = [(kind, name, part) for kind, types in facts["classes"].items() for name, part in types.items()]
    return [
        f"  {kind:<20}{name.upper():<8}{part['tensors']:>6} tensors {part['bytes'] / 1e6:>12,.1f} MB"
        for kind, name, part in rows
    ]


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _short(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"


def _plain(value: Any) -> Any:
    """A metadata value as JSON can hold it; float32 values without their binary tail."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return value.tolist() if hasattr(value, "tolist") else value
