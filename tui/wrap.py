"""Breaking styled text into lines of so many cells; wide characters may be broken apart anywhere."""

import re

from rich.cells import cell_len
from rich.text import Text

# Scripts written without spaces: a line may end before or after each of these characters.
_WIDE = (
    "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6\U00020000-\U0003fffd"
)
# Punctuation that must not begin a line stays with the character before it.
_STAY = "、。，．：；？！）】」』》〉…"
_PIECE = re.compile(rf"[{_WIDE}][{_STAY}]*[ ]*|[^\s{_WIDE}]+[{_STAY}]*[ ]*|[ ]+|\s")


_CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421, 0x9B: 0x241B}


def clean(text: str) -> str:
    """A text whose control characters are shown instead of reaching the terminal."""
    return text.translate(_CONTROLS)


def wrap(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells; newlines in the text end lines, words longer than a line are cut."""
    width = max(width, 2)
    if not text.plain.isprintable():
        text = text.copy()
        text.plain = clean(text.plain)
        text.expand_tabs(4)
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        if cell_len(line.plain) <= width:
            lines.append(line)
        else:
            lines += line.divide(_breaks(line.plain, width))
    for line in lines:
        line.rstrip()
    return lines or [Text()]


def _breaks(plain: str, width: int) -> list[int]:
    """Character offsets at which lines after the first begin."""
    breaks: list[int] = []
    used = 0
    for match in _PIECE.finditer(plain):
        piece = match.group()
        bare = cell_len(piece.rstrip(" "))
        if used and used + bare > width:
            breaks.append(match.start())
            used = 0
        if bare > width:
            used = _cut(piece, match.start(), used, width, breaks)
        else:
            used += cell_len(piece)
    return breaks


def _cut(piece: str, start: int, used: int, width: int, breaks: list[int]) -> int:
    for offset, character in enumerate(piece):
        cells = cell_len(character)
        if used + cells > width and character != " ":
            breaks.append(start + offset)
            used = 0
        used += cells
    return used
