"""The screen's link to the engine's process: reports arrive in batches, a few dozen times a second."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context

from clover_local.chat.client import EngineProcess
from clover_local.chat.protocol import About, Died, Failed, ModelChoice, Ready, Report, Request

FRAME = 1 / 25  # seconds between two batches: reports may come many times faster than a screen needs them


class EngineLink:
    """Starts, restarts and ends the engine; hands its reports to `receive` on the event loop."""

    def __init__(self, choice: ModelChoice, receive: Callable[[list[Report]], None]) -> None:
        self.choice = choice
        self.about: About | None = None
        self._receive = receive
        self._process: EngineProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: deque[tuple[int, Report]] = deque()
        self._life = 0  # counts starts: reports of an engine that was replaced are not wanted
        self._starting = False
        self._waiting: list[Request] = []
        self._scheduled = False
        self._next = 0.0
        self._context: Context | None = None

    @property
    def ready(self) -> bool:
        """Whether the model is loaded."""
        return self.about is not None

    @property
    def alive(self) -> bool:
        """Whether there is a process, or one is being started."""
        return self._starting or (self._process is not None and self._process.alive)

    @property
    def pid(self) -> int | None:
        """The engine's process id."""
        return self._process.pid if self._process is not None else None

    async def start(self, choice: ModelChoice | None = None) -> None:
        """End the engine there is, if any, and start one."""
        await self.close()
        self.choice = choice or self.choice
        self._loop = asyncio.get_running_loop()
        # a thread has no context of the application, and what runs without one cannot start timers
        self._context = copy_context()
        self._life += 1
        life = self._life

        def listen(report: Report) -> None:
            self._arrived.append((life, report))
            self._wake()

        # starting a process takes tens of milliseconds, too long for the loop that draws
        self._starting = True
        try:
            self._process = await asyncio.to_thread(EngineProcess, self.choice, listen)
        finally:
            self._starting = False
        for request in self._waiting:
            self._process.send(request)
        self._waiting.clear()

    async def close(self) -> None:
        """End the engine and wait until it is gone."""
        process, self._process, self.about = self._process, None, None
        self._life += 1
        if process is not None:
            await asyncio.to_thread(process.close)

    def kill(self) -> None:
        """End the engine at once, where nobody can wait any more."""
        if self._process is not None:
            self._process.close(patience=0.5)
            self._process = None

    def send(self, request: Request) -> None:
        """Send a request; before the model is loaded it waits, at last in the engine."""
        if self._starting:
            self._waiting.append(request)
        elif self._process is not None:
            self._process.send(request)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._schedule, context=self._context)

    def _schedule(self) -> None:
        if self._scheduled or self._loop is None:
            return
        self._scheduled = True
        self._loop.call_at(max(self._next, self._loop.time()), self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        reports: list[Report] = []
        while self._arrived:
            life, report = self._arrived.popleft()
            if life != self._life:
                continue
            if isinstance(report, Ready):
                self.about = report.about
            elif isinstance(report, Died) or (isinstance(report, Failed) and report.id is None):
                self.about = None
            reports.append(report)
        if reports:
            start = self._loop.time() if self._loop else 0.0
            self._receive(reports)
            spent = (self._loop.time() if self._loop else 0.0) - start
            # drawing that takes long is done less often, so that keys are answered in between
            self._next = start + min(max(FRAME, 3 * spent), 0.5)
