"""Where a message is written: several lines, history, completion of commands, and large pastes kept small."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from clover_local.tui.commands import Completion

TALLEST = 8  # lines
LARGE_LINES, LARGE_CHARACTERS = 30, 4000  # a paste above either is shown as one token


class Offers(OptionList, can_focus=False):
    """The completions of a command, above the composer."""

    def show(self, offers: list[Completion]) -> None:
        """List the offers; none hides the list."""
        self.clear_options()
        width = max((len(o.label) for o in offers), default=0)
        for one in offers:
            self.add_option(Option(Content.assemble(one.label.ljust(width + 3), (one.help, "dim"))))
        self.display = bool(offers)
        if offers:
            self.highlighted = 0


class Composer(TextArea):
    """Enter sends, Ctrl+J and Shift+Enter begin a new line, up and down go through what was asked before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "earlier", "Earlier", show=False),
        Binding("down", "later", "Later", show=False),
        Binding("tab", "complete", "Complete", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """The message is to be sent."""

        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, tab_behavior="focus", highlight_cursor_line=False,
            placeholder="Message…   enter sends, ctrl+j new line, / commands",
        )  # fmt: skip
        self.asked: list[str] = []
        self.complete_line: Callable[[str], list[Completion]] = lambda line: []
        self._at: int | None = None  # place in the history
        self._draft = ""
        self._pastes: dict[str, str] = {}
        self._offers: list[Completion] = []

    # Text

    @property
    def message(self) -> str:
        """The text with every paste in full."""
        text = self.text
        for token, paste in self._pastes.items():
            text = text.replace(token, paste)
        return text

    def write(self, text: str) -> None:
        """Replace the text; a large one goes in like a paste."""
        self._pastes.clear()
        self.text = self._paste_token(text) if _is_large(text) else text
        self.move_cursor(self.document.end)

    def remember(self, text: str) -> None:
        """Add a message to the history."""
        if text in self.asked:
            self.asked.remove(text)
        self.asked.append(text)

    def _paste_token(self, text: str) -> str:
        token = (
            f"[paste {len(self._pastes) + 1}: {text.count(chr(10)) + 1:,} lines, {len(text):,} characters]"
        )
        self._pastes[token] = text
        return token

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        self.insert(self._paste_token(text) if _is_large(text) else text)

    # Keys

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self._enter()
        elif event.key in ("ctrl+j", "shift+enter", "alt+enter"):
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.key == "escape" and self._offers:
            event.stop()
            event.prevent_default()
            self._show([])
        else:
            await super()._on_key(event)

    def _enter(self) -> None:
        if self._offers and self._take():
            return
        text = self.message.strip()
        if text:
            self._show([])
            self.post_message(self.Submitted(text))

    def clear_message(self) -> None:
        """Empty the composer after its message was taken."""
        self._at, self._draft = None, ""
        self._pastes.clear()
        self.text = ""

    # History

    def action_earlier(self) -> None:
        """The offer above, the line above, or what was asked before."""
        if self._offers:
            self._list.action_cursor_up()
        elif self.cursor_location[0] > 0 or not self.asked:
            self.action_cursor_up()
        else:
            if self._at is None:
                self._draft, self._at = self.message, len(self.asked)
            self._at = max(self._at - 1, 0)
            self.write(self.asked[self._at])

    def action_later(self) -> None:
        """The offer below, the line below, or what was asked after."""
        if self._offers:
            self._list.action_cursor_down()
        elif self._at is None or self.cursor_location[0] < self.document.line_count - 1:
            self.action_cursor_down()
        elif self._at + 1 < len(self.asked):
            self._at += 1
            self.write(self.asked[self._at])
        else:
            self._at = None
            self.write(self._draft)

    # Completion

    def action_complete(self) -> None:
        """Take the offer that is highlighted, or go to the next place on screen."""
        if not self._take():
            self.screen.focus_next()

    @property
    def _list(self) -> Offers:
        return self.screen.query_one(Offers)

    def _show(self, offers: list[Completion]) -> None:
        if offers != self._offers:
            self._offers = offers
            self._list.show(offers)

    def _take(self) -> bool:
        """Put the highlighted offer into the line; whether that changed it."""
        if not self._offers:
            return False
        line = self._offers[self._list.highlighted or 0].line
        changed = line.rstrip() != self.text.rstrip()
        self.text = line
        self.move_cursor(self.document.end)
        self._show(self.complete_line(line) if line.endswith(" ") else [])
        return changed

    def on_text_area_changed(self) -> None:
        """Fit the height to the text and look for completions."""
        rows = min(max(self.wrapped_document.height, 1), TALLEST)
        self.styles.height = rows + 2
        self._show(self.complete_line(self.text) if self._at is None else [])


def _is_large(text: str) -> bool:
    return text.count("\n") >= LARGE_LINES or len(text) > LARGE_CHARACTERS
