"""Code as highlighted lines, in the two accents of the palette."""

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token
from pygments.util import ClassNotFound
from rich.style import Style
from rich.text import Text

from clover_local.tui.theme import Palette
from clover_local.tui.wrap import wrap

PIECE = 60  # lines highlighted at once while a block grows: what is complete is kept
WHOLE = 400  # lines above which a finished block is highlighted in pieces too (35 ms per thousand lines)


def code_lines(code: str, language: str, width: int, palette: Palette, growing: bool = False) -> list[Text]:
    """The lines of a code block at a width, on a panel of their own."""
    rows = code.split("\n")
    step = PIECE if growing or len(rows) > WHOLE else max(len(rows), 1)
    out: list[Text] = []
    for start in range(0, len(rows), step):
        piece = "\n".join(rows[start : start + step])
        if start + step <= len(rows):
            out += _kept(piece, language, width, palette)
        else:
            out += _drawn(piece, language, width, palette)
    return out


@lru_cache(maxsize=256)
def _kept(code: str, language: str, width: int, palette: Palette) -> tuple[Text, ...]:
    return tuple(_drawn(code, language, width, palette))


def _drawn(code: str, language: str, width: int, palette: Palette) -> list[Text]:
    text = _highlight(code, language, palette)
    margin = "│ " if palette.ansi else " "
    out = []
    for line in wrap(text, width - 3):
        full = Text.assemble((margin, palette.faint), line)
        full.pad_right(max(width - full.cell_len, 0))
        full.stylize_before(palette.panel)
        out.append(full)
    return out


def _highlight(code: str, language: str, palette: Palette) -> Text:
    text = Text(style=palette.text)
    lexer = _lexer(language)
    if lexer is None:
        text.append(code.expandtabs(4))
        return text
    styles = _styles(palette)
    for kind, value in lexer.get_tokens(code.expandtabs(4)):
        while kind not in styles:
            kind = kind.parent or Token
        text.append(value, styles[kind])
    text.right_crop(1)  # the newline that the lexer makes sure of
    return text


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=True) if language else None
    except ClassNotFound:
        return None


@lru_cache(maxsize=8)
def _styles(palette: Palette) -> dict[object, Style]:
    return {
        Token: palette.text,
        Comment: palette.muted + Style(italic=True),
        Keyword: palette.accent2,
        Operator.Word: palette.accent2,
        Name.Function: palette.text + Style(bold=True),
        Name.Class: palette.text + Style(bold=True),
        Name.Tag: palette.accent2,
        Name.Decorator: palette.muted,
        String: palette.accent,
        Number: palette.accent,
    }
