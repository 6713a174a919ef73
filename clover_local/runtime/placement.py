"""Keeps the experts that are used most on the card: between two answers a few change places, during a pass none."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from clover_local.model.slots import EMPTY, Slots
from clover_local.runtime.graphs import Runner
from clover_local.runtime.usage import Usage

SWAP_BYTES = 1 << 30  # moved between two answers at most: 20 to 40 ms on a usual link
SURE = 1.0  # standard deviations by which an expert must have been used more often than the one it replaces


class CardRunner(Runner, Protocol):
    """Our kernels' runner: it counts what is used, and reads experts where it is told."""

    def usage(self) -> np.ndarray:
        """Rows of causal passes that picked each expert since it was made, uint32 [layers, experts]."""
        ...

    def repoint(self, layers: Iterable[int], addresses: Callable[[int, str], np.ndarray]) -> None:
        """Read the experts of these layers from where they lie now; no pass may be running."""
        ...

    def gather(self, layer: int, targets: Sequence[int]) -> None:
        """Copy all experts of a layer side by side to addresses on the card: gate, up, down."""
        ...


@dataclass(frozen=True)
class Swap:
    """An expert that gets a slot, and the slot."""

    layer: int
    slot: int
    expert: int


def swaps(
    counts: np.ndarray, held: Sequence[np.ndarray], sizes: Sequence[int], limit: int | None
) -> list[Swap]:
    """The changes that bring most uses onto the card within `limit` bytes (None: all), best first.

    `counts` [layers, experts]; `held[layer]` the expert of each slot; `sizes` bytes of an expert, by layer. Where the
    difference may be chance nothing moves.
    """
    found: list[tuple[float, Swap]] = []
    for layer, slots in enumerate(held):
        own = np.where(slots == EMPTY, -1.0, counts[layer][slots])
        outside = np.setdiff1d(np.arange(counts.shape[1]), slots)
        coming = outside[np.argsort(-counts[layer][outside], kind="stable")]
        for slot, expert in zip(np.argsort(own, kind="stable"), coming, strict=False):
            gain = counts[layer][expert] - own[slot]
            if gain <= SURE * np.sqrt(counts[layer][expert] + max(own[slot], 0.0)):
                break
            found.append((gain / sizes[layer], Swap(layer, int(slot), int(expert))))
    found.sort(key=lambda pair: -pair[0])
    room, chosen = limit, []
    for _, one in found:
        if room is not None:
            if sizes[one.layer] > room:
                break
            room -= sizes[one.layer]
        chosen.append(one)
    return chosen


class Placement:
    """The slots of one engine, what is known of the experts' use, and the runner that reads them."""

    def __init__(self, slots: Slots, usage: Usage, reader: CardRunner) -> None:
        self._slots, self._usage, self._reader = slots, usage, reader
        self._seen = reader.usage()  # what checks and timings picked is no use

    @property
    def resident(self) -> np.ndarray:
        """Which experts are on the card, bool [layers, experts]."""
        return self._slots.resident

    @property
    def share(self) -> float | None:
        """Share of all known uses that fall on experts on the card; None while none is known."""
        return self._usage.share(self.resident)

    def learn(self) -> bool:
        """Take in and keep what was used since the last call; False when nothing was."""
        now = self._reader.usage()
        fresh, self._seen = now - self._seen, now  # uint32: right even after an overflow
        if not self._usage.add(fresh):
            return False
        self._usage.save()
        return True

    def forget(self) -> None:
        """Begin to learn anew; what is on the card stays there. The file keeps the old counts until the next use."""
        self._usage.counts[:] = 0.0

    def adapt(self, limit: int | None = SWAP_BYTES) -> int:
        """Learn, and give slots to experts that are used more; returns the bytes moved. No pass may be running."""
        if not self.learn():
            return 0
        slots, moved, layers = self._slots, 0, set()
        for one in swaps(self._usage.counts, slots.held, slots.bytes_each, limit):
            moved += slots.put(one.layer, one.slot, one.expert)
            layers.add(one.layer)
        self._reader.repoint(sorted(layers), slots.addresses)
        return moved
