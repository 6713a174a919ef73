"""A conversation on an engine: messages to ids, and as little prefill as the last states allow.

Chat templates drop old reasoning from the history, so the ids of a turn are seldom the ids the state stands
on, and a recurrent state cannot be rewound. Before each answer the session therefore keeps a snapshot at the
last place that later turns will share, and starts every answer from the longest kept state that is a prefix
of its prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from clover_local.chat.protocol import Turn
from clover_local.chat.reasoning import CLOSE, OPEN, ThoughtCounter
from clover_local.decoding.events import Done, Event, Prefilled, Stats
from clover_local.decoding.settings import Settings
from clover_local.errors import ContextFullError

if TYPE_CHECKING:
    from clover_local.api import Model
    from clover_local.runtime.engine import Snapshot

ROOM = 64  # tokens an answer needs at least; a prompt that leaves fewer is refused before it is computed


def never() -> bool:
    """The answer of nobody who wants to stop."""
    return False


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two token lists."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


@dataclass(frozen=True)
class Prompt:
    """The ids of a conversation up to the place where the answer begins."""

    ids: tuple[int, ...]
    stable: int
    """How many of them later turns will begin with as well, whatever the answer says."""
    reasoning: bool
    """Whether the answer begins inside an open `<think>` section."""


@dataclass(frozen=True)
class Mark:
    """A kept state and the tokens it stands on."""

    tokens: tuple[int, ...]
    snapshot: "Snapshot"


class PromptTooLongError(ContextFullError):
    """The conversation leaves no room for an answer; without the `drop` oldest turns it would (0: never)."""

    def __init__(self, tokens: int, n_ctx: int, drop: int) -> None:
        super().__init__(
            f"the conversation takes {tokens:,} of the {n_ctx:,} tokens of context",
            hint="drop the oldest turns or start again with a larger --ctx-size",
        )
        self.tokens, self.n_ctx, self.drop = tokens, n_ctx, drop


class Session:
    """Answers conversations on one model; holds no history but the states worth going back to."""

    def __init__(self, model: "Model", *, keep: int = 4) -> None:
        """`keep` states are remembered, the least recently used is forgotten first."""
        self.model = model
        self.marks: list[Mark] = []
        self.keep = keep

    def prompt(self, turns: Sequence[Turn], *, thinking: bool | None = None) -> Prompt:
        """Render and encode a conversation."""
        messages = [turn.as_dict() for turn in turns]
        render = self.model.template.render
        text = render(messages, enable_thinking=thinking)
        history = render(messages, add_generation_prompt=False, enable_thinking=thinking)
        encode = self.model.tokenizer.encode
        ids = encode(text)
        stable = min(common_prefix(ids, encode(history)), len(ids) - 1)
        return Prompt(tuple(ids), stable, text.rstrip().endswith("<think>"))

    def reply(
        self,
        turns: Sequence[Turn],
        settings: Settings | None = None,
        *,
        thinking: bool | None = None,
        cancelled: Callable[[], bool] = never,
        started: Callable[[Prompt], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[Event]:
        """Answer a conversation; the events are those of `Model.generate`, over everything prefilled here.

        Raises PromptTooLongError before anything is computed. `started` is told the prompt, `progress` the
        prompt tokens computed, of how many. Closing the iterator leaves the engine at its last commit.
        """
        prompt = self.prompt(turns, thinking=thinking)
        self._require_room(prompt, turns, thinking)
        if started is not None:
            started(prompt)
        begin = perf_counter()
        reused = self.rewind(prompt)
        if not self._advance(prompt, cancelled, progress):
            yield Done("cancelled", Stats(prompt_seconds=perf_counter() - begin, prompt_reused=reused))
            return
        early = perf_counter() - begin
        rest = prompt.ids[self.model.engine.n_past :]
        total = len(prompt.ids)
        for event in self.model.generate(rest, settings or Settings(), cancelled=cancelled):
            yield _whole(event, total=total, reused=reused, early=early)

    def thought_counter(self, reasoning: bool) -> ThoughtCounter:
        """A counter of reasoning tokens for an answer that begins inside the reasoning or not."""
        ids = [self.model.tokenizer.encode(mark) for mark in (OPEN, CLOSE)]
        first, last = (one[0] if len(one) == 1 else None for one in ids)
        return ThoughtCounter(reasoning, (first, last))

    def count(self, turns: Sequence[Turn], *, thinking: bool | None = None) -> int:
        """Tokens the conversation takes before its answer begins."""
        return len(self.prompt(turns, thinking=thinking).ids)

    def rewind(self, prompt: Prompt) -> int:
        """Bring the engine to the longest known state that the prompt begins with; returns its length."""
        engine = self.model.engine
        limit = len(prompt.ids) - 1  # one token must be left: its row chooses the answer's first token
        fits = [m for m in self.marks if len(m.tokens) <= limit and m.tokens == prompt.ids[: len(m.tokens)]]
        best = max(fits, key=lambda m: len(m.tokens), default=None)
        here = engine.tokens
        if (
            len(here) <= limit
            and tuple(here) == prompt.ids[: len(here)]
            and (best is None or len(here) >= len(best.tokens))
        ):
            return len(here)
        if best is None:
            engine.reset()
            return 0
        self.marks.remove(best)
        self.marks.append(best)
        engine.restore(best.snapshot)
        return len(best.tokens)

    def _require_room(self, prompt: Prompt, turns: Sequence[Turn], thinking: bool | None) -> None:
        n_ctx = self.model.engine.n_ctx
        if len(prompt.ids) + min(ROOM, n_ctx // 4) <= n_ctx:
            return
        raise PromptTooLongError(len(prompt.ids), n_ctx, self._drop(turns, thinking))

    def _drop(self, turns: Sequence[Turn], thinking: bool | None) -> int:
        """How many of the oldest turns must go so that half the context is free again, or at least some."""
        n_ctx = self.model.engine.n_ctx
        head = [t for t in turns[:1] if t.role == "system"]
        body = list(turns[len(head) :])
        starts = [i for i, turn in enumerate(body) if turn.role == "user" and i > 0]
        sizes = {i: self.count([*head, *body[i:]], thinking=thinking) for i in starts}
        for limit in (n_ctx // 2, n_ctx - min(ROOM, n_ctx // 4)):
            for i in starts:
                if sizes[i] <= limit:
                    return i
        return 0

    def _advance(
        self, prompt: Prompt, cancelled: Callable[[], bool], progress: Callable[[int, int], None] | None
    ) -> bool:
        """Prefill up to the stable place and keep that state; False when stopped on the way."""
        engine = self.model.engine
        done = engine.n_past
        if done < prompt.stable:
            engine.begin_response(None)
            total = len(prompt.ids)
            tell = None if progress is None else (lambda n, _: progress(done + n, total))
            rows = engine.prefill(prompt.ids[done : prompt.stable], cancelled=cancelled, progress=tell)
            if rows is None:
                return False
        if engine.n_past == prompt.stable and prompt.stable:
            self._keep(prompt.ids[: prompt.stable])
        return True

    def _keep(self, tokens: tuple[int, ...]) -> None:
        if any(mark.tokens == tokens for mark in self.marks):
            return
        self.marks.append(Mark(tokens, self.model.engine.snapshot()))
        del self.marks[: -self.keep]


def _whole(event: Event, *, total: int, reused: int, early: float) -> Event:
    """An event of the last part of a prompt, told of the whole prompt."""
    match event:
        case Prefilled():
            return Prefilled(tokens=total - reused, reused=reused, seconds=event.seconds + early)
        case Done(reason, stats):
            stats = replace(
                stats,
                prompt_tokens=total - reused,
                prompt_reused=reused,
                prompt_seconds=stats.prompt_seconds + early,
                first_token_seconds=stats.first_token_seconds + early if stats.tokens else 0.0,
            )
            return Done(reason, stats)
        case _:
            return event
