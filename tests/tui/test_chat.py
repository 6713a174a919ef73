"""The chat as a person uses it: the real application and a real engine process behind it."""

import json
import os
import signal
from pathlib import Path

import pytest

from clover_local.chat.store import Store
from clover_local.decoding.events import Block
from clover_local.decoding.settings import Settings
from clover_local.tui.compare import Compare
from clover_local.tui.dialogs import AskLine, Confirm, Find, Page
from clover_local.tui.theme import LIGHT

from .conftest import ENDLESS, PLAIN, QUESTION, Opened


async def test_ask_and_read(open_chat: Opened) -> None:
    async with open_chat() as chat:
        await chat.say(QUESTION)
        assert chat.contents[0] == QUESTION
        assert "Answer:" in chat.contents[1] and "</think>" not in chat.contents[1]
        answer = chat.app.conversation.last_answer()
        assert answer.state == "done" and answer.reasoning and answer.thought > 3
        assert f"thought for {answer.thought} tokens" in chat.text
        assert f"{answer.stats.tokens_per_second:.1f} tok/s · {answer.stats.tokens} tokens" in chat.text
        assert chat.screen.composer.text == ""
        assert [c.title for c in chat.app.conversation.chats] == ["Tom has 3 boxes of 12 pencils and gives…"]


@pytest.mark.parametrize("mode", ["self", "denoise"])
async def test_the_block_is_seen_while_it_is_written(open_chat: Opened, mode: str) -> None:
    settings = Settings(mode=mode, policy="always", max_tokens=200)  # type: ignore[arg-type]
    async with open_chat(settings=settings) as chat:
        seen: list[tuple[Block, str]] = []

        def look() -> None:  # as the screen would draw it, had it as many frames as there are events
            live = chat.app.conversation.live_here
            if live is not None and live.block is not None:
                chat.screen._draw_answer(live)
                seen.append((live.block, chat.text))

        chat.screen.answer_changed = look
        await chat.say(QUESTION)
        assert "Answer:" in chat.contents[1] and mode in chat.text and "░" not in chat.text
        partly = [(b, text) for b, text in seen if 0 < sum(t is not None for t in b.tokens) < len(b.tokens)]
        whole = [(b, text) for b, text in seen if None not in b.tokens and b.text]
        if mode == "denoise":
            assert partly and all("░" in text or "▒" in text or "▓" in text for _, text in partly)
        else:
            assert whole and all(b.text[0].strip() in text for b, text in whole)


async def test_the_second_turn_reuses_the_first(open_chat: Opened) -> None:
    async with open_chat() as chat:
        await chat.say(QUESTION)
        await chat.say("List the first 4 multiples of 6.")
        first, second = (m for m in chat.app.conversation.branch if m.role == "assistant")
        assert second.stats.prompt_reused > 0
        assert first.state == "done" and second.content + second.reasoning


