"""From a row of logits to a token: greedy, or drawn with temperature, top-k, top-p and min-p.

Every draw takes its random number from (seed, place in the answer) and not from how many were drawn before,
so a seed gives the same text whether a token is written alone or judged as part of a draft.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clover_local.decoding.settings import Settings
from clover_local.runtime.rows import Rows

_FIRST_SORTED = 256  # top-p seldom needs more of a vocabulary than this


def distribution(
    logits: np.ndarray, temperature: float, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """Probabilities [vocab] (float64, sum 1) of one row of logits [vocab].

    In this order: divide by the temperature; keep the `top_k` largest and what ties with the last of them;
    keep the most probable while the mass before them is at most `top_p`; keep p >= `min_p` * max(p).
    Source: docs/model.md, "Decoding".
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    if 0 < top_k < scaled.size:
        smallest = np.partition(scaled, -top_k)[-top_k]
        scaled = np.where(scaled < smallest, -np.inf, scaled)
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    if top_p < 1.0:
        keep = _nucleus(p, top_p)
        rest = np.zeros_like(p)
        rest[keep] = p[keep]
        p = rest
    if min_p > 0.0:
        p = np.where(p < min_p * p.max(), 0.0, p)
    return p / p.sum()


def _nucleus(p: np.ndarray, top_p: float) -> np.ndarray:
    """Indices of the most probable entries, kept while the mass before each is at most `top_p`."""
    if p.size > _FIRST_SORTED:
        largest = np.argpartition(p, -_FIRST_SORTED)[-_FIRST_SORTED:]
        if p[largest].sum() <= top_p:
            largest = np.arange(p.size)
    else:
        largest = np.arange(p.size)
    order = largest[np.lexsort((largest, -p[largest]))]
    before = np.cumsum(p[order]) - p[order]
    return order[before <= top_p]


def draw(p: np.ndarray, uniform: float) -> int:
    """The token that a uniform number in [0, 1) picks from probabilities [vocab]."""
    support = np.flatnonzero(p)
    mass = np.cumsum(p[support])
    place = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    return int(support[min(place, support.size - 1)])


@dataclass(frozen=True)
class Sampler:
    """Chooses tokens as the settings say; `seed` is settled, so one answer can be repeated."""

    settings: Settings
    seed: int

    @classmethod
    def of(cls, settings: Settings) -> "Sampler":
        """A sampler with the settings' seed, or a fresh one where they leave it open."""
        return cls(settings, secrets.randbits(64) if settings.seed is None else settings.seed)

    @property
    def greedy(self) -> bool:
        return self.settings.temperature == 0.0

    def choose(self, rows: Rows, row: int, position: int) -> int:
        """The token of one row for a 1-based place in the answer."""
        return self.choices(rows)(row, position, 0)

    def choices(self, rows: Rows) -> Callable[[int, int, int], int]:
        """A function (row, 1-based place in the answer, attempt) -> token over one pass.

        The attempt tells draws for the same place apart (passes of a block being denoised). Logits are
        fetched from the device once, and only above temperature 0.
        """
        if self.greedy:
            return lambda row, position, attempt: int(rows.ids[row])
        logits = rows.logits()
        return lambda row, position, attempt: draw(
            self.distribution(logits[row]), self.uniform(position, attempt)
        )

    def distribution(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities [vocab] after the settings' temperature and cuts."""
        s = self.settings
        return distribution(logits, s.temperature, top_k=s.top_k, top_p=s.top_p, min_p=s.min_p)

    def uniform(self, position: int, attempt: int = 0) -> float:
        """The random number of one place, in [0, 1)."""
        bits = np.random.Philox(key=self.seed, counter=[position, attempt, 0, 0])
        return float(np.random.Generator(bits).random())
