"""A progress bar on stderr for what may take long: shown on a terminal only, and only once it did take long."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

PATIENCE = 0.5  # seconds after which a person wonders


@contextmanager
def bar(label: str, unit: Literal["bytes", "tokens"]) -> Iterator[Callable[[int, int], None] | None]:
    """A function (done, total) that draws a bar while the block runs, and leaves nothing behind."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich
    from rich.console import Console

    amount = rich.DownloadColumn() if unit == "bytes" else rich.MofNCompleteColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), amount, rich.TimeRemainingColumn())
    display = rich.Progress(*columns, console=Console(stderr=True), transient=True)
    task, begun = display.add_task(label, total=None), time.monotonic()

    def tell(done: int, total: int) -> None:
        display.update(task, completed=done, total=total)
        if not display.live.is_started and time.monotonic() - begun > PATIENCE:
            display.start()

    try:
        yield tell
    finally:
        display.stop()
