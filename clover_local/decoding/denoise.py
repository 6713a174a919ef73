"""LowConfidence denoising, the release's block sampler: masks are fixed where a preview is sure of them.

Source of the rules: docs/model.md, "Decoding".
"""

from collections.abc import Generator, Iterator

import numpy as np

from clover_local.decoding.answer import Answer
from clover_local.decoding.events import Block, Event, Tokens
from clover_local.runtime.rows import Rows


def denoise(answer: Answer) -> Iterator[Event]:
    """Write block after block: previews until no row is masked, then one causal pass that commits the block.

    Needs a model with preview weights. Closing the generator at any yield leaves the engine at its last
    commit.
    """
    engine, size = answer.engine, answer.settings.block_size or answer.engine.spec.block_size
    while not answer.ended():
        block = yield from _resolve(answer, min(size, engine.n_ctx - engine.n_past))
        if block is None:
            return
        kept = answer.keep(block)
        answer.meter.time("verify", engine.verify, kept)
        answer.meter.time("commit", engine.commit, len(kept))
        answer.count_round(0, 0, len(kept))
        yield Tokens(kept)


def _resolve(answer: Answer, size: int) -> Generator[Event, None, list[int] | None]:
    """Denoise one block of `size` rows; returns its tokens, or None when cancelled between two passes."""
    mask = answer.engine.spec.mask_id
    assert mask is not None, "a model that can draft has a mask token"
    threshold = answer.settings.threshold
    limit = answer.engine.spec.threshold if threshold is None else threshold
    ids, confidence, masked = np.full(size, mask, np.int64), np.zeros(size), np.ones(size, bool)
    attempt = 0
    while masked.any():
        if answer.ended():
            return None
        rows, _ = answer.meter.time("denoise", answer.engine.preview, ids.tolist())
        choice, sure = _choose(answer, rows, masked, attempt)
        fixed = to_fix(sure, masked, limit)
        ids[fixed], confidence[masked] = choice[fixed], sure[masked]
        masked &= ~fixed
        attempt += 1
        shown = tuple(None if hidden else int(id) for id, hidden in zip(ids, masked, strict=True))
        yield Block(shown, tuple(float(c) for c in confidence))
    return ids.tolist()


def to_fix(confidence: np.ndarray, masked: np.ndarray, threshold: float) -> np.ndarray:
    """Which rows [rows] a pass fixes: the masked ones surer than `threshold`, or else the surest of them."""
    fixed = masked & (confidence > threshold)
    if not fixed.any():
        fixed[int(np.argmax(np.where(masked, confidence, -np.inf)))] = True
    return fixed


def _choose(answer: Answer, rows: Rows, masked: np.ndarray, attempt: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows] of the masked rows and their probabilities at temperature 1, whatever drew them."""
    if answer.sampler.greedy:
        return rows.ids, rows.p
    ids, p = rows.ids.astype(np.int64), rows.p.astype(np.float64)
    logits, choose = rows.logits(), answer.sampler.choices(rows)
    for row in np.flatnonzero(masked):
        ids[row] = choose(int(row), answer.position + int(row), attempt)
        # rows.p is the argmax's probability, so the drawn token's follows from the distance of their logits
        p[row] *= np.exp(float(logits[row, ids[row]]) - float(logits[row].max()))
    return ids, p
