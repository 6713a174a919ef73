"""The chat screen: lays out the widgets, shows the conversation, and answers the keys."""

import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import OptionList

from clover_local.chat.protocol import Died, Failed, Gauge, Loading, Overflow, Ready, Report
from clover_local.chat.store import Found
from clover_local.chat.tree import Message, alternatives
from clover_local.errors import CloverError
from clover_local.tui.bars import Hints, Status, TitleBar
from clover_local.tui.chatlist import ChatList
from clover_local.tui.commands import complete, is_command
from clover_local.tui.composer import Composer, Offers
from clover_local.tui.conversation import Conversation, Live, trouble_of
from clover_local.tui.dialogs import AskLine, Confirm, Find
from clover_local.tui.entry import Entry
from clover_local.tui.figures import footer
from clover_local.tui.markdown import Prose
from clover_local.tui.notice import Notice, NoticeBar
from clover_local.tui.slash import Slash
from clover_local.tui.speed import FULL, Speed, SpeedLine
from clover_local.tui.transcript import Transcript

if TYPE_CHECKING:
    from clover_local.tui.app import CloverApp

WIDE, TALL = (
    100,
    24,
)  # columns from which the chat list stands at the left; rows from which the block is drawn
TICK = 0.25  # seconds between two looks at the clock while an answer is written


