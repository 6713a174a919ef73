"""The list of chats at the left."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from clover_local.chat.store import Chat
from clover_local.tui.wrap import clean


class ChatList(OptionList):
    """Chats, last used first. Enter opens one, Delete removes one after a question, F2 renames it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "remove", "Delete", show=False),
        Binding("f2", "rename", "Rename", show=False),
    ]

    class Remove(Message):
        """The highlighted chat is to be removed."""

        def __init__(self, chat: int) -> None:
            super().__init__()
            self.chat = chat

    class Rename(Message):
        """The highlighted chat is to be renamed."""

        def __init__(self, chat: int) -> None:
            super().__init__()
            self.chat = chat

    def show(self, chats: Sequence[Chat], shown: int | None, writing: int | None) -> None:
        """List the chats; `shown` is on screen, `writing` is being answered."""
        highlighted, place = self.highlighted_chat, self.highlighted or 0
        self.clear_options()
        for chat in chats:
            mark = "▸" if chat.id == shown else "●" if chat.id == writing else " "
            label = Text(
                f"{mark} {' '.join(clean(chat.title).split())}", no_wrap=True, overflow="ellipsis", end=""
            )
            self.add_option(Option(label, id=str(chat.id)))
        ids = [chat.id for chat in chats]
        wanted = highlighted if highlighted in ids and self.has_focus else shown
        if wanted in ids:
            self.highlighted = ids.index(wanted)
        elif ids and self.has_focus:
            self.highlighted = min(place, len(ids) - 1)  # the chat below one that was deleted

    def on_focus(self) -> None:
        """There is always a chat to act on."""
        if self.highlighted is None and self.option_count:
            self.highlighted = 0

    @property
    def highlighted_chat(self) -> int | None:
        """The chat that is highlighted."""
        option = self.highlighted_option
        return int(option.id) if option is not None and option.id else None

    def action_remove(self) -> None:
        """Ask to remove the highlighted chat."""
        if (chat := self.highlighted_chat) is not None:
            self.post_message(self.Remove(chat))

    def action_rename(self) -> None:
        """Ask to rename the highlighted chat."""
        if (chat := self.highlighted_chat) is not None:
            self.post_message(self.Rename(chat))
