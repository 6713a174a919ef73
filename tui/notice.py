"""A line that says what went wrong or what is about to, with one key that does something about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from clover_local.tui.wrap import clean

SECONDS = 8.0  # a notice that offers nothing goes by itself


@dataclass(frozen=True)
class Notice:
    """`key F5` does `act`, described by `offer`; without an action it is a plain message."""

    text: str
    kind: Literal["plain", "warning", "error"] = "plain"
    offer: str = ""
    act: Callable[[], object] | None = None


class NoticeBar(Static):
    """Shows the current notice; hidden while there is none."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.notice: Notice | None = None
        self._timer: Timer | None = None

    def show(self, notice: Notice | None) -> None:
        """Show a notice, or nothing."""
        self.notice = notice
        self.display = notice is not None
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if notice is not None and notice.act is None:
            self._timer = self.set_timer(SECONDS, lambda: self.show(None))
        if notice is None:
            return
        self.set_classes(f"-{notice.kind}")
        parts = [Content(clean(notice.text))]
        if notice.act is not None:
            parts.append(Content.assemble(("f5", "bold"), f" {notice.offer}"))
        self.update(Content("   ").join(parts))

    def on_click(self) -> None:
        """A click does what the key does."""
        if self.notice is not None and self.notice.act is not None:
            self.notice.act()
