"""Chats out of and into the program, without loss."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.chat.store import Store
from clover_local.chat.transfer import from_markdown, load, save, to_markdown
from clover_local.chat.tree import path
from clover_local.decoding.events import Stats
from clover_local.errors import CloverError


def a_chat(store: Store) -> int:
    chat = store.new_chat("Pencils", "Be brief.")
    ask = store.add_message(chat.id, None, "user", "How many?")
    store.add_message(chat.id, ask.id, "assistant", "28", reasoning="a slip")
    store.add_message(
        chat.id,
        ask.id,
        "assistant",
        "29",
        reasoning="36 - 7",
        model="demo",
        stats=Stats(tokens=3, seconds=0.1),
    )
    return chat.id


def contents(store: Store, chat: int) -> list[tuple[str, str, str]]:
    branch = path(store.messages(chat), store.chat(chat).leaf)
    return [(m.role, m.content, m.reasoning) for m in branch]


@pytest.mark.parametrize("name", ["chat.md", "chat.json"])
def test_a_saved_chat_comes_back(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "chats.db")
    old = a_chat(store)
    save(store, store.chat(old), tmp_path / name)
    (new,) = load(store, tmp_path / name)
    assert new.id != old
    assert (new.title, new.system) == ("Pencils", "Be brief.")
    assert contents(store, new.id) == contents(store, old)


def test_json_keeps_every_branch_and_its_figures(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    old = a_chat(store)
    save(store, store.chat(old), tmp_path / "chat.json")
    (new,) = load(store, tmp_path / "chat.json")
    before, after = store.messages(old), store.messages(new.id)
    assert [(m.content, m.stats, m.model) for m in before.values()] == [
        (m.content, m.stats, m.model) for m in after.values()
    ]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.sampled_from(
    ["", "\n", "## You\n", "<!-- clover:user -->\n## You", "\n<!-- \\clover:text -->", "\r\n", "</details>"]
)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), system=TEXT)
def test_markdown_keeps_any_text(turns: list[tuple[str, str]], system: str) -> None:
    store = Store(Path(":memory:"))
    chat = store.new_chat("Any", system)
    parent = None
    for content, reasoning in turns:
        parent = store.add_message(chat.id, parent, "assistant", content, reasoning=reasoning).id
    text = to_markdown(store.chat(chat.id), path(store.messages(chat.id), parent))
    again = from_markdown(text, store, "test")
    assert contents(store, again.id) == contents(store, chat.id)
    assert again.system == system


def test_save_never_overwrites(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    (tmp_path / "chat.md").write_text("mine")
    with pytest.raises(CloverError, match="exists already"):
        save(store, store.chat(a_chat(store)), tmp_path / "chat.md")
    assert (tmp_path / "chat.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "text"), [("a.md", "# Notes\n\nhello"), ("a.json", "{}"), ("b.json", "[1]")]
)
def test_other_files_are_refused_with_a_sentence(tmp_path: Path, name: str, text: str) -> None:
    store = Store(tmp_path / "chats.db")
    (tmp_path / name).write_text(text)
    with pytest.raises(CloverError, match="is not a chat saved by clover-local"):
        load(store, tmp_path / name)
    assert store.chats() == []
