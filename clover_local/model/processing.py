"""The response processing of a Clover release: penalties and ramps, as numbers and as one numpy function.

The engine applies the same steps on the device; `process` is their readable twin and the tests' oracle.
Source of the formulas: docs/model.md, "Response processing".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Ramp:
    """A bias that grows linearly: clamp((position - start) / window, 0, 1) * strength."""

    strength: float = 0.0
    start: int = 0
    window: int = 1

    def at(self, position: int) -> float:
        """The bias at a 1-based response position."""
        return min(max((position - self.start) / max(self.window, 1), 0.0), 1.0) * self.strength


@dataclass(frozen=True)
class Processing:
    """Constants of the response processing for one answer. The defaults change nothing."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    length: Ramp = field(default_factory=Ramp)
    think_end: Ramp = field(default_factory=Ramp)
    think_end_id: int | None = None
    stop_ids: tuple[int, ...] = ()  # what the length ramp lifts: EOS, stop_token_ids and pad

    @property
    def penalizes(self) -> bool:
        """Whether tokens already written change the logits."""
        return self.presence != 0.0 or self.frequency != 0.0 or self.repetition != 1.0

    @property
    def ramps(self) -> bool:
        """Whether the position in the response changes the logits."""
        return self.length.strength != 0.0 or (
            self.think_end.strength != 0.0 and self.think_end_id is not None
        )

    @property
    def active(self) -> bool:
        """Whether anything beyond masking the mask token happens."""
        return self.penalizes or self.ramps


def process(
    logits: np.ndarray,
    processing: Processing,
    *,
    mask_id: int | None,
    counts: Mapping[int, int],
    position: int,
    think_closed: bool,
) -> np.ndarray:
    """One row of logits [vocab] after the response processing, as a new float32 array.

    `counts` maps a token to how often the response holds it; `position` is the row's 1-based place in the
    response; `think_closed` says that the end of the reasoning is already in the response or the block.
    """
    out = np.array(logits, dtype=np.float32)
    if mask_id is not None:
        out[mask_id] = -np.inf
    if counts and processing.penalizes:
        seen = np.fromiter(counts.keys(), np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float32, len(counts))
        value = out[seen] - times * np.float32(processing.frequency) - np.float32(processing.presence)
        repetition = np.float32(processing.repetition)
        out[seen] = np.where(value > 0, value / repetition, value * repetition)
    if processing.stop_ids:
        out[list(processing.stop_ids)] += np.float32(processing.length.at(position))
    if processing.think_end_id is not None and not think_closed:
        out[processing.think_end_id] += np.float32(processing.think_end.at(position))
    return out


def counts_of(tokens: Sequence[int]) -> dict[int, int]:
    """How often each token occurs."""
    counts: dict[int, int] = {}
    for token in tokens:
        counts[token] = counts.get(token, 0) + 1
    return counts
