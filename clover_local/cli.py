"""The `clover` command: a table of subcommands, each imported only after it was chosen.

Errors become one line on stderr (and a `hint:` line); stdout carries what was asked for and nothing else.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from clover_local.errors import CloverError, UsageError
from clover_local.version import __version__

COMMANDS: dict[str, str] = {  # name, which is also the module in clover_local.commands: what it does
    "chat": "talk with a model in the terminal",
    "run": "answer one prompt and print the answer",
    "convert": "turn a checkpoint into one quantized GGUF",
    "inspect": "show what a model file holds",
    "plan": "show what of a model goes where before it is loaded",
    "bench": "measure speed, or answer MATH-500",
    "doctor": "show what the program found here, and what is wrong with it",
}
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"run: {self.prog} --help")


def entry() -> NoReturn:
    """What the installed `clover` command calls."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit code: 0, 1 (error), 2 (usage) or 130 (interrupted)."""
    debug = "--debug" in argv
    if debug:
        os.environ["CLOVER_DEBUG"] = "1"  # the ggml binding shows the libraries' log
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _deaf_reader()
    except CloverError as error:
        if debug:
            raise
        _say(str(error), error.hint)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        _say(
            f"something went wrong inside the program: {type(error).__name__}: {error}", "run it with --debug"
        )
        return 1


def _run(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="clover",
        description="Run block-diffusion language models on your own machine.",
        epilog="Run `clover COMMAND --help` for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clover-local {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and the libraries' log")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True, title="commands")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, does in COMMANDS.items():
        sub = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        sub.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
        if name == chosen:
            module = import_module(f"clover_local.commands.{name}")
            module.add_arguments(sub)
            sub.set_defaults(main=module.main)
    args = parser.parse_args(argv)
    result: int = args.main(args)
    sys.stdout.flush()
    return result


def _say(sentence: str, hint: str | None) -> None:
    color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    red, off = ("\033[1;31m", "\033[0m") if color else ("", "")
    print(f"{red}error:{off} {sentence}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _deaf_reader() -> int:
    # the reader of stdout is gone (`| head`); without this the interpreter complains again on exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
