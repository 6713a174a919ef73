"""Reads GGUF headers: metadata and tensor places, bounded and lazy, from a memory map.

ggml's own reader is not used here because a damaged header must end in a sentence and never in an abort, and
because arrays of a quarter of a million strings are skipped rather than built.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clover_local.errors import ModelError
from clover_local.ggml.types import NAMES, TensorType, tensor_type

MAGIC = b"GGUF"
MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, tuple[str, int]] = {
    0: ("<B", 1),
    1: ("<b", 1),
    2: ("<H", 2),
    3: ("<h", 2),
    4: ("<I", 4),
    5: ("<i", 4),
    6: ("<f", 4),
    7: ("<?", 1),
    10: ("<Q", 8),
    11: ("<q", 8),
    12: ("<d", 8),
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `shape` in ggml order (ne0 first), `offset` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


class _Cursor:
    """Reads little-endian values and refuses to leave the map."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.size = data, path, 0, len(data)

    def fail(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} is not a complete GGUF file: {what}", "download or convert the model again"
        )

    def skip(self, n: int, what: str) -> int:
        """Move past n bytes and return where they begin."""
        start = self.at
        if n < 0 or n > self.size - start:
            raise self.fail(f"it ends inside {what}")
        self.at = start + n
        return start

    def number(self, format: str, size: int, what: str) -> Any:
        return struct.unpack_from(format, self.data, self.skip(size, what))[0]

    def u32(self, what: str) -> int:
        return self.number("<I", 4, what)

    def u64(self, what: str) -> int:
        return self.number("<Q", 8, what)

    def text(self, what: str) -> str:
        length = self.u64(what)
        start = self.skip(length, what)
        return self.data[start : start + length].decode("utf-8", errors="replace")


@dataclass(frozen=True)
class _Strings:
    """A string array, left in the file until it is asked for."""

    start: int
    count: int


class Keys(Mapping[str, Any]):
    """The metadata: scalars and strings as Python values, number arrays as numpy, string arrays on demand."""

    def __init__(self, values: dict[str, Any], data: mmap.mmap) -> None:
        self._values, self._data = values, data

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Strings):
            return self._strings(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def count(self, key: str) -> int:
        """Length of an array without building it; 0 when the key is missing."""
        value = self._values.get(key)
        if isinstance(value, _Strings):
            return value.count
        return len(value) if isinstance(value, np.ndarray) else 0

    def _strings(self, array: _Strings) -> list[str]:
        out, at, data = [], array.start, self._data
        for _ in range(array.count):
            length = int.from_bytes(data[at : at + 8], "little")
            out.append(data[at + 8 : at + 8 + length].decode("utf-8", errors="replace"))
            at += 8 + length
        return out


def _skip_strings(cursor: _Cursor, count: int, what: str) -> _Strings:
    start = at = cursor.at
    data, size = cursor.data, cursor.size
    if count > (size - at) // 8:
        raise cursor.fail(f"it ends inside {what}")
    for _ in range(count):
        if at + 8 > size:
            raise cursor.fail(f"it ends inside {what}")
        at += 8 + int.from_bytes(data[at : at + 8], "little")
    if at > size:
        raise cursor.fail(f"it ends inside {what}")
    cursor.at = at
    return _Strings(start, count)


def _value(cursor: _Cursor, key: str) -> Any:
    what = f"the key {key!r}"
    kind = cursor.u32(what)
    if kind in _SCALARS:
        return cursor.number(*_SCALARS[kind], what)
    if kind == _STRING:
        return cursor.text(what)
    if kind != _ARRAY:
        raise cursor.fail(f"{what} has the unknown type {kind}")
    inner, count = cursor.u32(what), cursor.u64(what)
    if inner == _STRING:
        return _skip_strings(cursor, count, what)
    if inner not in _SCALARS:
        raise cursor.fail(f"{what} is an array of the unknown type {inner}")
    format, size = _SCALARS[inner]
    start = cursor.skip(count * size, what)
    return np.frombuffer(cursor.data, np.dtype(format), count, start)


def _tensor(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], TensorType, int]:
    what = f"the description of tensor {index}"
    name = cursor.text(what)
    dims = cursor.u32(what)
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {dims} dimensions")
    shape = tuple(cursor.u64(what) for _ in range(dims))
    kind, offset = cursor.u32(what), cursor.u64(what)
    if kind not in NAMES:
        raise ModelError(f"{cursor.path}: tensor {name!r} has the unknown type {kind}")
    return name, shape, tensor_type(kind), offset


def _place(cursor: _Cursor, base: int, raw: tuple[str, tuple[int, ...], TensorType, int]) -> TensorInfo:
    name, shape, kind, offset = raw
    elements = 1
    for extent in shape:
        elements *= extent
    if elements == 0 or shape[0] % kind.block:
        raise cursor.fail(f"tensor {name!r} has the impossible shape {list(shape)} for {kind.name}")
    nbytes = elements // kind.block * kind.size
    if base + offset + nbytes > cursor.size:
        raise cursor.fail(
            f"tensor {name!r} ends at byte {base + offset + nbytes:,}, the file at {cursor.size:,}"
        )
    return TensorInfo(name, shape, kind, base + offset, nbytes)


@dataclass(frozen=True)
class GgufFile:
    """An open GGUF: its keys, its tensors by name, and the map that holds both."""

    path: Path
    version: int
    keys: Keys
    tensors: dict[str, TensorInfo]
    data: mmap.mmap

    @classmethod
    def open(cls, path: str | Path) -> "GgufFile":
        """Map a file and read its header; raises ModelError with what is wrong and where."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelError(f"there is no file {path}") from error
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read as a model: {error}") from error
        cursor = _Cursor(data, path)
        if data[:4] != MAGIC:
            raise ModelError(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
        cursor.at = 4
        version = cursor.u32("the header")
        if version not in (2, 3):
            raise ModelError(f"{path} is a GGUF of version {version}; this program reads 2 and 3")
        n_tensors, n_keys = cursor.u64("the header"), cursor.u64("the header")
        values = {}
        for _ in range(n_keys):
            key = cursor.text("its metadata")
            values[key] = _value(cursor, key)
        raw = [_tensor(cursor, index) for index in range(n_tensors)] if n_tensors <= cursor.size else None
        if raw is None:
            raise cursor.fail(f"it claims {n_tensors} tensors")
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise cursor.fail(f"its alignment is {alignment!r}")
        base = (cursor.at + alignment - 1) // alignment * alignment
        tensors = {entry[0]: _place(cursor, base, entry) for entry in raw}
        if len(tensors) != n_tensors:
            raise cursor.fail("two tensors have the same name")
        return cls(path, version, Keys(values, data), tensors, data)

    def array(self, name: str) -> np.ndarray:
        """The raw bytes of a tensor as a read-only uint8 view of the map."""
        info = self.tensors[name]
        return np.frombuffer(self.data, np.uint8, info.nbytes, info.offset)
