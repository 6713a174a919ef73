"""What was measured on this machine, kept between starts: one small JSON file per kind and key.

A file that is missing, old, broken or somebody else's is as good as none: it is measured again.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from clover_local.ggml.lib import BINDING
from clover_local.version import __version__

FORMAT = 1
VERSIONS = f"clover-local {__version__}, llama-cpp-python {BINDING}"


def file_identity(path: str | Path) -> str:
    """A file by its place, size and time: reading 18 GB for a hash would take longer than what it saves."""
    stat = Path(path).stat()
    return f"{Path(path).resolve()}|{stat.st_size}|{stat.st_mtime_ns}"


def recall(kind: str, key: str) -> Any:
    """What was kept under a key; None where nothing usable is."""
    try:
        found = json.loads(_path(kind, key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(found, dict) and (found.get("format"), found.get("key")) == (FORMAT, key)
    return found.get("value") if same else None


def keep(kind: str, key: str, value: Any) -> None:
    """Keep a JSON value; readers see the old file or the new one, never a part. Unwritable folders are no error."""
    path = _path(kind, key)
    fresh = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps({"format": FORMAT, "key": key, "value": value}), encoding="utf-8")
        fresh.replace(path)
    except OSError:  # measuring again costs seconds at the next start, nothing else
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _path(kind: str, key: str) -> Path:
    folder = Path(platformdirs.user_cache_dir("clover-local")) / "measured"
    return folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
