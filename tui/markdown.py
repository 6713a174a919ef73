"""Markdown as styled lines, drawn while it is written.

Text is appended; only the last block is parsed and drawn again, whatever lies above it is kept as lines. A
streamed answer therefore costs the same per piece at its end as at its start. (Textual's own Markdown widget
mounts a widget per paragraph and list item and highlights a growing code block anew each time: 35 ms per
appended word inside a list of 40 items, and 24 widgets for one answer of 12 lines.)
"""

from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.texmath import texmath_plugin
from rich.style import Style
from rich.text import Text

from clover_local.tui.code import code_lines
from clover_local.tui.mathtext import mathtext
from clover_local.tui.table import table_lines
from clover_local.tui.theme import Palette
from clover_local.tui.wrap import wrap

BULLETS = ("•", "◦", "▪")


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    dollarmath_plugin(parser, allow_space=False, allow_digits=False, double_inline=True)
    texmath_plugin(parser, delimiters="brackets")
    return parser


_PARSER = _parser()


@dataclass
class Unit:
    """One block of the top level, or one item of a list there, and its lines at the last width."""

    node: SyntaxTreeNode
    gap: bool
    """Whether a blank line stands above it."""
    number: int | None = None
    growing: bool = False
    _key: object = None
    _lines: list[Text] = field(default_factory=list)

    def lines(self, width: int, palette: Palette) -> list[Text]:
        """Its lines at a width."""
        if self._key != (width, palette):
            draw = _Draw(palette, self.growing)
            self._lines = draw.block(self.node, width, 0, self.number)
            self._key = (width, palette)
        return self._lines


class Prose:
    """A Markdown text that grows at its end."""

    def __init__(self, source: str = "") -> None:
        self.source = source
        self._closed: list[Unit] = []
        self._open: list[Unit] = []
        self._from = 0  # where in the source the open part begins
        self._dirty = True
        self._done = bool(source)

    def append(self, text: str) -> None:
        """Add text at the end."""
        self.source += text
        self._dirty, self._done = True, False

    def finish(self) -> None:
        """No more comes: parse the whole once, since later lines can change what earlier ones mean."""
        self._closed, self._open, self._from = [], [], 0
        self._dirty, self._done = True, True

    def lines(self, width: int, palette: Palette) -> list[Text]:
        """All lines at a width; treat them as read-only, they are kept."""
        if self._dirty:
            self._parse()
        out: list[Text] = []
        for unit in (*self._closed, *self._open):
            if unit.gap and out:
                out.append(Text())
            out += unit.lines(width, palette)
        return out

    def _parse(self) -> None:
        tail = self.source[self._from :]
        units, starts = _units(_PARSER.parse(tail))
        if self._open and units and not self._done and units[0].node.type == "list_item":
            units[0].gap = self._open[0].gap  # an item that goes on alone still belongs to its list
        last = starts[-1] if starts else None
        if not self._done and len(units) > 1 and last:
            self._closed += units[:-1]
            self._from += _offset(tail, last)
            units = units[-1:]
        for unit in units:
            unit.growing = not self._done
        self._open = units
        self._dirty = False


def _offset(text: str, line: int) -> int:
    """Where a line of a text begins."""
    at = 0
    for _ in range(line):
        at = text.index("\n", at) + 1
    return at


def _units(tokens: list[Token]) -> tuple[list[Unit], list[int | None]]:
    """The blocks of a text, lists taken apart into items, and the line each begins at where it is known."""
    units: list[Unit] = []
    starts: list[int | None] = []
    for node in SyntaxTreeNode(tokens).children:
        if node.type in ("bullet_list", "ordered_list"):
            first = int(node.attrs.get("start", 1))
            for n, item in enumerate(node.children):
                loose = n > 0 and not _tight(item)
                number = first + n if node.type == "ordered_list" else None
                units.append(Unit(item, n == 0 or loose, number))
                starts.append(item.map[0] if item.map else None)
        else:
            units.append(Unit(node, True))
            starts.append(node.map[0] if node.map else None)
    return units, starts


def _tight(item: SyntaxTreeNode) -> bool:
    return all(child.hidden for child in item.children if child.type == "paragraph")


