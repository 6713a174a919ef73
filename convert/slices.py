"""Makes one slice of one target: rows read from the shards, permuted, changed, checked and quantized."""

from dataclasses import dataclass, field

import numpy as np

from clover_local.convert.config import Config
from clover_local.convert.mapping import Part
from clover_local.convert.plan import Piece
from clover_local.convert.shards import FLOATS, Entry, Shard
from clover_local.errors import ModelError
from clover_local.ggml.quantize import quantize

F16_MAX = 65504.0  # block scales are f16, so every type but f32 and bf16 has this range


@dataclass
class Tensors:
    """The source tensors opened so far, by plain name."""

    places: dict[str, tuple[Shard, Entry]] = field(default_factory=dict)

    def add(self, shard: Shard, entry: Entry, name: str, shape: tuple[int, ...]) -> None:
        """Take a tensor in; raises ModelError when its shape or dtype is not the one expected."""
        if entry.shape != shape:
            raise ModelError(
                f"{shard.path}: the tensor {entry.name} has the shape {list(entry.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        if entry.dtype not in FLOATS:
            raise ModelError(
                f"{shard.path}: tensor {entry.name} is {entry.dtype}; {', '.join(FLOATS)} can be converted"
            )
        self.places[name] = (shard, entry)

    def has(self, part: Part) -> bool:
        return all(source in self.places for source in part.sources)


def source_rows(part: Part, config: Config, first: int, count: int) -> np.ndarray:
    """The row numbers, over all sources of a part laid one after the other, of a slice of its target."""
    if part.row.rows is None:
        return np.arange(first, first + count)
    return part.row.rows(config)[first : first + count]


def runs(rows: np.ndarray, rows_each: int) -> list[tuple[int, int, int]]:
    """Split row numbers into (source, first row in it, rows) that can each be read at once."""
    breaks = np.flatnonzero((np.diff(rows) != 1) | (rows[1:] % rows_each == 0)) + 1
    starts = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([starts, [len(rows)]]))
    return [(*divmod(int(rows[s]), rows_each), int(n)) for s, n in zip(starts, lengths, strict=True)]


def values(piece: Piece, config: Config, tensors: Tensors, first: int, count: int) -> np.ndarray:
    """A slice of a target as float32 [count, row length], before quantizing.

    Raises ModelError naming file and tensor when a value is NaN, infinite or beyond the type's range.
    """
    part = piece.part
    rows_each = int(np.prod(part.source_shape[:-1], dtype=np.int64))
    out = np.empty((count, part.row_length), np.float32)
    at = 0
    for source, start, length in runs(source_rows(part, config, first, count), rows_each):
        shard, entry = tensors.places[part.sources[source]]
        block = shard.rows(entry, start, length)
        _check(shard, entry, block, piece)
        block = block if part.row.cols is None else block[:, part.row.cols(config)]
        if part.row.value is not None:
            with np.errstate(over="ignore"):
                block = part.row.value(block)
            _check(shard, entry, block, piece)
        out[at : at + length] = block
        at += length
    return out


def _check(shard: Shard, entry: Entry, block: np.ndarray, piece: Piece) -> None:
    limit = np.float32(np.finfo(np.float32).max if piece.type.name in ("f32", "bf16") else F16_MAX)
    peak = np.abs(block).max()
    if peak <= limit:
        return
    if not np.isfinite(peak):
        raise ModelError(
            f"{shard.path}: tensor {entry.name} holds NaN or infinite values", "the file is damaged"
        )
    raise ModelError(
        f"{shard.path}: tensor {entry.name} holds {peak:.4g}, beyond {piece.type.name}",
        f"keep it in bf16: --tensor '{piece.name}=bf16'",
    )


def make(piece: Piece, config: Config, tensors: Tensors, first: int, count: int) -> np.ndarray:
    """A slice as the file stores it: uint8 [count, row bytes]."""
    return quantize(piece.type.name, values(piece, config, tensors, first, count))
