"""How to decode: every default of the sampler and the three modes is written here, once."""

from dataclasses import dataclass
from typing import Literal

from clover_local.errors import UsageError

Mode = Literal["plain", "self", "denoise"]
Accept = Literal["exact", "lossless", "release"]
PolicyName = Literal["auto", "always"]


@dataclass(frozen=True)
class Settings:
    """Options of one answer; checked when built, so that decoding never has to."""

    mode: Mode = "self"
    """`plain` one token at a time; `self` draft, verify, commit; `denoise` the release's block sampler."""
    accept: Accept = "exact"
    """`exact`, also called `lossless`: the text is that of `plain` with the same seed, at any temperature.
    `release`: keep a draft with probability p >= min(0.9, 0.6 * exp(-entropy)), as the release does."""
    max_tokens: int = 2048
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Seed of the draws above temperature 0; None takes a new one for every answer."""
    draft_max: int = 32
    """Rows of a draft block at most, the pending token included."""
    policy: PolicyName = "auto"
    """`auto` drafts where drafting pays on this machine; `always` drafts and verifies `draft_max` rows (for
    measuring). Under `exact` the text is the same."""
    threshold: float | None = None
    """Confidence above which denoising fixes a row; None takes the file's."""
    block_size: int | None = None
    """Rows of a denoised block; None takes the file's."""
    ignore_stop: bool = False
    """Go on after a stop token (for measuring)."""

    def __post_init__(self) -> None:
        checks = (
            (self.mode in ("plain", "self", "denoise"), "--mode must be plain, self or denoise"),
            (self.accept in ("exact", "lossless", "release"), "--accept must be exact, lossless or release"),
            (self.max_tokens >= 1, "--predict must be at least 1"),
            (self.temperature >= 0.0, "--temp must be 0 or more"),
            (self.top_k >= 0, "--top-k must be 0 (off) or more"),
            (0.0 < self.top_p <= 1.0, "--top-p must be above 0 and at most 1"),
            (0.0 <= self.min_p < 1.0, "--min-p must be at least 0 and below 1"),
            (self.seed is None or 0 <= self.seed < 2**64, "--seed must be from 0 to 2^64 - 1"),
            (2 <= self.draft_max <= 32, "--draft-max must be from 2 to 32"),
            (self.policy in ("auto", "always"), "--policy must be auto or always"),
            (self.block_size is None or 1 <= self.block_size <= 32, "--block-size must be from 1 to 32"),
            (
                self.threshold is None or 0.0 <= self.threshold <= 1.0,
                "--threshold must be between 0 and 1",
            ),
        )
        for holds, sentence in checks:
            if not holds:
                raise UsageError(sentence)
