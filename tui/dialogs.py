"""Small screens over the chat: a question, a line of text, a page to read, a search."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from clover_local.chat.store import Found
from clover_local.tui.wrap import clean


class Confirm(ModalScreen[bool]):
    """A question: y or enter says yes, anything else no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """The question and its keys."""
        with Vertical(classes="dialog"):
            yield Label(self.question, markup=False)
            yield Label("y yes · n no", classes="hint")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class AskLine(ModalScreen[str | None]):
    """One line of text; escape gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self.heading, self.value = title, value

    def compose(self) -> ComposeResult:
        """A title and an input."""
        with Vertical(classes="dialog"):
            yield Label(self.heading, classes="title", markup=False)
            yield Input(self.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter takes the text."""
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Close without a text."""
        self.dismiss(None)


class Page(ModalScreen[None]):
    """A text to read; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,f1", "close", "Close")]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self.heading, self.text = title, text

    def compose(self) -> ComposeResult:
        """A title and a scrolling text."""
        with Vertical(classes="dialog page"):
            yield Label(self.heading, classes="title", markup=False)
            with VerticalScroll():
                yield Static(self.text)
            yield Label("esc closes", classes="hint")

    def action_close(self) -> None:
        """Close the page."""
        self.dismiss(None)


class Find(ModalScreen[Found | None]):
    """Searches the messages of all chats while one types; enter goes to the message."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
    ]

    def __init__(self, look: Callable[[str], Awaitable[list[Found]]], text: str = "") -> None:
        super().__init__()
        self.look, self.text = look, text
        self.found: list[Found] = []

    def compose(self) -> ComposeResult:
        """An input and what was found."""
        with Vertical(classes="dialog page"):
            yield Label("Find in all chats", classes="title")
            yield Input(self.text, placeholder="text")
            results = OptionList()
            results.can_focus = False
            yield results
            yield Label("enter goes there · esc closes", classes="hint")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search for what is typed now; an older search that still runs is given up."""
        self.run_worker(self._search(event.value), exclusive=True)

    async def _search(self, text: str) -> None:
        self.found = await self.look(text) if text.strip() else []
        results = self.query_one(OptionList)
        results.clear_options()
        for one in self.found:
            who = "You" if one.role == "user" else "Clover"
            label = Text.assemble(
                (clean(one.title), "bold"),
                f"  {who}: {clean(one.excerpt)}",
                no_wrap=True,
                overflow="ellipsis",
            )
            results.add_option(Option(label))
        if self.found:
            results.highlighted = 0

    def on_input_submitted(self) -> None:
        """Enter takes the highlighted message."""
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(self.found[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click takes a message."""
        self.dismiss(self.found[event.option_index])

    def action_move(self, step: int) -> None:
        """Go through what was found."""
        results = self.query_one(OptionList)
        (results.action_cursor_down if step > 0 else results.action_cursor_up)()

    def action_cancel(self) -> None:
        """Close without going anywhere."""
        self.dismiss(None)
