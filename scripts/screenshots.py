"""Pictures of the chat for the README, taken from the real application with a real model.

    python scripts/screenshots.py [MODEL] [--out docs/images]

Writes an SVG and a PNG per picture. PNGs need rsvg-convert and the font Fira Code (Debian: librsvg2-bin,
fonts-firacode). The figures in the pictures are those of the machine that runs this.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from html import unescape
from pathlib import Path

from rich.cells import cell_len
from textual.pilot import Pilot

from clover_local.chat.protocol import ModelChoice
from clover_local.chat.store import Store
from clover_local.decoding.settings import Settings
from clover_local.tui.app import CloverApp
from clover_local.tui.compare import Compare

CELL = 12.2  # width of a cell in Textual's SVG
PENCILS = "Tom has 3 boxes of 12 pencils and gives away 7. How many pencils are left?"
TRAIN = "A train travels at 60 km per hour for 3 hours and then at 40 km per hour for 2 hours. How far does it go?"
CLASS = "Write a Python class Lamp with the fields name and price."


async def until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something holds."""
    for _ in range(int(seconds / 0.005)):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise SystemExit("the screen did not come to the state that was to be pictured")


async def ask(app: CloverApp, text: str) -> None:
    """Ask a question in the chat on screen and wait for the answer."""
    before = len(app.conversation.messages)
    await app.conversation.send(text)
    await until(lambda: len(app.conversation.messages) > before and app.conversation.live is None)


def save(app: CloverApp, folder: Path, name: str) -> None:
    """Write the screen as SVG and, where the converter is installed, as PNG."""
    svg = app.export_screenshot(title="clover chat")
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    if shutil.which("rsvg-convert"):
        png = folder / f"{name}.png"
        subprocess.run(["rsvg-convert", "-o", str(png)], input=word_by_word(svg), check=True, text=True)
    print(folder / name)


def word_by_word(svg: str) -> str:
    """The same picture with each word placed by itself, so that a font's own width adds up to nothing."""

    def split(match: re.Match[str]) -> str:
        before, x, after, content = match.groups()
        after = re.sub(r' textLength="[^"]*"', "", after)
        out, text = [], unescape(content).replace("\xa0", " ")
        for word in re.finditer(r"\S+", text):
            left = float(x) + CELL * cell_len(text[: word.start()])
            safe = word.group().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            out.append(f'<text{before}x="{left:.1f}"{after}>{safe}</text>')
        return "".join(out)

    return re.sub(r'<text([^>]*class="terminal-[^>]*?)x="([\d.]+)"([^>]*)>([^<]*)</text>', split, svg)


async def take(app: CloverApp, pilot: Pilot[int], folder: Path) -> None:
    """Go through the states worth a picture."""
    await until(lambda: app.link.ready)
    conversation = app.conversation
    await ask(app, CLASS)
    await conversation.open(None)
    await ask(app, PENCILS)
    await pilot.pause(0.5)
    save(app, folder, "chat")
    await take_block(app, pilot, folder)
    conversation.settings = Settings()
    await app.chat_screen.slash.run(f"/compare {PENCILS}")
    await until(lambda: isinstance(app.screen, Compare) and all(side.stats for side in app.screen.sides))
    await pilot.pause(0.5)
    save(app, folder, "compare")
    app.screen.dismiss(None)
    await pilot.pause()
    app.action_shade()
    await conversation.open(conversation.chats[-1].id)
    await pilot.pause(0.5)
    save(app, folder, "light")


async def take_block(app: CloverApp, pilot: Pilot[int], folder: Path) -> None:
    """A block in the middle of being denoised: the moment is caught by drawing after every pass."""
    conversation, screen = app.conversation, app.chat_screen
    conversation.settings = Settings(mode="denoise", threshold=0.995)
    await conversation.open(None)
    best = -1

    def look() -> None:
        nonlocal best
        live = conversation.live_here
        if live is None or live.block is None:
            return
        known = sum(token is not None for token in live.block.tokens)
        worth = min(known, len(live.block.tokens) - known) + 100 * bool(live.content)
        if 0 < known < len(live.block.tokens) and worth > best:
            best = worth
            screen._draw_answer(live)
            screen._draw_speed()
            save(app, folder, "block")

    screen.answer_changed = look  # type: ignore[method-assign]
    await ask(app, TRAIN)
    del screen.answer_changed  # type: ignore[attr-defined]
    await pilot.pause(0.3)


async def main() -> None:
    """Parse the arguments and take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        app = CloverApp(
            Store(Path(folder) / "chats.db"),
            ModelChoice(args.model, threads=1),
            settings=Settings(),
            theme="dark",
        )
        try:
            async with app.run_test(size=(100, 30)) as pilot:
                await take(app, pilot, args.out)
        finally:
            app.close()


if __name__ == "__main__":
    asyncio.run(main())
