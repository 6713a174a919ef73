"""A chat is a tree: an edited question or a new answer is a sibling, and nothing written is lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from clover_local.decoding.events import Stats

State = Literal["writing", "done", "stopped", "length", "context", "broken"]
STALE = 5.0  # seconds without a touch after which an answer still "writing" has lost its writer


@dataclass(frozen=True)
class Message:
    """One message of a chat as stored; `parent` is the message it follows."""

    id: int
    chat: int
    parent: int | None
    role: Literal["user", "assistant"]
    content: str
    reasoning: str = ""
    thought: int = 0
    """Tokens of the reasoning."""
    state: State = "done"
    created: float = 0.0
    touched: float = 0.0
    model: str = ""
    settings: dict[str, object] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)


def path(messages: Mapping[int, Message], leaf: int | None) -> list[Message]:
    """The messages from the root to `leaf`."""
    out: list[Message] = []
    while leaf is not None and leaf in messages:
        out.append(messages[leaf])
        leaf = messages[leaf].parent
    return out[::-1]


def alternatives(messages: Mapping[int, Message]) -> dict[int, tuple[int, int]]:
    """Of every message, which of how many alternatives it is, counted from 1 and oldest first."""
    families: dict[int | None, list[int]] = {}
    for id in sorted(messages):
        families.setdefault(messages[id].parent, []).append(id)
    return {id: (n, len(family)) for family in families.values() for n, id in enumerate(family, 1)}


def siblings(messages: Mapping[int, Message], message: int) -> list[int]:
    """The ids of a message and its alternatives, oldest first."""
    parent = messages[message].parent
    return sorted(m.id for m in messages.values() if m.parent == parent)


def newest_leaf(messages: Mapping[int, Message], start: int) -> int:
    """The end of the branch that was written last below `start`."""
    children: dict[int, int] = {}
    for message in messages.values():
        if message.parent is not None:
            children[message.parent] = max(children.get(message.parent, 0), message.id)
    while start in children:
        start = children[start]
    return start
