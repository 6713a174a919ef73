"""A tiny language model with the engine's interface: each token depends on the two before it.

It keeps the engine's rule (passes read, commit moves), counts passes and advances a clock of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from clover_local.model.processing import Processing
from clover_local.runtime.rows import Rows

VOCAB, MASK, EOS = 20, 19, 18


@dataclass(frozen=True)
class FakeSpec:
    mask_id: int | None = MASK
    eos_ids: tuple[int, ...] = (EOS,)
    block_size: int = 8
    threshold: float = 0.5
    processing: Processing = field(default_factory=Processing)
    can_draft: bool = True


def rows_of(logits: np.ndarray, tokens: Sequence[int] = ()) -> Rows:
    """Rows from logits [rows, vocab]; `tokens` are those a verify pass read."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-30))).sum(1)
    after = np.array([*tokens[1:], 0][: len(p)] or [0] * len(p)) % VOCAB
    ids = logits.argmax(1).astype(np.int32)
    rows = np.arange(len(p))
    return Rows(ids, p[rows, ids].astype(np.float32), entropy, p[rows, after], lambda: logits)


class FakeEngine:
    """`skill` is the chance that a previewed row is the model's own greedy choice."""

    def __init__(self, skill: float = 0.8, n_ctx: int = 512, spec: FakeSpec | None = None) -> None:
        self.spec, self.n_ctx, self.skill = spec or FakeSpec(), n_ctx, skill
        self.committed: list[int] = []
        self.verified: list[int] = []
        self.passes: list[tuple[str, int]] = []
        self.now = 0.0
        self.ms: Callable[[str, int], float] = lambda kind, rows: 1.0

    tokens = property(lambda self: tuple(self.committed))
    n_past = property(lambda self: len(self.committed))

    def clock(self) -> float:
        """Seconds that the passes so far would have taken."""
        return self.now

    def _ran(self, kind: str, rows: int) -> None:
        assert self.n_past + rows <= self.n_ctx, "a pass ran over the end of the context"
        self.passes.append((kind, rows))
        self.now += self.ms(kind, rows) / 1e3

    def logits(self, text: Sequence[int]) -> np.ndarray:
        """Logits [vocab] of the token after a text."""
        a, b = ([-1, -1, *text])[-2:]
        row = 2.0 * np.random.default_rng([a + 1, b + 1, 7]).standard_normal(VOCAB)
        row[MASK] = -np.inf
        return row

    def begin_response(self, processing: Processing | None = None) -> None:
        self.verified = []

    def prefill(self, tokens, *, cancelled=None, progress=None) -> Rows | None:
        for token in tokens:
            if cancelled is not None and cancelled():
                return None
            self._ran("prefill", 1)
            self.committed.append(token)
        return rows_of(self.logits(self.committed)[None])

    def step(self, token: int) -> Rows:
        self._ran("plain", 1)
        self.committed.append(token)
        return rows_of(self.logits(self.committed)[None])

    def preview(self, tokens: Sequence[int], *, draft: bool = False) -> Rows:
        self._ran("draft" if draft else "denoise", len(tokens))
        rng = np.random.default_rng([self.n_past, len(tokens), *self.committed[-3:]])
        text, out = list(self.committed), []
        for token in tokens:
            row = self.logits(text)
            if rng.random() > self.skill:
                row = rng.permutation(row[:MASK])
                row = np.append(row, -np.inf)
            out.append(row)
            text.append(int(row.argmax()) if token == MASK else token)
        return rows_of(np.array(out))

    def verify(self, tokens: Sequence[int]) -> Rows:
        self._ran("verify", len(tokens))
        self.verified = list(tokens)
        text = [*self.committed]
        out = [self.logits([*text, *tokens[: j + 1]]) for j in range(len(tokens))]
        return rows_of(np.array(out), tokens)

    def commit(self, r: int) -> None:
        assert 0 <= r <= len(self.verified)
        self.passes.append(("commit", r))
        self.committed += self.verified[:r]
        self.verified = []
