"""Reads safetensors shards: a validated header, then rows of a tensor as float32.

Rows are read, not mapped: a mapped page counts as memory of the process, and a file cut short under a map
kills the process where a short read is a sentence. Format: https://huggingface.co/docs/safetensors
"""

import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from clover_local.convert.files import parse_object
from clover_local.errors import ModelError

MAX_HEADER = 100 << 20  # the bound of the format's own reader
MAX_DIMS = 8
SIZES = {
    "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4,
    "I64": 8, "U64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
FLOATS = ("BF16", "F16", "F32")
CUT = "download that file again"


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in its shard: `start` counts from the beginning of the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def row_length(self) -> int:
        """Values of one row, the last dimension; a scalar has one."""
        return self.shape[-1] if self.shape else 1


class Shard:
    """One open safetensors file."""

    def __init__(self, path: Path, file: BinaryIO, entries: dict[str, Entry]) -> None:
        self.path, self.entries = path, entries
        self._file, self._lock = file, threading.Lock()

    @classmethod
    def open(cls, path: Path) -> "Shard":
        """Open a file and check its header; raises ModelError with what is wrong."""
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise ModelError(f"the shard {path} is missing", CUT) from error
        except OSError as error:
            raise ModelError(f"the shard {path} cannot be read: {error}") from error
        try:
            return cls(path, file, read_header(file, path))
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def rows(self, entry: Entry, first: int, count: int) -> np.ndarray:
        """Rows first … first+count-1 of a tensor seen as [rows, row_length], as float32."""
        size = SIZES[entry.dtype]
        raw = np.empty(count * entry.row_length * size, np.uint8)
        self._read(entry, first * entry.row_length * size, raw)
        return as_float32(raw, entry.dtype).reshape(count, entry.row_length)

    def _read(self, entry: Entry, offset: int, out: np.ndarray) -> None:
        view = out.data
        with self._lock:
            self._file.seek(entry.start + offset)
            while view:
                got = self._file.readinto(view)  # type: ignore[attr-defined]
                if not got:
                    raise ModelError(f"{self.path} ends inside the tensor {entry.name}", CUT)
                view = view[got:]


def as_float32(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes of one of the FLOATS as float32; bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view("<f2" if dtype == "F16" else "<f4").astype(np.float32)


def read_header(file: BinaryIO, path: Path) -> dict[str, Entry]:
    """The tensors of a shard by name; nothing larger than the file or MAX_HEADER is ever allocated."""
    size = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > MAX_HEADER or length > size - 8:
        raise ModelError(
            f"{path} is not a complete safetensors file: its header of {length:,} bytes does not fit", CUT
        )
    text = file.read(length)
    if len(text) != length:
        raise ModelError(f"{path} ends inside its header", CUT)
    header = parse_object(text, f"the header of {path}")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, raw, 8 + length) for name, raw in header.items()}
    _check_layout(path, entries, 8 + length, size)
    return entries


def _whole(value: Any, limit: int = 1 << 48) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def _entry(path: Path, name: str, raw: Any, body: int) -> Entry:
    where = f"{path}: the entry of tensor {name[:100]!r}"
    if not isinstance(raw, dict) or raw.get("dtype") not in tuple(SIZES):
        raise ModelError(f"{where} has no known dtype")
    shape, offsets = raw.get("shape"), raw.get("data_offsets")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_whole, shape)):
        raise ModelError(f"{where} has no valid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)):
        raise ModelError(f"{where} has no valid data_offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * SIZES[raw["dtype"]]:
        raise ModelError(f"{where} covers {end - begin:,} bytes, not those of {raw['dtype']} {shape}")
    return Entry(name, raw["dtype"], tuple(shape), body + begin, end - begin)


def _check_layout(path: Path, entries: dict[str, Entry], body: int, size: int) -> None:
    """Tensors must fill the file without gap or overlap, as the format demands."""
    at = body
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.nbytes)):
        if entry.start != at:
            raise ModelError(
                f"{path}: the tensor {entry.name[:100]!r} does not begin where the one before it ends"
            )
        at += entry.nbytes
    if at > size:
        raise ModelError(f"{path} is truncated: it has {size:,} bytes, its header describes {at:,}", CUT)
    if at < size:
        raise ModelError(f"{path} has {size - at:,} bytes that its header does not describe", CUT)
