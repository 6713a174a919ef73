"""Engines in between: one that makes a random model's drafts as good as a profile says, one that records.

Both pass every call on to the real engine, so passes, costs, loop and policy are those of a real run; only
what the rows claim is changed, or noted down.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clover_local.bench.profiles import Profile, Recording
from clover_local.decoding.engine import Engine, Numbers
from clover_local.model.processing import Processing
from clover_local.runtime.rows import Rows


class Between:
    """An engine that is another one; subclasses change what a pass reports."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def spec(self) -> Numbers:
        return self.engine.spec

    @property
    def n_ctx(self) -> int:
        return self.engine.n_ctx

    @property
    def n_past(self) -> int:
        return self.engine.n_past

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.engine.tokens

    def begin_response(self, processing: Processing | None) -> None:
        self.engine.begin_response(processing)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        cancelled: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows | None:
        return self.engine.prefill(tokens, cancelled=cancelled, progress=progress)

    def step(self, token: int) -> Rows:
        return self.engine.step(token)

    def preview(self, tokens: Sequence[int], *, draft: bool = False) -> Rows:
        return self.engine.preview(tokens, draft=draft)

    def verify(self, tokens: Sequence[int]) -> Rows:
        return self.engine.verify(tokens)

    def commit(self, r: int) -> None:
        self.engine.commit(r)


class SimulatedAcceptance(Between):
    """Random weights whose drafts are kept as a profile says, at temperature 0.

    A draft's fate is drawn when it is proposed: its confidence hints at it, `verify` reveals it. Every token
    is random, those in place of a draft's masks too, so that routing is as mixed as the model allows and the
    text never repeats itself (what repeats is drafted for free).
    """

    def __init__(self, engine: Engine, profile: Profile, *, vocab: int, seed: int = 0) -> None:
        super().__init__(engine)
        self._profile = profile
        self._rng = np.random.default_rng([seed, 35])  # not the generator of random prompts
        mask = engine.spec.mask_id
        forbidden = [*engine.spec.eos_ids, *([] if mask is None else [mask])]
        self._free = np.setdiff1d(np.arange(vocab, dtype=np.int32), forbidden)
        self._draft: tuple[list[int], np.ndarray] = ([], np.zeros(0, bool))

    def prefill(self, tokens: Sequence[int], **options: Any) -> Rows | None:
        rows = self.engine.prefill(tokens, **options)
        return None if rows is None else replace(rows, ids=self._words(1))

    def step(self, token: int) -> Rows:
        return replace(self.engine.step(token), ids=self._words(1))

    def preview(self, tokens: Sequence[int], *, draft: bool = False) -> Rows:
        if not draft:
            return self.engine.preview(tokens)
        mixed = [tokens[0], *self._words(len(tokens) - 1).tolist()]  # masks would all be routed alike
        rows = self.engine.preview(mixed, draft=True)
        ids, p = self._words(len(tokens)), np.ones(len(tokens), np.float32)
        kept, p[1:] = self._profile.draw(len(tokens) - 1, self._rng)
        self._draft = ids[1:].tolist(), kept
        return replace(rows, ids=ids, p=p)

    def verify(self, tokens: Sequence[int]) -> Rows:
        rows = self.engine.verify(tokens)
        ids, proposed = self._words(len(tokens)), list(tokens[1:])
        own, fate = self._draft
        kept = fate[: len(proposed)] if proposed == own[: len(proposed)] else np.zeros(len(proposed), bool)
        ids[:-1][kept] = np.asarray(proposed, np.int32)[kept]
        clash = ~kept & (ids[:-1] == proposed)  # a random word that happens to be the rejected one
        ids[:-1][clash] = self._free[(np.searchsorted(self._free, ids[:-1][clash]) + 1) % len(self._free)]
        certain = np.append(kept, False).astype(np.float32)
        return replace(rows, ids=ids, next_p=certain, entropy=np.zeros(len(tokens), np.float32))

    def _words(self, count: int) -> np.ndarray:
        return self._free[self._rng.integers(0, len(self._free), count)]


class Recorder(Between):
    """Notes how the drafts of a real run fare; run it with the policy `always`, or the choice biases it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.recording = Recording()
        self._draft: tuple[list[int], list[float]] = ([], [])

    def preview(self, tokens: Sequence[int], *, draft: bool = False) -> Rows:
        rows = self.engine.preview(tokens, draft=draft)
        if draft:
            self._draft = rows.ids[1:].tolist(), rows.p[1:].tolist()
        return rows

    def verify(self, tokens: Sequence[int]) -> Rows:
        rows = self.engine.verify(tokens)
        proposed, (own, confidence) = list(tokens[1:]), self._draft
        if proposed and proposed == own[: len(proposed)]:
            right = rows.ids[: len(proposed)] == np.asarray(proposed)
            accepted = len(proposed) if right.all() else int(np.argmin(right))
            self.recording.add(confidence[: len(proposed)], accepted)
        return rows
