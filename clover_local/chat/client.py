"""The screen's end of the engine's process: start it, talk to it, and say why it died.

The process is started afresh (no fork), with no access to the terminal: what it or a library prints goes to a
file of its own, whose last line helps to explain a death.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import IO

from clover_local.chat.protocol import Cancel, Close, Died, ModelChoice, Report, Request

_START = "from clover_local.chat.worker import main; main()"


class EngineProcess:
    """One running engine. `listen` is called with every report, in a thread of its own."""

    def __init__(self, choice: ModelChoice, listen: Callable[[Report], None]) -> None:
        """Start the process; it begins to load at once."""
        self.choice = choice
        self._listen = listen
        self._closing = False
        self._lock = threading.Lock()  # a connection may be written by one thread at a time
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the reader when the process has ended)
        self._kills = oom_kills()
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-c", _START, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # signals typed at the terminal are for the screen alone
        )
        theirs.close()
        self.send(choice)
        self._reader = threading.Thread(target=self._read, daemon=True, name="engine-reports")
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, request: Request | ModelChoice) -> None:
        """Send a request; to a dead engine nothing is sent, its death has been reported."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(request)

    def cancel(self, answer: int) -> None:
        """Stop an answer at its next pass."""
        self.send(Cancel(answer))

    def close(self, patience: float = 2.0) -> None:
        """End the process: politely, then by force. Returns when it is gone and reaped."""
        self._closing = True
        self.send(Close())
        for end in (lambda: None, self._process.terminate, self._process.kill):
            end()
            try:
                self._process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                patience = 0.5
        self._reader.join(1.0)
        self._connection.close()

    def _read(self) -> None:
        while True:
            try:
                report = self._connection.recv()
            except (EOFError, OSError):
                break
            self._listen(report)
        code = self._process.wait()  # reaps: no zombie stays behind
        if not self._closing and code != 0:
            self._listen(explain(code, _tail(self._log), oom_kills() > self._kills))
        self._log.close()


def explain(code: int, output: str, memory_ran_out: bool) -> Died:
    """A sentence for an exit code (negative: the signal), the last output and the kernel's word on memory."""
    last = output.strip().splitlines()[-1].strip() if output.strip() else ""
    if memory_ran_out and code == -signal.SIGKILL:
        return Died(
            "the system ended the engine because memory ran out",
            "a smaller --ctx-size or a smaller model needs less",
        )
    if "MemoryError" in last or "bad_alloc" in output or "out of memory" in output:
        return Died("the engine ran out of memory", "a smaller --ctx-size or a smaller model needs less")
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        how = {"SIGKILL": "was killed", "SIGTERM": "was told to end"}.get(name, "crashed")
        cause = _assertion(output)
        return Died(f"the engine {how} (signal {-code}, {name})" + (f": {cause}" if cause else ""))
    return Died(f"the engine ended with code {code}" + (f": {last}" if last else ""))


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory; 0 where it does not say."""
    for file, name in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(file).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    return 0


def _tail(file: IO[bytes], size: int = 8192) -> str:
    with contextlib.suppress(OSError, ValueError):
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - size, 0))
        return file.read().decode("utf-8", "replace")
    return ""


def _assertion(output: str) -> str:
    """The line in which ggml says why it aborts, if there is one."""
    lines = (line.strip() for line in output.splitlines())
    return next((line for line in lines if "GGML_ASSERT" in line or "CUDA error" in line), "")
