"""The causal graph in its plain form equals stock llama.cpp on the same file, bit for bit, on the CPU."""

from pathlib import Path

import numpy as np
import pytest

from clover_local.bench.stock import Stock
from clover_local.runtime.engine import Engine

THREADS = 2
ROWS = (5, 1, 2, 4, 8, 16, 32, 3, 1)


@pytest.mark.parametrize("model", ["tiny_f32", "tiny_int4", "trained_f32", "trained_int4"])
def test_causal_logits_are_bit_equal(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    with (
        Stock(path, n_ctx=1024, threads=THREADS, gpu=None) as stock,
        Engine.open(path, n_ctx=1024, threads=THREADS, device="cpu") as engine,
    ):
        random = np.random.default_rng(0)
        others = np.arange(engine.spec.vocab) != engine.spec.mask_id
        for rows in ROWS:
            tokens = random.integers(0, engine.spec.vocab, rows).tolist()
            stock.verify(tokens)
            theirs = stock.logits()
            judged = engine.verify(tokens)
            ours = judged.logits()
            assert np.abs(ours - theirs)[:, others].max() == 0, f"{rows} rows"
            assert judged.ids.tolist() == np.where(others, theirs, -np.inf).argmax(1).tolist()
            engine.commit(rows)


def test_choice_numbers_are_those_of_the_logits(trained_f32: Path) -> None:
    """Probability, entropy and asked probability against numpy in float64."""
    with Engine.open(trained_f32, n_ctx=512, threads=THREADS, device="cpu") as engine:
        tokens = np.random.default_rng(1).integers(0, engine.spec.vocab, 12).tolist()
        rows = engine.verify(tokens)
        logits = rows.logits().astype(np.float64)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        p = weights / weights.sum(1, keepdims=True)
        assert np.allclose(rows.p, p.max(1), atol=1e-6)
        entropy = -np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0).sum(1)
        assert rows.entropy is not None and np.allclose(rows.entropy, entropy, atol=2e-5)
        assert rows.next_p is not None
        assert np.allclose(rows.next_p[:-1], p[np.arange(11), tokens[1:]], atol=1e-6)
