"""How often a draft of a given confidence is kept: a calibration learned online, from a prior."""

import math

from clover_local.decoding.drafts import Source

_BINS = 12
_PRIOR_WEIGHT = 6.0
_MEMORY = 0.99  # what an observation still counts after another one of its bin


class Acceptance:
    """Chance that a proposed token is kept, given its confidence and that the tokens before it were."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Source, int], float] = {}
        self._seen: dict[tuple[Source, int], float] = {}

    @staticmethod
    def _bin(confidence: float) -> int:
        """Bins halve the doubt: up to 1/2, 3/4, 7/8, ...; the first is split once more."""
        doubt = 1.0 - min(max(confidence, 0.0), 1.0 - 2.0**-_BINS)
        return 0 if doubt > 0.75 else min(1 + int(-math.log2(doubt)), _BINS - 1)

    def chance(self, source: Source, confidence: float) -> float:
        """The expected acceptance, in [0, 1]."""
        key = source, self._bin(confidence)
        kept, seen = self._kept.get(key, 0.0), self._seen.get(key, 0.0)
        return (kept + _PRIOR_WEIGHT * confidence) / (seen + _PRIOR_WEIGHT)

    def reach(self, source: Source, confidence: tuple[float, ...]) -> list[float]:
        """Chance of every position of a draft that it and all before it are kept."""
        out, product = [], 1.0
        for one in confidence:
            product *= self.chance(source, one)
            out.append(product)
        return out

    def observe(self, source: Source, confidence: float, kept: bool) -> None:
        """Learn from one judged token."""
        key = source, self._bin(confidence)
        self._kept[key] = self._kept.get(key, 0.0) * _MEMORY + kept
        self._seen[key] = self._seen.get(key, 0.0) * _MEMORY + 1.0
