"""Comparing a screen with a picture that was looked at: the SVG, without what differs from run to run.

After a change that is meant, write the pictures anew and look at them:
UPDATE_SNAPSHOTS=1 pytest tests/tui/test_snapshots.py
"""

import os
import re
import tempfile
from pathlib import Path

import pytest
from textual.app import App

FOLDER = Path(__file__).parent / "pictures"
_NUMBERED = re.compile(r"terminal-\d+")


def compare(app: App[object], name: str) -> None:
    """Fail when the screen is not the stored picture; it says where the new one lies then."""
    svg = _NUMBERED.sub("terminal", app.export_screenshot())
    stored = FOLDER / f"{name}.svg"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        stored.write_text(svg, encoding="utf-8")
        return
    if not stored.is_file():
        pytest.fail(f"there is no picture {stored.name}; see the head of snapshots.py")
    if stored.read_text(encoding="utf-8") != svg:
        new = Path(tempfile.mkdtemp(prefix="clover-picture-")) / stored.name
        new.write_text(svg, encoding="utf-8")
        pytest.fail(f"the screen differs from {stored.name}: {_first_difference(stored, svg)}; compare {new}")


def _first_difference(stored: Path, svg: str) -> str:
    """The first text that differs."""
    old, new = (re.findall(r">([^<>]+)</text>", text) for text in (stored.read_text(encoding="utf-8"), svg))
    pairs = ((a, b) for a, b in zip(old, new, strict=False) if a != b)
    a, b = next(pairs, ("(only styles or places)", ""))
    return f"{a!r} is now {b!r}".replace("&#160;", " ")
