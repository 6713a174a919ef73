"""The conversation on screen: one widget that draws only the lines in view.

Messages are drawn when they come near the view and measured in idle moments; until then their height is a
guess, and when a guess above the view is corrected, the view stays on the same text. It follows the newest
text only while it shows the end.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer

from clover_local.tui.entry import Entry, Line
from clover_local.tui.theme import Palette, palette_of

MARGIN = 2  # columns left of the text; the first shows which message is chosen
IDLE_SECONDS = 0.05
IDLE_WORK = 0.008  # seconds of drawing in one idle moment


class Transcript(ScrollView, can_focus=True):
    """Shows entries; scrolls like any scroll view."""

    ALLOW_SELECT = True

    @dataclass
    class Clicked(Message):
        """Somebody clicked a line that does something."""

        entry: Entry
        action: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.entries: list[Entry] = []
        self.chosen: int | None = None
        """Key of the message that commands are about, when it is not the newest."""
        self.empty = Text()
        """Shown while there are no entries."""
        self._tops: list[int] = [0]
        self._palette: Palette | None = None
        self._follow = True
        self._idle: Timer | None = None

    # What is shown

    def show(self, entries: list[Entry]) -> None:
        """Show other entries, from their end."""
        self.entries = entries
        self.chosen = None
        self._follow = True
        self.changed()

    def changed(self, entry: Entry | None = None) -> None:
        """An entry (or all) changed: draw it and keep the view where it was, at the end if it was there."""
        if entry is not None:
            entry.touch()
        if not self.is_attached or not self.size.width:
            return
        self._measure()
        if self._follow:
            self.to_end()
        else:
            self._settle()
        self.refresh()

    @property
    def follows(self) -> bool:
        """Whether new text moves the view."""
        return self._follow

    def to_end(self) -> None:
        """Show the newest text and follow it."""
        self._follow = True
        self._settle()
        self.scroll_to(y=self.max_scroll_y, animate=False, force=True)

    def to_entry(self, key: int) -> None:
        """Bring a message into view and choose it."""
        at = next((n for n, entry in enumerate(self.entries) if entry.key == key), None)
        if at is None:
            return
        self.chosen = key
        self._follow = False
        for _ in range(4):  # drawing what is in view corrects guesses above, which moves the message
            self.scroll_to(y=min(self._tops[at], self.max_scroll_y), animate=False, force=True)
            before = self._tops[at]
            self._settle()
            if self._tops[at] == before:
                break
        self._note_end()
        self.refresh()

    def choose(self, step: int) -> None:
        """Choose the message above (-1) or below (+1) the chosen one; past the newest nothing is chosen."""
        keys = [entry.key for entry in self.entries]
        if not keys:
            return
        at = (keys.index(self.chosen) if self.chosen in keys else len(keys)) + step
        if at >= len(keys):
            self.chosen = None
            self.to_end()
            self.refresh()
        else:
            self.to_entry(keys[max(at, 0)])

    # Measuring

    @property
    def palette(self) -> Palette:
        """The styles of the current theme."""
        if self._palette is None:
            self._palette = palette_of(self.app.current_theme)
        return self._palette

    @property
    def _width(self) -> int:
        return max(self.scrollable_content_region.width - MARGIN - 1, 10)

    def _measure(self) -> None:
        width = self._width
        self._tops = list(accumulate((entry.guess(width) for entry in self.entries), initial=0))
        size = Size(self.scrollable_content_region.width, self._tops[-1])
        if size != self.virtual_size:
            self.virtual_size = size

    def _settle(self) -> None:
        """Draw what is in view or near it; where that corrects guesses, keep the view on the same text."""
        for _ in range(8):
            height = self.size.height
            top = self.max_scroll_y if self._follow else round(self.scroll_y)
            if not self._draw_between(top - height, top + 2 * height):
                return

    def _draw_between(self, first: int, last: int) -> bool:
        """Draw the entries between two lines; whether any had another height than guessed."""
        width, palette = self._width, self.palette
        low = max(bisect_right(self._tops, first) - 1, 0)
        moved = False
        for n in range(low, len(self.entries)):
            if self._tops[n] > last:
                break
            entry = self.entries[n]
            if not entry.exact(width, palette):
                moved |= self._draw(n)
        return moved

    def _draw(self, n: int) -> bool:
        """Draw one entry; whether its height was not the one guessed. The view stays on the same text."""
        entry, width = self.entries[n], self._width
        before = self._tops[n + 1] - self._tops[n]
        change = len(entry.lines(width, self.palette)) - before
        if not change:
            return False
        above = self._tops[n + 1] <= round(self.scroll_y)
        here = self.scroll_y
        self._measure()
        if above and not self._follow:
            self.scroll_to(y=here + change, animate=False, force=True)
        return True

    def _measure_some(self) -> None:
        """In an idle moment, draw a few entries that nobody has looked at yet, newest first."""
        until = perf_counter() + IDLE_WORK
        width, palette = self._width, self.palette
        moved = False
        for n in range(len(self.entries) - 1, -1, -1):
            if not self.entries[n].exact(width, palette):
                moved |= self._draw(n)
                if perf_counter() > until:
                    break
        else:
            if self._idle is not None:
                self._idle.pause()
        if moved and self._follow:
            self.to_end()

    # Drawing

    def render_line(self, y: int) -> Strip:
        """One line of the view."""
        width = self.scrollable_content_region.width
        row = round(self.scroll_y) + y
        style = self.rich_style
        found = self._line_at(row)
        if found is None:
            return self._empty_line(row, width, style)
        entry, line = found
        text = line.text
        if (selection := self.text_selection) is not None and (span := selection.get_span(row)) is not None:
            start, end = max(span[0] - MARGIN, 0), span[1] - MARGIN if span[1] >= 0 else len(text)
            text = text.copy()
            text.stylize(self.screen.get_component_rich_style("screen--selection"), start, max(end, start))
        bar = Segment("▌ " if entry.key == self.chosen else "  ", self.palette.accent2)
        strip = Strip([bar, *_segments(text, self.app.console)], MARGIN + text.cell_len)
        return strip.crop_extend(0, width, style).apply_style(style).apply_offsets(0, row)

    def _empty_line(self, row: int, width: int, style: Style) -> Strip:
        rows = list(self.empty.split("\n", allow_blank=True)) if not self.entries else []
        at = row - max(self.size.height // 3, 0)
        if not 0 <= at < len(rows):
            return Strip.blank(width, style)
        indent = Segment(" " * max((width - max(line.cell_len for line in rows)) // 2, MARGIN))
        strip = Strip([indent, *_segments(rows[at], self.app.console)])
        return strip.crop_extend(0, width, style).apply_style(style)

    def _line_at(self, row: int) -> tuple[Entry, Line] | None:
        if not 0 <= row < self._tops[-1]:
            return None
        n = bisect_right(self._tops, row) - 1
        lines = self.entries[n].lines(self._width, self.palette)
        at = row - self._tops[n]
        return (self.entries[n], lines[at]) if at < len(lines) else None

    def plain(self) -> str:
        """Everything that can be scrolled to, as text."""
        width, palette = self._width, self.palette
        return "\n".join(line.text.plain for entry in self.entries for line in entry.lines(width, palette))

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, without the margin."""
        start, end = selection
        first = start.y if start is not None else 0
        last = end.y if end is not None else self._tops[-1] - 1
        out = []
        for row in range(first, last + 1):
            found = self._line_at(row)
            plain = found[1].text.plain if found else ""
            span = selection.get_span(row) or (0, 0)
            stop = len(plain) if span[1] < 0 else max(span[1] - MARGIN, 0)
            out.append(plain[max(span[0] - MARGIN, 0) : stop].rstrip())
        return "\n".join(out), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Another part is selected."""
        self.refresh()

    # What happens to it

    def on_mount(self) -> None:
        """Start the idle work."""
        super().on_mount()
        self._idle = self.set_interval(IDLE_SECONDS, self._measure_some)

    def on_resize(self, event: events.Resize) -> None:
        """Other widths need other lines."""
        if self._idle is not None:
            self._idle.resume()
        at = None if self._follow else self._top_entry()
        self._measure()
        if at is None:
            self.to_end()
        else:
            self._settle()
            self.scroll_to(y=self._tops[at], animate=False, force=True)

    def notify_style_update(self) -> None:
        """The theme may have changed."""
        super().notify_style_update()
        self._palette = None
        if self._idle is not None:
            self._idle.resume()
        self.changed()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw what comes into view; at the end, follow again."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._note_end(new_value < old_value)
            if not self._follow:
                self._settle()

    def on_click(self, event: events.Click) -> None:
        """A click on a line that does something."""
        found = self._line_at(round(self.scroll_y) + event.y)
        if found is not None and found[1].action:
            self.post_message(self.Clicked(found[0], found[1].action))

    def _note_end(self, up: bool = True) -> None:
        at_end = round(self.scroll_y) >= self.max_scroll_y
        if at_end or up:
            self._follow = at_end

    def _top_entry(self) -> int:
        return max(min(bisect_right(self._tops, round(self.scroll_y)), len(self.entries)) - 1, 0)


def _segments(text: Text, console: Console) -> Iterable[Segment]:
    """The pieces of a line; rich leaves the text's own style out where nothing else styles it."""
    style = text.style if isinstance(text.style, Style) else None
    return Segment.apply_style(text.render(console), style)
