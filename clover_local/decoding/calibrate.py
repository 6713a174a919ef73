"""Measures what passes cost here before the first draft, so that the policy need not guess."""

import time
from collections.abc import Callable

from clover_local.decoding.costs import CostKind, Costs
from clover_local.decoding.engine import Engine

# The most important first. Plain steps are missing: they move the state, and an answer begins with two of them.
MEASURED: tuple[tuple[CostKind, int], ...] = (
    ("draft", 4),
    ("verify", 4),
    ("draft", 16),
    ("verify", 16),
    ("draft", 8),
    ("verify", 8),
    ("verify", 2),
    ("draft", 32),
    ("verify", 32),
)


def calibrate(
    engine: Engine, costs: Costs, *, seconds: float = 1.0, clock: Callable[[], float] = time.perf_counter
) -> None:
    """Measure passes over the engine's present state, most important first, until `seconds` are over.

    Nothing is committed. Each shape runs once to build its graph and twice to be measured.
    """
    mask, start, costs.ready = engine.spec.mask_id, clock(), True
    assert mask is not None, "a model that can draft has a mask token"
    engine.begin_response(engine.spec.processing)  # the graphs of answers differ with their processing
    for kind, rows in MEASURED:
        if engine.n_past + rows > engine.n_ctx or clock() - start > seconds:
            return
        for repetition in range(3):
            begun = clock()
            if kind == "draft":
                engine.preview([0, *[mask] * (rows - 1)], draft=True)
            else:
                engine.verify(range(rows))  # different tokens, since rows that share experts cost less
            if repetition:
                costs.observe(kind, rows, (clock() - begun) * 1e3, warm=True)
