"""What the slash commands do: `do_<name>` for every row of the table in commands.py."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from clover_local.chat import transfer
from clover_local.chat.protocol import Turn
from clover_local.decoding.settings import Settings
from clover_local.errors import UsageError
from clover_local.tui.commands import COMMANDS, parse
from clover_local.tui.compare import Compare, Side
from clover_local.tui.dialogs import Page
from clover_local.tui.figures import by_position, gigabytes, table
from clover_local.tui.html import document_in, show, write_page
from clover_local.tui.notice import Notice

if TYPE_CHECKING:
    from clover_local.tui.screen import ChatScreen

KEYS = (
    ("enter", "send"),
    ("ctrl+j, shift+enter", "new line"),
    ("up, down", "what was asked before"),
    ("esc, ctrl+c", "stop the answer and keep it"),
    ("ctrl+r", "answer anew; the old answer is kept"),
    ("ctrl+e", "edit a question and ask again"),
    ("alt+left, alt+right", "the other answers to a question"),
    ("alt+up, alt+down", "choose a message for these keys"),
    ("ctrl+y", "copy the answer"),
    ("ctrl+o", "unfold reasoning, or a long message"),
    ("ctrl+n", "new chat"),
    ("ctrl+b", "chats: enter opens, f2 renames, del deletes"),
    ("ctrl+f", "find in all chats"),
    ("pageup, pagedown, ctrl+end", "scroll; the newest text"),
    ("f5", "do what the notice offers"),
    ("ctrl+p", "command palette"),
    ("ctrl+q", "quit"),
)


class Slash:
    """Carries out commands for one chat screen."""

    def __init__(self, screen: "ChatScreen") -> None:
        self.screen = screen

    async def run(self, line: str) -> None:
        """Carry out a line; raises CloverError with a sentence where that cannot be done."""
        command, argument = parse(line)
        await getattr(self, f"do_{command.name}")(argument)

    # Settings

    async def do_help(self, argument: str) -> None:
        """Show keys and commands."""
        p = self.screen.transcript.palette
        rows = [(keys, p.accent2, meaning) for keys, meaning in KEYS]
        rows += [(f"/{c.name} {c.argument}".strip(), p.accent, c.help) for c in COMMANDS]
        width = max(len(left) for left, _, _ in rows) + 2
        text = Text()
        for n, (left, style, meaning) in enumerate(rows):
            if n == len(KEYS):
                text.append("\n")
            text.append(left.ljust(width), style).append(f"{meaning}\n")
        self.screen.app.push_screen(Page("Keys and commands", text))

    async def do_mode(self, argument: str) -> None:
        """Choose how answers are written."""
        about = self.screen.app.link.about
        if argument in ("self", "denoise") and about is not None and not about.can_draft:
            raise UsageError(f"{about.name} holds no preview weights, so it writes one token at a time")
        self._set(argument, "mode", argument or None, "plain, self or denoise")

    async def do_accept(self, argument: str) -> None:
        """Choose which drafts are kept."""
        self._set(argument, "accept", argument or None, "exact, lossless or release")

    async def do_temp(self, argument: str) -> None:
        """Set the temperature."""
        self._set(argument, "temperature", _number(argument), "a number from 0")

    async def do_threshold(self, argument: str) -> None:
        """Set the confidence at which denoising fixes a token."""
        if argument == "auto":
            self._apply(replace(self._settings, threshold=None), "The threshold is the model's own.")
        else:
            self._set(argument, "threshold", _number(argument), "a number from 0 to 1, or auto")

    async def do_think(self, argument: str) -> None:
        """Choose whether the model reasons first."""
        choices = {"on": True, "off": False, "auto": None}
        if argument not in choices:
            raise UsageError("/think takes on, off or auto")
        self.screen.conversation.thinking = choices[argument]
        self._say({"on": "The model reasons first.", "off": "The model answers without reasoning."}.get(
            argument, "The model decides by itself whether it reasons."
        ))  # fmt: skip

    async def do_system(self, argument: str) -> None:
        """Show or set the system prompt."""
        conversation = self.screen.conversation
        if not argument:
            self._say(
                f"System prompt: {conversation.system}"
                if conversation.system
                else "There is no system prompt."
            )
            return
        await conversation.set_system("" if argument == "-" else argument)
        self._say("The system prompt is gone." if argument == "-" else "This chat has a new system prompt.")
        self.screen.branch_changed()

    async def do_model(self, argument: str) -> None:
        """Load another model."""
        app = self.screen.app
        if not argument:
            raise UsageError("/model needs a name: a path, demo, or owner/name[:QUANT]")
        if self.screen.conversation.live is not None:
            raise UsageError("an answer is being written; esc stops it")
        await app.change_model(argument)

    # Chats

    async def do_save(self, argument: str) -> None:
        """Write the chat to a file."""
        chat = self.screen.conversation.chat
        if chat is None:
            raise UsageError("there is nothing to save yet")
        target = Path(argument).expanduser() if argument else Path(f"{_file_name(chat.title)}.md")
        await self.screen.conversation.shelf(lambda store: transfer.save(store, store.chat(chat.id), target))
        self._say(f"Saved to {target}.")

    async def do_import(self, argument: str) -> None:
        """Read a saved chat."""
        if not argument:
            raise UsageError("/import needs a file")
        conversation = self.screen.conversation
        chats = await conversation.shelf(lambda store: transfer.load(store, Path(argument).expanduser()))
        await conversation.load_chats()
        if chats:
            await conversation.open(chats[0].id)

    async def do_rename(self, argument: str) -> None:
        """Give the chat another title."""
        chat = self.screen.conversation.chat
        if chat is None or not argument:
            raise UsageError("/rename needs a title, and a chat that has begun")
        await self.screen.conversation.rename(chat.id, argument)

    async def do_drop(self, argument: str) -> None:
        """Stop sending the oldest turns."""
        if argument and not argument.isdigit():
            raise UsageError("/drop takes a number of messages")
        await self.screen.conversation.drop(int(argument or 2))

    async def do_clear(self, argument: str) -> None:
        """Begin afresh."""
        system = self.screen.conversation.system
        await self.screen.conversation.open(None)
        await self.screen.conversation.set_system(system)
        self.screen.branch_changed()

    async def do_find(self, argument: str) -> None:
        """Search all chats."""
        self.screen.action_find(argument)

    # The answer

    async def do_copy(self, argument: str) -> None:
        """Copy the answer, or its last code block."""
        message = self.screen.chosen_message()
        if message is None or not message.content:
            raise UsageError("there is nothing to copy yet")
        if argument == "code":
            blocks = re.findall(r"^```[^\n]*\n(.*?)(?:^```|\Z)", message.content, re.DOTALL | re.MULTILINE)
            if not blocks:
                raise UsageError("this answer holds no code block")
            self.screen.app.copy(blocks[-1], "the code")
        else:
            self.screen.app.copy(
                message.content, "the answer" if message.role == "assistant" else "the question"
            )

    async def do_open(self, argument: str) -> None:
        """Open the answer's HTML document."""
        message = self.screen.chosen_message()
        document = document_in(message.content) if message is not None else None
        if document is None:
            raise UsageError("this answer holds no HTML document")
        app = self.screen.app
        path = await app.in_thread(lambda: write_page(document))
        opened = app.browser and await app.in_thread(lambda: show(path))
        text = (
            "Opened; the page runs the model's code, shut in"
            if opened
            else "The page runs the model's code, shut in"
        )
        self._say(f"{text}: {path}")

    async def do_stats(self, argument: str) -> None:
        """Show all figures of the answer."""
        message, p = self.screen.chosen_message(), self.screen.transcript.palette
        if message is None or not message.stats.tokens:
            raise UsageError("there are no figures yet")
        rows = [*table(message.stats), ("model", message.model)]
        about = self.screen.app.link.about
        rows += [
            (f"memory: {name}", gigabytes(size))
            for name, size in (about.memory if about else {}).items()
            if size
        ]
        text = Text()
        for name, value in rows:
            text.append(name.ljust(20), p.muted).append(f"{value}\n")
        if bars := by_position(message.stats):
            text.append("accepted by place".ljust(20), p.muted).append(bars, p.accent)
        self.screen.app.push_screen(Page("Figures of this answer", text))

    async def do_compare(self, argument: str) -> None:
        """Write the same answer plain and by self-speculation."""
        screen, conversation = self.screen, self.screen.conversation
        if conversation.live is not None or not screen.app.link.ready:
            raise UsageError("the engine is busy; esc stops an answer")
        branch = conversation.branch
        if not argument:
            asked = [m for m in branch if m.role == "user"]
            if not asked:
                raise UsageError("/compare needs a question")
            argument, branch = asked[-1].content, branch[: branch.index(asked[-1])]
        turns = (*conversation.turns(branch), Turn("user", argument))
        settings = conversation.settings
        compare = Compare(argument, turns, settings, conversation.thinking, screen.app.link.send)
        screen.app.push_screen(compare, self._keep)

    def _keep(self, kept: tuple[str, str, Side] | None) -> None:
        if kept is not None:
            question, _, side = kept
            self.screen.attempt(
                self.screen.conversation.adopt(question, side.entry, side.settings, side.stats)
            )

    # Inside

    @property
    def _settings(self) -> Settings:
        return self.screen.conversation.settings

    def _set(self, argument: str, name: str, value: object, wanted: str) -> None:
        shown = name.replace("temperature", "temp")
        if not argument:
            self._say(f"/{shown} is {getattr(self._settings, name)}; it takes {wanted}.")
            return
        try:
            settings = replace(self._settings, **{name: value})  # type: ignore[arg-type]
        except (UsageError, TypeError) as error:
            raise UsageError(f"/{shown} takes {wanted}") from error
        self._apply(settings, f"From the next answer on: {shown} {value}.")

    def _apply(self, settings: Settings, said: str) -> None:
        self.screen.conversation.settings = settings
        self.screen.app.keep_settings()
        self.screen.settings_changed()
        self._say(said)

    def _say(self, text: str) -> None:
        self.screen.notify_about(Notice(text))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _file_name(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")[:60] or "chat"
