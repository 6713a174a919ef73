"""Pictures of the main states at two sizes; every figure in them is stored, none is measured."""

from pathlib import Path

import pytest

from clover_local.chat.protocol import About
from clover_local.chat.store import Store
from clover_local.chat.tree import Message
from clover_local.decoding.events import Block, Stats
from clover_local.decoding.settings import Settings
from clover_local.tui.compare import Compare
from clover_local.tui.figures import Meter
from clover_local.tui.live import Live
from clover_local.tui.notice import Notice

from .conftest import QUESTION, Chat, Opened
from .snapshots import compare

SIZES = [(80, 24), (140, 40)]
ABOUT = About("Clover-35B-A3B-Preview-int4", 32768, "RTX 5070 Ti", True, 32, 0.95, True)
STATS = Stats(
    tokens=41, seconds=0.35, from_prefill=1, prompt_tokens=44, prompt_reused=12, prompt_seconds=0.02,
    first_token_seconds=0.021, passes={"prefill": 1, "draft": 7, "verify": 7, "commit": 7},
    pass_seconds={"prefill": 0.02, "draft": 0.21, "verify": 0.12, "commit": 0.01},
    rounds=7, round_tokens=40, drafted=(7, 7, 7, 6, 5, 4), accepted=(7, 6, 6, 5, 4, 2),
)  # fmt: skip
ANSWER = """Three boxes hold 3 · 12 = 36 pencils. After giving away 7, 36 − 7 = **29** are left.

1. boxes times pencils: $3 \\times 12 = 36$
2. minus what is gone

```python
def left(boxes: int, each: int, gone: int) -> int:
    return boxes * each - gone  # 29
```

| what | how many |
|---|---|
| bought | 36 |
| left | 29 |
"""


def stored(file: Path) -> int:
    """Three chats; returns the first one's id."""
    store = Store(file)
    for title in ("merge_sorted()", "去京都旅行"):
        store.new_chat(title)
    chat = store.new_chat("Pencils")
    asked = store.add_message(chat.id, None, "user", QUESTION)
    settings: dict[str, object] = {"mode": "self", "accept": "exact"}
    store.add_message(chat.id, asked.id, "assistant", "29")
    store.add_message(
        chat.id, asked.id, "assistant", ANSWER, reasoning="3 x 12 = 36\n36 - 7 = 29", thought=84,
        settings=settings, stats=STATS, model=ABOUT.name,
    )  # fmt: skip
    store.db.execute("UPDATE chats SET updated = id")
    store.close()
    return chat.id


async def shown(chat: Chat, file: Path, chat_id: int) -> None:
    """The stored chat, on a large model as it would look: its name and numbers are what is being drawn."""
    await chat.app.link.close()  # so that no report of its own changes a figure
    await chat.app.conversation.load_chats()
    await chat.app.conversation.open(chat_id)
    chat.app.link.about = ABOUT
    chat.app.conversation.used = 1234
    chat.screen._show_status(
        state="ready", model=ABOUT.name, device=ABOUT.device, memory=(13_900_000_000, 15_900_000_000)
    )
    chat.screen.composer.cursor_blink = False
    chat.screen._draw_speed()
    transcript = chat.screen.transcript
    width, palette = transcript._width, transcript.palette
    await chat.until(lambda: all(entry.exact(width, palette) for entry in transcript.entries))
    transcript.changed()
    await chat.pilot.pause(0.1)


