"""Write a full-size Clover GGUF of random weights in seconds, to measure speed without a checkpoint.

    python scripts/make_synthetic.py /dev/shm/synthetic-35b.gguf --shape 35b
    clover bench speed -m /dev/shm/synthetic-35b.gguf --accept-profile math

The file has the shapes, types and keys of a converted checkpoint and loads in stock llama.cpp too. Its text
means nothing, and its general.name says so. Every tensor is cut from a pool of random values
that was quantized once, at another place for each, which is why 18 GB take seconds.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from clover_local.convert.header import Header, Key, Slot, build
from clover_local.errors import CloverError, UsageError
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import quantize
from clover_local.ggml.types import tensor_type
from clover_local.model.spec import CONV_TAPS, RIGHT_TAPS, Spec
from clover_local.model.weights import wanted
from clover_local.quant.recipes import RECIPES, choose, parse_override, recipe

PARTS = (0.25, 0.5, 0.6)  # of the experts, busiest first, whose share of the routings is told
POOL_VALUES = 1 << 24  # at most; a small model needs no more than its largest tensor holds
ROUTER = "ffn_gate_inp.weight"
PIECE = 32 << 20  # bytes a thread writes at a time
EMBEDDING_ROWS = 4096  # distinct token embeddings; larger vocabularies repeat them
POPULARITY_CHANNEL, POPULARITY = 0, 4.0  # a channel every token raises, so that routers can prefer experts

SPEC_35B = Spec(
    name="synthetic-35B-A3B",
    architecture="qwen35moe",
    layers=40,
    attention_interval=4,
    hidden=2048,
    vocab=248320,
    context_length=131072,
    heads=16,
    kv_heads=2,
    head_dim=256,
    rope_dims=64,
    rope_sections=(11, 11, 10, 0),
    rope_theta=1e7,
    norm_eps=1e-6,
    experts=256,
    experts_used=8,
    expert_width=512,
    shared_width=512,
    key_heads=16,
    value_heads=32,
    gdn_head_dim=128,
    eos_ids=(),
    pad_id=None,
    mask_id=248319,
    coreset_top_p=0.8,
)
SPEC_1B = replace(
    SPEC_35B,
    name="synthetic-1B",
    layers=16,
    hidden=1024,
    vocab=65536,
    heads=8,
    experts=32,
    experts_used=4,
    key_heads=8,
    value_heads=16,
    mask_id=65535,
)
SPEC_TINY = replace(
    SPEC_35B,
    name="synthetic-tiny",
    layers=4,
    hidden=256,
    vocab=1024,
    context_length=4096,
    heads=4,
    head_dim=64,
    rope_dims=16,
    rope_sections=(3, 3, 2, 0),
    experts=8,
    experts_used=2,
    expert_width=256,
    shared_width=256,
    key_heads=4,
    value_heads=8,
    gdn_head_dim=32,
    mask_id=1023,
)
SHAPES = {"35b": SPEC_35B, "1b": SPEC_1B, "tiny": SPEC_TINY}


@dataclass(frozen=True)
class Piece:
    """One tensor to write: its place in the file and the bytes it is cut from, beginning at `start`."""

    name: str
    offset: int
    nbytes: int
    pool: np.ndarray  # uint8, repeated as often as needed
    start: int


def keys(spec: Spec, file_type: int, rng: np.random.Generator) -> Iterator[tuple[str, Key]]:
    """The metadata of a converted checkpoint, without a vocabulary."""
    yield "general.architecture", spec.architecture
    yield "general.name", f"{spec.name} (random weights, for speed only)"
    yield "general.file_type", file_type
    yield "general.quantization_version", 2
    numbers: dict[str, Key] = {
        "block_count": spec.layers,
        "context_length": spec.context_length,
        "embedding_length": spec.hidden,
        "vocab_size": spec.vocab,
        "full_attention_interval": spec.attention_interval,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.freq_base": spec.rope_theta,
        "rope.dimension_count": spec.rope_dims,
        "rope.dimension_sections": np.array(spec.rope_sections, np.int32),
        "expert_count": spec.experts,
        "expert_used_count": spec.experts_used,
        "expert_feed_forward_length": spec.expert_width,
        "expert_shared_feed_forward_length": spec.shared_width,
        "ssm.conv_kernel": CONV_TAPS,
        "ssm.inner_size": spec.value_size,
        "ssm.state_size": spec.gdn_head_dim,
        "ssm.time_step_rank": spec.value_heads,
        "ssm.group_count": spec.key_heads,
    }
    yield from ((f"{spec.architecture}.{name}", value) for name, value in numbers.items())
    yield "tokenizer.ggml.model", "no_vocab"
    yield from _clover_keys(spec, rng)


def _clover_keys(spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, Key]]:
    assert spec.mask_id is not None and spec.coreset_top_p is not None
    gdn = len(spec.gdn_layers)
    heads = gdn * spec.value_heads
    yield "tokenizer.ggml.mask_token_id", spec.mask_id
    yield "clover.format_version", 1
    yield "clover.block_size", spec.block_size
    yield "clover.algorithm", spec.algorithm
    yield "clover.threshold", spec.threshold
    yield "clover.coreset.enabled", True
    yield "clover.coreset.top_p", spec.coreset_top_p
    right = rng.normal(0, 0.2, gdn * spec.channels * RIGHT_TAPS)
    yield "clover.preview.conv_right", right.astype(np.float32)
    yield "clover.preview.logit_scale", rng.uniform(4, 10, heads).astype(np.float32)
    yield "clover.preview.history_bias", rng.uniform(2, 6, heads).astype(np.float32)
    yield "clover.preview.history_c", rng.uniform(-0.5, 0.5, heads).astype(np.float32)


class Pools:
    """Random values, quantized once per (type, size); tensors are cut from them."""

    def __init__(self, spec: Spec, skew: float, rng: np.random.Generator) -> None:
        self._spec, self._skew, self._rng = spec, skew, rng
        self._made: dict[tuple[str, float], np.ndarray] = {}
        self._values = min(POOL_VALUES, max(prod(shape) for shape in wanted(spec).values()))

    def of(self, name: str, shape: tuple[int, ...], type_name: str) -> np.ndarray:
        """Bytes for a tensor (numpy shape, rows last), to be repeated to its size."""
        spec, rng = self._spec, self._rng
        if name.endswith(("_norm.weight", "ffn_norm.weight")):
            return _bytes(np.ones(shape[-1]))
        if name.endswith("ssm_a"):
            return _bytes(-np.exp(rng.normal(-1, 0.5, shape)))
        if name.endswith(("ssm_dt.bias", "ssm_conv1d.weight")):
            return _bytes(rng.normal(0, 0.5, shape))
        if name.endswith(ROUTER):
            return self.router(shape)
        if name == "token_embd.weight":
            return self._embedding(min(spec.vocab, EMBEDDING_ROWS), type_name)
        # outputs are kept small, so that forty layers of noise do not drown the token itself
        small = name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down_exps.weight"))
        return self._pool(type_name, shape[-1] ** -0.5 / (8 if small else 1))

    def _pool(self, type_name: str, size: float) -> np.ndarray:
        key = type_name, size
        if key not in self._made:
            block = max(tensor_type(type_name).block, 256)
            values = self._rng.standard_normal((self._values // block, block), np.float32) * np.float32(size)
            self._made[key] = quantize_rows(type_name, values)
        return self._made[key]

    def _embedding(self, rows: int, type_name: str) -> np.ndarray:
        values = self._rng.standard_normal((rows, self._spec.hidden), np.float32)
        values[:, POPULARITY_CHANNEL] = POPULARITY
        return quantize_rows(type_name, values)

    def router(self, shape: tuple[int, ...]) -> np.ndarray:
        """Bytes of one layer's router; which experts are preferred differs from layer to layer."""
        values = self._rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
        values[:, POPULARITY_CHANNEL] = self._rng.permutation(preference(shape[0], self._skew)) / POPULARITY
        return _bytes(values)


