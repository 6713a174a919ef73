"""The self-check of our kernels: equal runners pass and leave no trace, every way of being wrong is found out."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clover_local.errors import CardFullError, CloverError
from clover_local.ggml.backend import download, upload
from clover_local.model.draft import DraftSettings
from clover_local.model.passes import Kind
from clover_local.runtime.engine import Engine
from clover_local.runtime.graphs import GraphRunner
from clover_local.runtime.response import Response
from clover_local.runtime.rows import Rows
from clover_local.runtime.selfcheck import Outcome, check, model_key, settle


@pytest.fixture
def engine(trained_f32: Path) -> Iterator[Engine]:
    with Engine.open(trained_f32, n_ctx=256, threads=1, device="cpu") as opened:
        yield opened


class Bent(GraphRunner):
    """The graphs, gone wrong the way a bad kernel would: `how` names a way."""

    how = ""

    def run(
        self,
        kind: Kind,
        tokens: Sequence[int],
        past: int,
        response: Response,
        draft: DraftSettings | None = None,
    ) -> Rows:
        if self.how == "forgets the context" and kind is Kind.VERIFY:
            saved = [
                (state.ring, download(state.ring, np.float32)) for state in self._model.state.gdn.values()
            ]
            for ring, values in saved:
                upload(ring, np.zeros_like(values))
        rows = super().run(kind, tokens, past, response, draft)
        logits = rows.logits()
        if self.how == "forgets the context" and kind is Kind.VERIFY:
            for ring, values in saved:
                upload(ring, values)
        if self.how == "ignores penalties" and response.counts:
            logits = super().run(kind, tokens, past, Response(), draft).logits()
        if self.how == f"wrong {kind}":
            logits = shifted(logits)
        if self.how == f"no numbers {kind}" or (self.how == "bad drafts" and draft is not None):
            logits = logits + np.float32(np.nan)
        if self.how == "slightly off":
            logits = logits + np.where(np.isfinite(logits), 0.2 * shifted(logits), 0).astype(np.float32)
        if self.how == "last of 32 rows" and len(tokens) == 32:
            logits[31:] = shifted(logits[31:])
        if self.how == "swaps the best" and kind is Kind.VERIFY:
            for row in logits:
                first, second = np.argsort(row)[[-1, -2]]
                row[first], row[second] = row[second], row[first]
            rows = replace(rows, ids=logits.argmax(1).astype(np.int32))
        if self.how == "wrong choice":
            rows = replace(rows, ids=(rows.ids + 1) % logits.shape[1])
        if self.how == "wrong probability":
            rows = replace(rows, p=rows.p * np.float32(0.9))
        if self.how == "stores too much" and kind is Kind.STORE:
            super().run(kind, tokens[-1:], past, response, draft)
        return replace(rows, logits=lambda: logits)

    def commit(self, rows: int, past: int) -> None:
        super().commit(max(1, rows - 1) if self.how == "commits too little" else rows, past)


def shifted(logits: np.ndarray) -> np.ndarray:
    """Every token gets the logit of the one before it; the mask token keeps its own."""
    open_ = np.isfinite(logits).all(0)
    out = logits.copy()
    out[:, open_] = np.roll(logits[:, open_], 1, axis=1)
    return out


def outcome_of(engine: Engine, how: str = "") -> Outcome:
    bent = Bent(engine._model, 256)
    bent.how = how
    return check(engine._model, 256, engine._graphs, bent)


def test_equal_runners_agree_and_the_state_is_empty_afterwards(engine: Engine) -> None:
    outcome = outcome_of(engine)
    assert outcome.good and outcome.made == 36
    assert outcome.sentence == "36 of 36 comparisons with ggml's graphs agree on this card"
    for ring, s in engine.snapshot().layers:
        assert not ring.any() and not s.any()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("wrong verify", "a verify of 8 rows after 0 tokens correlates with ggml's at only"),
        ("wrong preview", "a preview of 8 rows after 0 tokens correlates with ggml's at only"),
        ("no numbers verify", "no numbers"),
        ("no numbers preview", "no numbers"),
        ("last of 32 rows", "a verify of 32 rows after 37 tokens correlates"),
        ("swaps the best", "chooses another token where the choice is clear"),
        ("wrong choice", "chooses a token that is not the likeliest"),
        ("wrong probability", "another probability than its logits"),
        ("bad drafts", "a draft of 16 rows after 37 tokens gives values that are no numbers"),
        ("ignores penalties", "the response processing is off by"),
        ("forgets the context", "passes (verify) correlate with ggml's at 0.99, the best at"),
        ("slightly off", "passes (preview) correlate with ggml's at 0.99, the best at"),
        ("commits too little", "a commit of 5 of 8 rows leaves the first layer's memory off by"),
        ("stores too much", "a prefill of 9 rows leaves the first layer's convolution off by"),
    ],
)
def test_a_wrong_kernel_is_found_out(engine: Engine, how: str, said: str) -> None:
    outcome = outcome_of(engine, how)
    assert not outcome.good
    assert any(said in one for one in outcome.wrong), outcome.wrong
    assert f" of {outcome.made} comparisons with ggml's graphs failed on this card: " in outcome.sentence


def test_a_context_with_no_room_is_checked_as_far_as_it_goes(trained_f32: Path) -> None:
    with Engine.open(trained_f32, n_ctx=20, threads=1, device="cpu") as small:
        outcome = check(small._model, 20, small._graphs, GraphRunner(small._model, 20))
    assert outcome.good and outcome.made >= 8


def test_a_long_context_is_looked_at_too(trained_f32: Path) -> None:
    with Engine.open(trained_f32, n_ctx=2560, threads=1, device="cpu") as wide:
        outcome = check(wide._model, 2560, wide._graphs, GraphRunner(wide._model, 2560))
        assert outcome.good and outcome.made == 40
        assert not any(ring.any() or s.any() for ring, s in wide.snapshot().layers)


def test_the_outcome_is_remembered_until_something_changes(tmp_path: Path) -> None:
    calls = []

    def made() -> Outcome:
        calls.append(1)
        return Outcome(3)

    assert settle("card", tmp_path, made) == settle("card", tmp_path, made) == Outcome(3)
    assert len(calls) == 1
    settle("another driver", tmp_path, made)
    settle("card", tmp_path, made, anew=True)
    assert len(calls) == 3
    for note in tmp_path.iterdir():
        note.write_text(json.dumps({"made": "x"}))
    assert settle("card", tmp_path, made) == Outcome(3)
    assert len(calls) == 4


def test_kernels_that_take_the_process_down_are_not_tried_twice(tmp_path: Path) -> None:
    """What the folder says while the check runs is what a process that died leaves behind."""
    left: list[str] = []

    def dies() -> Outcome:
        left.extend(path.read_text() for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        settle("card", tmp_path, dies)
    assert not list(tmp_path.iterdir())  # an interrupted check says nothing
    (note,) = left
    assert settle("card", tmp_path, lambda: Outcome(3)) == Outcome(3)
    next(tmp_path.iterdir()).write_text(note)
    outcome = settle("card", tmp_path, lambda: pytest.fail("tried again"))
    assert not outcome.good and "never came to its end" in outcome.sentence
    assert str(tmp_path) in outcome.sentence


def test_a_driver_that_fails_is_an_outcome(tmp_path: Path) -> None:
    def fails() -> Outcome:
        raise CloverError("the CUDA driver failed: CUDA_ERROR_ILLEGAL_ADDRESS")

    outcome = settle("card", tmp_path, fails)
    assert not outcome.good and "CUDA_ERROR_ILLEGAL_ADDRESS" in outcome.sentence


def test_a_full_card_says_nothing_about_the_kernels(tmp_path: Path) -> None:
    def full() -> Outcome:
        raise CardFullError("video memory ran out")

    with pytest.raises(CardFullError):
        settle("card", tmp_path, full)
    assert settle("card", tmp_path, lambda: Outcome(3)) == Outcome(3)


def test_an_unwritable_folder_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert settle("card", tmp_path / "file" / "below", lambda: Outcome(3)) == Outcome(3)


def test_models_of_one_shape_share_an_outcome(engine: Engine) -> None:
    types = {"output.weight": "q6_k"}
    first = model_key(engine.spec, types)
    assert first == model_key(replace(engine.spec, name="another"), types)
    assert first != model_key(engine.spec, {"output.weight": "q4_k"})
    assert first != model_key(replace(engine.spec, experts_used=engine.spec.experts_used + 1), types)
