"""The live picture of a run on stderr, and nothing that a report depends on."""

import time
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from clover_local.bench.figures import total
from clover_local.bench.math500 import Live
from clover_local.bench.render import number, percent
from clover_local.bench.store import Record

REFRESH = 4  # a second; drawing takes time from decoding


class Board:
    """One line per mode: done, accuracy so far, tok/s now and overall, ratio to plain, tokens a pass."""

    def __init__(self, modes: Iterable[str], problems: int, records: Iterable[Record]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(min_width=7, no_wrap=True)),
            BarColumn(bar_width=8, table_column=Column(min_width=8, no_wrap=True)),
            MofNCompleteColumn(table_column=Column(min_width=2 * len(str(problems)) + 1, no_wrap=True)),
            TextColumn(
                "{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
            ),
            expand=True,
            console=Console(stderr=True),
            refresh_per_second=REFRESH,
        )
        self._tasks: dict[str, TaskID] = {
            mode: self._progress.add_task(mode, total=problems, note="") for mode in modes
        }
        self._records: dict[str, list[Record]] = {mode: [] for mode in self._tasks}
        self._problems, self._began, self._fresh = problems, time.monotonic(), 0
        for record in records:
            self._records[record.mode].append(record)
        for mode in self._tasks:
            self._draw(mode, None)

    def __enter__(self) -> "Board":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, fact: Live | Record) -> None:
        """Draw what has just happened."""
        if isinstance(fact, Record):
            self._records[fact.mode].append(fact)
            self._fresh += 1
        self._draw(fact.mode, fact)

    def _draw(self, mode: str, fact: Live | Record | None) -> None:
        done = self._records[mode]
        self._progress.update(
            self._tasks[mode], completed=len(done), note=" · ".join(self._notes(mode, done, fact))
        )

    def _notes(self, mode: str, done: list[Record], fact: Live | Record | None) -> Iterable[str]:
        stats = total(record.stats for record in done)
        if done:
            yield f"{percent(sum(record.right for record in done) / len(done))} right"
        if isinstance(fact, Live):
            yield f"{number(fact.tokens / fact.seconds if fact.seconds else None)} tok/s now"
        elif fact is not None:
            yield f"{number(fact.stats.tokens_per_second)} tok/s now"
        if not done:
            return
        yield f"{number(stats.tokens_per_second)} overall"
        plain = total(record.stats for record in self._records.get("plain", []))
        if mode != "plain" and plain.tokens_per_second:
            yield f"{number(stats.tokens_per_second / plain.tokens_per_second, 2)}× plain"
        if mode != "plain":
            yield f"{number(stats.tokens_per_pass, 2)} a pass"
        left = self._left()
        if left:
            yield left

    def _left(self) -> str:
        """Time left at the pace of this session, all modes together."""
        waiting = sum(self._problems - len(own) for own in self._records.values())
        if not self._fresh or not waiting:
            return ""
        seconds = round((time.monotonic() - self._began) / self._fresh * waiting)
        hours, rest = divmod(seconds, 3600)
        return f"{hours}:{rest // 60:02}:{rest % 60:02} left"
