"""One message as lines: who speaks, folded reasoning, the text, the block being drafted, the figures."""

from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from clover_local.decoding.events import Block
from clover_local.tui.markdown import Prose
from clover_local.tui.theme import Palette
from clover_local.tui.wrap import clean, wrap

_BOLD, _ITALIC = Style(bold=True), Style(italic=True)
WIDEST = 100  # columns of text; longer lines are hard to read
FOLDED = 12  # lines of a question shown before it is folded
THOUGHTS = 4  # lines of the newest reasoning shown while it is written
SHADES = (
    (0.5, "░░"),
    (0.9, "▒▒"),
    (2.0, "▓▓"),
)


@dataclass
class Line:
    """One drawn line; a click on it does `action` (fold, older, newer)."""

    text: Text
    action: str = ""


@dataclass
class Entry:
    """A message on screen. Call `touch` after changing anything."""

    key: int
    role: str
    prose: Prose = field(default_factory=Prose)
    name: str = ""
    """Who speaks, if it is not You or Clover."""
    reasoning: str = ""
    thought_tokens: int = 0
    footer: tuple[str, ...] = ()
    trouble: str = ""
    """Why the answer is not whole, if it is not."""
    branch: tuple[int, int] = (1, 1)
    """Which of how many alternatives this is."""
    folded: bool = True
    dropped: bool = False
    """Whether it is no longer sent to the model."""
    writing: bool = False
    activity: str = ""
    """What happens before the first token."""
    block: Block | None = None
    strip_rows: int = 2
    """Lines kept for the block while it is written; 0 hides it."""
    _lines: list[Line] | None = None
    _for: object = None

    def touch(self) -> None:
        """Something changed: draw anew."""
        self._lines = None

    @property
    def source(self) -> str:
        """The text as written."""
        return self.prose.source

    def guess(self, width: int) -> int:
        """About how many lines it takes, without drawing it."""
        if self._lines is not None and self._for is not None and self._for[0] == width:  # type: ignore[index]
            return len(self._lines)
        inner = max(min(width, WIDEST), 10)
        rows = self.source.count("\n") + len(self.source) // inner + 1
        return (min(rows, FOLDED) if self.role == "user" else rows) + 3

    def exact(self, width: int, palette: Palette) -> bool:
        """Whether its lines for this width are at hand."""
        return self._lines is not None and self._for == (width, palette)

    def lines(self, width: int, palette: Palette) -> list[Line]:
        """Its lines at a width, a blank one last."""
        if not self.exact(width, palette) or self._lines is None:
            inner = max(min(width, WIDEST), 10)
            draw = self._question if self.role == "user" else self._answer
            self._lines = [*self._head(palette), *draw(inner, palette), Line(Text())]
            self._for = (width, palette)
        return self._lines

    def _head(self, palette: Palette) -> list[Line]:
        you = self.role == "user"
        style = palette.faint if self.dropped else palette.accent2 if you else palette.accent
        text = Text(self.name or ("You" if you else "Clover"), style + _BOLD)
        if self.dropped:
            text.append("  no longer sent", palette.faint)
        if self.branch[1] > 1:
            text.append(f"  ‹ {self.branch[0]}/{self.branch[1]} ›", palette.muted)
        return [Line(text, "switch" if self.branch[1] > 1 else "")]

    def _question(self, width: int, palette: Palette) -> list[Line]:
        style = palette.muted if self.dropped else palette.text
        source = self.source.expandtabs(4)
        rows = source.split("\n")
        if self.folded and (len(rows) > 2 * FOLDED or len(source) > width * FOLDED * 2):
            # wrapping a large paste only to hide it would hold up the screen
            shown = wrap(Text("\n".join(rows[:FOLDED])[: width * FOLDED], style), width)[:FOLDED]
            return [*map(Line, shown), Line(Text(f"▸ {len(rows):,} lines in all", palette.muted), "fold")]
        lines = [Line(line) for line in wrap(Text(source, style), width)]
        if self.folded and len(lines) > FOLDED:
            more = Text(f"▸ {len(lines) - FOLDED} more lines", palette.muted)
            return [*lines[:FOLDED], Line(more, "fold")]
        if len(lines) > FOLDED:
            lines.append(Line(Text("▾ fold", palette.muted), "fold"))
        return lines

    def _answer(self, width: int, palette: Palette) -> list[Line]:
        out = self._thoughts(width, palette)
        body = self.prose.lines(width, palette)
        out += map(Line, body)
        if self.writing:
            if self.activity and not body and not self.reasoning:
                out.append(Line(Text(self.activity, palette.muted)))
            out += map(Line, self._strip(width, palette))
        if self.trouble:
            out += map(Line, wrap(Text(self.trouble, palette.warning), width))
        if self.footer:
            out.append(Line(Text(_fitting(self.footer, width), palette.faint)))
        return out

    def _thoughts(self, width: int, palette: Palette) -> list[Line]:
        if not self.reasoning:
            return []
        style = palette.muted + _ITALIC
        now = self.writing and not self.prose.source
        count = f" for {self.thought_tokens} tokens" if self.thought_tokens else ""
        title = f"thinking{count}…" if now else f"thought{count}"
        out = [Line(Text(f"{'▸' if self.folded else '▾'} {title}", palette.muted), "fold")]
        if self.folded and not now and (self.prose.source or self.writing):
            return out
        # of a long reasoning only the end can be on screen while it grows
        text = self.reasoning[-2000:] if self.folded and now else self.reasoning
        lines = wrap(Text(text.strip("\n"), style), width - 2)
        if self.folded and now:
            lines = lines[-THOUGHTS:]
        out += [Line(Text.assemble("  ", line)) for line in lines]
        out.append(Line(Text()))
        return out

    def _strip(self, width: int, palette: Palette) -> list[Text]:
        if not self.strip_rows or self.block is None:
            return []
        lines = wrap(block_text(self.block, palette), width)[: self.strip_rows]
        return lines + [Text()] * (self.strip_rows - len(lines))


def block_text(block: Block, palette: Palette) -> Text:
    """A block as it stands: what is fixed in its own words, the rest as cells shaded by confidence."""
    out = Text()
    for n, token in enumerate(block.tokens):
        sure = block.confidence[n] if n < len(block.confidence) else 0.0
        word = block.text[n] if n < len(block.text) else ""
        if token is None:
            shade = next(mark for limit, mark in SHADES if sure < limit)
            if out and not out.plain.endswith(" "):
                out.append(" ")
            out.append(f"{shade} ", palette.faint if sure < 0.5 else palette.muted)
        else:
            style = palette.accent if sure >= 0.9 else palette.muted if sure >= 0.5 else palette.faint
            out.append(_flat(word), style)
    return out[1:] if out.plain.startswith(" ") else out


def _fitting(parts: tuple[str, ...], width: int) -> str:
    """As many of the parts as fit into one line."""
    line = parts[0]
    for part in parts[1:]:
        if cell_len(line) + 3 + cell_len(part) > width:
            break
        line = f"{line} · {part}"
    return line


def _flat(word: str) -> str:
    flat = clean(word.replace("\n", "↵").replace("\t", " "))
    return "".join(c for c in flat if cell_len(c) > 0)
