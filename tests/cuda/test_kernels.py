"""Every kernel on the emulator: matrices of every type, and whole passes against the torch reference."""

import ctypes as C
from pathlib import Path

import numpy as np
import pytest
import torch

from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import dequantize
from clover_local.model.processing import process
from clover_local.model.spec import Spec
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import BLOCKS, MATRIX_TYPES, Network, Place, build, unsupported
from clover_local.runtime.cuda.passes import FLOATS, TILE, Launch, staged_bytes
from tests.reference import from_gguf
from tests.reference import model as reference

from .emulation import Emulator
from .synthetic import INT4, SMALL, blocks, empty_state, network, place_acts, quantized
from .trace import Session

QUANTIZED = [kind for kind, (values, _) in BLOCKS.items() if values > 1]


SHAPES = {
    1: ((8, 4, 2, 2),),
    7: ((4, 8, 1, 99), (1, 8, 2, 99)),
    16: ((8, 8, 2, 3),),
    29: ((2, 4, 0, 3),),
}
"""By rows: blocks that share a scale, warps, buffers (0: straight from the matrix), blocks (99: some have no tile)."""


@pytest.mark.parametrize("n", [1, 7, 16, 29])
@pytest.mark.parametrize("kind", list(MATRIX_TYPES))
def test_matrix_of_every_type(kind: str, n: int) -> None:
    """Rows that do not fill the last tile, a second matrix of another type behind the same input, a residual;
    blocks that take one tile and blocks that take several."""
    rng = np.random.default_rng(n)
    machine, k, rows = Emulator(), 512 if BLOCKS[kind][0] == 256 else 448, 41
    data = blocks(kind, rows * k // BLOCKS[kind][0], 0.1, rng)
    weights = dequantize(kind, data.reshape(-1), k)
    other = rng.normal(0, 0.1, (5, k)).astype(np.float32)
    x = rng.normal(0, 1, (n, k)).astype(np.float32)
    width = 8 if n <= 8 else 16 if n <= 16 else 32
    floats, float_rows = kind in FLOATS, 4 if n == 7 else 2
    tiles = -(-rows // (float_rows if floats else TILE))
    segments = (A.Segment * A.SEGMENTS)()
    segments[0] = A.Segment(machine.place(data), MATRIX_TYPES[kind], rows, 0, 0)
    segments[1] = A.Segment(machine.place(other), 0, 5, tiles, rows)
    tiles += -(-5 // float_rows)
    before = rng.normal(0, 1, (n, rows + 5)).astype(np.float32)
    out, run = machine.place(before), machine.place(np.frombuffer(bytes(A.Pass(n)), np.uint8))
    for grain, warps, buffers, grid in SHAPES[n]:
        machine.write(out, before)
        q, scale, means = quantized(x.astype(np.float64), grain)
        args = A.DenseArgs(segments, place_acts(machine, q, scale, x), out, run, 2, rows + 5, tiles, 1)
        values = (
            ("NT", width // 8), ("TYPES", 1 << MATRIX_TYPES[kind] | 1), ("INPUTS", k), ("X_GRAIN", grain),
            ("WARPS", warps), ("FLOAT_ROWS", float_rows), ("BUFFERS", buffers), ("STAGED", int(buffers > 0)),
            ("REUSED", int(grid < tiles)),
        )  # fmt: skip
        shared = warps * TILE * width * 4 + buffers * staged_bytes(kind, k, TILE)
        machine.run([Launch("dense", "dense", (grid, 1), 32 * warps, args, shared, values)])
        machine.check()
        got = machine.read(out, np.float32, n, rows + 5)
        seen = means if kind in QUANTIZED else x
        want = before + np.concatenate(
            [seen @ weights.T.astype(np.float64), x @ other.T.astype(np.float64)], 1
        )
        assert np.abs(got - want).max() < 2e-4


def _load(path: Path, n_ctx: int = 256) -> tuple[Network, Emulator]:
    file, machine = GgufFile.open(path), Emulator()
    spec = Spec.from_gguf(file)
    assert unsupported(spec, {name: info.type.name for name, info in file.tensors.items()}) is None
    places = {
        name: Place(machine.place(file.array(name)), info.type.name) for name, info in file.tensors.items()
    }
    return build(spec, places, empty_state(spec, machine, n_ctx), machine, max_seen=512), machine


def _run(session: Session, kind: str, rows: int, tokens: list[int]) -> np.ndarray:
    session.begin(kind, rows, tokens)
    session.machine.run(session.launches(kind, rows))
    session.end(kind, rows)
    return session.logits(len(tokens))


def _block(spec: Spec, width: int) -> list[int]:
    block = np.random.default_rng(width).integers(0, 1500, width)
    block[1::2] = spec.mask_id
    return block.tolist()


@pytest.mark.timeout(600)
def test_f32_passes_equal_the_reference(tiny_checkpoint: Path, tiny_f32: Path) -> None:
    """Causal passes that commit, previews, verify passes and partial commits of every width class."""
    twin = reference.load(tiny_checkpoint)
    net, machine = _load(tiny_f32)
    session, keep = Session(net, machine), np.arange(net.spec.vocab) != net.spec.mask_id
    state, rng = reference.empty_state(twin), np.random.default_rng(0)
    with torch.no_grad():
        for rows in (5, 1, 12, 20):
            words = rng.integers(0, 1500, rows).tolist()
            got = _run(session, "store", rows, words)
            want, state = reference.causal(twin, state, torch.tensor([words]))
            assert np.abs(got - want[0].numpy())[:, keep].max() < 3e-3  # K, V and queries are halves
            checked = rng.integers(0, 1500, rows).tolist()
            got = _run(session, "verify", rows, checked)
            want, _ = reference.causal(twin, state, torch.tensor([checked]))
            assert np.abs(got - want[0].numpy())[:, keep].max() < 3e-3
            part = max(1, rows // 2)
            _run(session, "commit", part, checked)
            _, state = reference.causal(twin, state, torch.tensor([checked[:part]]))
            for width in (rows, 32 if rows == 12 else 3):
                got = _run(session, "preview", width, _block(net.spec, width))
                want = reference.preview(twin, state, torch.tensor([_block(net.spec, width)]))
                assert np.abs(got - want[0].numpy())[:, keep].max() < 3e-3
    for layer in net.spec.gdn_layers:
        ours = machine.read(net.state.ring[layer], np.float32, net.spec.channels, 3)
        theirs = state.ring[layer][0].numpy().T
        assert np.allclose(np.sort(ours, 0), np.sort(theirs, 0), atol=1e-3)  # channels are tiled in the file
    machine.check()


@pytest.mark.timeout(600)
def test_int4_passes_choose_like_the_reference(trained_checkpoint: Path, trained_int4: Path) -> None:
    """Activations are 8-bit, so correlation and clear choices, as for ggml's own kernels."""
    twin = from_gguf.load(trained_int4, reference.load(trained_checkpoint).shape)
    net, machine = _load(trained_int4)
    session, keep = Session(net, machine), np.arange(net.spec.vocab) != net.spec.mask_id
    state, rng = reference.empty_state(twin), np.random.default_rng(1)
    with torch.no_grad():
        for kind, rows in (("store", 9), ("preview", 16), ("store", 1), ("preview", 5)):
            words = _block(net.spec, rows) if kind == "preview" else rng.integers(0, 1500, rows).tolist()
            got = _run(session, kind, rows, words)[:, keep]
            if kind == "preview":
                want = reference.preview(twin, state, torch.tensor([words]))[0].numpy()[:, keep]
            else:
                logits, state = reference.causal(twin, state, torch.tensor([words]))
                want = logits[0].numpy()[:, keep]
            assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > 0.995
            top = np.sort(want, 1)
            clear = top[:, -1] - top[:, -2] > 2.0
            assert (got.argmax(1) == want.argmax(1))[clear].all()


def test_a_graph_serves_every_context_length() -> None:
    """The same launches at 0, 15, 16, 17 and 300 committed tokens: one row equals the last of a longer pass."""
    machine = Emulator()
    net = network(SMALL, INT4, machine, 512)
    rng = np.random.default_rng(3)
    session = Session(net, machine)
    for rows in (15, 1, 1, 32, 32, 32):
        words = rng.integers(0, 640, rows).tolist()
        one = _run(session, "verify", 1, words[:1])
        many = _run(session, "store", rows, words)
        assert np.abs(one[0] - many[0])[np.arange(640) != SMALL.mask_id].max() < 1e-3
    machine.check()


def test_response_processing_and_choice() -> None:
    """Penalties, ramps, mask, probability, entropy and the next token's probability against the numpy twin."""
    machine, rng = Emulator(), np.random.default_rng(0)
    n, vocab, counts = 3, 257, {4: 2, 9: 1}
    logits = rng.normal(0, 3, (n, vocab)).astype(np.float32)
    tokens = [4, 11, 9]
    settings = A.Processing(0.5, 0.25, 1.5, 250, 7, 3, 2)
    settings.length_bias[:n], settings.think_bias[:n] = (0.5, 1.0, 1.5), (2.0, 0.0, 0.0)
    place = lambda kind, values: machine.place(np.array(values, kind))  # noqa: E731
    run = machine.place(np.frombuffer(bytes(A.Pass(n, 0, 0, 1, 0, 0, 0, (C.c_int * 32)(*tokens))), np.uint8))
    address, parts, out = machine.place(logits), machine.alloc(n * 64 * 16), machine.alloc(n * 16)
    args = A.ProcessArgs(
        address, machine.place(np.frombuffer(bytes(settings), np.uint8)), place(np.int32, [4, 9, 11]),
        place(np.int32, [2, 1, 0]), place(np.int32, [1, 2]), run, vocab,
    )  # fmt: skip
    choose = A.ChooseArgs(address, parts, out, run, vocab, 64)
    machine.run([
        Launch("head", "process", (8, 1), 256, args), Launch("head", "choose_part", (64, 8), 256, choose),
        Launch("head", "choose", (8, 1), 256, choose),
    ])  # fmt: skip
    machine.check()
    got = machine.read(address, np.float32, n, vocab)
    from clover_local.model.processing import Processing, Ramp

    for row in range(n):
        seen = dict(counts)
        for token in tokens[: row + 1]:
            seen[token] = seen.get(token, 0) + 1
        twin = Processing(
            0.5,
            0.25,
            1.5,
            Ramp(settings.length_bias[row], 0, 1),
            Ramp(settings.think_bias[row], 0, 1),
            7,
            (1, 2),
        )
        want = process(logits[row], twin, mask_id=250, counts=seen, position=1, think_closed=False)
        assert np.allclose(got[row], want, atol=1e-5)
        p = np.exp(want.astype(np.float64) - want.max())
        p /= p.sum()
        result = np.frombuffer(
            machine.read(out, np.uint8, n * 16), [("id", "i4"), ("p", "f4"), ("h", "f4"), ("next", "f4")]
        )[row]
        assert result["id"] == want.argmax() and np.isclose(result["p"], p.max(), rtol=1e-5)
        assert np.isclose(result["h"], -(p[p > 0] * np.log(p[p > 0])).sum(), atol=1e-4)
        if row + 1 < n:
            assert np.isclose(result["next"], p[tokens[row + 1]], rtol=1e-4)
