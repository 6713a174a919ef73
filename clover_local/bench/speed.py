"""How fast prompts are read and answers written, in turns with stock llama.cpp on the same file.

A repetition runs every test once, each time in another order; a figure is the mean of the repetitions with
its standard deviation, a ratio the median of the repetitions' own ratios. One unmeasured round comes first:
graphs are built, pages are read, and the policy learns what passes cost. tok/s is tokens kept per second of
decoding, as in decoding/events.py; stock llama.cpp decodes the very tokens that plain wrote, and only its
passes count, not the choice of a token.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median, stdev

import numpy as np

from clover_local.bench.figures import total
from clover_local.bench.profiles import Profile
from clover_local.bench.simulate import SimulatedAcceptance
from clover_local.bench.stock import Stock
from clover_local.decoding.calibrate import calibrate
from clover_local.decoding.engine import Engine
from clover_local.decoding.events import Done, Stats, Tokens
from clover_local.decoding.generate import generate
from clover_local.decoding.policy import Policy
from clover_local.decoding.settings import Mode, Settings
from clover_local.runtime.engine import Engine as RealEngine


@dataclass(frozen=True)
class Test:
    """What is measured: `size` prompt tokens read, or up to `size` written in a mode; by stock or by us."""

    kind: str  # "pp" or "tg", as llama-bench names them
    size: int
    mode: Mode = "plain"
    stock: bool = False
    profile: str = ""  # whose acceptance is simulated

    @property
    def name(self) -> str:
        """llama-bench's name of the test, such as pp512 or tg128."""
        return f"{self.kind}{self.size}"


@dataclass(frozen=True)
class Sample:
    """One repetition of a test."""

    tokens: int
    seconds: float
    stats: Stats | None = None

    @property
    def speed(self) -> float:
        """Tokens per second; 0 when nothing was written."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Workload:
    """What is read and answered. Random prompts have no end worth waiting for, so stops are ignored there."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    random: bool


@dataclass(frozen=True)
class Result:
    """The repetitions of one test."""

    test: Test
    samples: tuple[Sample, ...]

    @property
    def speed(self) -> float:
        """Tokens per second, the mean of the repetitions."""
        return mean(sample.speed for sample in self.samples)

    @property
    def spread(self) -> float:
        """Standard deviation of the repetitions' tokens per second."""
        return stdev(sample.speed for sample in self.samples) if len(self.samples) > 1 else 0.0

    @property
    def stats(self) -> Stats | None:
        """All repetitions as one answer; None for prompts and for stock."""
        found = [sample.stats for sample in self.samples if sample.stats is not None]
        return total(found) if found else None

    def ratio(self, base: "Result | None") -> float | None:
        """How many times as fast as another test: the median over the repetitions that measured both."""
        if base is None:
            return None
        pairs = zip(self.samples, base.samples, strict=True)
        ratios = [own.speed / other.speed for own, other in pairs if other.speed]
        return median(ratios) if ratios else None


def random_workload(vocab: int, count: int, length: int, *, seed: int = 1) -> Workload:
    """Prompts of random tokens."""
    ids = np.random.default_rng(seed).integers(0, vocab, (count, length))
    return Workload("random tokens", tuple(tuple(row) for row in ids.tolist()), random=True)


