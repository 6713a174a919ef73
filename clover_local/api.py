"""The Python interface: load a model, ask it, read events. See docs/api.md."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clover_local.decoding.calibrate import calibrate
from clover_local.decoding.events import Block, Done, Event, Prefilled, Reason, Stats, Tokens
from clover_local.decoding.generate import generate, never
from clover_local.decoding.policy import Policy
from clover_local.decoding.settings import Settings
from clover_local.errors import CloverError, UsageError
from clover_local.model.spec import Spec
from clover_local.names import resolve
from clover_local.runtime.engine import Engine
from clover_local.runtime.plan import parse_size
from clover_local.runtime.remembered import keep, recall
from clover_local.text.template import CHATML, ChatTemplate, Message
from clover_local.text.tokenizer import Tokenizer

__all__ = [
    "Block",
    "Done",
    "Event",
    "Message",
    "Model",
    "Prefilled",
    "Reason",
    "Settings",
    "Stats",
    "Tokens",
    "load",
    "resolve",
]

Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True)
class Model:
    """An open model: engine, tokenizer and chat template of one file, and what its policy has learned.

    Not for use by two threads at once: there is one state.
    """

    path: Path
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    policy: Policy = field(default_factory=Policy)
    _kept: set[tuple[str, int]] = field(default_factory=set)  # shapes of passes whose cost is kept on disk

    @property
    def spec(self) -> Spec:
        return self.engine.spec

    @property
    def name(self) -> str:
        """The name the file gives its model."""
        return self.spec.name

    def prompt_ids(
        self,
        prompt: Prompt,
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The token ids of a prompt: ids as they are, a text as it is, messages through the chat template.

        `thinking`, `tools` and `variables` reach the template; with anything but messages they are an error.
        """
        items: list[Any] = [] if isinstance(prompt, str) else list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            text = self.template.render(items, enable_thinking=thinking, tools=tools, **variables)
            return self.tokenizer.encode(text)
        if thinking is not None or tools or variables:
            raise UsageError("thinking, tools and template variables need a prompt of messages")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return [self._checked(item) for item in items]

    def generate(
        self,
        prompt: Prompt,
        settings: Settings | None = None,
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        cancelled: Callable[[], bool] = never,
        progress: Callable[[int, int], None] | None = None,
        **variables: Any,
    ) -> Iterator[Event]:
        """Answer a prompt; yields Prefilled, then Block and Tokens, then Done.

        A text or messages begin anew, reusing the state where the prompt goes on from it; token ids always
        continue from the state. `cancelled` is asked between passes; `progress` hears (done, total) prompt
        tokens. `Tokens.text` is what the tokens add, never a broken character; `Block.text` has a piece per
        row. Closing the iterator leaves the engine at its last commit.

        Raises ContextFullError when the prompt does not fit, UsageError when it is empty.
        """
        settings = settings or Settings()
        ids = self.prompt_ids(prompt, thinking=thinking, tools=tools, **variables)
        if settings.mode == "self" and settings.policy == "auto":
            self.warm()
        if not all(isinstance(item, int) for item in prompt):
            ids = self._rest(ids)
        events = generate(
            self.engine,
            ids,
            settings,
            cancelled=cancelled,
            policy=self.policy,
            progress=progress,
        )
        return self._with_text(events)

    def warm(self) -> None:
        """Know what drafts and their verification cost here: from an earlier start, or measured in about a second.

        Done before the first answer that may draft; a program that has idle time may do it earlier.
        """
        costs = self.policy.costs
        if not self.spec.can_draft or costs.ready:
            return
        if costs.take(recall("costs", self.engine.identity)):
            self._kept.update(costs.shapes)
        else:
            calibrate(self.engine, costs)

    def _keep_costs(self) -> None:
        """Keep what passes cost for the next start, when shapes were measured that are not kept yet."""
        costs = self.policy.costs
        if costs.known and not costs.shapes <= self._kept:
            self._kept.update(costs.shapes)
            keep("costs", self.engine.identity, costs.entries())

    def close(self) -> None:
        """Free the model's memory."""
        self.tokenizer.close()
        self.engine.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, id: object) -> int:
        if not isinstance(id, int) or not 0 <= id < self.spec.vocab:
            raise UsageError(f"{id!r} is no token id of {self.name}: they go from 0 to {self.spec.vocab - 1}")
        return id

    def _rest(self, ids: list[int]) -> list[int]:
        """What of a prompt the state lacks; resets it where the prompt does not go on from it."""
        here = self.engine.tokens
        if len(here) < len(ids) and tuple(ids[: len(here)]) == here:
            return ids[len(here) :]
        self.engine.reset()
        return ids

    def _with_text(self, events: Generator[Event, None, None]) -> Iterator[Event]:
        stream = self.tokenizer.stream()
        try:
            for event in events:
                match event:
                    case Tokens():
                        yield replace(event, text=stream.feed(event.ids))
                    case Block():
                        yield replace(event, text=tuple(map(self._cell, event.tokens)))
                    case _:
                        yield event
        finally:
            events.close()
            self._keep_costs()

    def _cell(self, id: int | None) -> str:
        """How a screen shows one row of a block: empty where it is masked or hidden."""
        if id is None or self.tokenizer.is_hidden(id):
            return ""
        return self.tokenizer.piece(id).decode("utf-8", errors="replace")


def load(
    model: str | Path = "demo",
    *,
    ctx: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    vram: int | str | None = None,
    host_layers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    offline: bool = False,
) -> Model:
    """Open a model: a GGUF file, `demo`, or a hub id `owner/name[:QUANT]`, downloaded unless `offline`.

    `ctx` is the context in tokens (default: the model's, at most 32,768), `device` "cpu", "gpu" or a device's
    name, the cache types "f16" or "q8_0". On a GPU at most `vram` is used (bytes, or a size like "16G"), and the
    experts of `host_layers` layers stay with the CPU (default: as few as needed). `progress` hears (done,
    total) bytes of weights.

    Raises ModelError naming the file and the first key or tensor that is wrong, CloverError for what else
    can go wrong.
    """
    path = resolve(str(model), offline=offline, quiet=progress is not None)
    engine = Engine.open(
        path,
        n_ctx=ctx,
        threads=threads,
        device=device,
        kv_type_k=cache_type_k,
        kv_type_v=cache_type_v,
        vram=parse_size(vram) if isinstance(vram, str) else vram,
        host_layers=host_layers,
        progress=progress,
    )
    try:
        tokenizer = Tokenizer.from_gguf(path)
        return Model(path, engine, tokenizer, _template(engine.file.keys, tokenizer))
    except CloverError:
        engine.close()
        raise


def _template(keys: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    def special(name: str) -> str:
        id = keys.get(f"tokenizer.ggml.{name}_token_id")
        return tokenizer.decode([id]) if isinstance(id, int) and id < tokenizer.size else ""

    source = keys.get("tokenizer.chat_template")
    return ChatTemplate(source if isinstance(source, str) else CHATML, bos=special("bos"), eos=special("eos"))
