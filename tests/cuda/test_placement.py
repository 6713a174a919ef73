"""Where an expert lies changes no bit: any placement gives the logits of none, before and after swaps.

The kernels run on the emulator over the weights and state of ggml's CPU backend; slots are a second memory there.
"""

import ctypes as C
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clover_local.errors import LockedMemoryError
from clover_local.ggml.backend import GPU, Backend, Buffer, Context, PinnedBuffer, choose_device
from clover_local.model import weights as weights_module
from clover_local.model.passes import Kind
from clover_local.model.slots import Slots, memory_of
from clover_local.runtime import engine as engine_module
from clover_local.runtime import placement as placement_module
from clover_local.runtime import selfcheck
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda import runner
from clover_local.runtime.engine import Engine
from clover_local.runtime.kernels import Kernels
from clover_local.runtime.placement import Placement
from clover_local.runtime.response import Response
from clover_local.runtime.staging import Staging
from clover_local.runtime.usage import Usage, model_id

from .emulation import EmulatedDevice, library
from .test_attach import Driver, install

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


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose CPU plays the NVIDIA card: its own memory, reached by ggml and by the emulated kernels."""
    library("rows", ())
    cpu = choose_device("cpu")
    stand_in = replace(cpu, name="CUDA0", kind=GPU, free=1 << 40, total=1 << 40)
    monkeypatch.setattr(engine_module, "choose_device", lambda name=None: cpu if name == "cpu" else stand_in)
    monkeypatch.setattr(weights_module, "PinnedBuffer", Buffer)
    install(monkeypatch, Driver())
    monkeypatch.setattr(runner, "Device", EmulatedDevice)
    monkeypatch.setattr(selfcheck, "check", lambda *_: selfcheck.Outcome(1))


def written(engine: Engine) -> tuple[list[int], np.ndarray, np.ndarray]:
    """A long prompt, a few steps, a verify and its commit."""
    words = np.random.default_rng(4).integers(5, 900, 180).tolist()
    engine.begin_response()
    rows = engine.prefill(words)
    assert rows is not None
    tokens = [int(rows.ids[-1])]
    for _ in range(3):
        tokens.append(int(engine.step(tokens[-1]).ids[0]))
    judged = engine.verify(words[:5]).logits()
    engine.commit(3)
    return tokens, judged, engine.verify(words[:2]).logits()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("card")
def test_a_model_larger_than_the_card_is_opened_used_and_closed(
    tiny_f32: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `Engine.open` on: what is loaded where, a prompt that is staged, swaps, what is learned and kept."""
    monkeypatch.setattr(placement_module, "SURE", 0.0)  # a few uses are enough
    found = {}
    seen: list[tuple[int, int]] = []
    for slots in (4, 8):
        with Engine.open(
            tiny_f32, n_ctx=256, threads=1, slots=slots, progress=lambda *at: seen.append(at)
        ) as engine:
            spec = engine.spec
            assert engine.note is None and engine.placement is not None
            assert (engine.placement.resident.sum(1) == min(slots, spec.experts)).all()
            found[slots] = written(engine)
            before = engine.placement.resident
            engine.adapt(None)
            assert (engine.placement.resident != before).any() == (slots < spec.experts)
            engine.reset()
            again = written(engine)
            assert again[0] == found[slots][0]
            assert all((a == b).all() for a, b in zip(again[1:], found[slots][1:], strict=True))
        assert seen[-1][0] == seen[-1][1] > 0
    assert found[4][0] == found[8][0]
    assert all((a == b).all() for a, b in zip(found[4][1:], found[8][1:], strict=True))
    with Engine.open(
        tiny_f32, n_ctx=256, threads=1, slots=4
    ) as engine:  # what was learned decides at the next start
        assert engine.placement is not None and engine.placement.share is not None
        counts = Usage.load(model_id(engine.file, engine.spec), engine.spec).counts
        best = np.sort(counts, axis=1)[:, ::-1][:, :4].sum() / counts.sum()
        assert engine.placement.share == pytest.approx(best)


@pytest.mark.usefixtures("card")
def test_kernels_that_fail_leave_the_experts_to_the_cpu(
    tiny_f32: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = selfcheck.Outcome(23, ("a verify of 8 rows correlates with ggml's at only 0.431",))
    monkeypatch.setattr(selfcheck, "check", lambda *_: wrong)
    with Engine.open(tiny_f32, n_ctx=256, threads=1, slots=4) as engine:
        assert engine.placement is None and engine.note is not None
        assert "1 of 23 comparisons with ggml's graphs failed on this card" in engine.note
        assert engine.prefill([5, 6, 7]) is not None


def test_memory_that_cannot_be_locked_is_one_sentence() -> None:
    """The CPU has no memory that a device reads by itself."""
    backend, context = Backend(choose_device("cpu")), Context(1)
    context.tensor("f32", 8)
    with pytest.raises(LockedMemoryError, match="did not let CPU lock memory for the experts"):
        PinnedBuffer(context, backend)
    context.free()
    backend.close()
