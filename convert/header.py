"""The first part of a GGUF file as bytes: keys and tensor descriptions, with every later byte's place known.

Metadata arrays whose values come from the weights are reserved (zeros) and filled in place while converting.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clover_local.errors import ModelError

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True)
class Reserved:
    """A float32 array of so many values that is written later."""

    count: int


Key = str | bool | int | float | tuple[str, ...] | np.ndarray | Reserved


@dataclass(frozen=True)
class Slot:
    """A tensor to place: shape as numpy counts, rows last; its ggml type id and its bytes."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """`data` up to the first tensor; where each tensor and each reserved array begins; the whole size."""

    data: bytes
    tensors: dict[str, int]
    reserved: dict[str, int]
    size: int


def aligned(n: int) -> int:
    """n rounded up to the alignment of tensor data."""
    return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def build(keys: Iterable[tuple[str, Key]], slots: Sequence[Slot]) -> Header:
    """Lay a file out. Tensors follow each other in the order given, each aligned."""
    pairs = list(keys)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(slots), len(pairs)))
    reserved: dict[str, int] = {}
    for name, value in pairs:
        out += _text(name)
        if isinstance(value, Reserved):
            out += struct.pack("<IIQ", _ARRAY, _F32, value.count)
            reserved[name] = len(out)
            out += bytes(4 * value.count)
        else:
            out += _value(value)
    relative: dict[str, int] = {}
    at = 0
    for slot in slots:
        shape = slot.shape[::-1]
        relative[slot.name] = at
        out += _text(slot.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", slot.type_id, at)
        at += aligned(slot.nbytes)
    base = aligned(len(out))
    out += bytes(base - len(out))
    return Header(bytes(out), {name: base + offset for name, offset in relative.items()}, reserved, base + at)


def _text(text: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"the text {text[:40]!r} of the checkpoint is not valid Unicode") from error
    return struct.pack("<Q", len(raw)) + raw


def _value(value: str | bool | int | float | tuple[str, ...] | np.ndarray) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, tuple):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    kind = {np.dtype(np.int32): _I32, np.dtype(np.float32): _F32}[value.dtype]
    return struct.pack("<IIQ", _ARRAY, kind, value.size) + value.tobytes()
