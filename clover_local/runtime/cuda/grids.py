"""Tables of the IQ types as a header for the kernels, read from ggml's own decoder: no copy that could differ."""

from functools import cache

import numpy as np

from clover_local.ggml.quantize import dequantize

ONE = np.array([1.0], np.float16).view(np.uint8)


@cache
def header() -> str:
    """Text of grids.cuh: the 16 values of IQ4, and the grids of IQ3_XXS (256 x 4) and IQ3_S (512 x 4)."""
    values = ", ".join(f"IQ4_VALUES_{i} = 0x{word:08x}u" for i, word in enumerate(_words(_iq4_values())))
    lines = [f"constexpr u32 {values};"]
    for name, grid in (("IQ3_XXS_GRID", _iq3_xxs()), ("IQ3_S_GRID", _iq3_s())):
        numbers = ",".join(f"0x{word:08x}" for word in _words(grid))
        lines.append(f"static __device__ const u32 {name}[{grid.size // 4}] = {{{numbers}}};")
    return "\n".join(["#pragma once", *lines, ""])


def _words(values: np.ndarray) -> list[int]:
    """Four neighbouring signed bytes as a little-endian word."""
    exact = values.reshape(-1).astype(np.int8)
    assert (exact == values.reshape(-1)).all()
    return [int(word) for word in exact.view("<u4")]


def _iq4_values() -> np.ndarray:
    """Nibbles 0..15 of a block of IQ4_NL with scale 1, low nibbles first."""
    block = np.concatenate([ONE, np.arange(16, dtype=np.uint8)])
    return dequantize("iq4_nl", block, 32)[0, :16]


def _iq3_xxs() -> np.ndarray:
    """Four blocks of 64 grid entries each: no signs, and scale 4 undoes the factor (0.5 + 0) * 0.5."""
    block = np.zeros((4, 98), np.uint8)
    block[:, :2] = np.array([4.0], np.float16).view(np.uint8)
    block[:, 2:66] = np.arange(256, dtype=np.uint8).reshape(4, 64)
    return dequantize("iq3_xxs", block, 256)


def _iq3_s() -> np.ndarray:
    """Eight blocks; the ninth bit of the index is set in the upper four."""
    block = np.zeros((8, 110), np.uint8)
    block[:, :2] = ONE
    block[:, 2:66] = np.tile(np.arange(256, dtype=np.uint8), 2).reshape(8, 64)
    block[4:, 66:74] = 255
    return dequantize("iq3_s", block, 256)
