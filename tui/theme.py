"""Colours: two calm themes, one for terminals of 16 colours, and the styles that drawn text is made of."""

from dataclasses import dataclass

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

DARK = Theme(
    name="clover-dark",
    primary="#7cc99a",
    secondary="#9db4e8",
    accent="#7cc99a",
    warning="#d9b26a",
    error="#e08a7d",
    success="#7cc99a",
    foreground="#d5dbd6",
    background="#121614",
    surface="#161b18",
    panel="#1d2420",
    dark=True,
)
LIGHT = Theme(
    name="clover-light",
    primary="#1d7a48",
    secondary="#3c56b0",
    accent="#1d7a48",
    warning="#8a5a00",
    error="#b3382c",
    success="#1d7a48",
    foreground="#222825",
    background="#fbfcfa",
    surface="#f3f6f2",
    panel="#e7ece6",
    dark=False,
)
SIXTEEN = Theme(
    name="clover-16",
    ansi=True,
    primary="ansi_green",
    secondary="ansi_cyan",
    accent="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    dark=True,
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_green",
        "input-cursor-background": "ansi_white",
        "input-cursor-foreground": "ansi_black",
        "input-selection-background": "ansi_blue",
        "screen-selection-background": "ansi_blue",
        "screen-selection-foreground": "ansi_white",
        "border": "ansi_green",
        "border-blurred": "ansi_bright_black",
        "scrollbar": "ansi_bright_black",
        "scrollbar-background": "ansi_default",
    },
)
THEMES = (DARK, LIGHT, SIXTEEN)


@dataclass(frozen=True)
class Palette:
    """Styles of the text in the transcript; frozen, so that drawn lines can be cached by it."""

    text: Style
    muted: Style
    faint: Style
    accent: Style
    accent2: Style
    warning: Style
    error: Style
    code: Style
    panel: Style
    ansi: bool = False


def palette_of(theme: Theme) -> Palette:
    """The styles that go with a Textual theme, ours or any other."""
    if theme.ansi:
        return _ansi_palette()
    colors = theme.to_color_system().generate()
    back, fore = Color.parse(colors["background"]), Color.parse(colors["foreground"])

    def style(color: Color) -> Style:
        return Style(color=color.hex6)

    return Palette(
        text=style(fore),
        muted=style(fore.blend(back, 0.38)),
        faint=style(fore.blend(back, 0.6)),
        accent=style(Color.parse(colors["primary"])),
        accent2=style(Color.parse(colors["secondary"])),
        warning=style(Color.parse(colors["warning"])),
        error=style(Color.parse(colors["error"])),
        code=style(Color.parse(colors["secondary"])),
        panel=Style(bgcolor=Color.parse(colors["panel"]).hex6),
    )


def _ansi_palette() -> Palette:
    return Palette(
        text=Style(),
        muted=Style(dim=True),
        faint=Style(dim=True),
        accent=Style(color="green"),
        accent2=Style(color="cyan"),
        warning=Style(color="yellow"),
        error=Style(color="red"),
        code=Style(color="cyan"),
        panel=Style(),
        ansi=True,
    )
