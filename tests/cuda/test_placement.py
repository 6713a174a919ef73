"""Where an expert lies changes no bit: any placement gives the logits of none, before and after swaps.

The kernels run on the emulator over the weights and state of ggml's CPU backend; slots are a second memory there.
"""

import ctypes as C
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clover_local.model.passes import Kind
from clover_local.model.slots import Slots, memory_of
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda import runner
from clover_local.runtime.engine import Engine
from clover_local.runtime.kernels import Kernels
from clover_local.runtime.placement import Placement
from clover_local.runtime.response import Response
from clover_local.runtime.staging import Staging
from clover_local.runtime.usage import Usage

from .emulation import EmulatedDevice, library

WORDS = (5, 17, 900, 33, 2)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tiny_f32: Path) -> Iterator[Engine]:
    library("rows", ())  # skips without a compiler
    monkeypatch.setattr(runner, "Device", EmulatedDevice)
    with Engine.open(tiny_f32, n_ctx=64, threads=1, device="cpu") as opened:
        yield opened


def placed(
    engine: Engine, counts: Sequence[int], order: np.ndarray | None = None
) -> tuple[runner.Runner, Slots]:
    """Our kernels over an engine whose first experts in `order` have copies elsewhere."""
    model = engine._model
    slots = Slots.fill(model.spec, model.weights.nodes, model.backend, counts, order)
    weights = replace(model.weights, slots=slots)
    return runner.Runner(replace(model, weights=weights), engine.n_ctx), slots


def logits(own: runner.Runner, kind: Kind = Kind.VERIFY, tokens: Sequence[int] = WORDS) -> np.ndarray:
    return own.run(kind, list(tokens), 0, Response()).logits()


@pytest.mark.timeout(600)
def test_any_placement_gives_the_same_bits(engine: Engine) -> None:
    spec, rng = engine.spec, np.random.default_rng(0)
    own = runner.Runner(engine._model, engine.n_ctx)
    want = logits(own), logits(own, Kind.PREVIEW, [5, *[spec.mask_id] * 3])
    own.close()
    some = rng.integers(1, spec.experts, spec.layers).tolist()
    for counts in ([0] * spec.layers, [spec.experts] * spec.layers, some, [0, *some[1:]]):
        order = np.stack([rng.permutation(spec.experts) for _ in range(spec.layers)])
        own, slots = placed(engine, counts, order)
        assert [int(row.sum()) for row in slots.resident] == list(counts)
        assert (logits(own) == want[0]).all()
        assert (logits(own, Kind.PREVIEW, [5, *[spec.mask_id] * 3]) == want[1]).all()
        for node in slots.nodes.values():  # the copies are what is read: without them the numbers change
            memory_of(node)[:] = 0
        assert (logits(own) == want[0]).all() == (not any(counts))
        own.close()
        slots.free()


@pytest.mark.timeout(600)
def test_swaps_bring_what_is_used_and_change_no_bit(engine: Engine, tmp_path: Path) -> None:
    spec = engine.spec
    own, slots = placed(engine, [spec.experts_used] * spec.layers)
    placement = Placement(
        slots, Usage(np.zeros((spec.layers, spec.experts)), tmp_path / "u.npy", spec.experts_used), own
    )
    want = logits(own)
    for _ in range(5):
        logits(own)
    used = own.usage()
    assert used.sum() == 6 * len(WORDS) * spec.experts_used * spec.layers
    before = placement.resident
    each = slots.bytes_each
    assert 0 < placement.adapt(limit=2 * max(each)) <= 2 * max(each)
    logits(own)
    placement.adapt(limit=None)
    assert (placement.resident != before).any() and (logits(own) == want).all()
    share = (used * placement.resident).sum() / used.sum()
    assert share > (used * before).sum() / used.sum() and placement.share == pytest.approx(share, abs=1e-3)
    own.close()
    slots.free()


@pytest.mark.timeout(600)
def test_an_engine_drafts_from_the_card_and_adapts_between_answers(engine: Engine, tmp_path: Path) -> None:
    spec = engine.spec
    own, slots = placed(engine, [spec.experts_used] * spec.layers)
    engine._kernels = Kernels(own, frozenset((kind, 8) for kind in (Kind.VERIFY, Kind.PREVIEW)))
    usage = Usage.load("usage", spec)
    engine._placement = Placement(slots, usage, own)
    engine._draft_from_card()
    block = [5, *[spec.mask_id] * 4]
    words = lambda: own.device.read(own.net.work.resident, np.uint8, spec.layers, 64)  # noqa: E731
    bits = lambda: np.unpackbits(words(), axis=1, bitorder="little")[:, : spec.experts].astype(bool)  # noqa: E731
    assert (bits() == slots.resident).all()
    for _ in range(4):
        engine.preview(block, draft=True)
        route = A.Route.from_buffer_copy(own.device.read(own.net.work.route, np.uint8, C.sizeof(A.Route)))
        assert {*route.expert[: route.count - 1]} <= {
            *np.flatnonzero(slots.resident[-1])
        }  # of the last layer
        engine.verify(list(WORDS))
    before = slots.resident
    engine.begin_response()
    assert (slots.resident != before).any() and (bits() == slots.resident).all()
    assert (Usage.load("usage", spec).counts == usage.counts).all()
    engine._placement = None
    slots.free()


@pytest.mark.timeout(600)
def test_long_prompts_compute_over_experts_that_are_brought_together(engine: Engine) -> None:
    """Layer by layer, in one layer's room: the same bits as over a matrix that holds all experts."""
    spec, words = engine.spec, np.random.default_rng(2).integers(0, 900, 40).tolist()
    want = engine._run(Kind.STORE, words, response=False).logits()
    states = engine.snapshot()
    engine.reset()
    engine._graphs.close()
    own, slots = placed(engine, [spec.experts // 2] * spec.layers)
    brought: list[int] = []

    def gather(layer: int, targets: Sequence[int]) -> None:
        brought.append(layer)
        own.gather(layer, targets)

    engine._graphs.stage(Staging(engine._model, gather))
    for _ in range(2):
        engine.reset()
        got = engine._run(Kind.STORE, words, response=False).logits()
        assert (got == want).all()
        for (ring, s), (ring_before, s_before) in zip(engine.snapshot().layers, states.layers, strict=True):
            assert (ring == ring_before).all() and (s == s_before).all()
    assert brought == [*range(spec.layers)] * 2
    own.close()
    slots.free()