async def test_escape_stops_and_keeps_the_answer(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        await chat.press("escape")
        await chat.until(lambda: chat.app.conversation.live is None)
        answer = chat.app.conversation.last_answer()
        assert answer.state == "stopped" and 2 < answer.stats.tokens < 900
        assert answer.content or answer.reasoning
        await chat.begin("Hello!")  # the next turn works after an answer without an end
        await chat.press("escape")
        await chat.until(lambda: chat.app.conversation.live is None)
        assert len(chat.contents) == 4


async def test_ctrl_c_stops_the_answer_and_never_the_program(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.app.conversation.live is None)
        await chat.press("ctrl+c", "ctrl+c")
        assert chat.notice == "ctrl+q quits"
        assert chat.app.is_running and chat.app.link.alive


async def test_a_question_while_an_answer_is_written_waits_in_the_composer(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        await chat.type("And then?", "enter")
        await chat.until(lambda: "esc stops it" in chat.notice)
        assert chat.screen.composer.text == "And then?"
        assert len(chat.contents) == 2


async def test_answers_and_questions_branch_and_nothing_is_lost(open_chat: Opened) -> None:
    async with open_chat() as chat:
        await chat.say(QUESTION)
        first = chat.app.conversation.last_answer()
        await chat.press("ctrl+r")
        await chat.until(lambda: chat.app.conversation.last_answer().id != first.id)
        await chat.until(lambda: chat.app.conversation.live is None)
        again = chat.app.conversation.last_answer()
        assert again.content == first.content and again.stats.prompt_reused > 0
        assert "‹ 2/2 ›" in chat.text
        await chat.press("alt+left")
        await chat.until(lambda: chat.app.conversation.last_answer().id == first.id)
        assert "‹ 1/2 ›" in chat.text
        await chat.press("ctrl+e")
        assert chat.screen.composer.text == QUESTION
        chat.screen.composer.text = "Multiply 7 by 8."
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.contents[:1] == ["Multiply 7 by 8."])
        await chat.until(lambda: chat.app.conversation.live is None)
        assert len(chat.contents) == 2 and chat.screen.editing is None
        assert len(chat.app.conversation.messages) == 5
        await chat.press("alt+up", "alt+up", "alt+left")
        await chat.until(lambda: chat.contents[:1] == [QUESTION])


async def test_leaving_an_edit_changes_nothing(open_chat: Opened) -> None:
    async with open_chat() as chat:
        await chat.say("Hello!")
        await chat.press("ctrl+e", "escape")
        assert chat.screen.composer.text == "" and chat.screen.editing is None
        await chat.say("Thank you!")
        assert [m.role for m in chat.app.conversation.branch] == ["user", "assistant"] * 2


async def test_chats_are_switched_renamed_found_and_deleted(open_chat: Opened) -> None:
    async with open_chat(size=(110, 30)) as chat:
        await chat.say("Hello!")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.app.conversation.chat is None)
        assert chat.contents == []
        await chat.say("Multiply 7 by 8.")
        await chat.press("ctrl+b", "down", "enter")
        await chat.until(lambda: chat.contents[:1] == ["Hello!"])
        await chat.command("/rename Greetings")
        assert {c.title for c in chat.app.conversation.chats} == {"Greetings", "Multiply 7 by 8."}
        await chat.press("ctrl+f")
        await chat.until(lambda: isinstance(chat.app.screen, Find))
        await chat.pilot.press(*"by", "space", *"8")
        await chat.until(lambda: chat.app.screen.found)
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.contents[:1] == ["Multiply 7 by 8."])
        await chat.until(lambda: chat.screen.transcript.chosen is not None)
        chat.screen.transcript.chosen = None
        await chat.press("ctrl+b", "delete")
        await chat.until(lambda: isinstance(chat.app.screen, Confirm))
        await chat.pilot.press("y")
        await chat.until(lambda: len(chat.app.conversation.chats) == 1)
        assert chat.screen.list.has_focus
        await chat.press("f2")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        await chat.press("escape")


async def test_an_answer_goes_on_while_another_chat_is_read(open_chat: Opened) -> None:
    settings = Settings(mode="plain", max_tokens=250, ignore_stop=True)
    async with open_chat(settings=settings) as chat:
        await chat.begin(QUESTION)
        first = chat.app.conversation.chat.id
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.contents == [])
        await chat.until(lambda: chat.app.conversation.live is None)
        await chat.app.conversation.open(first)
        await chat.until(lambda: len(chat.contents) == 2)
        answer = chat.app.conversation.last_answer()
        assert answer.state == "length" and answer.stats.tokens == 250
        assert "Stopped at the limit of tokens" in chat.text


