"""The chat screen's looks: lays out the widgets and shows what the conversation and the engine say."""

import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from clover_local.chat.protocol import Died, Failed, Gauge, Loading, Overflow, Ready, Report
from clover_local.chat.tree import Message, alternatives
from clover_local.errors import CloverError
from clover_local.tui.bars import Hints, Status, TitleBar
from clover_local.tui.chatlist import ChatList
from clover_local.tui.commands import complete
from clover_local.tui.composer import Composer, Offers
from clover_local.tui.conversation import Conversation
from clover_local.tui.entry import Entry
from clover_local.tui.figures import footer
from clover_local.tui.live import Live, trouble_of
from clover_local.tui.markdown import Prose
from clover_local.tui.notice import Notice, NoticeBar
from clover_local.tui.speed import FULL, Speed, SpeedLine
from clover_local.tui.transcript import Transcript

if TYPE_CHECKING:
    from clover_local.tui.app import CloverApp

WIDE = 100  # columns from which the chat list stands at the left
TALL = 24  # rows from which the block is drawn
ROOMY = 28  # rows from which the conversation keeps a distance from the title
TICK = 0.25  # seconds between two looks at the clock while an answer is written


class ChatView(Screen[None]):
    """Everything of the chat screen but its keys."""

    app: "CloverApp"

    def __init__(self) -> None:
        super().__init__(id="chat")
        self.editing: int | None = None
        self.status = Status(self.app.link.choice.model, self.app.mode_label)
        self.list_wanted = True

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
        self.hint()

    def on_resize(self) -> None:
        """Fold the chat list on narrow terminals, and leave a line free on tall ones."""
        self.set_class(self.size.height >= ROOMY, "-roomy")
        self.place_list()
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
        self.attempt(self.conversation.load_chats())
        self._draw_speed()
        self.hint()
        self._warn_of_context(live)

    def failed(self, error: CloverError) -> None:
        """Say what could not be stored."""
        text = f"{str(error)[:1].upper()}{str(error)[1:]}"
        self.notify_about(Notice(f"{text}; {error.hint}" if error.hint else text, "warning"))

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

    def hint(self) -> None:
        """Show the keys that do something now."""
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
            self.attempt(self.conversation.save_live())

    def place_list(self) -> None:
        """Show the chat list at the left where there is room and it is wanted, or over the chat."""
        wide = self.size.width >= WIDE
        over = not wide and self.list.has_class("-over")
        self.list.set_class((wide and self.list_wanted) or over, "-shown")
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
            self.failed(error)
        self.hint()

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


def _footer(message: Message) -> tuple[str, ...]:
    if not message.stats.tokens:
        return ()
    mode = str(message.settings.get("mode", ""))
    if mode == "self":
        mode = f"self/{message.settings.get('accept', 'exact')}"
    return footer(message.stats, mode)
