"""A real terminal: tmux runs the installed command, types, reads the screen, and finds the terminal restored."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WAIT = 60.0  # seconds


class Terminal:
    """One tmux window with a shell in it."""

    def __init__(self, socket: str, width: int, height: int) -> None:
        self._tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
        shell = "env PS1='ready> ' TERM=xterm-256color bash --norc --noprofile"
        self.run("new-session", "-d", "-x", str(width), "-y", str(height), shell)
        self.run("set-option", "-g", "set-clipboard", "on")

    def run(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True).stdout

    @property
    def text(self) -> str:
        return self.run("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def until(self, holds: Callable[[str], bool]) -> str:
        end = time.monotonic() + WAIT
        while not holds(text := self.text):
            if time.monotonic() > end:
                pytest.fail(f"did not appear within {WAIT} s; the terminal shows:\n{text}")
            time.sleep(0.1)
        return text

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        if os.environ.get("CI"):
            pytest.fail("tmux must be installed under CI")
        pytest.skip("tmux is not installed")
    # a server of its own for each test: one that is ending refuses new sessions
    one = Terminal(f"clover-test-{os.getpid()}-{id(request)}", 100, 30)
    one.until(lambda text: "ready>" in text)
    yield one
    one.close()


def chat_command(model: Path) -> str:
    return f"{Path(sys.executable).parent / 'clover'} chat {model} -t 1 -c 1024 --theme dark"


def engines() -> set[str]:
    """The engine processes of this user that run now."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"clover_local.chat.worker" in (folder / "cmdline").read_bytes():
                found.add(folder.name)
        except OSError:
            continue
    return found


def test_start_ask_read_quit(terminal: Terminal, trained_int4: Path) -> None:
    before = engines()
    modes = terminal.run("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}")
    terminal.keys(chat_command(trained_int4), "Enter")
    terminal.until(lambda text: "●" in text and "Ask something" in text)
    assert engines() - before
    terminal.keys("Tom has 3 boxes of 12 pencils and gives away 7. How many pencils are left?", "Enter")
    shown = terminal.until(lambda text: "tok/s ·" in text)
    assert "Answer:" in shown and "thought for" in shown and "▸ Tom has 3" in shown
    terminal.keys("C-y")
    terminal.until(lambda text: "Copied the answer" in text)
    assert "Answer:" in terminal.run("show-buffer"), "OSC 52 reached the terminal"
    terminal.run("resize-window", "-x", "80", "-y", "24")
    terminal.until(lambda text: "▸ Tom has 3" not in text and "tok/s" in text)
    terminal.keys("C-c")
    terminal.until(lambda text: "ctrl+q quits" in text)
    terminal.keys("C-q")
    terminal.until(lambda text: text.rstrip().endswith("ready>"))
    assert terminal.run("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}") == modes
    terminal.keys("stty -a | tr ' ' '\\n' | grep -c '^-echo$'", "Enter")
    terminal.until(lambda text: "\n0\n" in text)
    assert engines() <= before


@pytest.mark.parametrize("signal", ["TERM", "HUP"])
def test_a_signal_ends_it_tidily(terminal: Terminal, trained_int4: Path, signal: str) -> None:
    before = engines()
    terminal.keys(f"{chat_command(trained_int4)} & fg", "Enter")
    terminal.until(lambda text: "●" in text)
    mine = next(iter(engines() - before))
    status = Path(f"/proc/{mine}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    subprocess.run(["kill", f"-{signal}", parent], check=True)
    terminal.until(lambda text: text.rstrip().endswith("ready>"))
    assert terminal.run("display-message", "-p", "#{alternate_on}").strip() == "0"
    end = time.monotonic() + 10
    while engines() - before and time.monotonic() < end:
        time.sleep(0.1)
    assert engines() <= before


def test_without_a_terminal_it_is_a_sentence(trained_int4: Path) -> None:
    ran = subprocess.run(
        [str(Path(sys.executable).parent / "clover"), "chat", str(trained_int4)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stdout == "" and "clover chat needs a terminal" in ran.stderr and "clover run" in ran.stderr
