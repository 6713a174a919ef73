"""While an answer streams the loop stays free: a watchdog asks for the floor every few milliseconds."""

import asyncio
import time
from pathlib import Path

import pytest

from clover_local.chat.store import Store
from clover_local.decoding.settings import Settings

from .conftest import QUESTION, Opened
from .test_transcript import ANSWER


class Watchdog:
    """Measures how long the loop was held between two looks: as work of this thread, and by the wall clock.

    The wall clock also counts what other programs do with the processor, so the limit is on the work.
    """

    def __init__(self) -> None:
        self.work: list[float] = []
        self.wall: list[float] = []

    async def run(self) -> None:
        while True:
            work, wall = time.thread_time(), time.perf_counter()
            await asyncio.sleep(0.002)
            self.work.append(time.thread_time() - work)
            self.wall.append(time.perf_counter() - wall)


def a_long_chat(file: Path, messages: int) -> int:
    """Store a chat of so many messages; returns its id."""
    store = Store(file)
    chat = store.new_chat("Long")
    parent = None
    for n in range(messages):
        role, text = ("assistant", ANSWER.format(n=n)) if n % 2 else ("user", f"Question {n}?")
        parent = store.add_message(chat.id, parent, role, text).id
    store.close()
    return chat.id


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
async def test_the_loop_is_never_held_while_an_answer_streams(
    open_chat: Opened, tmp_path: Path, mode: str
) -> None:
    chat_id = a_long_chat(tmp_path / "long.db", 300)
    settings = Settings(mode=mode, max_tokens=1200, ignore_stop=True)  # type: ignore[arg-type]
    async with open_chat(settings=settings, chats=tmp_path / "long.db", size=(140, 40)) as chat:
        await chat.app.conversation.open(chat_id)
        await chat.app.conversation.drop(298)  # the long chat is on screen, and the context has room
        await asyncio.sleep(1.5)  # its idle measuring is another test's matter
        await chat.begin(QUESTION)
        dog = Watchdog()
        watching = asyncio.create_task(dog.run())
        await chat.until(lambda: chat.app.conversation.live is None)
        watching.cancel()
        assert chat.app.conversation.last_answer().stats.tokens == 1200
        assert len(dog.work) > 50
        assert max(dog.work) < 0.05, f"{sorted(dog.work)[-5:]}, by the wall clock {sorted(dog.wall)[-5:]}"


async def test_a_chat_of_500_messages_opens_within_a_second(open_chat: Opened, tmp_path: Path) -> None:
    chat_id = a_long_chat(tmp_path / "long.db", 500)
    async with open_chat(chats=tmp_path / "long.db", ready=False) as chat:
        dog = Watchdog()
        watching = asyncio.create_task(dog.run())
        start = time.perf_counter()
        await chat.app.conversation.open(chat_id)
        await chat.until(lambda: "499" in "".join(
            chat.screen.transcript.render_line(y).text for y in range(chat.screen.transcript.size.height)
        ))  # fmt: skip
        assert time.perf_counter() - start < 1.0
        await asyncio.sleep(1.0)  # idle measuring of the rest
        watching.cancel()
        assert sorted(dog.work)[len(dog.work) * 99 // 100] < 0.05
