"""Free memory of the computer: what this process may still take, in a container too."""

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def free_ram() -> int | None:
    """Bytes that can be taken without driving others out; None where the system does not tell."""
    found = [size for size in (_available(), _left_of_group()) if size is not None]
    return min(found) if found else None


def _available() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _left_of_group() -> int | None:
    """What a container's limit leaves; file pages it caches can be dropped, so they count as free."""
    try:
        limit = int((GROUP / "memory.max").read_text())
        used = int((GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return max(limit - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0)), 0)
    except (OSError, ValueError):
        return None  # no limit ("max"), or no such group
