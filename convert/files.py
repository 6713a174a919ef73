"""Reads the JSON files of a checkpoint: bounded, and every failure is a sentence that names the file."""

import json
from pathlib import Path
from typing import Any

from clover_local.errors import ModelError

MAX_JSON = 512 << 20  # the largest real tokenizer.json is about 20 MB


def read_text(path: Path, limit: int = MAX_JSON) -> str:
    """The UTF-8 text of a file; raises ModelError when it is missing, too large or not UTF-8."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path} has {size:,} bytes; at most {limit:,} are expected of such a file")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing", "a checkpoint folder of Hugging Face holds it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out


def parse_object(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object from text; `what` names its origin in the error."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what} holds no JSON object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    return parse_object(read_text(path), str(path))


def maybe_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an empty one when there is no such file."""
    return read_object(path) if path.exists() else {}
