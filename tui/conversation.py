"""The conversation behind the screen: what is stored, what is asked, and the answer being written.

Knows the store and the engine's link, but no widget; the screen hears of changes through `View`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import count
from time import monotonic
from typing import Protocol

from clover_local.chat.protocol import (
    Ask,
    Cancel,
    Count,
    Counted,
    Died,
    Failed,
    Overflow,
    Progress,
    Reply,
    Report,
    Started,
    Turn,
)
from clover_local.chat.reasoning import Splitter
from clover_local.chat.store import Chat, Store
from clover_local.chat.tree import Message, State, newest_leaf, path, siblings
from clover_local.decoding.events import Block, Done, Prefilled, Stats, Tokens
from clover_local.decoding.settings import Settings
from clover_local.errors import CloverError, UsageError
from clover_local.tui.engine import EngineLink
from clover_local.tui.entry import Entry
from clover_local.tui.live import Live, drafts, masked
from clover_local.tui.shelf import Shelf
from clover_local.tui.wrap import clean

SAVE_SECONDS = 0.5  # an answer being written is stored this often, so kill -9 costs at most that
TITLE = 40  # characters
_STATES: dict[str, State] = {"stop": "done", "cancelled": "stopped", "length": "length", "context": "context"}


class View(Protocol):
    """What the conversation tells the screen."""

    def branch_changed(self) -> None:
        """Other messages are shown now."""

    def chats_changed(self) -> None:
        """The list of chats changed."""

    def answer_changed(self) -> None:
        """The answer being written has grown."""

    def answer_ended(self, live: "Live", trouble: str) -> None:
        """It is complete, or `trouble` ended it."""

    def failed(self, error: CloverError) -> None:
        """Something could not be stored."""

    def overflowed(self, report: Overflow) -> None:
        """The conversation does not fit into the context."""

    def counted(self, tokens: int, n_ctx: int) -> None:
        """How much of the context the shown branch takes."""


class Conversation:
    """One chat on screen and at most one answer being written, perhaps in another chat."""

    def __init__(self, shelf: Shelf, link: EngineLink, view: View, settings: Settings) -> None:
        self.shelf, self.link, self.view = shelf, link, view
        self.settings = settings
        self.thinking: bool | None = None
        self.chats: list[Chat] = []
        self.chat: Chat | None = None
        self.messages: dict[int, Message] = {}
        self.live: Live | None = None
        self.used = 0
        self._system = ""  # of a chat that is not stored yet
        self._ids = count(1)
        self._counting = 0
        self._tasks: set[asyncio.Future[None]] = set()

    # What is shown

    @property
    def branch(self) -> list[Message]:
        """The messages on screen, oldest first."""
        return path(self.messages, self.chat.leaf if self.chat else None)

    @property
    def system(self) -> str:
        """The system prompt."""
        return self.chat.system if self.chat else self._system

    @property
    def live_here(self) -> Live | None:
        """The answer being written, if it belongs to the chat on screen."""
        return self.live if self.live and self.chat and self.live.chat == self.chat.id else None

    def last_answer(self) -> Message | None:
        """The newest answer on screen."""
        return next((m for m in reversed(self.branch) if m.role == "assistant"), None)

    async def load_chats(self) -> None:
        """Read the list of chats anew."""
        self.chats = await self.shelf(lambda store: store.chats())
        self.view.chats_changed()

    async def open(self, chat: int | None) -> None:
        """Show a chat; None is a new one, stored with its first message."""
        if chat is None:
            self.chat, self.messages, self._system, self.used = None, {}, "", 0
        else:
            found, messages = await self.shelf(lambda store: (store.chat(chat), store.messages(chat)))
            self.chat, self.messages = found, dict(messages)
        self.view.branch_changed()
        self.view.chats_changed()
        self.measure()

    def measure(self) -> None:
        """Ask the engine how much of the context the branch takes."""
        turns = self.turns(self.branch)
        if self.live is None and self.link.alive and any(t.role == "user" for t in turns):
            self._counting = next(self._ids)
            self.link.send(Count(self._counting, turns, self.thinking))
        elif self.chat is None:
            self.view.counted(0, self.link.about.n_ctx if self.link.about else 0)

    # What the person does

    async def send(self, text: str) -> None:
        """Ask a question at the end of the branch."""
        self._require_idle()
        chat = await self._stored_chat(text)
        parent = chat.leaf
        await self._ask(await self._add(chat, parent, text))

    async def edit(self, message: int, text: str) -> None:
        """Ask another question in the place of `message`; the old one stays as an alternative."""
        self._require_idle()
        assert self.chat is not None
        await self._ask(await self._add(self.chat, self.messages[message].parent, text))

    async def regenerate(self, message: int | None = None) -> None:
        """Answer anew; the old answer stays as an alternative. Without an id, the newest question."""
        self._require_idle()
        branch = self.branch
        target = self.messages.get(message) if message is not None else (branch[-1] if branch else None)
        if target is not None and target.role == "assistant":
            target = self.messages.get(target.parent or 0)
        if target is None:
            raise UsageError("there is no question to answer yet")
        await self._ask(target)

    def stop(self) -> bool:
        """Stop the answer being written and keep it; whether there was one."""
        if self.live is None:
            return False
        self.live.stopping = True
        self.link.send(Cancel(self.live.ask))
        return True

    async def switch(self, message: int, step: int) -> None:
        """Show the next (+1) or the previous (-1) alternative to a message."""
        self._require_idle("switch between answers")
        same = siblings(self.messages, message)
        at = same.index(message) + step
        if not 0 <= at < len(same):
            return
        await self._set_leaf(newest_leaf(self.messages, same[at]))

    async def show_message(self, message: int) -> None:
        """Show the branch that a message is on."""
        await self._set_leaf(newest_leaf(self.messages, message))

    async def adopt(self, question: str, entry: Entry, settings: Settings, stats: Stats | None) -> None:
        """Store a question with an answer that was written elsewhere."""
        self._require_idle()
        chat = await self._stored_chat(question)
        parent = chat.leaf
        last = self.messages.get(parent or 0)
        if last is not None and last.role == "assistant" and last.parent is not None:
            asked = self.messages[last.parent]
            parent = asked.parent if asked.content == question else parent  # compared with its own question
        made = await self._add(chat, parent, question)
        kept = {k: v for k, v in asdict(settings).items() if v is not None}
        name = self.link.about.name if self.link.about else ""
        await self.shelf(
            lambda store: store.add_message(
                chat.id, made.id, "assistant", entry.source, reasoning=entry.reasoning,
                thought=entry.thought_tokens, model=name, settings=kept, stats=stats,
            )
        )  # fmt: skip
        await self.open(chat.id)
        await self.load_chats()

    async def drop(self, turns: int) -> None:
        """Stop sending the `turns` oldest messages that are still sent."""
        branch = self.branch
        sent = branch[self._first(branch) :]
        if self.chat is None or not 0 < turns < len(sent):
            raise UsageError("there are not so many turns to drop")
        first = sent[turns].id
        await self._change(first=first)
        self.view.branch_changed()
        self.measure()

    async def set_system(self, text: str) -> None:
        """Set the system prompt of this chat."""
        if self.chat is None:
            self._system = text
        else:
            await self._change(system=text)
        self.measure()

    async def rename(self, chat: int, title: str) -> None:
        """Give a chat another title."""
        await self.shelf(lambda store: store.change_chat(chat, title=title))
        if self.chat and self.chat.id == chat:
            self.chat = replace(self.chat, title=title)
        await self.load_chats()

    async def delete(self, chat: int) -> None:
        """Remove a chat for good."""
        if self.live and self.live.chat == chat:
            raise UsageError("this chat is being answered", hint="esc stops the answer")
        await self.shelf(lambda store: store.delete_chat(chat))
        await self.load_chats()
        if self.chat and self.chat.id == chat:
            await self.open(None)

    def first_sent(self) -> int:
        """Place in the branch of the first message that is sent to the model."""
        return self._first(self.branch)

    # What the engine says

    def receive(self, report: Report) -> None:
        """Take in a report that concerns a conversation."""
        live = self.live
        match report:
            case Counted(id, tokens, n_ctx) if id == self._counting:
                self.used = tokens
                self.view.counted(tokens, n_ctx)
            case Died(reason):
                self.abandon(f"The engine ended before this answer was complete: {reason}.")
            case Failed(None, sentence):
                self.abandon(sentence)
            case _ if live is None or getattr(report, "id", None) != live.ask:
                return
            case Started(_, tokens, n_ctx, reasoning):
                live.prompt_tokens, live.n_ctx = tokens, n_ctx
                live.splitter = Splitter(reasoning)
                self.view.answer_changed()
            case Progress(_, done, total):
                live.prompt = (done, total)
                self.view.answer_changed()
            case Overflow():
                self._undo(live)
                self.view.overflowed(report)
            case Failed(_, sentence):
                self._end(live, "broken", sentence)
            case Reply(_, event, thought):
                self._reply(live, event, thought)

    def _reply(self, live: Live, event: object, thought: int) -> None:
        match event:
            case Prefilled():
                live.meter.start()
            case Block():
                own = event if live.mode == "denoise" else drafts(event)
                live.block = own
            case Tokens(ids, _, _, text):
                live.meter.add(len(ids))
                live.block = masked(live.block)
                live.add(text, thought)
            case Done(reason, stats):
                live.stats = stats
                self._end(live, _STATES[reason], "")
                return
        self.view.answer_changed()

    async def save_live(self) -> None:
        """Store the answer as it stands, if that is due."""
        live = self.live
        if live is None or monotonic() - live.saved < SAVE_SECONDS:
            return
        live.saved = monotonic()
        id, content, reasoning, thought = live.message.id, live.content, live.reasoning, live.thought_tokens
        await self.shelf(lambda s: s.write_answer(id, content, reasoning, "writing", thought=thought))

    def keep_live(self) -> None:
        """The program ends: store the answer as it stands, as one that was stopped."""
        if self.live is not None:
            live = self.live
            live.finish()
            self.shelf.now(
                lambda s: s.write_answer(
                    live.message.id, live.content, live.reasoning, "stopped", thought=live.thought_tokens
                )
            )

    # Inside

    def _require_idle(self, what: str = "ask") -> None:
        if self.live is not None:
            raise UsageError(f"an answer is being written; esc stops it, then you can {what}")
        if not self.link.alive:
            raise CloverError("the engine is not running", hint="f5 starts it")

    async def _stored_chat(self, text: str) -> Chat:
        if self.chat is None:
            title = " ".join(clean(text).split())
            title = title if len(title) <= TITLE else title[: TITLE - 1].rstrip() + "…"
            system = self._system
            self.chat = await self.shelf(lambda store: store.new_chat(title, system))
        return self.chat

    async def _add(self, chat: Chat, parent: int | None, text: str) -> Message:
        made = await self.shelf(lambda store: store.add_message(chat.id, parent, "user", text))
        self.messages[made.id] = made
        return made

    async def _ask(self, question: Message) -> None:
        settings, about = self.settings, self.link.about
        mode = settings.mode if about is None or about.can_draft else "plain"
        name = about.name if about else self.link.choice.model
        kept = {k: v for k, v in asdict(settings).items() if v is not None}
        made = await self.shelf(
            lambda store: store.add_message(
                question.chat, question.id, "assistant", "", state="writing", model=name, settings=kept
            )
        )
        self.messages[made.id] = made
        assert self.chat is not None
        self.chat = replace(self.chat, leaf=made.id)
        self.live = Live(next(self._ids), question.chat, made, mode, saved=monotonic())
        self.link.send(
            Ask(self.live.ask, self.turns(path(self.messages, question.id)), settings, self.thinking)
        )
        self.view.branch_changed()
        await self.load_chats()

    def turns(self, branch: Sequence[Message]) -> tuple[Turn, ...]:
        turns = [Turn("system", self.system)] if self.system else []
        turns += [Turn(m.role, m.content, m.reasoning) for m in branch[self._first(branch) :]]
        return tuple(turns)

    def _first(self, branch: Sequence[Message]) -> int:
        first = self.chat.first if self.chat else None
        return next((n for n, m in enumerate(branch) if m.id == first), 0)

    def _end(self, live: Live, state: State, trouble: str) -> None:
        live.finish()
        self.live = None
        live.block = None
        done = replace(
            live.message,
            content=live.content,
            reasoning=live.reasoning,
            thought=live.thought_tokens,
            state=state,
            stats=live.stats or Stats(),
        )
        if live.message.id in self.messages:
            self.messages[done.id] = done
        stats = live.stats
        if stats is not None:
            self.used = stats.prompt_tokens + stats.prompt_reused + stats.tokens
        self._later(
            lambda s: s.write_answer(done.id, done.content, done.reasoning, state, stats, done.thought)
        )
        self.view.answer_ended(live, trouble)

    def abandon(self, trouble: str) -> None:
        """The engine is gone: end the answer it was writing, if any."""
        if self.live is not None:
            self._end(self.live, "broken", trouble)

    def _undo(self, live: Live) -> None:
        """Take back an answer that was never begun; its question stays."""
        self.live = None
        self.messages.pop(live.message.id, None)
        if self.chat and self.chat.id == live.chat:
            self.chat = replace(self.chat, leaf=live.message.parent)
        self._later(lambda store: store.delete_message(live.message.id))
        self.view.branch_changed()

    def _later(self, work: Callable[[Store], object]) -> None:
        async def attempt() -> None:
            try:
                await self.shelf(work)
            except CloverError as error:
                self.view.failed(error)

        task = asyncio.ensure_future(attempt())
        self._tasks.add(task)  # the loop itself keeps no reference to a task
        task.add_done_callback(self._tasks.discard)

    async def _set_leaf(self, leaf: int) -> None:
        await self._change(leaf=leaf)
        self.view.branch_changed()
        self.measure()

    async def _change(self, **values: object) -> None:
        assert self.chat is not None
        id = self.chat.id
        await self.shelf(lambda store: store.change_chat(id, **values))
        self.chat = replace(self.chat, **values)  # type: ignore[arg-type]
