"""What a pass costs here: milliseconds by kind and rows, learned while running."""

from collections import deque
from statistics import median_low
from typing import Literal

CostKind = Literal["plain", "draft", "verify"]
MAX_ROWS = 32

# Plain steps that a pass takes, by rows: the ggml path on a 35B shape (docs/performance.md). Only the shape
# matters, and only until passes were measured.
_PRIOR: dict[CostKind, dict[int, float]] = {
    "plain": {1: 1.0},
    "draft": {1: 1.2, 4: 1.6, 8: 2.0, 16: 2.6, 32: 4.0},
    "verify": {1: 1.0, 2: 1.2, 4: 1.5, 8: 1.9, 16: 2.6, 32: 4.0},
}
_DRIFT = 0.05  # change of the plain step's cost that is worth new tables
_KEPT = 9  # measurements per entry: the median of nine forgets a slow spell within a second


def _interpolate(points: dict[int, float]) -> list[float]:
    """Values at rows 0 … MAX_ROWS: straight between the points, constant outside."""
    known = sorted(points)
    out = []
    for rows in range(MAX_ROWS + 1):
        below = max((k for k in known if k <= rows), default=known[0])
        above = min((k for k in known if k >= rows), default=known[-1])
        part = (rows - below) / (above - below) if above > below else 0.0
        out.append(points[below] + part * (points[above] - points[below]))
    return out


class Costs:
    """A table (kind, rows) -> ms. Unmeasured entries follow the measured ones around them."""

    def __init__(self) -> None:
        self._prior = {kind: _interpolate(points) for kind, points in _PRIOR.items()}
        self._seen: dict[tuple[CostKind, int], deque[float]] = {}
        self._tables: dict[CostKind, list[float]] = {}
        self._scale = self._plain()  # the plain step's cost that the tables were made with

    def observe(self, kind: CostKind, rows: int, ms: float, *, warm: bool = False) -> None:
        """Learn from one pass. The first of a shape may have built its graph, so it counts no more than was
        expected of it, unless the shape is `warm`.
        """
        if (kind, rows) not in self._seen:
            if not warm and self.known:
                ms = min(ms, self.ms(kind, rows))
            self._seen[kind, rows] = deque(maxlen=_KEPT)
        self._seen[kind, rows].append(ms)
        if kind != "plain":
            self._tables.pop(kind, None)
        elif abs(self._plain() - self._scale) > _DRIFT * self._scale:
            self._scale = self._plain()
            self._tables.clear()

    @property
    def known(self) -> bool:
        """Whether plain steps were measured, the first of which may have built its graph."""
        return len(self._seen.get(("plain", 1), ())) >= 2

    def ms(self, kind: CostKind, rows: int) -> float:
        """The expected milliseconds of a pass."""
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

    def _plain(self) -> float:
        return median_low(self._seen["plain", 1]) if self.known else 1.0

    def _table(self, kind: CostKind) -> list[float]:
        plain, prior = self._scale, self._prior[kind]
        ratios = {
            rows: median_low(seen) / (plain * prior[rows])
            for (of, rows), seen in self._seen.items()
            if of == kind
        }
        scale = _interpolate(ratios) if ratios else [1.0] * (MAX_ROWS + 1)
        return [plain * prior[rows] * scale[rows] for rows in range(MAX_ROWS + 1)]
