"""Markdown as lines: the same whether it streamed in or came at once, whatever the width."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from clover_local.tui.code import WHOLE
from clover_local.tui.markdown import Prose
from clover_local.tui.mathtext import mathtext
from clover_local.tui.theme import DARK, LIGHT, SIXTEEN, palette_of
from clover_local.tui.wrap import wrap

PALETTE = palette_of(DARK)
LONG = """# Plan

First *one* thing, then `code`, **bold** and [a link](http://x.y).
A second line.

1. one
2. two
   more of two

   - nested
   - list
3. three

```python
def f(x):  # comment
    return "text" + str(x * 2)
```

| name | value |
|------|------:|
| a    | 1     |
| long name | 22 |

> quoted
> text

- [x] done
- open

---
So \\(x^2 \\times \\frac{a}{b}\\) holds, at $5 or $6.

\\[ \\sqrt{2} \\le 3 \\]

中文也可以，English 混合在一起，一行很长很长很长很长很长很长很长很长很长的文字。
"""


def lines(source: str, width: int = 60) -> list[str]:
    return [line.plain.rstrip() for line in Prose(source).lines(width, PALETTE)]


def streamed(source: str, size: int, width: int = 60, *, finish: bool = True) -> list[str]:
    prose = Prose()
    for at in range(0, len(source), size):
        prose.append(source[at : at + size])
        prose.lines(width, PALETTE)
    if finish:
        prose.finish()
    return [line.plain.rstrip() for line in prose.lines(width, PALETTE)]


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_a_streamed_answer_looks_like_a_whole_one(size: int) -> None:
    assert streamed(LONG, size) == lines(LONG)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_what_is_on_screen_before_the_end_is_right_already(size: int) -> None:
    # a blank line inside an item makes the whole list loose, which only the end can know
    source = LONG.replace("\n   - nested", "   - nested")
    assert streamed(source, size, finish=False) == lines(source)


BLOCKS = st.sampled_from(
    ["text *em*\n", "1. a\n2. b\n", "- a\n  - b\n", "```py\nx = 1\n", "```\n", "\n", "# h\n", "> q\n",
     "| a | b |\n|---|---|\n", "| 1 | 2 |\n", "    code\n", "$$\nx\n$$\n", "---\n", "[a]: http://b\n",
     "[a]\n", "中文字\n", "<b>x</b>\n", "~~~\n", "* * *\n"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(BLOCKS, max_size=12), st.integers(1, 9), st.integers(8, 80))
def test_any_markdown_streams_to_the_same_lines(parts: list[str], size: int, width: int) -> None:
    source = "".join(parts)
    assert streamed(source, size, width) == lines(source, width)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.integers(8, 60))
def test_no_line_is_wider_than_asked(source: str, width: int) -> None:
    source = "".join(c for c in source if cell_len(c) or c == "\n")
    assert all(line.cell_len <= width for line in Prose(source).lines(width, PALETTE))


def test_blocks() -> None:
    assert lines("a\nb\n\nc") == ["a", "b", "", "c"]
    assert lines("- a\n  - b\n    - c\n- d") == ["• a", "  ◦ b", "    ▪ c", "• d"]
    assert lines("9. a\n10. b") == ["9. a", "10. b"]
    assert lines("> a\n> b") == ["▎ a", "▎ b"]
    assert lines("[x](http://y) <http://z>") == ["x (http://y) http://z"]
    assert lines("<script>alert(1)</script>") == ["<script>alert(1)</script>"]


def test_a_fence_keeps_its_code_after_the_answer_is_complete() -> None:
    source = "Here:\n\n```python\nfor i in range(3):\n    print(i)\n```\n\nDone."
    prose = Prose()
    for character in source:
        prose.append(character)
        prose.lines(60, PALETTE)
    prose.finish()
    text = [line.plain.strip() for line in prose.lines(60, PALETTE)]
    assert text == ["Here:", "", "for i in range(3):", "print(i)", "", "Done."]
    drawn = prose.lines(60, PALETTE)[2]
    assert len({str(span.style) for span in drawn.spans}) > 2, "keywords and names differ in colour"


def test_a_fence_is_drawn_while_it_is_open() -> None:
    prose = Prose()
    prose.append("```python\nx = 1\ny =")
    assert [line.plain.strip() for line in prose.lines(40, PALETTE)] == ["x = 1", "y ="]


def test_long_code_has_all_its_lines() -> None:
    rows = [f"x{n} = {n}" if n % 3 else "" for n in range(1, WHOLE * 2)]
    source = "```python\n" + "\n".join(rows) + "\n```"
    assert [r.strip() for r in lines(source)] == rows
    assert streamed(source, 200) == streamed(source, 200, finish=False) == lines(source)


def test_tables_fit_by_wrapping_their_widest_column() -> None:
    source = "| id | words |\n|---|---|\n| 1 | " + "word " * 20 + "|\n"
    drawn = lines(source, 30)
    assert drawn[0].split() == ["id", "words"] and len(drawn) > 4
    assert all(cell_len(line) <= 30 for line in drawn)


@pytest.mark.parametrize("theme", [DARK, LIGHT, SIXTEEN])
def test_every_theme_draws_the_same_text(theme: object) -> None:
    drawn = Prose(LONG).lines(60, palette_of(theme))  # type: ignore[arg-type]
    text = [line.plain.rstrip().replace("│ ", " ") for line in drawn]
    assert [t.strip() for t in text] == [t.strip() for t in lines(LONG)]


# Lines


def test_wide_characters_break_anywhere_but_not_before_punctuation() -> None:
    drawn = [line.plain for line in wrap(Text("中文字，中文字。"), 6)]
    assert drawn == ["中文", "字，中", "文字。"] or all(cell_len(line) <= 6 for line in drawn)
    assert not any(line.startswith(("，", "。")) for line in drawn)


def test_words_stay_whole_where_they_fit() -> None:
    assert [line.plain for line in wrap(Text("one two three"), 8)] == ["one two", "three"]
    assert [line.plain for line in wrap(Text("abcdefghij"), 4)] == ["abcd", "efgh", "ij"]
    assert [line.plain for line in wrap(Text("a 中文"), 4)] == ["a 中", "文"]
    assert [line.plain for line in wrap(Text("👍👍👍"), 4)] == ["👍👍", "👍"]


def test_control_characters_are_shown_and_never_reach_the_terminal() -> None:
    for text in ("a\x1b[31mb", "`\x1b]52;c;x\x07`", "```\n\x1b[2J\n```", "| \x9b1m |\n|---|\n"):
        drawn = "\n".join(lines(text))
        assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in drawn), drawn
    assert lines("a\x1b[31mb") == ["a␛[31mb"]
    assert lines("a\tb") == ["a   b"]


# Formulas


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"x^2 + y_1", "x² + y₁"),
        (r"\frac{a}{b}", "a/b"),
        (r"\frac{a+1}{2b}", "(a+1)/2b"),
        (r"\frac{\frac{1}{2}}{3}", "(1/2)/3"),
        (r"\sqrt{2} \times \sqrt[3]{8}", "√2 × ³√8"),
        (r"\boxed{29}", "[ 29 ]"),
        (r"\text{apples} \le 3", "apples ≤ 3"),
        (r"\left( \alpha \right)", "( α )"),
        (r"x_{max}^{10}", "x_(max)¹⁰"),
        (r"90^\circ", "90°"),
        (r"\mathbb{R}", "ℝ"),
        (r"50\%", "50%"),
        (r"\unknown x", "unknown x"),
    ],
)
def test_formulas_are_readable(tex: str, text: str) -> None:
    assert mathtext(tex) == text


@given(st.text(alphabet="\\{}^_ab1$frac sqrt", max_size=60))
def test_no_formula_hangs_or_fails(tex: str) -> None:
    assert "{" not in mathtext(tex)