@pytest.fixture
def picture(open_chat: Opened, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Opens the application on the stored chat."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened(size: tuple[int, int], **options: object):  # type: ignore[no-untyped-def]
        file = tmp_path / "pictures.db"
        chat_id = stored(file)
        async with open_chat(chats=file, size=size, settings=Settings(), **options) as chat:
            await chat.until(lambda: not chat.app.workers._workers)
            await shown(chat, file, chat_id)
            yield chat

    return opened


def name(state: str, size: tuple[int, int]) -> str:
    return f"{state}-{size[0]}x{size[1]}"


@pytest.mark.parametrize("size", SIZES)
async def test_an_answer(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        compare(chat.app, name("answer", size))


@pytest.mark.parametrize("theme", ["light", "16"])
async def test_other_colours(picture: Opened, theme: str) -> None:
    async with picture((80, 24), theme=theme) as chat:
        compare(chat.app, name(f"answer-{theme}", (80, 24)))


@pytest.mark.parametrize("size", SIZES)
async def test_a_new_chat(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        await chat.app.conversation.open(None)
        await chat.pilot.pause()
        compare(chat.app, name("new", size))


@pytest.mark.parametrize("size", SIZES)
async def test_a_block_being_denoised(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        conversation = chat.app.conversation
        asked = Message(98, conversation.chat.id, conversation.chat.leaf, "user", "And if he had 5 boxes?")
        made = Message(99, asked.chat, 98, "assistant", "", state="writing")
        conversation.messages |= {98: asked, 99: made}
        object.__setattr__(conversation.chat, "leaf", 99)
        moments = iter([0.0, 0.2, 0.4, 0.7, 1.0, *[1.0] * 99])
        live = Live(1, asked.chat, made, "denoise", meter=Meter(lambda: next(moments)), n_ctx=32768)
        live.prompt_tokens = 1280
        live.meter.start()
        for tokens in (20, 44, 31):
            live.meter.add(tokens)
        live.add("5 x 12 = 60</think>", 9)
        live.splitter.inside = False
        live.content, live.fresh = "Five boxes hold 5 · 12 = 60 pencils.", ""
        words = (
            " After",
            " giving",
            None,
            None,
            " 7,",
            None,
            " 60",
            " −",
            None,
            " 7",
            None,
            None,
            None,
            None,
        )
        sure = (0.99, 0.96, 0.4, 0.7, 0.97, 0.93, 0.99, 0.91, 0.3, 0.98, 0.6, 0.2, 0.1, 0.4)
        tokens = tuple(None if w is None else n for n, w in enumerate(words))
        live.block = Block(tokens, sure, tuple(w or "" for w in words))
        conversation.live = live
        chat.screen.branch_changed()
        chat.screen._draw_answer(live)
        chat.screen.hint()
        await chat.pilot.pause()
        compare(chat.app, name("block", size))
        conversation.live = None


@pytest.mark.parametrize("size", SIZES)
async def test_a_dead_engine(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        chat.screen._show_status(state="gone")
        text = "The system ended the engine because memory ran out. The chat is safe."
        chat.screen.notify_about(Notice(text, "error", "restarts it", lambda: None))
        await chat.pilot.pause()
        compare(chat.app, name("dead", size))


@pytest.mark.parametrize("size", SIZES)
async def test_completion(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        chat.screen.composer.insert("/")
        await chat.pilot.pause()
        compare(chat.app, name("commands", size))


@pytest.mark.parametrize("size", SIZES)
async def test_help_and_figures(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        await chat.screen.slash.run("/help")
        await chat.pilot.pause()
        compare(chat.app, name("help", size))
        await chat.press("escape")
        await chat.screen.slash.run("/stats")
        await chat.pilot.pause()
        compare(chat.app, name("stats", size))


@pytest.mark.parametrize("size", SIZES)
async def test_a_comparison(picture: Opened, size: tuple[int, int]) -> None:
    async with picture(size) as chat:
        screen = Compare(QUESTION, (), Settings(), None, lambda request: None)
        for side, stats in zip(screen.sides, (Stats(tokens=41, seconds=0.9), STATS), strict=True):
            side.entry.prose.append(ANSWER)
            side.entry.writing, side.stats = False, stats
            side.entry.footer = (f"{stats.tokens_per_second:.1f} tok/s", "41 tokens")
        await chat.app.push_screen(screen)
        await chat.pilot.pause()
        screen.draw()
        await chat.pilot.pause()
        compare(chat.app, name("compare", size))
