"""The slash commands: one table for help, completion and the screen that carries them out."""

from collections.abc import Sequence
from dataclasses import dataclass

from clover_local.errors import UsageError

ON_OFF = ("on", "off")


@dataclass(frozen=True)
class Command:
    """`name` is what is typed after the slash; the chat screen's method `do_<name>` carries it out."""

    name: str
    argument: str
    help: str
    choices: tuple[str, ...] = ()


COMMANDS = (
    Command("help", "", "keys and commands"),
    Command("mode", "plain|self|denoise", "how answers are written", ("plain", "self", "denoise")),
    Command("accept", "exact|release", "which drafts are kept", ("exact", "lossless", "release")),
    Command("think", "on|off|auto", "whether the model reasons before it answers", ("on", "off", "auto")),
    Command("system", "[TEXT]", "show or set the system prompt, - removes it"),
    Command("temp", "NUMBER", "temperature, 0 takes the likeliest token"),
    Command("threshold", "NUMBER|auto", "confidence at which denoising fixes a token", ("auto",)),
    Command("model", "NAME", "load a path, demo, or owner/name[:QUANT]", ("demo",)),
    Command("save", "[FILE.md|FILE.json]", "write this chat to a file"),
    Command("import", "FILE", "read a chat that was saved"),
    Command("open", "", "open the answer's HTML document in the browser"),
    Command("copy", "[code]", "copy the answer, or its last code block", ("code",)),
    Command("stats", "", "all figures of the answer"),
    Command("compare", "[TEXT]", "plain and self on the same question, side by side"),
    Command("find", "[TEXT]", "search all chats"),
    Command("rename", "TITLE", "rename this chat"),
    Command("drop", "[TURNS]", "stop sending the oldest turns to the model"),
    Command("clear", "", "begin afresh; this chat stays in the list"),
)
BY_NAME = {command.name: command for command in COMMANDS}


def is_command(text: str) -> bool:
    """Whether a message is meant for the program: a slash and a word that begins a command, on one line."""
    word = text[1:].partition(" ")[0]
    return text.startswith("/") and "\n" not in text.strip() and bool(word) and "/" not in word


def parse(text: str) -> tuple[Command, str]:
    """The command of a line and its argument; raises UsageError for an unknown one."""
    word, _, argument = text[1:].strip().partition(" ")
    if word in BY_NAME:
        return BY_NAME[word], argument.strip()
    near = [c for c in COMMANDS if c.name.startswith(word)]
    if len(near) == 1:
        return near[0], argument.strip()
    raise UsageError(f"there is no command /{word}", hint="/help lists them")


@dataclass(frozen=True)
class Completion:
    """What the line becomes, and how the offer reads."""

    line: str
    label: str
    help: str


def complete(line: str, extra: dict[str, Sequence[str]] | None = None) -> list[Completion]:
    """Offers for a line that begins with a slash; `extra` adds choices by command name."""
    if not line.startswith("/") or "\n" in line:
        return []
    word, space, argument = line[1:].partition(" ")
    if not space:
        return [
            Completion(
                f"/{c.name} " if c.argument else f"/{c.name}", f"/{c.name} {c.argument}".strip(), c.help
            )
            for c in COMMANDS
            if c.name.startswith(word)
        ]
    command = BY_NAME.get(word)
    if command is None:
        return []
    choices = (*command.choices, *(extra or {}).get(command.name, ()))
    return [
        Completion(f"/{command.name} {choice}", choice, command.help)
        for choice in dict.fromkeys(choices)
        if choice.startswith(argument) and choice != argument
    ]
