"""The first and the last line of the screen."""

from dataclasses import dataclass

from rich.text import Text
from textual.widget import Widget

from clover_local.tui.figures import of_gigabytes
from clover_local.tui.theme import palette_of


@dataclass(frozen=True)
class Status:
    """What the title says; `state` is loading, ready or gone."""

    model: str
    mode: str
    state: str = "loading"
    loaded: tuple[int, int] = (0, 0)
    device: str = ""
    memory: tuple[int, int] = (0, 0)
    """Bytes used of the device's memory, of how many; total 0 hides it."""


class TitleBar(Widget):
    """The model and the mode at the left, the device and the engine's state at the right."""

    def __init__(self, status: Status, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.status = status

    def show(self, status: Status) -> None:
        """Show another status."""
        if status != self.status:
            self.status = status
            self.refresh()

    def render(self) -> Text:
        """One line; the left part gives way where both do not fit."""
        p, s, width = palette_of(self.app.current_theme), self.status, self.content_size.width
        left = Text.assemble(("clover", p.accent), (f" · {s.model}", p.text), (f" · {s.mode}", p.muted))
        right = Text()
        if s.state == "loading":
            done, total = s.loaded
            right.append(f"loading {of_gigabytes(done, total)}" if total else "loading", p.muted)
        elif s.device and s.state == "ready":
            right.append(s.device, p.muted)
            if s.memory[1]:
                right.append(f" {of_gigabytes(*s.memory)}", p.muted)
        mark = {"loading": ("○", p.warning), "ready": ("●", p.accent)}.get(s.state, ("✕", p.error))
        right.append("  ").append(*mark)
        left.truncate(max(width - right.cell_len - 2, 8), overflow="ellipsis")
        gap = max(width - left.cell_len - right.cell_len, 1)
        return Text.assemble(left, " " * gap, right, no_wrap=True, overflow="crop")


class Hints(Widget):
    """The keys that do something now, as many as fit."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.hints: tuple[tuple[str, str], ...] = ()

    def show(self, *hints: tuple[str, str]) -> None:
        """Show pairs of key and meaning, the most useful first."""
        if hints != self.hints:
            self.hints = hints
            self.refresh()

    def render(self) -> Text:
        """One line."""
        p, width = palette_of(self.app.current_theme), self.content_size.width
        line = Text(no_wrap=True, overflow="crop")
        for key, meaning in self.hints:
            piece = Text.assemble((key, p.accent2), (f" {meaning}", p.muted))
            if line and line.cell_len + 3 + piece.cell_len > width:
                break
            line = Text(" · ", p.faint).join([line, piece]) if line else piece
        return line
