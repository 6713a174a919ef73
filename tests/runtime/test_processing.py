"""The response processing: the worked case, and the device's graph against its numpy twin."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_local.ggml.backend import download
from clover_local.model.passes import Kind
from clover_local.model.processing import Processing, Ramp, counts_of, process
from clover_local.runtime.engine import Engine
from clover_local.runtime.response import Response


def test_worked_case() -> None:
    """docs/model.md, "Response processing"."""
    processing = Processing(0.5, 0.25, 2.0, Ramp(4, 2, 4), Ramp(8, 0, 2), think_end_id=3, stop_ids=(4,))
    logits = np.array([1, 2, -1, 0, 0], np.float32)
    out = process(
        logits, processing, mask_id=None, counts=counts_of([1, 1, 2]), position=4, think_closed=False
    )
    assert out.tolist() == [1, 0.5, -3.5, 8, 2]


@given(st.floats(-5, 5), st.integers(0, 100), st.integers(1, 100), st.integers(-10, 400))
def test_a_ramp_stays_between_nothing_and_its_strength(
    strength: float, start: int, window: int, position: int
) -> None:
    value = Ramp(strength, start, window).at(position)
    assert min(0.0, strength) <= value <= max(0.0, strength)
    if position <= start:
        assert value == 0.0
    if position >= start + window:
        assert value == strength


def test_neutral_numbers_change_only_the_mask() -> None:
    logits = np.random.default_rng(0).normal(size=20).astype(np.float32)
    out = process(logits, Processing(stop_ids=(3,)), mask_id=7, counts={1: 3}, position=9, think_closed=False)
    assert out[7] == -np.inf
    assert np.array_equal(np.delete(out, 7), np.delete(logits, 7))


STRENGTHS = Processing(0.4, 0.15, 1.3, Ramp(3.0, 2, 9), Ramp(5.0, 1, 12))
CASES = {
    "all": STRENGTHS,
    "repetition": Processing(repetition=1.3),
    "presence": Processing(presence=0.4),
    "ramps": replace(STRENGTHS, presence=0.0, frequency=0.0, repetition=1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_device_equals_the_twin(case: str, trained_f32: Path) -> None:
    """Every kind of pass after committed tokens, tokens repeated inside it, the end of thinking in it."""
    with Engine.open(trained_f32, n_ctx=512, threads=2, device="cpu") as engine:
        own = engine.spec
        end = own.vocab - 40
        processing = replace(CASES[case], stop_ids=own.processing.stop_ids, think_end_id=end)
        mark = np.zeros(own.vocab, np.float32)
        mark[end] = 1
        from clover_local.ggml.backend import upload

        upload(engine._model.constants.think_end, mark)  # the file names no end of thinking
        response = [5, 9, 5]
        block = [9, 7, 7, end, 5, 7]
        plain = _run(engine, None, response, block)
        shaped = _run(engine, processing, response, block)
        for kind, raw, got in zip(("step", "verify", "preview"), plain, shaped, strict=True):
            for row in range(len(raw)):
                seen = response if kind != "verify" else response + block[: row + 1]
                place = {"step": 4, "verify": 5 + row, "preview": 4 + row}[kind]
                closed = end in (response + block if kind == "preview" else seen)
                want = process(
                    raw[row],
                    processing,
                    mask_id=own.mask_id,
                    counts=counts_of(seen),
                    position=place,
                    think_closed=closed,
                )
                keep = np.isfinite(want)
                assert np.abs(got[row][keep] - want[keep]).max() < 1e-4, (kind, row)
                assert not np.isfinite(got[row][~keep]).any()


def _run(
    engine: Engine, processing: Processing | None, response: list[int], block: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    engine.reset()
    engine.begin_response(processing)
    engine.prefill([11, 12, 13, 9])
    for token in response:
        rows = engine.step(token)
    stepped = rows.logits()
    verified = engine.verify(block).logits()
    previewed = engine.preview(block).logits()
    return stepped, verified, previewed


def test_counts_on_the_device_follow_the_response(trained_f32: Path) -> None:
    """Over steps, commits, a second response and a pass of somebody else's counts, they are those of the response."""
    with Engine.open(trained_f32, n_ctx=512, threads=1, device="cpu") as engine:
        state, spec = engine._model.state, engine.spec

        def held() -> dict[int, int]:
            engine._model.backend.synchronize()
            values = download(state.counts, np.float32)
            return {int(token): int(values[token]) for token in np.flatnonzero(values)}

        rng = np.random.default_rng(4)
        for answer in range(3):
            engine.reset()
            engine.begin_response(STRENGTHS)
            engine.prefill([3, 4, 5])
            response: list[int] = []
            for turn in range(12):
                words = rng.integers(0, 40, 5).tolist()
                if turn % 3 == 0:
                    engine.step(words[0])
                    response += words[:1]
                else:
                    engine.verify(words)
                    engine.commit(1 + turn % 5)
                    response += words[: 1 + turn % 5]
                if turn == 7:
                    other = Response(STRENGTHS, {9: 2}, False, [0.0] * 2, [0.0] * 2)
                    engine._graphs.run(Kind.PREVIEW, [spec.mask_id] * 2, engine.n_past, other)
                    assert held() == {9: 2}
                engine.preview([spec.mask_id] * 4)
                assert held() == dict(counts_of(response)), (answer, turn)
