"""The schema of the chat file, as ordered steps: a new file runs them all, an old one the rest."""

import sqlite3

from clover_local.errors import CloverError

MIGRATIONS = (
    # 1: chats as trees of messages
    """
    CREATE TABLE chats (
        id INTEGER PRIMARY KEY,
        title TEXT NOT NULL,
        system TEXT NOT NULL DEFAULT '',
        created REAL NOT NULL,
        updated REAL NOT NULL,
        leaf INTEGER,
        first INTEGER
    );
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        chat INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
        parent INTEGER REFERENCES messages(id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL DEFAULT '',
        thought INTEGER NOT NULL DEFAULT 0,
        state TEXT NOT NULL CHECK (state IN ('writing', 'done', 'stopped', 'length', 'context', 'broken')),
        created REAL NOT NULL,
        touched REAL NOT NULL,
        model TEXT NOT NULL DEFAULT '',
        settings TEXT NOT NULL DEFAULT '{}',
        stats TEXT NOT NULL DEFAULT '{}'
    );
    CREATE INDEX messages_by_chat ON messages (chat, id);
    CREATE INDEX messages_by_parent ON messages (parent);
    CREATE INDEX chats_by_update ON chats (updated);
    """,
    # 2: what the person chose last
    """
    CREATE TABLE preferences (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    );
    """,
)


def migrate(db: sqlite3.Connection, path: object) -> None:
    """Bring a database to the newest schema, one transaction per step.

    Raises CloverError for a file that a newer version wrote.
    """
    if _version(db) > len(MIGRATIONS):
        raise CloverError(
            f"{path} was written by a newer version of clover-local",
            hint="update clover-local, or move the file away to begin with no chats",
        )
    while _version(db) < len(MIGRATIONS):
        db.execute("BEGIN IMMEDIATE")
        try:
            at = _version(db)  # another process may have migrated while this one waited
            if at < len(MIGRATIONS):
                for statement in MIGRATIONS[at].split(";"):
                    if statement.strip():
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {at + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
