"""The answer being written: what was kept, why it ends, and the figures of its passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from clover_local.decoding.engine import Engine
from clover_local.decoding.events import PassKind, Reason, Stats
from clover_local.decoding.sampling import Sampler
from clover_local.decoding.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Meter:
    """Counts passes and their wall time; `clock` returns seconds."""

    clock: Callable[[], float]
    passes: dict[PassKind, int] = field(default_factory=dict)
    seconds: dict[PassKind, float] = field(default_factory=dict)

    def time(self, kind: PassKind, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R, float]:
        """Run one pass; returns its result and its milliseconds."""
        start = self.clock()
        result = run(*args, **kwargs)
        spent = self.clock() - start
        self.passes[kind] = self.passes.get(kind, 0) + 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + spent
        return result, spent * 1e3


@dataclass
class Answer:
    """One answer in the making. The loops put tokens in; `keep` decides which of them count."""

    engine: Engine
    settings: Settings
    sampler: Sampler
    meter: Meter
    cancelled: Callable[[], bool]
    begun: float  # when the prefill began, on the meter's clock
    kept: list[int] = field(default_factory=list)
    reason: Reason | None = None
    from_prefill: int = 0
    rounds: int = 0
    round_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    decoding_since: float = 0.0
    first_kept: float | None = None
    last_kept: float = 0.0

    @property
    def position(self) -> int:
        """The 1-based place in the answer of the next token."""
        return len(self.kept) + 1

    @property
    def room(self) -> int:
        """How many more tokens may be kept."""
        return self.settings.max_tokens - len(self.kept)

    def ended(self) -> bool:
        """Whether to stop before the next pass: complete, cancelled, or the context is full."""
        if self.reason is None and self.cancelled():
            self.reason = "cancelled"
        if self.reason is None and self.engine.n_past >= self.engine.n_ctx:
            self.reason = "context"
        return self.reason is not None

    def keep(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Keep tokens up to and including the first stop token, or up to the limit; returns those kept."""
        tokens = tokens[: self.room]
        if not self.settings.ignore_stop:
            stops = self.engine.spec.eos_ids
            stop = next((i for i, token in enumerate(tokens) if token in stops), None)
            if stop is not None:
                tokens = tokens[: stop + 1]
                self.reason = "stop"
        self.kept.extend(tokens)
        if self.room == 0 and self.reason is None:
            self.reason = "length"
        self.last_kept = self.meter.clock()
        if self.first_kept is None:
            self.first_kept = self.last_kept
        return tuple(tokens)

    def count_round(self, drafted: int, accepted: int, kept: int) -> None:
        """Add a round to the figures: drafts verified, those of them accepted, and tokens kept."""
        self.rounds += 1
        self.round_tokens += kept
        for counts, n in ((self.drafted, drafted), (self.accepted, accepted)):
            counts.extend([0] * (n - len(counts)))
            for position in range(n):
                counts[position] += 1

    def stats(self, prompt_tokens: int, prompt_reused: int) -> Stats:
        """The figures so far."""
        longest = max(len(self.drafted), len(self.accepted))
        return Stats(
            tokens=len(self.kept),
            seconds=max(self.last_kept - self.decoding_since, 0.0) if self.kept else 0.0,
            prompt_tokens=prompt_tokens,
            prompt_reused=prompt_reused,
            prompt_seconds=self.meter.seconds.get("prefill", 0.0),
            first_token_seconds=self.first_kept - self.begun if self.first_kept is not None else 0.0,
            passes=dict(self.meter.passes),
            pass_seconds=dict(self.meter.seconds),
            from_prefill=self.from_prefill,
            rounds=self.rounds,
            round_tokens=self.round_tokens,
            drafted=tuple(self.drafted + [0] * (longest - len(self.drafted))),
            accepted=tuple(self.accepted + [0] * (longest - len(self.accepted))),
        )
