"""Chats on disk: trees, migrations, two programs at once, and a program that is killed while writing."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clover_local.chat.migrations import MIGRATIONS
from clover_local.chat.store import Store, default_path
from clover_local.chat.tree import newest_leaf, path, siblings
from clover_local.decoding.events import Stats
from clover_local.errors import CloverError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "chats.db")


def test_the_file_lies_in_the_users_data_folder(isolated_home: Path) -> None:
    assert default_path() == isolated_home / "xdg_data_home" / "clover-local" / "chats.db"


def test_wal_busy_timeout_and_foreign_keys_are_on(store: Store) -> None:
    assert store.db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert store.db.execute("PRAGMA busy_timeout").fetchone()[0] == 10_000
    assert store.db.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    assert store.db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)


def test_an_answer_comes_back_with_everything_it_was_stored_with(store: Store) -> None:
    chat = store.new_chat("Pencils", "Be brief.")
    stats = Stats(tokens=5, seconds=0.5, passes={"draft": 2}, drafted=(2, 1), accepted=(1, 0))
    asked = store.add_message(chat.id, None, "user", "How many?")
    answer = store.add_message(
        chat.id,
        asked.id,
        "assistant",
        "29",
        reasoning="36 - 7",
        model="demo",
        settings={"mode": "self"},
        stats=stats,
    )
    found = store.messages(chat.id)
    assert found[answer.id] == answer
    assert (answer.stats, answer.settings, answer.reasoning) == (stats, {"mode": "self"}, "36 - 7")
    assert store.chat(chat.id).leaf == answer.id


def test_branches_keep_what_they_replace(store: Store) -> None:
    chat = store.new_chat()
    ask = store.add_message(chat.id, None, "user", "a")
    first = store.add_message(chat.id, ask.id, "assistant", "one")
    more = store.add_message(chat.id, first.id, "user", "b")
    second = store.add_message(chat.id, ask.id, "assistant", "two")
    edited = store.add_message(chat.id, None, "user", "a, edited")
    messages = store.messages(chat.id)
    assert [m.content for m in path(messages, more.id)] == ["a", "one", "b"]
    assert [m.content for m in path(messages, second.id)] == ["a", "two"]
    assert siblings(messages, second.id) == [first.id, second.id]
    assert siblings(messages, edited.id) == [ask.id, edited.id]
    assert newest_leaf(messages, first.id) == more.id
    assert newest_leaf(messages, ask.id) == second.id


def test_deleting_a_chat_deletes_its_messages_only(store: Store) -> None:
    kept, gone = store.new_chat("kept"), store.new_chat("gone")
    for chat in (kept, gone):
        store.add_message(chat.id, None, "user", "hello")
    store.delete_chat(gone.id)
    assert [c.title for c in store.chats()] == ["kept"]
    assert store.db.execute("SELECT COUNT(*) FROM messages").fetchone()[0] == 1
    with pytest.raises(CloverError, match="not there any more"):
        store.chat(gone.id)


def test_find_takes_the_text_literally(store: Store) -> None:
    chat = store.new_chat("Sales")
    store.add_message(chat.id, None, "user", "up 100 % in May")
    store.add_message(chat.id, None, "user", "up 1000 in May")
    assert [f.excerpt for f in store.find("100 %")] == ["up 100 % in May"]
    assert [f.excerpt for f in store.find("UP 1000")] == ["up 1000 in May"]
    assert store.find("_") == []


def test_questions_are_each_given_once_newest_last(store: Store) -> None:
    chat = store.new_chat()
    for text in ("a", "b", "a"):
        store.add_message(chat.id, None, "user", text)
    assert store.questions() == ["b", "a"]


@pytest.mark.parametrize("version", range(len(MIGRATIONS)))
def test_every_older_schema_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    old = tmp_path / "chats.db"
    db = sqlite3.connect(old)
    for step in MIGRATIONS[:version]:
        db.executescript(step)
    if version:
        db.execute("INSERT INTO chats (title, created, updated) VALUES ('old', 1, 1)")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()
    store = Store(old)
    assert [c.title for c in store.chats()] == (["old"] if version else [])
    store.set_preference("mode", "plain")
    assert store.preference("mode") == "plain"


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "chats.db")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(CloverError, match="newer version"):
        Store(tmp_path / "chats.db")


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "chats.db").write_bytes(b"no database" * 1000)
    with pytest.raises(CloverError, match=r"chats\.db cannot be opened"):
        Store(tmp_path / "chats.db")


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*MIGRATIONS, "CREATE TABLE extra (id INTEGER); CREATE TABLE chats (id INTEGER)")
    Store(tmp_path / "chats.db").close()
    monkeypatch.setattr("clover_local.chat.migrations.MIGRATIONS", broken)
    with pytest.raises(CloverError):
        Store(tmp_path / "chats.db")
    monkeypatch.undo()
    tables = Store(tmp_path / "chats.db").db.execute("SELECT name FROM sqlite_master WHERE name = 'extra'")
    assert tables.fetchall() == []


def test_two_writers_wait_for_each_other(tmp_path: Path) -> None:
    stores = [Store(tmp_path / "chats.db") for _ in range(2)]
    chat = stores[0].new_chat()
    errors: list[Exception] = []

    def write(store: Store) -> None:
        try:
            for i in range(100):
                store.add_message(chat.id, None, "user", str(i))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(s,)) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(stores[0].messages(chat.id)) == 200


WRITER = """
import sys, itertools
from pathlib import Path
from clover_local.chat.store import Store
store = Store(Path(sys.argv[1]))
chat = store.new_chat()
ask = store.add_message(chat.id, None, "user", "count")
answer = store.add_message(chat.id, ask.id, "assistant", "", state="writing")
for n in itertools.count(1):
    store.write_answer(answer.id, "x" * n, "", "writing")
    print(n, flush=True)
"""


def test_an_answer_survives_kill_9_up_to_its_last_write(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(50):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    said = writer.stdout.read().split()
    writer.wait()
    store = Store(file)
    (chat,) = store.chats()
    ask, answer = store.messages(chat.id).values()
    assert (ask.content, answer.state) == ("count", "writing")
    assert len(answer.content) >= int(said[-1] if said else 50)
    assert store.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
