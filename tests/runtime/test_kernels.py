"""Whether our own kernels may run: each reason against them is a sentence, and a wrong kernel is found out."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from clover_local.model.draft import DraftSettings
from clover_local.model.passes import Kind
from clover_local.runtime import kernels, remembered
from clover_local.runtime.engine import Engine
from clover_local.runtime.graphs import GraphRunner
from clover_local.runtime.response import Response
from clover_local.runtime.rows import Rows


@pytest.fixture
def engine(trained_f32: Path) -> Iterator[Engine]:
    with Engine.open(trained_f32, n_ctx=256, threads=1, device="cpu") as opened:
        yield opened


def test_nobody_expects_kernels_on_a_machine_without_a_card(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels, "CARD", tmp_path / "none")
    assert kernels.attach(engine._model, 256, engine._graphs) == (None, None)


def test_a_card_that_the_build_cannot_use_is_said(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(kernels, "CARD", tmp_path / "nvidiactl")
    runner, note = kernels.attach(engine._model, 256, engine._graphs)
    assert runner is None and note is not None
    assert "without CUDA" in note and "-DGGML_CUDA=on" in note


class Slow(GraphRunner):
    """The graphs, with previews and wide passes made slow."""

    def run(
        self,
        kind: Kind,
        tokens: Sequence[int],
        past: int,
        response: Response,
        draft: DraftSettings | None = None,
    ) -> Rows:
        if kind is Kind.PREVIEW or len(tokens) == 32:
            time.sleep(0.3)
        return super().run(kind, tokens, past, response, draft)


class Late(GraphRunner):
    """The graphs, made slow where `Slow` is not."""

    def run(
        self,
        kind: Kind,
        tokens: Sequence[int],
        past: int,
        response: Response,
        draft: DraftSettings | None = None,
    ) -> Rows:
        if kind is not Kind.PREVIEW and len(tokens) < 32:
            time.sleep(0.3)
        return super().run(kind, tokens, past, response, draft)


def test_each_pass_goes_to_the_faster(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "WARM", 1)
    monkeypatch.setattr(kernels, "TIMED", 1)
    slow, late = Slow(engine._model, 256), Late(engine._model, 256)
    wins = kernels.faster(engine._model, slow, late)
    assert wins == {(Kind.PREVIEW, 8), (Kind.PREVIEW, 16), (Kind.PREVIEW, 32), (Kind.VERIFY, 32)}
    own = kernels.Kernels(late, wins)
    assert own.take(Kind.PREVIEW, 5) and own.take(Kind.VERIFY, 17) and own.take(Kind.STORE, 30)
    assert not own.take(Kind.STORE, 1) and not own.take(Kind.VERIFY, 16) and not own.take(Kind.STORE, 64)


def test_the_faster_is_remembered_by_key(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    wins = frozenset({(Kind.VERIFY, 8), (Kind.PREVIEW, 16)})
    monkeypatch.setattr(kernels, "faster", lambda *parties: timed.append(1) or wins)
    for key in ("card 1", "card 1", "card 2"):
        assert kernels.remembered_wins(key, engine._model, engine._graphs, engine._graphs) == wins
    assert len(timed) == 2
    for broken in ({"wins": 3}, [["verify"]], [["dance", 8]], None):
        remembered.keep("runners", "card 1", broken)
        assert kernels.remembered_wins("card 1", engine._model, engine._graphs, engine._graphs) == wins
    assert len(timed) == 6


def test_an_engine_runs_its_passes_in_turns_on_both(engine: Engine, trained_f32: Path) -> None:
    """Verify and commit stay together, and the state is one, whichever runner moved it."""
    words = np.random.default_rng(0).integers(0, 1500, 60).tolist()
    with Engine.open(trained_f32, n_ctx=256, threads=1, device="cpu") as plain:
        wins = frozenset({(Kind.VERIFY, 8), (Kind.PREVIEW, 16)})
        engine._kernels = kernels.Kernels(GraphRunner(engine._model, 256), wins)
        for one in (plain, engine):
            one.begin_response(None)
            one.prefill(words[:40])
            one.preview([words[40], *[one.spec.mask_id] * 15])
            one.verify(words[40:48])
            one.commit(5)
            one.verify(words[45:57])
            one.commit(12)
            one.step(words[57])
        assert plain.tokens == engine.tokens
        for (ring, s), (ring_too, s_too) in zip(
            plain.snapshot().layers, engine.snapshot().layers, strict=True
        ):
            assert np.array_equal(ring, ring_too) and np.array_equal(s, s_too)