def preference(experts: int, skew: float) -> np.ndarray:
    """What routers add to the logit of the expert of each rank: -skew * ln(rank)."""
    return -skew * np.log(np.arange(1, experts + 1))


def quantize_rows(type_name: str, values: np.ndarray) -> np.ndarray:
    """Rows of float32 to flat bytes of a type, on all cores."""
    parts = np.array_split(values, max(1, min(os.cpu_count() or 1, 16, len(values))))
    with ThreadPoolExecutor(len(parts)) as threads:
        return np.concatenate([p.reshape(-1) for p in threads.map(lambda p: quantize(type_name, p), parts)])


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)


def busiest_share(spec: Spec, skew: float, part: float, rng: np.random.Generator) -> float:
    """Share of routings that the busiest `part` of a layer's experts gets, by simulation."""
    logits = rng.standard_normal((4096, spec.experts)) + preference(spec.experts, skew)
    used = np.argpartition(-logits, spec.experts_used - 1, axis=1)[:, : spec.experts_used]
    counts = np.bincount(used.reshape(-1), minlength=spec.experts)  # in the order of their ranks
    return float(counts[: max(round(spec.experts * part), 1)].sum() / counts.sum())


def skew_for(spec: Spec, share: float, part: float, seed: int) -> float:
    """The skew at which the busiest `part` of a layer's experts gets `share` of the routings."""
    low, high = 0.0, 8.0
    for _ in range(24):
        middle = (low + high) / 2
        found = busiest_share(spec, middle, part, np.random.default_rng(seed))
        low, high = (middle, high) if found < share else (low, middle)
    return (low + high) / 2