@dataclass
class Bench:
    """The parties of one comparison. `stock` is None when there is no baseline."""

    engine: RealEngine
    workload: Workload
    settings: Settings
    stock: Stock | None = None
    profiles: tuple[Profile, ...] = ()
    policies: dict[Test, Policy] = field(default_factory=dict)  # one per test, so that it goes on learning
    written: list[tuple[int, ...]] = field(default_factory=list)  # what plain answered last, for stock

    def run(self, tests: Sequence[Test], repetitions: int) -> Iterator[tuple[int, Test, Sample]]:
        """Measure every test that often; yields (repetition, test, sample). Repetition 0 warms up."""
        order = list(tests)
        for repetition in range(repetitions + 1):
            for test in order:
                yield repetition, test, self.measure(test, repetition)
            if repetition:  # stock needs plain's tokens of the warm-up round before it may go first
                order = [*order[1:], *order[:1]]

    def measure(self, test: Test, seed: int = 0) -> Sample:
        """Run one test once."""
        if test.kind == "pp":
            return self._read(test)
        return self._replay(test) if test.stock else self._write(test, seed)

    def _read(self, test: Test) -> Sample:
        party: Stock | RealEngine = self._baseline() if test.stock else self.engine
        tokens = np.random.default_rng(test.size).integers(0, self.engine.spec.vocab, test.size).tolist()
        party.reset()
        began = time.perf_counter()
        party.prefill(tokens)
        return Sample(test.size, time.perf_counter() - began)

    def _write(self, test: Test, seed: int) -> Sample:
        settings = replace(
            self.settings, mode=test.mode, max_tokens=test.size, ignore_stop=self.workload.random
        )
        policy = self._policy(test)
        driver, written, stats = self._driver(test, seed), [], []
        for prompt in self.workload.prompts:
            self.engine.reset()
            ids: list[int] = []
            for event in generate(driver, prompt, settings, policy=policy):
                if isinstance(event, Tokens):
                    ids.extend(event.ids)
                elif isinstance(event, Done):
                    stats.append(event.stats)
            written.append(tuple(ids))
        if test.mode == "plain":
            self.written = written
        whole = total(stats)
        return Sample(whole.decoded, whole.seconds, whole)

    def _policy(self, test: Test) -> Policy:
        """The test's policy, which measured its passes before its first answer as every model's does."""
        if test not in self.policies:
            policy = self.policies[test] = Policy()
            if test.mode == "self" and self.settings.policy == "auto":
                self.engine.reset()
                calibrate(self.engine, policy.costs)
        return self.policies[test]

    def _driver(self, test: Test, seed: int) -> Engine:
        """The engine, or random words in its place where acceptance is simulated (in plain, anybody's)."""
        if not self.profiles:
            return self.engine
        profile = next((one for one in self.profiles if one.name == test.profile), self.profiles[0])
        return SimulatedAcceptance(self.engine, profile, vocab=self.engine.spec.vocab, seed=seed)

    def _replay(self, test: Test) -> Sample:
        stock, seconds, count = self._baseline(), 0.0, 0
        for prompt, answer in zip(self.workload.prompts, self.written, strict=True):
            stock.reset()
            stock.prefill(prompt)
            seconds += sum(stock.step(token) for token in answer[:-1])
            count += len(answer) - 1
        return Sample(count, seconds)

    def _baseline(self) -> Stock:
        assert self.stock is not None, "a stock test needs stock llama.cpp"
        return self.stock


def tests(
    prompt_sizes: Sequence[int],
    predict: int,
    modes: Sequence[Mode],
    *,
    stock: bool,
    profiles: Sequence[str] = (),
) -> list[Test]:
    """What to run, in the order of the table; `self` once per profile.

    Stock's answer test needs plain's tokens, so plain is there.
    """
    parties = (True, False) if stock else (False,)
    found = [Test("pp", size, stock=party) for size in prompt_sizes if size for party in parties]
    if predict:
        wanted = modes if "plain" in modes else ("plain", *modes)
        for mode in sorted(wanted, key=("plain", "self", "denoise").index):
            names = profiles if mode == "self" and profiles else ("",)
            found += [Test("tg", predict, mode, profile=name) for name in names]
        if stock:
            found.append(Test("tg", predict, stock=True))
    return found


def collect(
    samples: Iterator[tuple[int, Test, Sample]], heard: Callable[[int, Test, Sample], None]
) -> dict[Test, Result]:
    """Run everything and keep what was measured; `heard` is told of each sample."""
    found: dict[Test, list[Sample]] = {}
    for repetition, test, sample in samples:
        heard(repetition, test, sample)
        if repetition:
            found.setdefault(test, []).append(sample)
    return {test: Result(test, tuple(own)) for test, own in found.items()}


def baselines(results: dict[Test, Result], test: Test) -> tuple[Result | None, Result | None]:
    """The stock and the plain result a test is held against; None for itself and for what was not run."""
    stock = results.get(replace(test, mode="plain", stock=True, profile=""))
    plain = results.get(replace(test, mode="plain", stock=False, profile="")) if test.kind == "tg" else None
    own = results.get(test)
    return (None if stock is own else stock), (None if plain is own else plain)