class ChatScreen(Screen[None]):
    """The one screen people keep open."""

    app: "CloverApp"

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
        super().__init__(id="chat")
        self.editing: int | None = None
        self.status = Status(self.app.link.choice.model, self.app.mode_label)
        self.slash = Slash(self)
        self._list_wanted = True

    @property
    def conversation(self) -> Conversation:
        """What is shown."""
        return self.app.conversation

    def compose(self) -> ComposeResult:
        """The lines and panes."""
        yield TitleBar(self.status, id="title")
        with Horizontal(id="main"):
            yield ChatList(id="chats")
            with Vertical(id="column"):
                yield Transcript(id="transcript")
                yield NoticeBar(id="notice")
                yield SpeedLine(id="speed")
                yield Offers(id="offers")
                yield Composer(id="composer")
        yield Hints(id="hints")

    def on_mount(self) -> None:
        """Find the widgets once, then show what is there."""
        self.transcript = self.query_one(Transcript)
        self.composer = self.query_one(Composer)
        self.speed = self.query_one(SpeedLine)
        self.notice = self.query_one(NoticeBar)
        self.list = self.query_one(ChatList)
        self.composer.complete_line = lambda line: complete(line, {"model": self.app.known_models()})
        self.composer.focus()
        self.set_interval(TICK, self._tick)
        self.branch_changed()
        self._hint()

    def on_resize(self) -> None:
        """Fold the chat list on narrow terminals."""
        self._place_list()
        if live := self.conversation.live_here:
            self._live_entry(live).strip_rows = self._strip_rows

    @property
    def _strip_rows(self) -> int:
        return 2 if self.size.height >= TALL else 0

    # What the conversation says (conversation.View)

    def branch_changed(self) -> None:
        """Show the messages of the branch."""
        conversation = self.conversation
        branch, first = conversation.branch, conversation.first_sent()
        places = alternatives(conversation.messages)
        entries = [self._entry(m, places[m.id], n < first) for n, m in enumerate(branch)]
        self.transcript.empty = self._welcome()
        self.transcript.show(entries)
        self._draw_speed()

    def chats_changed(self) -> None:
        """Show the list of chats."""
        c = self.conversation
        self.list.show(c.chats, c.chat.id if c.chat else None, c.live.chat if c.live else None)

    def answer_changed(self) -> None:
        """Noted; `receive` draws once per batch."""

    def answer_ended(self, live: Live, trouble: str) -> None:
        """Draw the whole answer once, with its figures."""
        self._draw_answer(live)
        entry = next((e for e in self.transcript.entries if e.key == live.message.id), None)
        if entry is not None:
            entry.writing, entry.block = False, None
            entry.prose.finish()
            entry.trouble = trouble
            message = self.conversation.messages.get(live.message.id)
            if message is not None:
                entry.footer = _footer(message)
                entry.trouble = trouble or trouble_of(message, time.time())
            self.transcript.changed(entry)
        self.run_worker(self.conversation.load_chats())
        self._draw_speed()
        self._hint()
        self._warn_of_context(live)

    def overflowed(self, report: Overflow) -> None:
        """Offer to drop the oldest turns."""
        text = f"This conversation takes {report.prompt_tokens:,} of {report.n_ctx:,} tokens of context."
        if not report.drop:
            self.notify_about(
                Notice(f"{text} Shorten the message, or start with a larger --ctx-size.", "warning")
            )
            return
        drop = report.drop
        offer = f"stops sending the {drop} oldest messages and asks again"
        self.notify_about(Notice(text, "warning", offer, lambda: self.attempt(self._drop_and_ask(drop))))

    def counted(self, tokens: int, n_ctx: int) -> None:
        """Show how full the context is."""
        self._draw_speed()

    # What the engine says

    def receive(self, reports: list[Report]) -> None:
        """Take in a batch of reports, then draw once."""
        for report in reports:
            self._engine_report(report)
            self.conversation.receive(report)
        live = self.conversation.live_here
        if live is not None:
            self._draw_answer(live)
        self._draw_speed()

    def _engine_report(self, report: Report) -> None:
        restart = self.app.restart_engine
        match report:
            case Loading(done, total):
                self._show_status(state="loading", loaded=(done, total))
            case Ready(about):
                label = self.app.mode_label
                self._show_status(state="ready", model=about.name, device=about.device, mode=label)
                self.notify_about(None)
                self.conversation.measure()
            case Gauge(free, total):
                used = (total - free, total) if self.status.device != "CPU" else (0, 0)
                self._show_status(memory=used)
            case Failed(None, sentence, hint):
                self._show_status(state="gone")
                text = f"{sentence}." if not sentence.endswith(".") else sentence
                self.notify_about(Notice(f"{text} {hint or ''}".strip(), "error", "tries again", restart))
            case Died(reason, hint):
                self._show_status(state="gone")
                text = f"{reason[:1].upper()}{reason[1:]}. The chat is safe."
                self.notify_about(Notice(f"{text} {hint or ''}".strip(), "error", "restarts it", restart))

    def engine_starts(self, model: str) -> None:
        """An engine is being started."""
        self._show_status(state="loading", model=model, loaded=(0, 0), memory=(0, 0), device="")

    def _show_status(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        self.query_one(TitleBar).show(self.status)
        if not self.conversation.branch:
            self.transcript.empty = self._welcome()
            self.transcript.refresh()

    def settings_changed(self) -> None:
        """The mode or the sampling changed."""
        self._show_status(mode=self.app.mode_label)

    # Drawing

    def _entry(self, message: Message, place: tuple[int, int], dropped: bool) -> Entry:
        live = self.conversation.live
        entry = Entry(message.id, message.role, Prose(message.content), branch=place, dropped=dropped)
        entry.reasoning, entry.thought_tokens = message.reasoning, message.thought
        if live is not None and live.message.id == message.id:
            entry.prose = Prose()
            entry.prose.append(live.content)
            entry.writing, entry.strip_rows, live.fresh = True, self._strip_rows, ""
        elif message.role == "assistant":
            entry.footer, entry.trouble = _footer(message), trouble_of(message, time.time())
        return entry

    def _live_entry(self, live: Live) -> Entry:
        last = self.transcript.entries[-1] if self.transcript.entries else None
        return last if last and last.key == live.message.id else Entry(live.message.id, "assistant")

    def _draw_answer(self, live: Live) -> None:
        entry = self._live_entry(live)
        entry.prose.append(live.fresh)
        live.fresh = ""
        entry.reasoning, entry.thought_tokens = live.reasoning, live.thought_tokens
        entry.block = live.block
        entry.activity = self._activity(live)
        self.transcript.changed(entry)

    def _activity(self, live: Live) -> str:
        if not self.app.link.ready:
            return "will be answered when the model is loaded"
        done, total = live.prompt
        if total and live.meter.started is None:
            return f"reads the conversation, {done:,} of {total:,} tokens"
        return "stops…" if live.stopping else "…"

    def _draw_speed(self) -> None:
        c, about = self.conversation, self.app.link.about
        live = c.live_here
        n_ctx = about.n_ctx if about else 0
        if live is None:
            last = c.last_answer()
            rate = last.stats.tokens_per_second if last else 0.0
            self.speed.show(Speed(self.speed.speed.sparkline if rate else "", rate, "", c.used, n_ctx))
            return
        rows = len(live.block.tokens) if live.block else 0
        known = sum(t is not None for t in live.block.tokens) if live.block else 0
        used = live.prompt_tokens + live.meter.tokens
        activity = "" if live.meter.tokens else self._activity(live)
        rate = live.meter.rate if live.meter.tokens else 0.0
        self.speed.show(Speed(live.meter.sparkline(), rate, activity, used, n_ctx, known, rows))

    def _welcome(self) -> Text:
        p = self.transcript.palette
        hint = "Ask something. / lists commands, f1 the keys."
        lines = [(f"{self.status.model}\n", p.accent), (f"{hint}\n", p.muted)]
        if self.status.state == "loading" and self.status.loaded[1]:
            share = self.status.loaded[0] / self.status.loaded[1]
            lines.append((f"\n{'━' * round(share * 30)}", p.accent))
            lines.append(("━" * (30 - round(share * 30)), p.faint))
        if self.conversation.system:
            lines.append((f"\nSystem: {' '.join(self.conversation.system.split())[:200]}", p.faint))
        return Text.assemble(*lines)

    def _hint(self) -> None:
        hints = self.query_one(Hints)
        tail = (("ctrl+p", "commands"), ("ctrl+q", "quit"))
        if self.editing is not None:
            hints.show(("enter", "sends the edited question"), ("esc", "leaves it"), *tail)
        elif self.conversation.live is not None:
            hints.show(("esc", "stop"), ("ctrl+n", "new chat"), ("ctrl+b", "chats"), *tail)
        else:
            keys = (("ctrl+r", "regenerate"), ("ctrl+e", "edit"), ("ctrl+y", "copy"), ("ctrl+n", "new"))
            hints.show(*keys, *tail, ("ctrl+b", "chats"), ("ctrl+f", "find"))

    def _tick(self) -> None:
        if self.conversation.live is not None:
            self._draw_speed()
            self.run_worker(self.conversation.save_live())

    def _place_list(self) -> None:
        wide = self.size.width >= WIDE
        over = not wide and self.list.has_class("-over")
        self.list.set_class((wide and self._list_wanted) or over, "-shown")
        if wide:
            self.list.remove_class("-over")

    def _warn_of_context(self, live: Live) -> None:
        used = self.conversation.used
        if live.stats is None or not live.n_ctx or used < FULL * live.n_ctx or self.conversation.live_here:
            return
        sent = len(self.conversation.branch) - self.conversation.first_sent()
        half = sent // 4 * 2
        text = f"The context is {used / live.n_ctx:.0%} full: a long answer may not fit."
        act = (lambda: self.attempt(self._drop(half))) if half else None
        offer = f"stops sending the {half} oldest messages" if half else ""
        self.notify_about(Notice(text.replace("%", " %"), "warning", offer, act))

    # What goes wrong, and what is offered

    def notify_about(self, notice: Notice | None) -> None:
        """Show a notice, or none."""
        self.notice.show(notice)

    def attempt(self, work: Coroutine[object, object, object]) -> None:
        """Do something that may fail with a sentence, which then is the notice."""
        self.run_worker(self._attempt(work))

    async def _attempt(self, work: Coroutine[object, object, object]) -> None:
        try:
            await work
        except CloverError as error:
            text = f"{str(error)[:1].upper()}{str(error)[1:]}"
            self.notify_about(Notice(f"{text}; {error.hint}" if error.hint else text, "warning"))
        self._hint()

    def action_offer(self) -> None:
        """F5: do what the notice offers."""
        notice = self.notice.notice
        if notice is not None and notice.act is not None:
            self.notify_about(None)
            notice.act()

    async def _drop(self, turns: int) -> None:
        await self.conversation.drop(turns)

    async def _drop_and_ask(self, turns: int) -> None:
        await self.conversation.drop(turns)
        await self.conversation.regenerate()

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
        self._hint()

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
            self._hint()

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
            if self.list.has_focus or not self._list_wanted:
                self._list_wanted = not self._list_wanted
            shown = self._list_wanted
        else:
            shown = not self.list.has_class("-over")
            self.list.set_class(shown, "-over")
        self._place_list()
        (self.list if shown else self.composer).focus()

    # The other widgets

    @on(OptionList.OptionSelected, "#chats")
    def _chat_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.list.remove_class("-over")
        self._place_list()
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


def _footer(message: Message) -> tuple[str, ...]:
    if not message.stats.tokens:
        return ()
    mode = str(message.settings.get("mode", ""))
    if mode == "self":
        mode = f"self/{message.settings.get('accept', 'exact')}"
    return footer(message.stats, mode)
