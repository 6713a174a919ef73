"""Code as highlighted lines, in the two accents of the palette."""

from functools import lru_cache

from rich.style import Style
from rich.syntax import Syntax, SyntaxTheme, TokenType
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
    syntax = Syntax("", language or "text", theme=_theme(palette))
    text = syntax.highlight(code.expandtabs(4))
    if text.plain.count("\n") > code.count("\n"):
        text.right_crop(1)  # the newline that the lexer makes sure of
    return text


@lru_cache(maxsize=8)
def _theme(palette: Palette) -> "Restrained":
    return Restrained(palette)


class Restrained(SyntaxTheme):
    """A syntax theme of few colours: what pygments tells apart beyond them looks alike."""

    def __init__(self, palette: Palette) -> None:
        self._text = palette.text
        self._styles = {
            "Token.Comment": palette.muted + Style(italic=True),
            "Token.Keyword": palette.accent2,
            "Token.Operator.Word": palette.accent2,
            "Token.Name.Function": palette.text + Style(bold=True),
            "Token.Name.Class": palette.text + Style(bold=True),
            "Token.Name.Tag": palette.accent2,
            "Token.Name.Decorator": palette.muted,
            "Token.Literal.String": palette.accent,
            "Token.Literal.Number": palette.accent,
        }

    def get_style_for_token(self, token_type: TokenType) -> Style:
        """The style of a kind of token, or of the next more general kind that has one."""
        name = ".".join(("Token", *token_type))
        while name:
            if name in self._styles:
                return self._styles[name]
            name = name.rpartition(".")[0]
        return self._text

    def get_background_style(self) -> Style:
        """None: the lines are laid on a panel."""
        return self._text
