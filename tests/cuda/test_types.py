"""ggml's block types in the kernels against ggml's own decoder: the corners of every type, and the embedding."""

import numpy as np
import pytest

from clover_local.ggml.quantize import dequantize
from clover_local.ggml.types import tensor_type
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import BLOCKS, MATRIX_TYPES
from clover_local.runtime.cuda.passes import Launch

from .emulation import Emulator
from .matrices import FILLS, QUANTIZED, chance, corner_blocks, corners
from .synthetic import blocks


def test_ids_and_sizes_are_those_of_ggml() -> None:
    for kind, number in MATRIX_TYPES.items():
        info = tensor_type(kind)
        assert (number, BLOCKS[kind]) == (info.id, (info.block, info.size))


@pytest.mark.parametrize(("n", "grain"), [(2, 8), (9, 4), (9, 1), (32, 8)])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_corners_of_a_block(kind: str, n: int, grain: int) -> None:
    """All bits set, none, and signs of the scale."""
    machine = Emulator()
    assert corners(machine, kind, n, grain) <= 1
    machine.check()


@pytest.mark.parametrize("grain", [1, 8])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_wide_rows_of_every_type(kind: str, grain: int) -> None:
    machine = Emulator()
    assert chance(machine, kind, 3, grain) <= 1
    machine.check()


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
    machine.run([Launch("rows", "embed", (8, -(-hidden // 256)), 256, args)])
    machine.check()
    want = dequantize(kind, table.reshape(-1), hidden)[tokens]
    got = machine.read(x, np.float32, len(tokens), hidden)
    assert np.allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
