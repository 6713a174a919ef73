"""The real application on a terminal without a screen, with a real engine behind it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from clover_local.chat.protocol import ModelChoice
from clover_local.chat.store import Store
from clover_local.decoding.settings import Settings
from clover_local.tui.app import CloverApp
from clover_local.tui.screen import ChatScreen

WAIT = 60.0  # seconds; machines that test are busy
QUESTION = "Tom has 3 boxes of 12 pencils and gives away 7. How many pencils are left?"
PLAIN = Settings(mode="plain", max_tokens=200)
ENDLESS = Settings(mode="plain", max_tokens=3500, ignore_stop=True)  # stopped by the tests


class Chat:
    """A running application, and the hands and eyes of a person."""

    def __init__(self, app: CloverApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat_screen

    @property
    def text(self) -> str:
        """The whole transcript."""
        return self.screen.transcript.plain()

    @property
    def notice(self) -> str:
        shown = self.screen.notice.notice
        return shown.text if shown is not None else ""

    @property
    def contents(self) -> list[str]:
        """The messages of the branch on screen."""
        return [m.content for m in self.app.conversation.branch]

    async def until(self, holds: Callable[[], Any], seconds: float = WAIT) -> None:
        """Wait until something holds; fails when it does not in time."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                pytest.fail(
                    f"did not come true within {seconds} s; notice: {self.notice!r}; screen:\n{self.text}"
                )
            await asyncio.sleep(0.01)

    async def ready(self) -> None:
        await self.until(lambda: self.app.link.ready)

    async def press(self, *keys: str) -> None:
        """Press keys that write nothing, without waiting until the program is idle as the pilot does."""
        for key in keys:
            self.app.simulate_key(key)
            await asyncio.sleep(0.02)

    async def type(self, text: str, *keys: str) -> None:
        """Write into the composer as a paste does, then press keys that write nothing."""
        self.screen.composer.insert(text)
        await asyncio.sleep(0.02)
        await self.press(*keys)

    async def say(self, text: str) -> None:
        """Send a message and wait until its answer is complete."""
        before = len(self.app.conversation.messages)
        await self.type(text, "enter")
        await self.until(lambda: len(self.app.conversation.messages) >= before + 2)
        await self.until(lambda: self.app.conversation.live is None)

    async def begin(self, text: str) -> None:
        """Send a message and wait until its answer has begun to grow."""
        await self.type(text, "enter")
        await self.until(lambda: self.app.conversation.live and self.app.conversation.live.meter.tokens > 2)

    async def command(self, line: str) -> None:
        """Type a command and wait for its end."""
        await self.type(line, "enter")
        await self.until(lambda: not self.screen.composer.text and not self.app.workers._workers)


Opened = Callable[..., Any]


@pytest.fixture
def open_chat(trained_int4: Path, tmp_path: Path) -> Opened:
    """Opens the application: `async with open_chat(settings=..., size=...) as chat`."""

    @asynccontextmanager
    async def opened(
        *,
        settings: Settings | None = PLAIN,
        size: tuple[int, int] = (100, 30),
        ctx: int = 4096,
        model: str | None = None,
        chats: Path | None = None,
        ready: bool = True,
        theme: str = "dark",
        browser: bool = False,
    ) -> AsyncIterator[Chat]:
        choice = ModelChoice(model or str(trained_int4), ctx=ctx, threads=1)
        store = Store(chats or tmp_path / "chats.db")
        app = CloverApp(store, choice, settings=settings, theme=theme, browser=browser)
        try:
            async with app.run_test(size=size) as pilot:
                chat = Chat(app, pilot)
                if ready:
                    await chat.ready()
                yield chat
        finally:
            await asyncio.to_thread(app.close)

    return opened
