"""The small parts: commands, figures, the clipboard, HTML pages."""

import base64
import html
import stat
from pathlib import Path

import pytest

from clover_local.decoding.events import Block, Stats
from clover_local.errors import UsageError
from clover_local.tui.app import kept_settings
from clover_local.tui.clipboard import osc52
from clover_local.tui.commands import COMMANDS, complete, is_command, parse
from clover_local.tui.entry import Entry, block_text
from clover_local.tui.figures import Meter, bar, context_size, footer, of_gigabytes, short
from clover_local.tui.html import document_in, show, write_page
from clover_local.tui.slash import Slash
from clover_local.tui.theme import DARK, palette_of

# Commands


def test_every_command_is_carried_out_by_a_method() -> None:
    assert {f"do_{c.name}" for c in COMMANDS} == {name for name in dir(Slash) if name.startswith("do_")}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("/help", True), ("/mode plain", True), ("/", False), ("/usr/bin is a path", False), ("hi /help", False),
     ("/help\nme", False), ("/compare 1/2 + 3", True)],
)  # fmt: skip
def test_what_is_a_command(text: str, is_one: bool) -> None:
    assert is_command(text) is is_one


def test_parse() -> None:
    assert parse("/mode  plain ")[1] == "plain"
    assert parse("/thr 0.9")[0].name == "threshold"
    with pytest.raises(UsageError, match="no command /nothing"):
        parse("/nothing")


def test_completion() -> None:
    assert [c.label for c in complete("/mo")] == ["/mode plain|self|denoise", "/model NAME"]
    assert [c.line for c in complete("/mode ")] == ["/mode plain", "/mode self", "/mode denoise"]
    assert [c.line for c in complete("/mode d")] == ["/mode denoise"]
    assert [c.line for c in complete("/model x", {"model": ["x.gguf"]})] == ["/model x.gguf"]
    assert complete("hello") == [] and complete("/mode denoise") == [] and complete("/no ") == []


def test_settings_of_another_version_do_no_harm() -> None:
    assert kept_settings('{"mode": "plain", "new": 1}').mode == "plain"
    assert kept_settings('{"mode": "gone"}').mode == "self"
    assert kept_settings("nonsense").mode == "self" and kept_settings("[]").mode == "self"


# Figures


def test_numbers_as_people_read_them() -> None:
    assert [short(n) for n in (0, 999, 1234, 12345, 131072)] == ["0", "999", "1.2k", "12k", "131k"]
    assert [context_size(n) for n in (4096, 131072, 1000)] == ["4k", "128k", "1.0k"]
    assert of_gigabytes(13_900_000_000, 15_900_000_000) == "13.9/15.9 GB"
    assert of_gigabytes(3_000_000, 7_000_000) == "3/7 MB"
    assert (bar(0), bar(0.5), bar(2)) == ("░" * 8, "▓▓▓▓░░░░", "▓" * 8)


def test_the_line_under_an_answer() -> None:
    stats = Stats(
        tokens=41, seconds=0.4, from_prefill=1, rounds=5, round_tokens=30, drafted=(5, 5), accepted=(5, 3)
    )
    assert footer(stats, "self/exact") == (
        "100.0 tok/s", "41 tokens", "0.40 s", "self/exact", "6.0 tokens/round", "accepted 80 %",
    )  # fmt: skip
    palette = palette_of(DARK)
    entry = Entry(1, "assistant", footer=footer(stats, "self/exact"))
    assert entry.lines(100, palette)[-2].text.plain.endswith("accepted 80 %")
    assert entry.lines(40, palette)[-2].text.plain == "100.0 tok/s · 41 tokens · 0.40 s"


def test_the_meter_is_tokens_over_wall_time() -> None:
    now = 100.0
    meter = Meter(lambda: now)
    meter.start()
    now = 100.1
    meter.add(5)
    assert meter.rate == 0.0, "a burst at the start is not a speed yet"
    now = 100.6
    meter.add(10)
    now = 101.0
    assert meter.rate == pytest.approx(15.0)
    assert meter.sparkline() == "▅▁█"
    assert Meter().rate == 0.0 and Meter().sparkline() == ""


def test_the_block_shows_what_is_fixed_and_shades_the_rest() -> None:
    block = Block((1, None, 3, None), (0.99, 0.2, 0.6, 0.95), ("Five", "", " boxes\n", ""))
    text = block_text(block, palette_of(DARK))
    assert text.plain == "Five ░░  boxes↵ ▓▓ "
    assert block_text(Block((None,) * 32, (0.0,) * 32), palette_of(DARK)).plain.count("░░") == 32


# The clipboard


def test_copying_reaches_the_terminal_also_out_of_tmux() -> None:
    data = base64.b64encode("29 中".encode()).decode()
    assert osc52("29 中", {}) == f"\x1b]52;c;{data}\a"
    inside = osc52("29 中", {"TMUX": "/tmp/x,1,0", "TERM": "screen-256color"})
    assert inside == f"\x1b]52;c;{data}\a\x1bPtmux;\x1b\x1b]52;c;{data}\a\x1b\\"
    assert osc52("x" * 900, {"TERM": "screen"}).count("\x1bP") == 5


# HTML


def test_the_document_of_an_answer() -> None:
    assert document_in("Here:\n```html\n<p>1</p>\n```\nand\n```html\n<p>2</p>\n```") == "<p>2</p>\n"
    assert document_in("```HTML\n<p>cut off") == "<p>cut off"
    assert document_in("Sure.\n<!DOCTYPE html><html><body>x</body></html>\nBye") == (
        "<!DOCTYPE html><html><body>x</body></html>"
    )
    assert document_in("```python\nx\n```") is None


def test_the_page_is_private_and_shut_in() -> None:
    path = write_page('<script>alert("1 & 2")</script>')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text()
    assert 'sandbox="allow-scripts"' in text and "allow-same-origin" not in text
    assert "default-src 'none'" in text and "Written by a model" in text
    document = html.unescape(text.partition('srcdoc="')[2].partition('"></iframe>')[0])
    assert document == '<script>alert("1 & 2")</script>'


def test_no_browser_without_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert show(Path("/nothing.html")) is False
