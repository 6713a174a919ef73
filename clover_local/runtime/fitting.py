"""Opens a model by a plan, and by a smaller one when the card or the computer turns out to have less than it said."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from clover_local.errors import CardFullError, LockedMemoryError
from clover_local.ggml.backend import Device, devices
from clover_local.runtime.memory import free_ram
from clover_local.runtime.plan import DESKTOP, Machine, Plan, Sizes, decide, gib

RESERVE = 512 << 20  # bytes of video memory left to the desktop where no cap is given
TRIES = 4  # plans tried; each after the first is made from what is free then
SHRINK = 384 << 20  # bytes by which a plan gets smaller though the card says that all is free
Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Wish:
    """What the user asked for: bytes of a card, layers' experts with the CPU, experts on the card a layer."""

    vram: int | None = None
    host_layers: int | None = None
    slots: int | None = None


def budget(device: Device, vram: int | None) -> int:
    """Bytes for the whole process: of a card of `vram` bytes what a desktop leaves, and never more than is free."""
    return device.free - RESERVE if vram is None else min(vram - DESKTOP, device.free)


def fit(
    sizes: Sizes,
    device: Device,
    n_ctx: int,
    wish: Wish,
    build: Callable[[Plan], Opened],
    *,
    refused: Callable[[Opened], str | None],
    again: Callable[[], Device] | None = None,
) -> tuple[Opened, str | None]:
    """What `build` makes of the first plan that works, and a sentence about what was given up for it.

    `refused` closes what was opened with experts placed one by one where our kernels do not run it, and says why.
    """
    room, ram, notes = budget(device, wish.vram), free_ram(), list[str]()
    if not device.name.startswith("CUDA"):
        sizes = replace(sizes, obstacle=None)  # nobody expects our kernels there
    if wish.vram is not None and room < wish.vram - DESKTOP:
        taken = gib(max(device.total - device.free, 0))
        notes.append(
            f"other programs hold {taken} of the card's {gib(device.total)}, so {gib(room)} are used"
        )
    for attempt in range(TRIES):
        placed, given_up = decide(
            sizes, Machine(room, ram), n_ctx, host_layers=wish.host_layers, slots=wish.slots
        )
        try:
            opened = build(placed)
        except CardFullError:
            if attempt == TRIES - 1 or wish.host_layers is not None or wish.slots is not None:
                raise
            free = (again() if again else _again(device)).free
            room = min(room - SHRINK, budget(replace(device, free=free), wish.vram))
            notes = [
                f"video memory ran out while loading, another program may have taken it: {gib(room)} are used"
            ]
            continue
        except LockedMemoryError as problem:
            if wish.slots is not None:
                raise
            notes.append(f"{problem}; whole layers' experts stay with the CPU, which is slower")
            sizes = replace(sizes, kernels=0)
            continue
        reason = refused(opened) if placed.slots else None
        if reason is not None:
            notes.append(reason)
            sizes = replace(sizes, kernels=0)
            continue
        return opened, "; ".join([*notes, *([given_up] if given_up else [])]) or None
    raise AssertionError("the last attempt returns or raises")


def _again(device: Device) -> Device:
    return next(one for one in devices() if one.name == device.name)
