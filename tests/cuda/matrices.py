"""Matrices of every type against ggml's own decoder, on any machine that runs the kernels.

python -m tests.cuda.matrices   # on a machine with a card; on the emulator it is in the tests
"""

import sys

import numpy as np

from clover_local.ggml.quantize import dequantize
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import BLOCKS, MATRIX_TYPES
from clover_local.runtime.cuda.passes import TILE, Launch, staged_bytes

from .synthetic import MINIMA, SCALES, Store, blocks, place_acts

QUANTIZED = [kind for kind, (values, _) in BLOCKS.items() if values > 1]
GRAINS = (1, 4, 8)
"""Blocks that share a scale: of an expert's channels, behind a mixer, of the normed rows."""
FILLS = (0x00, 0xFF, 0x0F, 0xF0, 0x80, 0x7F, 0x55, 0xAA)


def corner_blocks(kind: str) -> np.ndarray:
    """Blocks of one repeated byte with scales (and minima) of 1, -1 and 0, [count, bytes]."""
    at, _ = SCALES[kind]
    halves = 2 if kind in (*MINIMA, "q4_k", "q5_k") else 1
    made = []
    for scale in (1.0, -1.0, 0.0):
        for fill in FILLS:
            block = np.full(BLOCKS[kind][1], fill, np.uint8)
            block[at : at + 2 * halves] = np.array([scale, 1.0][:halves], np.float16).view(np.uint8)
            made.append(block)
    return np.stack(made)


def difference(machine: Store, kind: str, data: np.ndarray, k: int, n: int, grain: int) -> float:
    """The kernel's product of a matrix with n rows of whole numbers, which quantize exactly; `grain` blocks of 32 share
    a scale. Returns the largest difference from float64 over what single-precision sums of that size may differ by.
    """
    rng = np.random.default_rng(n)
    weights = dequantize(kind, data.reshape(-1), k).astype(np.float64)
    rows = len(weights)
    q = rng.integers(-127, 128, (n, k)).astype(np.int8)
    q[0] = 127
    segments = (A.Segment * A.SEGMENTS)()
    segments[0] = A.Segment(machine.place(data), MATRIX_TYPES[kind], rows, 0, 0)
    out, run = machine.alloc(n * rows * 4), machine.place(np.frombuffer(bytes(A.Pass(n)), np.uint8))
    width = 8 if n <= 8 else 16 if n <= 16 else 32
    tiles, shared = -(-rows // TILE), 8 * TILE * width * 4 + staged_bytes(kind, k, TILE)
    acts = place_acts(machine, q, np.ones((n, -(-k // (32 * grain)))), q)
    args = A.DenseArgs(segments, acts, out, run, 1, rows, tiles, 0)
    values = (
        ("NT", width // 8), ("TYPES", 1 << MATRIX_TYPES[kind]), ("INPUTS", k), ("X_GRAIN", grain), ("WARPS", 8),
        ("BUFFERS", 1),
    )  # fmt: skip
    machine.run([Launch("dense", "dense", (tiles, 1), 256, args, shared, values)])
    want = q.astype(np.float64) @ weights.T
    allowed = 2e-7 * (np.abs(q).astype(np.float64) @ np.abs(weights.T)) + 1e-6
    return float((np.abs(machine.read(out, np.float32, n, rows) - want) / allowed).max())


def corners(machine: Store, kind: str, n: int, grain: int) -> float:
    """`difference` for blocks with all bits set, none, and both signs of the scale."""
    data, k = corner_blocks(kind), BLOCKS[kind][0] if BLOCKS[kind][0] == 256 else 64
    return difference(machine, kind, np.tile(data, (2, 1)) if k == 64 else data, k, n, grain)


def chance(machine: Store, kind: str, n: int, grain: int) -> float:
    """`difference` for random blocks, in rows of the size that Clover-35B-A3B has."""
    rows, k = 37, 2048
    data = blocks(kind, rows * k // BLOCKS[kind][0], 0.1, np.random.default_rng(n))
    return difference(machine, kind, data, k, n, grain)


def main() -> int:
    """The command above."""
    from clover_local.runtime.cuda.device import Device

    device, good = Device(), True
    for kind in QUANTIZED:
        worst = max(
            check(device, kind, n, grain)
            for check in (corners, chance)
            for n in (1, 2, 3, 8, 9, 16, 31, 32)
            for grain in GRAINS
        )
        good &= worst <= 1
        print(f"{kind:8} {'equal' if worst <= 1 else 'DIFFERS'} ({worst:.2g} of what is allowed)", flush=True)
    device.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