def parse_skew(text: str, spec: Spec, seed: int) -> float:
    """`S`, or `SHARE:PART` (both 0 to 1): as much as it takes for that share on that part of the experts."""
    first, colon, second = text.partition(":")
    try:
        values = [float(one) for one in ([first, second] if colon else [first])]
    except ValueError:
        values = [-1.0]
    if min(values) < 0 or (colon and not 0 < values[1] <= values[0] < 1):
        raise UsageError(
            f"--experts-skew {text!r} is neither a number nor SHARE:PART", "for example 0.3 or 0.9:0.6"
        )
    return skew_for(spec, *values, seed) if colon else values[0]


def counted_shares(path: Path, parts: Sequence[float], passes: int = 24) -> list[float]:
    """Shares of the routings that go to the busiest experts, counted over random tokens; for small shapes.

    Which are the busiest is found in every other pass, their share in the rest.
    """
    from clover_local.runtime.engine import Engine

    with Engine.open(path, n_ctx=64, device="cpu") as engine:
        spec, rng = engine.spec, np.random.default_rng(0)
        counts = np.zeros((2, spec.layers, spec.experts))
        for index in range(passes):
            used = engine.routing(rng.integers(0, spec.vocab - 1, 32).tolist())
            for layer in range(spec.layers):
                counts[index % 2, layer] += np.bincount(used[layer].reshape(-1), minlength=spec.experts)
    seen = np.take_along_axis(counts[1], np.argsort(-counts[0], axis=1), axis=1)
    return [float(seen[:, : max(round(spec.experts * part), 1)].sum() / seen.sum()) for part in parts]


def layout(
    spec: Spec, recipe_name: str, overrides: list[str], rng: np.random.Generator
) -> tuple[Header, list[Slot]]:
    """The header of the file, and its tensors in order."""
    made, rules = recipe(recipe_name, spec.layers), [parse_override(text) for text in overrides]
    slots = []
    for name, ggml_shape in wanted(spec).items():
        shape = ggml_shape[::-1]
        kind = tensor_type(choose(made, name, shape, rules).type)
        slots.append(Slot(name, shape, kind.id, prod(shape[:-1]) * kind.row_bytes(shape[-1])))
    return build(keys(spec, made.file_type, rng), slots), slots


