"""What the screen and the engine's process say to each other: frozen dataclasses, both ways."""

from dataclasses import dataclass, field
from typing import Literal

from clover_local.decoding.events import Event
from clover_local.decoding.settings import Settings

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Turn:
    """One message as the chat template sees it; an answer's reasoning is kept apart from its text."""

    role: Role
    content: str
    reasoning: str = ""

    def as_dict(self) -> dict[str, str]:
        """The form chat templates read; `reasoning_content` is the name Qwen's templates use."""
        message = {"role": self.role, "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return message


@dataclass(frozen=True)
class ModelChoice:
    """Which model to open and how; the fields are the arguments of `clover_local.load`."""

    model: str = "demo"
    ctx: int | None = None
    threads: int | None = None
    device: str | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    vram: str | None = None
    host_layers: int | None = None
    offline: bool = False


# Requests: from the screen to the engine


@dataclass(frozen=True)
class Ask:
    """Answer the conversation `turns`; every report about it carries the same `id`."""

    id: int
    turns: tuple[Turn, ...]
    settings: Settings = field(default_factory=Settings)
    thinking: bool | None = None


@dataclass(frozen=True)
class Count:
    """How many tokens of the context `turns` would take."""

    id: int
    turns: tuple[Turn, ...]
    thinking: bool | None = None


@dataclass(frozen=True)
class Cancel:
    """Stop answer `id` at the next pass; what was kept stays."""

    id: int


@dataclass(frozen=True)
class Close:
    """Free the model and end the process."""


Request = Ask | Count | Cancel | Close


# Reports: from the engine to the screen


@dataclass(frozen=True)
class Loading:
    """Bytes of the model that are loaded, of how many."""

    done: int
    total: int


@dataclass(frozen=True)
class About:
    """What a loaded model is, for the screen."""

    name: str
    n_ctx: int
    device: str
    can_draft: bool
    block_size: int
    threshold: float
    thinks: bool
    """Whether the chat template knows `enable_thinking`."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes by class, as the engine counts them."""


@dataclass(frozen=True)
class Ready:
    """The model is loaded; requests are answered from now on."""

    about: About
    pid: int


@dataclass(frozen=True)
class Gauge:
    """Memory of the engine's device in bytes; total 0 where the device does not say."""

    free: int
    total: int


@dataclass(frozen=True)
class Started:
    """Answer `id` begins. `reasoning` says that the prompt ends inside an open `<think>` section."""

    id: int
    prompt_tokens: int
    n_ctx: int
    reasoning: bool


@dataclass(frozen=True)
class Progress:
    """Prompt tokens computed so far for answer `id`, of how many."""

    id: int
    done: int
    total: int


@dataclass(frozen=True)
class Reply:
    """One decoding event of answer `id`."""

    id: int
    event: Event
    thought: int = 0
    """Of the tokens in the event: how many belong to the reasoning, its closing mark included."""


@dataclass(frozen=True)
class Overflow:
    """Answer `id` was not begun: its prompt does not leave room for one.

    Without its `drop` oldest turns it would fit; 0 means that no number of dropped turns is enough.
    """

    id: int
    prompt_tokens: int
    n_ctx: int
    drop: int


@dataclass(frozen=True)
class Counted:
    """The answer to Count."""

    id: int
    tokens: int
    n_ctx: int


@dataclass(frozen=True)
class Failed:
    """Request `id` failed with this sentence; the engine lives on. Without an id the model could not load."""

    id: int | None
    sentence: str
    hint: str | None = None


@dataclass(frozen=True)
class Died:
    """The engine's process ended by itself; made by the side that watches it, never sent."""

    reason: str
    hint: str | None = None


Report = Loading | Ready | Gauge | Started | Progress | Reply | Overflow | Counted | Failed | Died
