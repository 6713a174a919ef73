"""The engine's own process: one loop that reads a request and sends reports.

A thread reads the connection, so that a stop is seen between two passes; when the other end is gone, by
whatever way, the process ends at once. Nothing here writes to the terminal.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from clover_local.chat.protocol import (
    About,
    Ask,
    Cancel,
    Close,
    Count,
    Counted,
    Failed,
    Gauge,
    Loading,
    ModelChoice,
    Overflow,
    Progress,
    Ready,
    Reply,
    Report,
    Request,
    Started,
)
from clover_local.decoding.events import Tokens
from clover_local.errors import CloverError

if TYPE_CHECKING:
    from clover_local.api import Model
    from clover_local.chat.session import Prompt, Session

TICK = 0.05  # seconds between two reports of progress


class Inbox:
    """Requests as they arrive, and the answers that somebody wants stopped."""

    def __init__(self, connection: Connection) -> None:
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._connection = connection
        self._stopped: set[int] = set()
        self._closed = False
        threading.Thread(target=self._read, daemon=True, name="inbox").start()

    def stopped(self, answer: int) -> bool:
        """Whether a Cancel for this answer, or Close, has arrived."""
        return self._closed or answer in self._stopped

    def _read(self) -> None:
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # the screen is gone; nothing is left to be done, and no pass is worth finishing
            if isinstance(request, Cancel):
                self._stopped.add(request.id)
            else:
                self._closed |= isinstance(request, Close)
                self.requests.put(request)


def throttled(send: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """A progress call-back that passes on the last call and a few of those before."""
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last >= TICK:
            last = now
            send(done, total)

    return tell


def serve(connection: Connection, choice: ModelChoice) -> None:
    """Load the model, then answer requests until Close."""
    inbox = Inbox(connection)
    send: Callable[[Report], None] = connection.send
    try:
        model = _load(choice, send)
    except CloverError as error:
        send(Failed(None, str(error), error.hint))
        return
    except MemoryError:
        send(Failed(None, f"there is not enough memory to load {choice.model}"))
        return
    from clover_local.chat.session import Session

    session = Session(model)
    send(Ready(_about(model), os.getpid()))
    _send_gauge(model, send)
    while True:
        if model.spec.can_draft:  # while nobody asks, so that the next answer need not wait for it
            model.warm()
            model.engine.warm(lambda: not inbox.requests.empty())
        if isinstance(request := inbox.requests.get(), Close):
            break
        try:
            _answer(session, request, inbox, send)
        except CloverError as error:
            send(Failed(request.id, str(error), error.hint))
        except MemoryError:
            send(Failed(request.id, "there is not enough memory for this answer"))
        _send_gauge(model, send)
    model.engine.close()


def _load(choice: ModelChoice, send: Callable[[Report], None]) -> "Model":
    from clover_local.api import load

    return load(
        choice.model,
        ctx=choice.ctx,
        threads=choice.threads,
        device=choice.device,
        cache_type_k=choice.cache_type_k,
        cache_type_v=choice.cache_type_v,
        vram=choice.vram,
        host_layers=choice.host_layers,
        offline=choice.offline,
        progress=throttled(lambda done, total: send(Loading(done, total))),
    )


def _answer(session: "Session", request: Request, inbox: Inbox, send: Callable[[Report], None]) -> None:
    from clover_local.chat.session import PromptTooLongError

    if isinstance(request, Count):
        tokens = session.count(request.turns, thinking=request.thinking)
        send(Counted(request.id, tokens, session.model.engine.n_ctx))
        return
    assert isinstance(request, Ask)

    counter = session.thought_counter(False)

    def started(prompt: "Prompt") -> None:
        counter.inside = prompt.reasoning
        send(Started(request.id, len(prompt.ids), session.model.engine.n_ctx, prompt.reasoning))

    try:
        for event in session.reply(
            request.turns,
            request.settings,
            thinking=request.thinking,
            cancelled=lambda: inbox.stopped(request.id),
            started=started,
            progress=throttled(lambda done, total: send(Progress(request.id, done, total))),
        ):
            thought = counter.count(event.ids) if isinstance(event, Tokens) else 0
            send(Reply(request.id, event, thought))
    except PromptTooLongError as error:
        send(Overflow(request.id, error.tokens, error.n_ctx, error.drop))


def _about(model: "Model") -> About:
    return About(
        name=model.name,
        n_ctx=model.engine.n_ctx,
        device=model.engine.device_name,
        can_draft=model.spec.can_draft,
        block_size=model.spec.block_size,
        threshold=model.spec.threshold,
        thinks="enable_thinking" in model.template.source,
        memory=dict(model.engine.memory),
    )


def _send_gauge(model: "Model", send: Callable[[Report], None]) -> None:
    from clover_local.ggml.backend import devices

    name = model.engine.device_name
    device = next((d for d in devices() if name in (d.name, d.description)), None)
    if device is not None:
        send(Gauge(device.free, device.total))


def main() -> None:
    """`python -c "...main()" FD`: serve the connection on an inherited file descriptor."""
    connection = Connection(int(sys.argv[1]))
    choice = connection.recv()
    serve(connection, choice)
    connection.close()
    os._exit(0)  # the reading thread may sit in recv; nothing of ours is left to be flushed
