"""What kind of NVIDIA card and driver is here, asked of the driver itself; it opens nothing on the card."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_local.errors import CloverError
from clover_local.runtime.cuda.compiler import OLDEST, nvrtc_version
from clover_local.runtime.cuda.device import load_driver

RELEASE = Path("/proc/driver/nvidia/version")  # Linux only; elsewhere the CUDA version has to do


@dataclass(frozen=True)
class Card:
    """A card and its driver; `cuda` is the newest CUDA version that the driver runs."""

    name: str
    capability: tuple[int, int]
    cuda: tuple[int, int]
    release: str | None

    @property
    def driver(self) -> str:
        """The driver for people."""
        number = f"CUDA {self.cuda[0]}.{self.cuda[1]}"
        return f"{self.release}, {number}" if self.release else number


def card(ordinal: int = 0) -> Card:
    """The card of that number; raises CloverError where there is none or no driver."""
    api = load_driver()
    try:
        _value(api.cuInit(0))
    except RuntimeError:  # the library that comes with the driver
        raise CloverError(
            "there is no NVIDIA driver here", "install it; a container needs it from its host"
        ) from None
    try:
        version = int(_value(api.cuDriverGetVersion()))
        device = _value(api.cuDeviceGet(ordinal))
        name = _value(api.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
        kind = api.CUdevice_attribute
        parts = (
            kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
        major, minor = (int(_value(api.cuDeviceGetAttribute(part, device))) for part in parts)
    except RuntimeError as problem:  # a function that an old driver lacks
        raise CloverError(f"the NVIDIA driver is too old: {problem}", "update the driver") from None
    return Card(name, (major, minor), (version // 1000, version % 1000 // 10), release())


def usable(ordinal: int = 0) -> Card:
    """The card, when the kernels compiled here can run on it; raises CloverError with the reason otherwise."""
    found, compiler = card(ordinal), nvrtc_version()
    if found.capability < OLDEST:
        raise CloverError(
            f"the card has compute capability {found.capability[0]}.{found.capability[1]}; "
            f"they need {OLDEST[0]}.{OLDEST[1]}"
        )
    if found.cuda[0] < compiler[0]:
        raise CloverError(
            f"the NVIDIA driver ({found.driver}) is older than their compiler (CUDA {compiler[0]}.{compiler[1]})",
            "update the driver",
        )
    return found


def release() -> str | None:
    """The driver's own version such as 570.86.15, where the system tells it."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", RELEASE.read_text())
    except OSError:
        return None
    return found[0] if found else None


def _value(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if int(code) != 0:
        raise CloverError(f"the CUDA driver says {code.name}")
    return values[0] if values else None
