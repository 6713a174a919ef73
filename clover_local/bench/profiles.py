"""How often drafts are kept: built-in assumptions, and profiles recorded from real generation.

A profile gives the chance that each row of a draft is kept given that the rows before it were, and how the
draft's confidence is distributed where a row was kept and where it was not.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from clover_local.errors import CloverError

FORMAT = 1
ROWS = 31  # a draft of 32 rows proposes 31 tokens
BINS = 48
EDGES = np.append(1.0 - 2.0 ** -np.linspace(0, 12, BINS), 1.0)
"""Bins of the confidence, halving the doubt every 4: [BINS + 1], from 0 to 1."""

CONFIDENCE_WEIGHT = 2.0
"""Built-in profiles: confidence ~ Beta(weight * c, weight * (1 - c)) around the chance c, and it is true: a
row of confidence p is kept with chance p. The spread is an assumption."""


@dataclass(frozen=True)
class Profile:
    """Acceptance to simulate. Arrays: `chance` [31]; `kept` and `lost` [BINS], each summing to 1."""

    name: str
    note: str
    chance: np.ndarray
    kept: np.ndarray
    lost: np.ndarray

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """For a draft of so many tokens: which are kept (bool [rows]), how sure it is (float32 [rows])."""
        kept = rng.random(rows) < self.chance[:rows]
        where = rng.random(rows)
        bins = np.where(kept, _pick(self.kept, where), _pick(self.lost, where))
        confidence = EDGES[bins] + rng.random(rows) * (EDGES[bins + 1] - EDGES[bins])
        return kept, confidence.astype(np.float32)

    def tokens_per_round(self, width: int) -> float:
        """Expected tokens of a round that verifies a whole draft block of `width` rows."""
        return 1.0 + float(np.cumprod(self.chance[: width - 1]).sum())


def _pick(shares: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The bin that each uniform number in [0, 1) picks from shares that sum to 1."""
    return np.minimum(np.searchsorted(np.cumsum(shares), uniform, side="right"), BINS - 1)


_CONSTANT = {
    "code": (0.932, "10 tokens a round of 16, as others measured on the 35B"),
    "prose": (0.706, "3.4 tokens a round of 16, as others measured on the 35B"),
    "math": (0.873, "7 tokens a round of 16: an assumption"),
}


@cache
def built_in(name: str) -> Profile:
    """`code`, `prose` or `math` with their constant chances; `none`: confident drafts, none of them kept."""
    if name == "none":
        likeness = built_in("math")
        note = "adversarial: drafts look as good as those of math and none is kept"
        return Profile(name, note, np.zeros(ROWS), likeness.kept, likeness.kept)
    chance, note = _CONSTANT[name]
    kept, lost = _true_confidence(chance)
    return Profile(name, note, np.full(ROWS, chance), kept, lost)


BUILT_IN = (*_CONSTANT, "none")


def _true_confidence(chance: float) -> tuple[np.ndarray, np.ndarray]:
    """Distributions over the bins of a confidence that is right on average, given kept and given lost."""
    a, b = CONFIDENCE_WEIGHT * chance, CONFIDENCE_WEIGHT * (1 - chance)
    confidence = np.random.default_rng(0).beta(a, b, 200_000)
    kept, _ = np.histogram(confidence, EDGES, weights=confidence)
    lost, _ = np.histogram(confidence, EDGES, weights=1 - confidence)
    return kept / kept.sum(), lost / lost.sum()


def load(name: str) -> Profile:
    """A built-in profile by name, or one recorded to a file."""
    if name in BUILT_IN:
        return built_in(name)
    path = Path(name)
    if not path.is_file():
        raise CloverError(
            f"there is no acceptance profile {name!r}",
            hint=f"give one of {', '.join(BUILT_IN)}, or a file made with --record-profile",
        )
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value["clover_accept_profile"] != FORMAT:
            raise ValueError
        counts = [np.asarray(value[key], float) for key in ("judged", "accepted", "kept", "lost")]
        return from_counts(str(value["name"]), f"recorded from {value['model']}", *counts)
    except (KeyError, TypeError, ValueError, OSError) as problem:
        raise CloverError(f"{path} is not an acceptance profile of this version") from problem


def from_counts(
    name: str, note: str, judged: np.ndarray, accepted: np.ndarray, kept: np.ndarray, lost: np.ndarray
) -> Profile:
    """A profile from counts: per row how often it was judged and accepted, per confidence bin likewise.

    A row that was judged seldom leans on the row before it.
    """
    if judged.size > ROWS or judged.shape != accepted.shape or kept.size != BINS or lost.size != BINS:
        raise ValueError("counts of another shape")
    if judged.sum() == 0 or (accepted > judged).any() or min(accepted.min(), kept.min(), lost.min()) < 0:
        raise ValueError("counts that cannot be")
    chance, before = np.empty(ROWS), accepted.sum() / judged.sum()
    for row in range(ROWS):
        seen, good = (judged[row], accepted[row]) if row < judged.size else (0.0, 0.0)
        before = chance[row] = (good + 10 * before) / (seen + 10)
    return Profile(name, note, chance, _normal(kept), _normal(lost))


def _normal(counts: np.ndarray) -> np.ndarray:
    smooth = counts + 0.01  # no bin is impossible
    return smooth / smooth.sum()


class Recording:
    """Counts what a real run's verify passes say about its drafts."""

    def __init__(self) -> None:
        self.judged, self.accepted = np.zeros(ROWS, int), np.zeros(ROWS, int)
        self.kept, self.lost = np.zeros(BINS, int), np.zeros(BINS, int)

    def add(self, confidence: Sequence[float], accepted: int) -> None:
        """One round: the confidence of every verified draft, of which the first `accepted` were kept."""
        for row, p in enumerate(confidence[: accepted + 1]):
            good = row < accepted
            self.judged[row] += 1
            self.accepted[row] += good
            counts = self.kept if good else self.lost
            counts[min(max(int(np.searchsorted(EDGES, p, "right")) - 1, 0), BINS - 1)] += 1

    def profile(self, name: str, model: str) -> Profile:
        """The profile recorded so far; raises CloverError when no draft was judged."""
        if not self.judged.any():
            raise CloverError("no draft was verified, so there is no acceptance profile to record")
        counts = (np.asarray(c, float) for c in (self.judged, self.accepted, self.kept, self.lost))
        return from_counts(name, f"recorded from {model}", *counts)

    def save(self, path: Path, name: str, model: dict[str, Any], about: dict[str, Any]) -> None:
        """Write the counts; raises CloverError when there are none or the file cannot be written."""
        profile = self.profile(name, model["name"])
        value = {
            "clover_accept_profile": FORMAT,
            "name": name,
            "model": model["name"],
            "model_sha256": model["sha256"],
            "about": about,
            "tokens_per_round_of_16": round(profile.tokens_per_round(16), 3),
            "judged": self.judged.tolist(),
            "accepted": self.accepted.tolist(),
            "kept": self.kept.tolist(),
            "lost": self.lost.tolist(),
        }
        try:
            path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        except OSError as problem:
            raise CloverError(f"{path} cannot be written: {problem.strerror}") from problem
