"""The same question written plain and by self-speculation, side by side.

One engine answers both, one after the other and from the same state, so neither slows the other down.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Static

from clover_local.chat.protocol import (
    Ask,
    Cancel,
    Died,
    Failed,
    Overflow,
    Reply,
    Report,
    Request,
    Started,
    Turn,
)
from clover_local.chat.reasoning import Splitter
from clover_local.decoding.events import Block, Done, Prefilled, Stats, Tokens
from clover_local.decoding.settings import Mode, Settings
from clover_local.tui.entry import Entry
from clover_local.tui.figures import Meter, footer
from clover_local.tui.live import masked
from clover_local.tui.speed import Speed, SpeedLine
from clover_local.tui.theme import palette_of
from clover_local.tui.transcript import Transcript
from clover_local.tui.wrap import clean

FIRST_ID = 1_000_000_000  # ids of the compare view never meet those of the conversation
_ids = count(FIRST_ID)


class Side:
    """One of the two answers."""

    def __init__(self, mode: Mode, settings: Settings) -> None:
        self.mode = mode
        self.settings = replace(settings, mode=mode)
        self.ask = next(_ids)
        self.entry = Entry(self.ask, "assistant", name=mode, writing=True, activity="waits for its turn")
        self.meter = Meter()
        self.splitter = Splitter(False)
        self.stats: Stats | None = None
        self.reason = ""

    def take(self, event: object) -> None:
        """Take in one event of the answer."""
        match event:
            case Prefilled():
                self.meter.start()
            case Block(tokens, confidence, text):
                self.entry.block = Block(tokens[1:], confidence[1:], text[1:])
            case Tokens(ids, _, _, text):
                self.meter.add(len(ids))
                self.entry.block = masked(self.entry.block)
                self.put(*self.splitter.feed(text))
            case Done(reason, stats):
                self.put(*self.splitter.finish())
                self.stats, self.reason = stats, reason
                self.entry.writing = False
                self.entry.prose.finish()
                self.entry.footer = footer(stats, self.mode)

    def put(self, reasoning: str, answer: str) -> None:
        """Add text to the entry."""
        self.entry.reasoning += reasoning
        if answer:
            self.entry.prose.append(answer)


class Compare(Screen[tuple[str, str, Side] | None]):
    """Runs both answers; closes with the one to keep, or with nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "Back", priority=True),
        Binding("1", "keep(0)", "Keep plain"),
        Binding("2", "keep(1)", "Keep self"),
    ]

    def __init__(
        self,
        question: str,
        turns: tuple[Turn, ...],
        settings: Settings,
        thinking: bool | None,
        send: Callable[[Request], None],
    ) -> None:
        super().__init__()
        self.question, self.turns, self.thinking, self.send = question, turns, thinking, send
        self.sides = [Side("plain", settings), Side("self", settings)]
        self.trouble = ""

    def compose(self) -> ComposeResult:
        """The question, two columns, the outcome."""
        yield Static(
            Text(" ".join(clean(self.question).split()), no_wrap=True, overflow="ellipsis"), id="question"
        )
        with Horizontal():
            for side in self.sides:
                with Vertical(classes="side"):
                    yield Transcript(id=f"{side.mode}-answer")
                    yield SpeedLine(id=f"{side.mode}-speed")
        yield Static(id="outcome")
        yield Static("esc back · 1 keep plain · 2 keep self", id="compare-hints")

    def on_mount(self) -> None:
        """Ask for both; the engine answers the second when the first is complete."""
        for side in self.sides:
            self.query_one(f"#{side.mode}-answer", Transcript).show([side.entry])
            self.send(Ask(side.ask, self.turns, side.settings, self.thinking))
        self._draw()

    def receive(self, report: Report) -> None:
        """Take in a report about one of the two answers."""
        side = next((s for s in self.sides if s.ask == getattr(report, "id", None)), None)
        if isinstance(report, Died):
            self.trouble = f"the engine ended: {report.reason}"
        elif side is not None:
            match report:
                case Started(_, _, _, reasoning):
                    side.splitter = Splitter(reasoning)
                    side.entry.activity = "reads the question…"
                case Reply(_, event, thought):
                    side.take(event)
                    side.entry.thought_tokens += thought
                case Failed(_, sentence):
                    self.trouble = sentence
                case Overflow():
                    self.trouble = "the conversation does not fit into the context"
            self.query_one(f"#{side.mode}-answer", Transcript).changed(side.entry)

    def draw(self) -> None:
        """Bring the figures up to date."""
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        for side in self.sides:
            done = side.stats is not None
            rate = (
                side.stats.tokens_per_second if side.stats else side.meter.rate if side.meter.tokens else 0.0
            )
            activity = f"{side.stats.tokens} tokens in {side.stats.seconds:.2f} s" if side.stats else ""
            line = self.query_one(f"#{side.mode}-speed", SpeedLine)
            line.show(Speed(side.meter.sparkline(), rate, activity if done else side.entry.activity))
            if side.meter.started is not None:
                side.entry.activity = ""
        self.query_one("#outcome", Static).update(self._outcome())

    def _outcome(self) -> Text:
        palette = palette_of(self.app.current_theme)
        plain, own = (side.stats for side in self.sides)
        if self.trouble:
            return Text(self.trouble, palette.error)
        if plain is None or own is None:
            return Text("One engine, one after the other: plain first, then self.", palette.muted)
        same = self.sides[0].entry.source == self.sides[1].entry.source
        text = "the same text" if same else "the texts differ"
        ratio = own.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else 0.0
        return Text.assemble(
            (f"self ran at {ratio:.2f}× the speed of plain", palette.accent),
            (f" · {text} · one engine, one after the other", palette.muted),
        )

    def action_keep(self, at: int) -> None:
        """Close and add the question with this answer to the chat."""
        side = self.sides[at]
        if side.stats is not None:
            self.dismiss((self.question, side.mode, side))

    def action_leave(self) -> None:
        """Stop what still runs and close."""
        for side in self.sides:
            if side.stats is None:
                self.send(Cancel(side.ask))
        self.dismiss(None)
