"""The chat screen: what its keys and its widgets' messages do."""

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import OptionList

from clover_local.chat.store import Found
from clover_local.chat.tree import Message
from clover_local.tui.chatlist import ChatList
from clover_local.tui.commands import is_command
from clover_local.tui.composer import Composer
from clover_local.tui.dialogs import AskLine, Confirm, Find
from clover_local.tui.notice import Notice
from clover_local.tui.slash import Slash
from clover_local.tui.transcript import Transcript
from clover_local.tui.view import WIDE, ChatView

if TYPE_CHECKING:
    pass


class ChatScreen(ChatView):
    """The one screen people keep open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop the answer", show=False),
        Binding("ctrl+c", "interrupt", "Copy the selection, or stop", show=False, priority=True),
        Binding("ctrl+r", "regenerate", "Answer anew", priority=True),
        Binding("ctrl+e", "edit", "Edit a question", priority=True),
        Binding("ctrl+y", "copy", "Copy the answer", priority=True),
        Binding("ctrl+n", "new", "New chat", priority=True),
        Binding("ctrl+b", "chats", "Chats", priority=True),
        Binding("ctrl+f", "find", "Find", priority=True),
        Binding("ctrl+o", "fold", "Unfold reasoning", priority=True),
        Binding("f1", "help", "Help"),
        Binding("f5", "offer", "Do what the notice offers", priority=True),
        Binding("alt+up", "choose(-1)", "Choose the message above", priority=True),
        Binding("alt+down", "choose(1)", "Choose the message below", priority=True),
        Binding("alt+left", "switch(-1)", "The answer before", priority=True),
        Binding("alt+right", "switch(1)", "The answer after", priority=True),
        Binding("pageup", "page(-1)", "Scroll up", priority=True),
        Binding("pagedown", "page(1)", "Scroll down", priority=True),
        Binding("ctrl+end", "newest", "The newest text", priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.slash = Slash(self)

    # Keys

    @on(Composer.Submitted)
    def _submitted(self, event: Composer.Submitted) -> None:
        if is_command(event.text):
            self.composer.clear_message()
            self.composer.remember(event.text)
            self.attempt(self.slash.run(event.text))
        else:
            self.attempt(self._send(event.text))

    async def _send(self, text: str) -> None:
        editing = self.editing if self.editing in self.conversation.messages else None
        if editing is None:
            await self.conversation.send(text)
        else:
            await self.conversation.edit(editing, text)
        self._leave_edit()
        self.composer.clear_message()
        self.composer.remember(text)

    def action_stop(self) -> None:
        """Escape leaves what is open, stops the answer, hides the notice, or goes to the newest text."""
        if self.list.has_class("-over"):
            self.action_chats()
        elif self.editing is not None:
            self._leave_edit()
            self.composer.clear_message()
        elif self.conversation.stop():
            return
        elif self.notice.notice is not None:
            self.notify_about(None)
        else:
            self.transcript.choose(len(self.transcript.entries))
        self.composer.focus()
        self.hint()

    def action_interrupt(self) -> None:
        """Ctrl+C copies what is selected; otherwise it stops the answer, and never the program."""
        selected = self.get_selected_text()
        if selected:
            self.app.copy(selected, "the selection")
        elif not self.conversation.stop():
            self.notify_about(Notice("ctrl+q quits"))

    def action_regenerate(self) -> None:
        """Answer the chosen or the newest question anew."""
        self.attempt(self.conversation.regenerate(self.transcript.chosen))

    def action_edit(self) -> None:
        """Take the chosen or the newest question into the composer."""
        branch = self.conversation.branch
        keys = [m.id for m in branch]
        upto = keys.index(self.transcript.chosen) + 1 if self.transcript.chosen in keys else len(branch)
        question = next((m for m in reversed(branch[:upto]) if m.role == "user"), None)
        if question is not None:
            self.editing = question.id
            self.composer.write(question.content)
            self.composer.add_class("-editing")
            self.composer.focus()
            self.hint()

    def _leave_edit(self) -> None:
        self.editing = None
        self.composer.remove_class("-editing")

    def chosen_message(self) -> Message | None:
        """The message that commands are about: the chosen one, else the newest answer."""
        chosen = self.conversation.messages.get(self.transcript.chosen or 0)
        return chosen or self.conversation.last_answer()

    def action_copy(self) -> None:
        """Copy the chosen message or the newest answer."""
        self.attempt(self.slash.run("/copy"))

    def action_new(self) -> None:
        """Begin a new chat."""
        self._leave_edit()
        self.attempt(self.conversation.open(None))
        self.composer.focus()

    def action_find(self, text: str = "") -> None:
        """Search all chats."""

        async def look(wanted: str) -> list[Found]:
            return await self.conversation.shelf(lambda store: store.find(wanted))

        self.app.push_screen(Find(look, text), lambda found: self.attempt(self._go(found)) if found else None)

    async def _go(self, found: Found) -> None:
        await self.conversation.open(found.chat)
        if found.message not in [m.id for m in self.conversation.branch]:
            await self.conversation.show_message(found.message)
        self.call_after_refresh(self.transcript.to_entry, found.message)

    def action_fold(self) -> None:
        """Fold or unfold the chosen message, or the newest one that can be."""
        entries = self.transcript.entries
        entry = next((e for e in entries if e.key == self.transcript.chosen), None)
        entry = entry or next((e for e in reversed(entries) if e.reasoning), None)
        if entry is not None:
            entry.folded = not entry.folded
            self.transcript.changed(entry)

    def action_choose(self, step: int) -> None:
        """Choose another message."""
        self.transcript.choose(step)

    def action_switch(self, step: int) -> None:
        """Show another answer to the same question, or another form of the chosen question."""
        message = self.chosen_message()
        if message is not None:
            self.attempt(self.conversation.switch(message.id, step))

    def action_page(self, step: int) -> None:
        """Scroll by a page."""
        (self.transcript.scroll_page_down if step > 0 else self.transcript.scroll_page_up)(animate=False)

    def action_newest(self) -> None:
        """Go to the newest text."""
        self.transcript.choose(len(self.transcript.entries))

    def action_help(self) -> None:
        """Show keys and commands."""
        self.attempt(self.slash.run("/help"))

    def action_chats(self) -> None:
        """Go to the chat list, show it where it is folded away, or leave it."""
        if self.size.width >= WIDE:
            if self.list.has_focus or not self.list_wanted:
                self.list_wanted = not self.list_wanted
            shown = self.list_wanted
        else:
            shown = not self.list.has_class("-over")
            self.list.set_class(shown, "-over")
        self.place_list()
        (self.list if shown else self.composer).focus()

    # The other widgets

    @on(OptionList.OptionSelected, "#chats")
    def _chat_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.list.remove_class("-over")
        self.place_list()
        self._leave_edit()
        self.composer.focus()
        self.attempt(self.conversation.open(int(event.option_id or 0)))
        self.attempt(self.conversation.load_chats())

    @on(OptionList.OptionSelected, "#offers")
    def _offer_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.composer.action_complete()

    @on(ChatList.Remove)
    def _remove(self, event: ChatList.Remove) -> None:
        title = next((c.title for c in self.conversation.chats if c.id == event.chat), "")

        def answered(yes: bool | None) -> None:
            if yes:
                self.attempt(self.conversation.delete(event.chat))

        self.app.push_screen(Confirm(f"Delete “{title}” for good?"), answered)

    @on(ChatList.Rename)
    def _rename(self, event: ChatList.Rename) -> None:
        title = next((c.title for c in self.conversation.chats if c.id == event.chat), "")

        def answered(new: str | None) -> None:
            if new:
                self.attempt(self.conversation.rename(event.chat, new))

        self.app.push_screen(AskLine("Rename this chat", title), answered)

    @on(Transcript.Clicked)
    def _line_clicked(self, event: Transcript.Clicked) -> None:
        if event.action == "fold":
            event.entry.folded = not event.entry.folded
            self.transcript.changed(event.entry)
        elif event.action == "switch":
            at, of = event.entry.branch
            self.attempt(self.conversation.switch(event.entry.key, 1 if at < of else 1 - of))
