"""What decoding reports: frozen facts, one per step. Speed is computed here and nowhere else."""

from dataclasses import dataclass, field
from typing import Literal

Reason = Literal["stop", "length", "context", "cancelled"]
PassKind = Literal["prefill", "plain", "draft", "denoise", "verify", "commit"]


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in the state. `reused` tokens were there before, `tokens` were computed now."""

    tokens: int
    reused: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens computed per second; 0 when nothing was."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Block:
    """The block as it stands after a preview, for a screen to draw; None where a row is still masked."""

    tokens: tuple[int | None, ...]
    confidence: tuple[float, ...]
    text: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tokens:
    """Tokens that were kept. `drafted` of them were proposed, `accepted` kept; `text` is what they add.

    `text` may be empty while a multi-byte character is incomplete; it is filled in above this layer.
    """

    ids: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    text: str = ""


@dataclass(frozen=True)
class Stats:
    """Figures of one answer."""

    tokens: int = 0
    seconds: float = 0.0  # wall time from the first decode step to the last kept token
    prompt_tokens: int = 0
    prompt_reused: int = 0
    prompt_seconds: float = 0.0
    first_token_seconds: float = 0.0  # time to first token, the prefill included
    passes: dict[PassKind, int] = field(default_factory=dict)
    pass_seconds: dict[PassKind, float] = field(default_factory=dict)
    from_prefill: int = 0  # of `tokens`: chosen by the prefill's last row, before `seconds` began
    rounds: int = 0  # draft-and-verify rounds, or denoised blocks
    round_tokens: int = 0  # tokens that those rounds kept
    drafted: tuple[int, ...] = ()  # by position in the draft: how often it was verified
    accepted: tuple[int, ...] = ()  # by position in the draft: how often it was kept

    @property
    def tokens_per_second(self) -> float:
        """Tokens kept per wall second of decoding; the prefill and the token it chose are apart."""
        return self.decoded / self.seconds if self.seconds > 0 else 0.0

    @property
    def decoded(self) -> int:
        """Tokens kept by decode steps."""
        return self.tokens - self.from_prefill

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens computed per second of prefill."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def model_passes(self) -> int:
        """Passes through the whole network while decoding (commits replay the state only)."""
        return sum(n for kind, n in self.passes.items() if kind not in ("prefill", "commit"))

    @property
    def tokens_per_pass(self) -> float:
        """Tokens decoded per pass through the network."""
        return self.decoded / self.model_passes if self.model_passes else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens kept per draft-and-verify round or denoised block; 0 when there was none."""
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float | None:
        """Share of verified drafts that were kept; None when nothing was drafted."""
        return sum(self.accepted) / sum(self.drafted) if sum(self.drafted) else None


@dataclass(frozen=True)
class Done:
    """The end of an answer."""

    reason: Reason
    stats: Stats


Event = Prefilled | Block | Tokens | Done