def rewrite_routers(path: Path, skew: float, seed: int) -> int:
    """Give an existing file's routers another skew, in place; returns the bytes written."""
    found = GgufFile.open(path)
    spec, rng = Spec.from_gguf(found), np.random.default_rng(seed)
    if "random weights" not in spec.name:
        raise UsageError(f"{path} was not made by this program, its routers stay")
    routers, done = Pools(spec, skew, rng), 0
    with path.open("r+b", buffering=0) as file:
        for info in found.tensors.values():
            if info.name.endswith(ROUTER):
                done += os.pwrite(file.fileno(), routers.router(info.shape[::-1]), info.offset)
    return done


def write(path: Path, spec: Spec, recipe_name: str, overrides: list[str], skew: float, seed: int) -> int:
    """Write the file; returns its size in bytes."""
    rng = np.random.default_rng(seed)
    header, slots = layout(spec, recipe_name, overrides, rng)
    pools = Pools(spec, skew, rng)
    pieces = []
    for index, slot in enumerate(slots):
        kind = tensor_type(slot.type_id)
        pool = pools.of(slot.name, slot.shape, kind.name)
        varies = "_norm" not in slot.name and slot.name != "token_embd.weight" and kind.block > 1
        start = (index * 7919 * kind.size) % len(pool) if varies else 0
        pieces.append(Piece(slot.name, header.tensors[slot.name], slot.nbytes, pool, start))
    partial = path.with_name(path.name + ".partial")
    with partial.open("w+b", buffering=0) as file:
        file.truncate(header.size)
        os.pwrite(file.fileno(), header.data, 0)
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as threads:
            largest_first = sorted(pieces, key=lambda piece: -piece.nbytes)
            list(threads.map(lambda piece: _write_piece(file.fileno(), piece), largest_first))
    partial.replace(path)
    return header.size


def _write_piece(file: int, piece: Piece) -> None:
    source, at, done = memoryview(piece.pool), piece.start, 0
    while done < piece.nbytes:
        count = min(piece.nbytes - done, len(source) - at, PIECE)
        done += os.pwrite(file, source[at : at + count], piece.offset + done)
        at = (at + count) % len(source)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--shape", choices=SHAPES, default="35b")
    parser.add_argument(
        "--recipe", choices=RECIPES, default="int4", help="types as clover convert gives them"
    )
    parser.add_argument("--tensor", action="append", default=[], metavar="PATTERN=TYPE")
    parser.add_argument(
        "--experts-skew",
        default="0",
        metavar="S|SHARE:PART",
        help="0: all experts alike; S: the expert of rank r is preferred by -S*ln(r) in the router's logits; 0.9:0.6: "
        "by as much as gives 90 %% of the routings to the busiest 60 %% of a layer's experts",
    )
    parser.add_argument(
        "--count", action="store_true", help="count the routings of random tokens, on the CPU"
    )
    parser.add_argument("--routers-only", action="store_true", help="change the skew of an existing OUT.gguf")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--force", action="store_true", help="overwrite OUT.gguf")
    return parser


def main() -> int:
    """Write the file and say what it holds."""
    args = arguments().parse_args()
    spec, began = SHAPES[args.shape], time.perf_counter()
    try:
        skew = parse_skew(args.experts_skew, spec, args.seed)
        if args.routers_only:
            size = rewrite_routers(args.out, skew, args.seed)
        elif args.out.exists() and not args.force:
            raise CloverError(f"{args.out} exists", "add --force to overwrite it")
        else:
            size = write(args.out, spec, args.recipe, args.tensor, skew, args.seed)
    except CloverError as error:
        print(f"error: {error}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        return error.exit_code
    shares = (f"{busiest_share(spec, skew, part, np.random.default_rng(args.seed)):.0%}" for part in PARTS)
    print(
        f"{args.out}: {size / 1e9:.2f} GB in {time.perf_counter() - began:.1f} s, {args.recipe}; skew {skew:.3f}: the "
        f"busiest {', '.join(f'{part:.0%}' for part in PARTS)} of the experts get {', '.join(shares)} of the routings"
    )
    if args.count:
        found = (f"{share:.0%}" for share in counted_shares(args.out, PARTS))
        print(f"counted over random tokens: {', '.join(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
