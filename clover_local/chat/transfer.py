"""Chats out of and into the program: Markdown of the branch on screen, JSON of everything."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from clover_local.chat.store import Chat, Store, stats_from
from clover_local.chat.tree import Message, path
from clover_local.errors import CloverError

FORMAT = "clover-local chat"
_HEADINGS = {"system": "System", "user": "You", "assistant": "Clover"}
_MARK = "<!-- clover:"
_FOLD = "<details><summary>Reasoning</summary>\n\n"


def to_markdown(chat: Chat, messages: Sequence[Message]) -> str:
    """One branch as Markdown. Comments that no viewer shows mark the turns, so that it can be read back."""
    parts = [f"# {' '.join(chat.title.split())}\n"]
    turns = [("system", chat.system, "")] if chat.system else []
    turns += [(m.role, m.content, m.reasoning) for m in messages]
    for role, content, reasoning in turns:
        parts.append(f"{_MARK}{role} -->\n## {_HEADINGS[role]}\n")
        if reasoning:
            parts.append(
                f"{_MARK}reasoning -->\n{_FOLD}{_guard(reasoning)}\n\n</details>\n",
            )
        parts.append(f"{_MARK}text -->\n{_guard(content)}\n")
    return "\n".join(parts)


def from_markdown(text: str, store: Store, source: str) -> Chat:
    """Store a chat read from `to_markdown`'s form; raises CloverError for any other text."""
    head, *pieces = text.split(f"\n{_MARK}")
    if not pieces or not head.startswith("# "):
        raise CloverError(f"{source} is not a chat saved by clover-local")
    turns: list[dict[str, str]] = []
    for piece in pieces:
        name, _, body = piece.partition(" -->\n")
        if name in _HEADINGS:
            turns.append({"role": name, "content": "", "reasoning": ""})
        elif name == "reasoning" and turns:
            inner = body.removeprefix(_FOLD)
            turns[-1]["reasoning"] = _unguard(inner.rpartition("\n\n</details>")[0])
        elif name == "text" and turns:
            turns[-1]["content"] = _unguard(body.removesuffix("\n"))
        else:
            raise CloverError(f"{source}: unknown part “{name[:20]}”")
    system = "".join(t["content"] for t in turns if t["role"] == "system")
    chat = store.new_chat(head[2:].strip() or "Chat", system)
    parent = None
    for turn in turns:
        if turn["role"] != "system":
            made = store.add_message(
                chat.id, parent, turn["role"], turn["content"], reasoning=turn["reasoning"]
            )
            parent = made.id
    return store.chat(chat.id)


def to_json(store: Store, chats: Sequence[Chat]) -> str:
    """Chats with every branch as JSON."""
    out = [
        {**asdict(chat), "messages": [asdict(m) for m in store.messages(chat.id).values()]} for chat in chats
    ]
    return json.dumps({"format": FORMAT, "version": 1, "chats": out}, ensure_ascii=False, indent=1)


def from_json(text: str, store: Store, source: str) -> list[Chat]:
    """Store chats read from `to_json`'s form under new ids; raises CloverError for any other text."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT or data["version"] != 1:
            raise ValueError(data["format"])
        return [_restore(entry, store) for entry in data["chats"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CloverError(f"{source} is not a chat saved by clover-local") from error


def _restore(entry: dict, store: Store) -> Chat:
    chat = store.new_chat(entry["title"], entry["system"])
    try:
        _restore_messages(entry, store, chat)
    except BaseException:
        store.delete_chat(chat.id)
        raise
    return store.chat(chat.id)


def _restore_messages(entry: dict, store: Store, chat: Chat) -> None:
    new: dict[int | None, int | None] = {None: None}
    for m in entry["messages"]:
        made = store.add_message(
            chat.id,
            new[m["parent"]],
            m["role"],
            m["content"],
            reasoning=m["reasoning"],
            thought=m["thought"],
            state=m["state"],
            model=m["model"],
            settings=m["settings"],
            stats=stats_from(m["stats"]),
        )
        new[m["id"]] = made.id
    store.change_chat(chat.id, leaf=new.get(entry["leaf"]), first=new.get(entry["first"]))


def save(store: Store, chat: Chat, target: Path) -> None:
    """Write a chat to a file: JSON when its name ends in .json, Markdown otherwise. Never overwrites."""
    if target.suffix == ".json":
        text = to_json(store, [chat])
    else:
        text = to_markdown(chat, path(store.messages(chat.id), chat.leaf))
    try:
        with target.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError as error:
        raise CloverError(f"{target} exists already", hint="choose another name") from error
    except OSError as error:
        raise CloverError(f"{target} cannot be written: {error.strerror}") from error


def load(store: Store, source: Path) -> list[Chat]:
    """Read a file that `save` wrote into the store."""
    try:
        text = source.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CloverError(f"{source} cannot be read: {error}") from error
    if source.suffix == ".json":
        return from_json(text, store, str(source))
    return [from_markdown(text, store, str(source))]


def _guard(text: str) -> str:
    """Text in which nothing looks like one of our marks; `_unguard` undoes it."""
    return re.sub(r"<!-- (\\*)clover:", r"<!-- \\\1clover:", text)


def _unguard(text: str) -> str:
    return re.sub(r"<!-- \\(\\*)clover:", r"<!-- \1clover:", text)
