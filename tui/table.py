"""Tables as lines that fit a width."""

from rich.text import Text

from clover_local.tui.theme import Palette
from clover_local.tui.wrap import wrap

GAP = 2
NARROWEST = 4


def table_lines(rows: list[list[Text]], width: int, palette: Palette) -> list[Text]:
    """The first row is the head; columns that do not fit are narrowed and their cells wrapped."""
    count = max((len(row) for row in rows), default=0)
    if not count:
        return []
    rows = [row + [Text()] * (count - len(row)) for row in rows]
    widths = _widths([max(row[i].cell_len for row in rows) for i in range(count)], width - GAP * (count - 1))
    out: list[Text] = []
    for n, row in enumerate(rows):
        if n == 0:
            for cell in row:
                cell.stylize("bold")
        out += _row(row, widths)
        if n == 0:
            out.append(Text((" " * GAP).join("─" * w for w in widths), palette.faint))
    return out


def _widths(wanted: list[int], room: int) -> list[int]:
    """Widths of at most `room` in all: the widest columns give way first."""
    widths = [max(w, 1) for w in wanted]
    while sum(widths) > room and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(row: list[Text], widths: list[int]) -> list[Text]:
    cells = [wrap(cell, w) for cell, w in zip(row, widths, strict=True)]
    out = []
    for i in range(max(map(len, cells))):
        line = Text()
        for n, (lines, w) in enumerate(zip(cells, widths, strict=True)):
            part = lines[i] if i < len(lines) else Text()
            line.append_text(part)
            if n < len(widths) - 1:
                line.append(" " * (w - part.cell_len + GAP))
        out.append(line)
    return out
