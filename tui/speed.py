"""The line above the composer: what the engine does now, how fast, and how full the context is."""

from dataclasses import dataclass

from rich.text import Text
from textual.widget import Widget

from clover_local.tui.figures import bar, context_size, short
from clover_local.tui.theme import palette_of

FULL = 0.8  # share of the context above which the gauge warns


@dataclass(frozen=True)
class Speed:
    """What the line shows; figures that are 0 or empty are left out."""

    sparkline: str = ""
    rate: float = 0.0
    activity: str = ""
    used: int = 0
    n_ctx: int = 0
    resolved: int = 0
    rows: int = 0


class SpeedLine(Widget):
    """One line of figures."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.speed = Speed()

    def show(self, speed: Speed) -> None:
        """Show other figures."""
        if speed != self.speed:
            self.speed = speed
            self.refresh()

    def render(self) -> Text:
        """The line, cut where the width ends."""
        palette = palette_of(self.app.current_theme)
        s = self.speed
        parts: list[Text] = []
        if s.rate:
            parts.append(
                Text.assemble(
                    (s.sparkline, palette.accent),
                    " " * bool(s.sparkline),
                    (f"{s.rate:.1f} tok/s", palette.text),
                )
            )
        if s.activity:
            parts.append(Text(s.activity, palette.muted))
        if s.n_ctx:
            share = s.used / s.n_ctx
            style = palette.warning if share >= FULL else palette.muted
            gauge = f"context {bar(share)} {short(s.used)}/{context_size(s.n_ctx)}"
            parts.append(Text(gauge, style))
        if s.rows:
            parts.append(Text(f"block {s.resolved}/{s.rows} rows", palette.muted))
        line = Text("   ").join(parts)
        line.no_wrap, line.overflow = True, "ellipsis"
        return line
