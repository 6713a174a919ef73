"""The state rule: passes never change the state, only commit does; snapshots and cancelling lose nothing."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clover_local.errors import CloverError, ContextFullError
from clover_local.model.passes import build_pass
from clover_local.runtime import graphs
from clover_local.runtime.engine import Engine, Snapshot, default_threads
from clover_local.runtime.graphs import kv_bucket

WORDS = 1500  # token ids below the special ones
TOLERANCE = 2e-4  # float32 sums in another order


@pytest.fixture
def engine(trained_f32: Path) -> Iterator[Engine]:
    with Engine.open(
        trained_f32, n_ctx=512, threads=2, device="cpu", kv_type_k="f32", kv_type_v="f32"
    ) as opened:
        yield opened


def _prompt(engine: Engine, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, WORDS, n).tolist()


def _same(a: Snapshot, b: Snapshot, tolerance: float) -> None:
    assert a.tokens == b.tokens
    for (ring_a, s_a), (ring_b, s_b) in zip(a.layers, b.layers, strict=True):
        assert np.abs(ring_a - ring_b).max() <= tolerance
        assert np.abs(s_a - s_b).max() <= tolerance


def test_passes_leave_the_state_alone(engine: Engine) -> None:
    engine.prefill(_prompt(engine, 40))
    before = engine.snapshot()
    engine.preview([engine.spec.mask_id] * 32)
    engine.verify(_prompt(engine, 16, seed=1))
    engine.preview([7, *[engine.spec.mask_id] * 7])
    _same(before, engine.snapshot(), 0.0)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 15, 16, 31, 32])
def test_commit_equals_a_fresh_prefill(engine: Engine, rows: int) -> None:
    prompt, block = _prompt(engine, 37), _prompt(engine, 32, seed=2)
    engine.prefill(prompt)
    engine.verify(block)
    engine.commit(rows)
    committed, next_logits = engine.snapshot(), engine.step(5).logits()
    engine.reset()
    engine.prefill(prompt + block[:rows])
    _same(engine.snapshot(), committed, TOLERANCE)
    assert np.abs(engine.step(5).logits()[:, :WORDS] - next_logits[:, :WORDS]).max() < 1e-3
    assert engine.tokens == (*prompt, *block[:rows], 5)


def test_one_token_steps_equal_a_prefill(engine: Engine) -> None:
    prompt = _prompt(engine, 50)
    engine.prefill(prompt)
    at_once = engine.snapshot()
    engine.reset()
    for token in prompt:
        engine.step(token)
    _same(engine.snapshot(), at_once, TOLERANCE)


def test_restore_goes_back_and_forward_from_there(engine: Engine) -> None:
    prompt = _prompt(engine, 40)
    engine.prefill(prompt)
    saved = engine.snapshot()
    first = engine.prefill(_prompt(engine, 20, seed=3))
    assert first is not None
    want = first.logits()
    engine.restore(saved)
    assert engine.tokens == tuple(prompt)
    again = engine.prefill(_prompt(engine, 20, seed=3))
    assert again is not None
    assert np.array_equal(again.logits(), want)


def test_a_snapshot_of_other_tokens_is_refused(engine: Engine) -> None:
    engine.prefill(_prompt(engine, 10))
    saved = engine.snapshot()
    engine.reset()
    engine.prefill(_prompt(engine, 30, seed=4))
    with pytest.raises(CloverError, match="other tokens"):
        engine.restore(saved)


def test_cancelled_prefill_keeps_whole_pieces(engine: Engine) -> None:
    prompt = _prompt(engine, 100)
    asked = iter([False, True])
    assert engine.prefill(prompt, cancelled=lambda: next(asked)) is None
    assert engine.tokens == tuple(prompt[:64])
    rest = engine.prefill(prompt[64:])
    engine.reset()
    whole = engine.prefill(prompt)
    assert rest is not None and whole is not None
    assert rest.ids.tolist() == whole.ids.tolist()


def test_commit_needs_the_verify_right_before_it(engine: Engine) -> None:
    engine.prefill(_prompt(engine, 5))
    engine.verify([1, 2, 3])
    engine.preview([engine.spec.mask_id] * 4)
    with pytest.raises(CloverError, match="verified 0"):
        engine.commit(1)
    engine.verify([1, 2, 3])
    with pytest.raises(CloverError, match="verified 3"):
        engine.commit(4)


def test_the_context_is_a_hard_end(engine: Engine) -> None:
    engine.prefill(_prompt(engine, 510))
    engine.step(3)
    with pytest.raises(ContextFullError, match="512"):
        engine.verify([1, 2])
    engine.step(4)
    with pytest.raises(ContextFullError):
        engine.step(4)
    assert engine.n_past == 512


def test_bad_tokens_and_sizes_are_sentences(engine: Engine) -> None:
    for tokens in ([engine.spec.vocab], [-1]):
        with pytest.raises(CloverError, match="vocabulary"):
            engine.verify(tokens)
    with pytest.raises(CloverError, match="rows"):
        engine.preview([engine.spec.mask_id] * 33)
    with pytest.raises(CloverError, match="empty"):
        engine.prefill([])


@pytest.mark.parametrize("kinds", [("f16", "f16"), ("q8_0", "q8_0"), ("f32", "f32")])
def test_kv_types(trained_f32: Path, kinds: tuple[str, str]) -> None:
    prompt = np.random.default_rng(5).integers(0, WORDS, 60).tolist()
    with Engine.open(
        trained_f32, n_ctx=256, threads=2, device="cpu", kv_type_k=kinds[0], kv_type_v=kinds[1]
    ) as engine:
        rows = engine.prefill(prompt)
        assert rows is not None
        logits = rows.logits()
    with Engine.open(
        trained_f32, n_ctx=256, threads=2, device="cpu", kv_type_k="f32", kv_type_v="f32"
    ) as exact:
        wanted = exact.prefill(prompt)
        assert wanted is not None
        assert np.abs(logits[:, :WORDS] - wanted.logits()[:, :WORDS]).max() < 0.5


def test_buckets_cover_and_never_exceed_the_cache() -> None:
    for n_ctx in (256, 1024, 32768, 131072):
        for need in range(1, n_ctx + 1, 97):
            for rows in (1, 512):
                bucket = kv_bucket(need, n_ctx, rows)
                assert need <= bucket <= n_ctx
                assert bucket % 256 == 0 or bucket == n_ctx


def test_graphs_are_built_once_per_key(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        "clover_local.runtime.graphs.build_pass",
        lambda model, key: built.append(key) or build_pass(model, key),
    )
    engine.prefill(_prompt(engine, 8))
    for token in range(20):
        engine.step(token)
    engine.preview([engine.spec.mask_id] * 16)
    engine.preview([engine.spec.mask_id] * 16)
    assert len(built) == len(set(built)) == 3


def test_warming_builds_what_the_next_answer_needs_and_changes_nothing(engine: Engine) -> None:
    """Every graph that an answer across a boundary of the cache's views asks for is there before it begins."""
    words = np.random.default_rng(8).integers(0, 1500, 240).tolist()
    mask = engine.spec.mask_id
    engine.reset()
    assert engine.warm() > 0 and engine.warm() == 0
    engine.begin_response(engine.spec.processing)
    engine.prefill(words)
    engine.step(5)
    engine.preview([5, *[mask] * 15], draft=True)
    engine.verify(words[:8])
    before, tokens = engine.preview([mask] * 4).logits(), engine.tokens
    assert engine.warm(lambda: True) == 0, "it stops when told to"
    assert engine.warm() > 0
    assert engine.tokens == tokens and np.array_equal(engine.preview([mask] * 4).logits(), before)
    built: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "build_pass", lambda *parts: built.append(parts) or build_pass(*parts))
        for _ in range(30):  # over the 256th token
            engine.step(7)
            engine.preview([7, *[mask] * 15], draft=True)
            engine.verify(words[:8])
    assert engine.n_past > 256 and not built


def test_warming_stays_inside_the_context(trained_f32: Path) -> None:
    with Engine.open(trained_f32, n_ctx=20, threads=1, device="cpu") as small:
        small.prefill([1, 2, 3, 4, 5, 6])
        assert small.warm() > 0
        assert all(key.rows + small.n_past <= 20 for key in small._graphs._passes)


def test_a_small_model_runs_on_one_thread() -> None:
    assert default_threads(9 << 20) == 1
    assert default_threads(1 << 30) == default_threads() >= 1