async def test_kill_9_is_told_and_one_key_restarts(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        old = chat.app.link.pid
        os.kill(old, signal.SIGKILL)
        await chat.until(lambda: "was killed (signal 9" in chat.notice)
        answer = chat.app.conversation.last_answer()
        assert answer.state == "broken" and answer.content + answer.reasoning
        assert chat.screen.status.state == "gone" and "The engine ended" in chat.text
        await chat.type("Are you there?", "enter")
        await chat.until(lambda: "engine is not running" in chat.notice)
        chat.screen.composer.text = ""
        chat.app.restart_engine()
        await chat.ready()
        assert chat.app.link.pid != old and not Path(f"/proc/{old}").exists()
        chat.app.conversation.settings = PLAIN
        await chat.press("ctrl+r")
        await chat.until(lambda: chat.app.conversation.live is not None)
        await chat.until(lambda: chat.app.conversation.live is None)
        assert chat.app.conversation.last_answer().state == "done"


async def test_f5_does_what_the_notice_offers(open_chat: Opened) -> None:
    async with open_chat() as chat:
        old = chat.app.link.pid
        os.kill(old, signal.SIGKILL)
        await chat.until(lambda: "The chat is safe" in chat.notice)
        await chat.press("f5")
        await chat.until(lambda: chat.app.link.ready and chat.app.link.pid != old)
        assert chat.notice == ""
        await chat.say("Hello!")


async def test_a_question_asked_while_the_model_loads_is_answered(open_chat: Opened) -> None:
    async with open_chat(ready=False) as chat:
        await chat.say("Hello!")
        assert chat.contents[1]


async def test_a_missing_model_is_told_and_another_can_be_loaded(
    open_chat: Opened, trained_int4: Path, tmp_path: Path
) -> None:
    async with open_chat(model=str(tmp_path / "gone.gguf"), ready=False) as chat:
        await chat.until(lambda: "there is no file" in chat.notice)
        assert "gone.gguf" in chat.notice and chat.screen.status.state == "gone"
        await chat.command(f"/model {trained_int4}")
        await chat.ready()
        await chat.until(lambda: chat.notice == "")
        await chat.say("Hello!")
        assert chat.app.conversation.last_answer().model == "clover-10m"


async def test_settings_change_on_the_fly_and_are_remembered(open_chat: Opened, tmp_path: Path) -> None:
    async with open_chat(settings=None) as chat:
        assert chat.screen.status.mode == "self/exact"
        await chat.command("/mode denoise")
        await chat.command("/threshold 0.7")
        assert chat.screen.status.mode == "denoise"
        await chat.say(QUESTION)
        assert chat.app.conversation.last_answer().settings["threshold"] == 0.7
        await chat.command("/temp 0.5")
        await chat.command("/mode self")
        await chat.command("/accept release")
        assert chat.screen.status.mode == "self/release · temp 0.5"
        await chat.command("/think off")
        await chat.say("Multiply 7 by 8.")
        assert not chat.app.conversation.last_answer().reasoning
        for line, sentence in (("/temp hot", "/temp takes a number from 0"), ("/mode fast", "/mode takes plain"),
                               ("/threshold 2", "/threshold takes"), ("/nothing", "no command /nothing")):  # fmt: skip
            await chat.command(line)
            assert sentence in chat.notice
    async with open_chat(settings=None, ready=False) as chat:
        assert chat.screen.status.mode == "self/release · temp 0.5"


async def test_the_system_prompt_belongs_to_the_chat(open_chat: Opened) -> None:
    async with open_chat() as chat:
        await chat.command("/system Be brief.")
        await chat.say("Hello!")
        turns = chat.app.conversation.turns(chat.app.conversation.branch)
        assert (turns[0].role, turns[0].content) == ("system", "Be brief.")
        await chat.command("/system")
        assert chat.notice == "System prompt: Be brief."
        await chat.command("/clear")
        assert chat.app.conversation.system == "Be brief." and chat.contents == []
        await chat.command("/system -")
        assert chat.app.conversation.system == ""


async def test_save_import_copy_stats_help(open_chat: Opened, tmp_path: Path) -> None:
    async with open_chat() as chat:
        written: list[str] = []
        await chat.say("Write a Python function that adds 3 to x.")
        chat.app._driver.write = written.append
        await chat.press("ctrl+y")
        await chat.until(lambda: "Copied the answer" in chat.notice)
        assert any("\x1b]52;c;" in w for w in written)
        await chat.command("/copy code")
        assert "Copied the code" in chat.notice or "holds no code block" in chat.notice
        await chat.command(f"/save {tmp_path / 'chat.json'}")
        assert (
            json.loads((tmp_path / "chat.json").read_text())["chats"][0]["messages"][1]["role"] == "assistant"
        )
        await chat.command(f"/save {tmp_path / 'chat.json'}")
        assert "exists already" in chat.notice
        await chat.command(f"/import {tmp_path / 'chat.json'}")
        await chat.until(lambda: len(chat.app.conversation.chats) == 2)
        await chat.type("/stats", "enter")
        await chat.until(lambda: isinstance(chat.app.screen, Page))
        assert "tokens kept" in chat.app.screen.text.plain and "plain passes" in chat.app.screen.text.plain
        await chat.pilot.press("escape", "f1")
        await chat.until(lambda: isinstance(chat.app.screen, Page))
        assert "/compare" in chat.app.screen.text.plain


async def test_html_answers_open_as_a_page(open_chat: Opened, tmp_path: Path) -> None:
    store = Store(tmp_path / "html.db")
    kept = store.new_chat("Page")
    asked = store.add_message(kept.id, None, "user", "A page, please.")
    store.add_message(kept.id, asked.id, "assistant", "Here:\n```html\n<h1>Hi</h1>\n```")
    store.close()
    async with open_chat(chats=tmp_path / "html.db", ready=False) as chat:
        await chat.app.conversation.open(kept.id)
        await chat.command("/open")
        await chat.until(lambda: "runs the model's code" in chat.notice)
        path = Path(chat.notice.partition(": ")[2])
        assert "&lt;h1&gt;Hi&lt;/h1&gt;" in path.read_text()
        await chat.app.conversation.open(None)
        await chat.command("/open")
        assert "no HTML document" in chat.notice


async def test_compare_runs_both_and_keeps_one(open_chat: Opened) -> None:
    async with open_chat(settings=Settings(max_tokens=120)) as chat:
        await chat.command(f"/compare {QUESTION}")
        await chat.until(lambda: isinstance(chat.app.screen, Compare))
        compare = chat.app.screen
        await chat.until(lambda: all(side.stats for side in compare.sides))
        plain, own = compare.sides
        assert plain.entry.source == own.entry.source and "Answer:" in own.entry.source
        assert plain.stats.passes.get("plain") and plain.stats.tokens == own.stats.tokens
        await chat.pilot.pause()
        outcome = str(compare.query_one("#outcome").render())
        ratio = own.stats.tokens_per_second / plain.stats.tokens_per_second
        assert f"{ratio:.2f}×" in outcome and "one after the other" in outcome
        await chat.pilot.press("2")
        await chat.until(lambda: len(chat.contents) == 2)
        kept = chat.app.conversation.last_answer()
        assert kept.content == own.entry.source and kept.settings["mode"] == "self"
        assert kept.stats == own.stats


async def test_leaving_a_comparison_stops_it(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.command(f"/compare {QUESTION}")
        await chat.until(
            lambda: isinstance(chat.app.screen, Compare) and chat.app.screen.sides[0].meter.tokens
        )
        await chat.press("escape")
        chat.app.conversation.settings = PLAIN
        await chat.say("Hello!")
        assert chat.contents[0] == "Hello!"


async def test_history_completion_and_new_lines(open_chat: Opened) -> None:
    async with open_chat(ready=False) as chat:
        composer = chat.screen.composer
        composer.asked = ["first", "second"]
        await chat.type("dra", "f", "t")
        await chat.pilot.press("up", "up", "up")
        assert composer.text == "first"
        await chat.pilot.press("down", "down")
        assert composer.text == "draft"
        composer.text = ""
        await chat.pilot.press("a", "ctrl+j", "b")
        assert composer.text == "a\nb" and composer.size.height == 2
        composer.text = ""
        await chat.pilot.press("slash", "m", "o")
        assert chat.screen.query_one("#offers").display
        await chat.pilot.press("tab")
        assert composer.text == "/mode "
        await chat.pilot.press("down", "enter")
        assert composer.text == "/mode self"
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.app.conversation.settings.mode == "self")
        assert composer.text == ""


async def test_a_large_paste_is_one_token_in_the_composer_and_whole_in_the_message(open_chat: Opened) -> None:
    from textual.events import Paste

    async with open_chat() as chat:
        paste = "\n".join(f"line {n}" for n in range(40))
        chat.screen.composer.post_message(Paste(paste))
        await chat.pilot.pause()
        assert chat.screen.composer.text == "[paste 1: 40 lines, 309 characters]"
        await chat.pilot.press("x", "enter")
        await chat.until(lambda: chat.contents)
        assert chat.contents[0] == paste + "x"
        assert "▸ 40 lines in all" in chat.text


async def test_wide_characters(open_chat: Opened) -> None:
    async with open_chat(size=(40, 24)) as chat:
        await chat.say("你好，👍 这是一个很长很长很长很长很长很长的问题，请回答。")
        lines = [
            line.text
            for e in chat.screen.transcript.entries
            for line in e.lines(35, chat.screen.transcript.palette)
        ]
        assert max(line.cell_len for line in lines) <= 35


async def test_the_oldest_turns_can_be_dropped_when_the_context_is_full(open_chat: Opened) -> None:
    settings = Settings(mode="plain", max_tokens=110, ignore_stop=True)
    async with open_chat(settings=settings, ctx=256) as chat:
        await chat.say("Hello!")
        await chat.say("Multiply 7 by 8.")
        await chat.until(lambda: "The context is" in chat.notice)
        await chat.type("And what is 9 times 8, plus 12, minus 3?", "enter")
        await chat.until(lambda: "tokens of context" in chat.notice or chat.app.conversation.live is None)
        if "tokens of context" in chat.notice:
            await chat.press("f5")
        await chat.until(lambda: chat.app.conversation.live is None and len(chat.contents) == 6)
        conversation = chat.app.conversation
        await chat.command("/drop 2")
        assert conversation.first_sent() >= 2 and "no longer sent" in chat.text
        assert len(conversation.turns(conversation.branch)) == 6 - conversation.first_sent()
        assert len(chat.contents) == 6, "dropped turns stay on screen and in the file"


@pytest.mark.parametrize("size", [(80, 24), (50, 15), (140, 40)])
async def test_it_is_usable_at_any_size(open_chat: Opened, size: tuple[int, int]) -> None:
    async with open_chat(size=size) as chat:
        await chat.say("Hello!")
        screen = chat.screen
        assert screen.list.display is (size[0] >= 100)
        assert screen.composer.region.bottom <= size[1] - 1 and screen.composer.region.width > 30
        assert screen.transcript.size.height >= size[1] - 9
        await chat.press("ctrl+b")
        await chat.pilot.pause()
        assert screen.list.display and screen.list.has_focus
        await chat.press("escape")


async def test_resizing_while_an_answer_streams(open_chat: Opened) -> None:
    settings = Settings(mode="plain", max_tokens=300, ignore_stop=True)
    async with open_chat(settings=settings) as chat:
        await chat.begin(QUESTION)
        for size in ((60, 20), (140, 40), (80, 24), (30, 10), (100, 30)):
            await chat.pilot.resize_terminal(*size)
            await chat.pilot.pause(0.05)
        await chat.until(lambda: chat.app.conversation.live is None)
        answer = chat.app.conversation.last_answer()
        assert answer.stats.tokens == 300
        words = (answer.reasoning + answer.content).split()
        shown = " ".join(chat.text.split())
        assert words[-1] in shown and chat.screen.transcript.follows


async def test_light_and_dark(open_chat: Opened) -> None:
    async with open_chat(ready=False) as chat:
        before = chat.screen.transcript.palette
        chat.app.action_shade()
        await chat.pilot.pause()
        assert chat.app.theme == LIGHT.name and chat.screen.transcript.palette != before
    async with open_chat(ready=False, theme="auto") as chat:
        assert chat.app.theme == LIGHT.name, "the choice is remembered"


async def test_what_was_written_is_there_after_the_program_was_killed(
    open_chat: Opened, tmp_path: Path
) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        await chat.until(lambda: chat.app.conversation.live.meter.tokens > 20)
        message = chat.app.conversation.live.message.id
        await chat.pilot.pause(0.8)
        # another program's view of the file, as after kill -9 of this one
        stored = Store(tmp_path / "chats.db").messages(chat.app.conversation.chat.id)[message]
        assert stored.state == "writing" and len(stored.content + stored.reasoning) > 10
    stored = Store(tmp_path / "chats.db").messages(stored.chat)[message]
    assert stored.state == "stopped", "a program that is quit keeps the answer as one that was stopped"


async def test_an_answer_whose_program_died_says_so(open_chat: Opened, tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    kept = store.new_chat("Cut")
    asked = store.add_message(kept.id, None, "user", "Hello!")
    made = store.add_message(kept.id, asked.id, "assistant", "Hel", state="writing")
    store.db.execute("UPDATE messages SET touched = 1 WHERE id = ?", (made.id,))
    store.close()
    async with open_chat(ready=False) as chat:
        await chat.app.conversation.open(kept.id)
        await chat.until(lambda: "The program ended while this was written" in chat.text)


async def test_a_full_disk_is_told_and_the_chat_goes_on(open_chat: Opened, tmp_path: Path) -> None:
    async with open_chat() as chat:
        await chat.say("Hello!")

        def fill(store: Store) -> None:
            pages = store.db.execute("PRAGMA page_count").fetchone()[0]
            store.db.execute(f"PRAGMA max_page_count = {pages}")

        await chat.app.shelf(fill)
        await chat.type("x " * 20_000, "enter")
        await chat.until(lambda: "could not be read or written: database or disk is full" in chat.notice)
        assert chat.screen.composer.message.startswith("x x"), "what was typed is not lost"
        await chat.app.shelf(lambda store: store.db.execute("PRAGMA max_page_count = 100000"))
        chat.screen.composer.clear_message()
        await chat.say("Thank you!")


async def test_restarting_the_engine_ends_the_answer_it_was_writing(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        chat.app.restart_engine()
        await chat.until(lambda: chat.app.conversation.live is None)
        assert chat.app.conversation.last_answer().state == "broken"
        assert "The engine was restarted" in chat.text
        chat.app.conversation.settings = PLAIN
        await chat.type("Hello!", "enter")  # while it starts
        await chat.until(lambda: len(chat.contents) == 4 and chat.app.conversation.live is None)
        assert chat.contents[3]


async def test_the_engine_is_gone_when_the_program_is(open_chat: Opened) -> None:
    async with open_chat(settings=ENDLESS) as chat:
        await chat.begin(QUESTION)
        pid = chat.app.link.pid
        await chat.press("ctrl+q")
        await chat.pilot.pause()
    assert not Path(f"/proc/{pid}").exists()