class _Draw:
    """Draws nodes as lines with the styles of one palette."""

    def __init__(self, palette: Palette, growing: bool) -> None:
        self.palette = palette
        self.growing = growing

    def block(self, node: SyntaxTreeNode, width: int, depth: int, number: int | None = None) -> list[Text]:
        match node.type:
            case "paragraph":
                return wrap(self.inline(node), width)
            case "heading":
                strong = self.palette.accent if node.tag in ("h1", "h2") else self.palette.text
                return wrap(self.inline(node, strong + Style(bold=True)), width)
            case "fence" | "code_block":
                language = node.info.split()[0] if node.info.split() else ""
                return code_lines(node.content.rstrip("\n"), language, width, self.palette, self.growing)
            case "list_item":
                return self.item(node, width, depth, number)
            case "bullet_list" | "ordered_list":
                return self.list(node, width, depth)
            case "blockquote":
                return [
                    _after("▎ ", self.palette.faint, line) for line in self.blocks(node, width - 2, depth)
                ]
            case "table":
                rows = [
                    [self.inline(cell) for cell in row.children]
                    for part in node.children
                    for row in part.children
                ]
                return table_lines(rows, width, self.palette)
            case "hr":
                return [Text("─" * min(width, 40), self.palette.faint)]
            case "math_block" | "math_block_label":
                return wrap(Text(_indent(mathtext(node.content)), self.palette.accent2), width)
            case _:
                return wrap(Text(node.content, self.palette.text), width)

    def blocks(self, node: SyntaxTreeNode, width: int, depth: int) -> list[Text]:
        out: list[Text] = []
        for child in node.children:
            if out and not _joined(child):
                out.append(Text())
            out += self.block(child, width, depth)
        return out

    def item(self, node: SyntaxTreeNode, width: int, depth: int, number: int | None) -> list[Text]:
        mark = f"{BULLETS[depth % len(BULLETS)]} " if number is None else f"{number}. "
        inner = self.blocks(node, width - len(mark), depth + 1) or [Text()]
        blank = " " * len(mark)
        return [_after(blank if n else mark, self.palette.accent, line) for n, line in enumerate(inner)]

    def list(self, node: SyntaxTreeNode, width: int, depth: int) -> "list[Text]":
        first = int(node.attrs.get("start", 1))
        numbered = node.type == "ordered_list"
        out: list[Text] = []
        for n, item in enumerate(node.children):
            out += self.item(item, width, depth, first + n if numbered else None)
        return out

    def inline(self, node: SyntaxTreeNode, style: Style | None = None) -> Text:
        out = Text()
        for child in node.children:
            self._inline(child, style or self.palette.text, out)
        return out

    def _inline(self, node: SyntaxTreeNode, style: Style, out: Text) -> None:
        add = _STYLES.get(node.type)
        match node.type:
            case "softbreak" | "hardbreak":
                out.append("\n")
            case "code_inline":
                out.append(node.content, style + self.palette.code)
            case "math_inline" | "math_inline_double":
                out.append(mathtext(node.content).replace("\n", " "), style + self.palette.accent2)
            case "image":
                out.append(f"[image: {node.content}]", style + self.palette.muted)
            case "link":
                start = len(out)
                self._children(node, style + self.palette.accent2 + Style(underline=True), out)
                target = str(node.attrs.get("href", ""))
                if target and target != out.plain[start:]:
                    out.append(f" ({target})", self.palette.muted)
            case _ if node.children:
                self._children(node, style + add if add else style, out)
            case _:
                out.append(node.content, style)

    def _children(self, node: SyntaxTreeNode, style: Style, out: Text) -> None:
        for child in node.children:
            self._inline(child, style, out)


def _after(prefix: str, style: Style, line: Text) -> Text:
    """A line behind a prefix of another style (adding texts would give the first one's style to both)."""
    return Text.assemble((prefix, style), line)


_STYLES = {"strong": Style(bold=True), "em": Style(italic=True), "s": Style(strike=True)}


def _joined(node: SyntaxTreeNode) -> bool:
    """Whether a block follows the one above it without a blank line: nested lists, tight paragraphs."""
    return node.type in ("bullet_list", "ordered_list") or (node.type == "paragraph" and node.hidden)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
