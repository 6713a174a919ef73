"""What a pass costs here: milliseconds by kind and rows, learned while running."""

import math
from collections import deque
from statistics import median_low
from typing import Literal

import numpy as np

CostKind = Literal["plain", "draft", "verify"]
MAX_ROWS = 32

# Plain steps that a pass takes, by rows: the ggml path on a 35B shape (docs/performance.md). Only the shape
# matters, and only until passes were measured.
_PRIOR: dict[CostKind, dict[int, float]] = {
    "plain": {1: 1.0},
    "draft": {1: 1.2, 4: 1.6, 8: 2.0, 16: 2.6, 32: 4.0},
    "verify": {1: 1.0, 2: 1.2, 4: 1.5, 8: 1.9, 16: 2.6, 32: 4.0},
}
_DRIFT = 0.03  # change of a median that is worth new tables
_KEPT = 9  # measurements per entry: the median of nine forgets a slow spell within a second
_ROWS = np.arange(MAX_ROWS + 1)


def _interpolate(points: dict[int, float]) -> np.ndarray:
    """Values [MAX_ROWS + 1] by rows: straight between the points, constant outside."""
    known = sorted(points)
    return np.interp(_ROWS, known, [points[rows] for rows in known])


def _plausible(rows: int, steps: float) -> bool:
    """Whether a pass may take so many plain steps: it reads no less than one, and no more than all of them."""
    return 0.5 < steps < 2.0 * rows


class Costs:
    """A table (kind, rows) -> ms. Unmeasured entries follow the measured ones around them."""

    def __init__(self) -> None:
        self._prior = {kind: _interpolate(points) for kind, points in _PRIOR.items()}
        self.ready = False  # whether drafts and their verification need no measuring
        self._seen: dict[tuple[CostKind, int], deque[float]] = {}
        self._medians: dict[tuple[CostKind, int], float] = {}  # as the tables have them
        self._tables: dict[CostKind, list[float]] = {}

    def observe(self, kind: CostKind, rows: int, ms: float, *, warm: bool = False) -> None:
        """Learn from one pass. The first of a shape may have built its graph, so it counts no more than was
        expected of it, unless the shape is `warm`.
        """
        key = kind, rows
        if key not in self._seen:
            if not warm and self.known:
                ms = min(ms, self.ms(kind, rows))
            self._seen[key] = deque(maxlen=_KEPT)
        self._seen[key].append(ms)
        median = median_low(self._seen[key])
        if abs(median - self._medians.get(key, 0.0)) > _DRIFT * median:
            self._medians[key] = median
            if kind == "plain":
                self._tables.clear()  # every table is made in plain steps
            else:
                self._tables.pop(kind, None)

    @property
    def known(self) -> bool:
        """Whether plain steps were measured, the first of which may have built its graph."""
        return len(self._seen.get(("plain", 1), ())) >= 2

    def ms(self, kind: CostKind, rows: int) -> float:
        """The expected milliseconds of a pass; in plain steps until one was measured."""
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = self._table(kind)
        return table[rows]

    def measured(self) -> dict[CostKind, dict[int, float]]:
        """The median of every shape that was measured, for printing."""
        out: dict[CostKind, dict[int, float]] = {}
        for (kind, rows), seen in sorted(self._seen.items()):
            out.setdefault(kind, {})[rows] = median_low(seen)
        return out

    @property
    def shapes(self) -> set[tuple[str, int]]:
        """The (kind, rows) that were measured."""
        return set(self._seen)

    def entries(self) -> list[tuple[CostKind, int, float]]:
        """What was measured as (kind, rows, ms), for `take` at the next start."""
        return [(kind, rows, median_low(seen)) for (kind, rows), seen in sorted(self._seen.items())]

    def take(self, entries: object) -> bool:
        """Expect what `entries` gave at an earlier start, in plain steps of today; passes that are measured
        overrule it. False for anything else, and for what a disturbed measurement left."""
        try:
            given = {(str(kind), int(rows)): float(ms) for kind, rows, ms in entries}  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            return False
        plain = given.get(("plain", 1), 0.0)
        if not 0.0 < plain < math.inf or {kind for kind, _ in given} != set(self._prior):
            return False
        if not all(1 <= rows <= MAX_ROWS and _plausible(rows, ms / plain) for (_, rows), ms in given.items()):
            return False
        for kind in self._prior:
            steps = {rows: ms / plain for (of, rows), ms in given.items() if of == kind}
            self._prior[kind] = _interpolate(steps)
        self._tables.clear()
        self.ready = True
        return True

    def _table(self, kind: CostKind) -> list[float]:
        expected = self._prior[kind] * self._medians.get(("plain", 1), 1.0)
        ratios = {rows: ms / expected[rows] for (of, rows), ms in self._medians.items() if of == kind}
        table: list[float] = (expected * _interpolate(ratios) if ratios else expected).tolist()
        return table
