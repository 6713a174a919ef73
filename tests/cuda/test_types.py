"""ggml's block types in the kernels against ggml's own decoder: the corners of every type, and the embedding."""

import numpy as np
import pytest

from clover_local.ggml.quantize import dequantize
from clover_local.ggml.types import tensor_type
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import BLOCKS, MATRIX_TYPES
from clover_local.runtime.cuda.passes import TILE, Launch, staged_bytes

from .emulation import Emulator
from .synthetic import MINIMA, SCALES, blocks

QUANTIZED = [kind for kind, (values, _) in BLOCKS.items() if values > 1]
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


def test_ids_and_sizes_are_those_of_ggml() -> None:
    for kind, number in MATRIX_TYPES.items():
        info = tensor_type(kind)
        assert (number, BLOCKS[kind]) == (info.id, (info.block, info.size))


@pytest.mark.parametrize("n", [2, 9, 32])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_corners_of_a_block(kind: str, n: int) -> None:
    """All bits set, none, and signs of the scale; activations are whole numbers, so sums are exact."""
    rng, machine = np.random.default_rng(n), Emulator()
    data, k = corner_blocks(kind), BLOCKS[kind][0] if BLOCKS[kind][0] == 256 else 64
    data = np.tile(data, (2, 1)) if k == 64 else data
    weights = dequantize(kind, data.reshape(-1), k).astype(np.float64)
    rows = len(weights)
    q = rng.integers(-127, 128, (n, k)).astype(np.int8)
    q[0] = 127
    sums = q.reshape(n, -1, 32).astype(np.float32).sum(-1)
    acts = A.Acts(
        machine.place(q),
        machine.place(np.stack([np.ones_like(sums), sums], -1)),
        machine.place(q.astype(np.float32)),
    )
    segments = (A.Segment * A.SEGMENTS)()
    segments[0] = A.Segment(machine.place(data), MATRIX_TYPES[kind], rows, 0, 0)
    out, run = machine.alloc(n * rows * 4), machine.place(np.frombuffer(bytes(A.Pass(n)), np.uint8))
    args = A.DenseArgs(segments, acts, out, run, 1, k, rows, 0)
    width = 8 if n <= 8 else 16 if n <= 16 else 32
    values = (("NT", width // 8), ("TYPES", 1 << MATRIX_TYPES[kind]), ("WARPS", 8))
    shared = 8 * TILE * width * 4 + staged_bytes(kind, k, TILE)
    machine.run([Launch("dense", "dense", (-(-rows // TILE), 1), 256, args, shared, values)])
    machine.check()
    want = q.astype(np.float64) @ weights.T
    size = np.abs(q).astype(np.float64) @ np.abs(weights.T)
    assert (np.abs(machine.read(out, np.float32, n, rows) - want) <= 2e-6 * size + 1e-6).all()


@pytest.mark.parametrize("kind", list(MATRIX_TYPES))
def test_embedding_of_every_type(kind: str) -> None:
    """Rows of a table are what ggml makes of them, to the last bit of a float."""
    rng, machine = np.random.default_rng(0), Emulator()
    values = BLOCKS[kind][0]
    hidden, vocab = max(2 * values, 96), 24 if values > 1 else 3
    table = blocks(kind, vocab * hidden // values, 0.1, rng)
    if values > 1:
        table[: 3 * len(FILLS)] = corner_blocks(kind)
    tokens = [vocab - 1, 0, 1, 0, 2]
    run = A.Pass(len(tokens), 0, 0, 0)
    run.tokens[: len(tokens)] = tokens
    x = machine.alloc(8 * hidden * 4)
    args = A.EmbedArgs(
        machine.place(table),
        x,
        machine.place(np.frombuffer(bytes(run), np.uint8)),
        MATRIX_TYPES[kind],
        hidden,
    )
    machine.run([Launch("rows", "embed", (8, 1), 256, args)])
    machine.check()
    want = dequantize(kind, table.reshape(-1), hidden)[tokens]
    got = machine.read(x, np.float32, len(tokens), hidden)
    assert np.allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
