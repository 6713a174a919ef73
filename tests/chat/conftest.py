"""A real engine for the chat's tests, in this process and in one of its own."""

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clover_local.api import Model, load
from clover_local.chat.client import EngineProcess
from clover_local.chat.protocol import ModelChoice, Ready, Report

WAIT = 60.0  # seconds; machines that test are busy


@pytest.fixture(scope="module")
def model(trained_f32: Path) -> Iterator[Model]:
    """The trained model, opened here; what a test leaves in its state must not matter to the next."""
    with load(trained_f32, ctx=1024, threads=1) as one:
        yield one


class Talk:
    """One engine process and what it has reported."""

    def __init__(self, choice: ModelChoice) -> None:
        self.reports: list[Report] = []
        self.times: list[float] = []
        self._arrived: queue.SimpleQueue[tuple[float, Report]] = queue.SimpleQueue()
        self.engine = EngineProcess(choice, lambda report: self._arrived.put((time.perf_counter(), report)))

    def until(self, wanted: Callable[[Report], bool], seconds: float = WAIT) -> Report:
        """The first report from now on that is wanted; fails when none comes in time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                moment, report = self._arrived.get(timeout=left)
            except queue.Empty:
                break
            self.reports.append(report)
            self.times.append(moment)
            if wanted(report):
                return report
        pytest.fail(f"not reported within {seconds} s; the last reports were {self.reports[-5:]}")

    def until_kind(self, *kinds: type, seconds: float = WAIT) -> Report:
        """The first report of these kinds."""
        return self.until(lambda report: isinstance(report, kinds), seconds)


@pytest.fixture
def start() -> Iterator[Callable[[ModelChoice], Talk]]:
    """Starts engine processes; whatever is left of them is ended."""
    talks: list[Talk] = []

    def begin(choice: ModelChoice) -> Talk:
        talks.append(Talk(choice))
        return talks[-1]

    yield begin
    for talk in talks:
        talk.engine.close(patience=1.0)


@pytest.fixture
def talk(start: Callable[[ModelChoice], Talk], trained_int4: Path) -> Talk:
    """An engine process that is ready."""
    one = start(ModelChoice(str(trained_int4), ctx=1024, threads=1))
    one.until_kind(Ready)
    return one
