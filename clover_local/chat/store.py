"""Chats on disk: one SQLite file in WAL mode that survives kill -9 and two programs at once.

Every method is one short transaction. A question is stored before its answer begins, and an answer is stored
while it is written, so whatever ends the program, at most the last moment is lost.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import platformdirs

from clover_local.chat.migrations import migrate
from clover_local.chat.tree import Message, State
from clover_local.decoding.events import Stats
from clover_local.errors import CloverError

BUSY_SECONDS = 10.0


def default_path() -> Path:
    """The chat file of this user (XDG_DATA_HOME)."""
    return platformdirs.user_data_path("clover-local") / "chats.db"


@dataclass(frozen=True)
class Chat:
    """One chat; `leaf` ends the branch on screen, `first` begins what is still sent to the model."""

    id: int
    title: str
    system: str
    created: float
    updated: float
    leaf: int | None
    first: int | None


@dataclass(frozen=True)
class Found:
    """One message that holds the text looked for."""

    chat: int
    message: int
    title: str
    role: str
    excerpt: str


class Store:
    """The chat file. Not for use from two threads at once; give it a thread of its own."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises CloverError when that cannot be done."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute("PRAGMA foreign_keys = ON")
            migrate(self.db, path)
        except (OSError, sqlite3.Error) as error:
            raise CloverError(
                f"the chats in {path} cannot be opened: {error}",
                hint="check the file and its folder, or name another one with --chats FILE",
            ) from error

    def close(self) -> None:
        """Close the file; the write-ahead log is folded in."""
        self.db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        self.db.execute("BEGIN IMMEDIATE")  # takes the write lock at once, so the busy timeout applies
        try:
            yield self.db
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:  # a full disk has rolled it back already
                self.db.execute("ROLLBACK")
            raise

    # Chats

    def chats(self) -> list[Chat]:
        """All chats, last used first."""
        rows = self.db.execute(f"SELECT {_CHAT} FROM chats ORDER BY updated DESC, id DESC")
        return [Chat(*row) for row in rows]

    def chat(self, chat: int) -> Chat:
        """One chat; raises CloverError when it is gone."""
        row = self.db.execute(f"SELECT {_CHAT} FROM chats WHERE id = ?", (chat,)).fetchone()
        if row is None:
            raise CloverError(f"chat {chat} is not there any more")
        return Chat(*row)

    def new_chat(self, title: str = "New chat", system: str = "") -> Chat:
        """An empty chat."""
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO chats (title, system, created, updated) VALUES (?, ?, ?, ?)",
                (title, system, now, now),
            )
        return self.chat(int(cursor.lastrowid or 0))

    def change_chat(self, chat: int, **values: object) -> None:
        """Set title, system, leaf or first of a chat."""
        if unknown := set(values) - {"title", "system", "leaf", "first", "updated"}:
            raise TypeError(f"a chat has no {', '.join(sorted(unknown))}")
        names = ", ".join(f"{name} = ?" for name in values)
        with self._write() as db:
            db.execute(f"UPDATE chats SET {names} WHERE id = ?", (*values.values(), chat))

    def delete_chat(self, chat: int) -> None:
        """Remove a chat with all its messages."""
        with self._write() as db:
            db.execute("DELETE FROM chats WHERE id = ?", (chat,))

    # Messages

    def messages(self, chat: int) -> dict[int, Message]:
        """All messages of a chat, every branch, by id."""
        rows = self.db.execute(f"SELECT {_MESSAGE} FROM messages WHERE chat = ? ORDER BY id", (chat,))
        return {row[0]: _message(row) for row in rows}

    def add_message(
        self,
        chat: int,
        parent: int | None,
        role: str,
        content: str,
        *,
        reasoning: str = "",
        thought: int = 0,
        state: State = "done",
        model: str = "",
        settings: dict[str, object] | None = None,
        stats: Stats | None = None,
    ) -> Message:
        """Add a message below `parent` and make it the end of the branch on screen."""
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO messages (chat, parent, role, content, reasoning, thought, state,"
                " created, touched, model, settings, stats) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    chat, parent, role, content, reasoning, thought, state, now, now, model,
                    json.dumps(settings or {}), json.dumps(asdict(stats or Stats())),
                ),
            )  # fmt: skip
            made = int(cursor.lastrowid or 0)
            db.execute("UPDATE chats SET leaf = ?, updated = ? WHERE id = ?", (made, now, chat))
        row = self.db.execute(f"SELECT {_MESSAGE} FROM messages WHERE id = ?", (made,)).fetchone()
        return _message(row)

    def write_answer(
        self,
        message: int,
        content: str,
        reasoning: str,
        state: State,
        stats: Stats | None = None,
        thought: int = 0,
    ) -> None:
        """Store an answer as it stands."""
        figures = json.dumps(asdict(stats or Stats()))
        with self._write() as db:
            db.execute(
                "UPDATE messages SET content = ?, reasoning = ?, thought = ?, state = ?, stats = ?,"
                " touched = ? WHERE id = ?",
                (content, reasoning, thought, state, figures, time.time(), message),
            )

    def delete_message(self, message: int) -> None:
        """Remove a message and what follows it; a branch that ended there ends at its parent."""
        with self._write() as db:
            row = db.execute("SELECT chat, parent FROM messages WHERE id = ?", (message,)).fetchone()
            if row is not None:
                db.execute("UPDATE chats SET leaf = ? WHERE id = ? AND leaf = ?", (row[1], row[0], message))
                db.execute("DELETE FROM messages WHERE id = ?", (message,))

    def find(self, text: str, limit: int = 100) -> list[Found]:
        """Messages that hold `text`, newest first, letter case ignored for ASCII."""
        pattern = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = self.db.execute(
            "SELECT chats.id, messages.id, title, role, content FROM messages"
            " JOIN chats ON chats.id = messages.chat"
            " WHERE content LIKE ? ESCAPE '\\' ORDER BY messages.id DESC LIMIT ?",
            (pattern, limit),
        )
        return [Found(*(*row[:4], _excerpt(row[4], text))) for row in rows]

    def questions(self, limit: int = 200) -> list[str]:
        """What was asked last, oldest first, each text once: the composer's history."""
        rows = self.db.execute(
            "SELECT content FROM messages WHERE role = 'user' GROUP BY content ORDER BY MAX(id) DESC LIMIT ?",
            (limit,),
        )
        return [row[0] for row in rows][::-1]

    # Preferences

    def preference(self, name: str, default: str = "") -> str:
        """A value kept under a name."""
        row = self.db.execute("SELECT value FROM preferences WHERE name = ?", (name,)).fetchone()
        return row[0] if row else default

    def set_preference(self, name: str, value: str) -> None:
        """Keep a value under a name."""
        with self._write() as db:
            db.execute(
                "INSERT INTO preferences VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )


_CHAT = "id, title, system, created, updated, leaf, first"
_MESSAGE = (
    "id, chat, parent, role, content, reasoning, thought, state, created, touched, model, settings, stats"
)


def _message(row: tuple) -> Message:
    return Message(*(*row[:11], json.loads(row[11]), stats_from(json.loads(row[12]))))


def stats_from(data: dict[str, object]) -> Stats:
    """Stats out of JSON; names that this version does not know are left out."""
    known = {f.name for f in fields(Stats)}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
    return Stats(**values)  # type: ignore[arg-type]


def _excerpt(content: str, text: str, around: int = 40) -> str:
    at = max(content.lower().find(text.lower()), 0)
    piece = content[max(at - around, 0) : at + len(text) + around]
    return " ".join(piece.split())
