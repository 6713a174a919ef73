"""Finding the answer in what a model wrote and having it graded in a process of its own."""

import contextlib
import json
import queue
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from clover_local.errors import CloverError

Reason = Literal["graded", "no answer", "time limit", "memory limit", "unreadable", "crashed"]

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN_BOXES = re.compile(r"[\s$,;.\\()\[\]]*(?:and|or)?[\s$,;\\()\[\]]*")
_START_SECONDS = 120.0  # importing sympy takes seconds on a busy machine


@dataclass(frozen=True)
class Verdict:
    """One graded answer; `answer` is what was compared with the gold answer, None when there was none."""

    right: bool
    answer: str | None
    reason: Reason


def final_part(text: str, *, thinking: bool = False) -> str | None:
    """What was said after the reasoning; None when the reasoning never ended.

    `thinking` says that the prompt itself opened the reasoning, so the text holds no `<think>`.
    """
    _, mark, tail = text.rpartition("</think>")
    if mark:
        return tail
    return None if thinking or "<think>" in text else text


def boxed_answer(text: str) -> str | None:
    """The content of the last `\\boxed{…}`; boxes joined by `and`, `or` or commas alone are one answer."""
    boxes = [(match.start(), *_balanced(text, match.end())) for match in _BOX.finditer(text)]
    whole = [(start, end, content) for start, end, content in boxes if content is not None]
    if not whole:
        return None
    first, last = whole[-1][0], [whole[-1][2]]
    for start, end, content in reversed(whole[:-1]):
        if end > first or not _BETWEEN_BOXES.fullmatch(text, end, first):
            break
        first, last = start, [content, *last]
    return ", ".join(str(content).strip() for content in last)


def _balanced(text: str, start: int) -> tuple[int, str | None]:
    """The end of the group opened just before `start` and its content; content None when it never closes."""
    depth, escaped = 1, False
    for place in range(start, len(text)):
        letter = text[place]
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter in "{}":
            depth += 1 if letter == "{" else -1
            if depth == 0:
                return place + 1, text[start:place]
    return len(text), None


class Grader:
    """Grades answers with math-verify in a worker process that may take `seconds` and `memory_mb` for one.

    A worker that exceeds a limit or dies costs its one answer: it is replaced and the run goes on.
    """

    def __init__(self, *, seconds: int = 10, memory_mb: int = 2048, strict_units: bool = False) -> None:
        self._limits = (seconds, memory_mb)
        self._strict_units = strict_units
        self._worker: _Worker | None = None

    def __enter__(self) -> "Grader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def warm(self) -> None:
        """Start the worker without waiting for it."""
        if self._worker is None:
            self._worker = _Worker(*self._limits)

    def grade(self, text: str, gold: str, *, thinking: bool = False) -> Verdict:
        """Judge a whole response against a gold answer (LaTeX, no dollar signs)."""
        said = final_part(text, thinking=thinking)
        if said is None or not said.strip():
            return Verdict(False, None, "no answer")
        answer = boxed_answer(said)
        question = {"gold": gold, "answer": answer, "strict_units": self._strict_units}
        if answer is None:
            question["text"] = said
        self.warm()
        worker = self._worker
        assert worker is not None
        reply = worker.ask(question)
        if isinstance(reply, str):
            self.close()
            return Verdict(False, answer, "time limit" if reply == "time limit" else "crashed")
        return Verdict(bool(reply["right"]), reply["answer"], reply["reason"])

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _Worker:
    """One grading process; a thread turns its lines into a queue, so that waiting has a limit everywhere."""

    def __init__(self, seconds: int, memory_mb: int) -> None:
        self._seconds = seconds
        self._ready = False
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "clover_local.bench.grading_worker", str(seconds), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="backslashreplace",  # half a surrogate pair in a model's text must not stop the run
            start_new_session=True,  # Ctrl-C is the run's to handle
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | Literal["time limit", "crashed"]:
        """The worker's verdict, or why there is none."""
        if not self._ready:
            self._await_start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self._seconds)
        except queue.Empty:
            return "time limit"
        except OSError:
            return "crashed"
        return json.loads(line) if line is not None else "crashed"

    def _await_start(self) -> None:
        try:
            line = self._lines.get(timeout=_START_SECONDS)
        except queue.Empty:
            line = None
        first = json.loads(line) if line else {"error": "it ended at once"}
        if "error" in first:
            raise CloverError(
                f"the grading process did not start: {first['error']}",
                hint="grading needs math-verify: pip install 'math-verify[antlr4_13_2]'",
            )
        self._ready = True

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # unsent bytes for a dead process
                    stream.close()
