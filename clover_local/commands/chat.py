"""`clover chat`: the terminal chat."""

import argparse
from pathlib import Path

from clover_local.commands import options
from clover_local.decoding.settings import Settings
from clover_local.errors import UsageError

EPILOG = "Chats are kept in one file; see docs/chat.md for keys and commands."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options; their defaults are those of Settings and of the last time."""
    default = Settings()
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        default="demo",
        help="a GGUF file, demo, or a hub id owner/name[:QUANT] (default: demo)",
    )
    options.add_engine_options(add)
    add(
        "--mode",
        choices=("plain", "self", "denoise"),
        help=f"how answers are written (default: {default.mode})",
    )
    add("--accept", choices=("exact", "lossless", "release"), help="which drafts are kept")
    add(
        "-n",
        "--predict",
        type=int,
        metavar="N",
        help=f"most tokens of an answer (default: {default.max_tokens})",
    )
    add("--temp", type=float, metavar="T", help="temperature; 0 takes the likeliest token")
    add("--theme", choices=("auto", "dark", "light", "16"), default="auto", help="colours")
    add("--chats", type=Path, metavar="FILE", help="the file of the chats")
    add("--no-browser", action="store_true", help="/open prints the path of a page instead of opening it")


def main(args: argparse.Namespace) -> int:
    """Run the chat until it is quit."""
    import sys
    from dataclasses import replace

    from clover_local.chat.protocol import ModelChoice
    from clover_local.chat.store import Store, default_path
    from clover_local.tui.app import CloverApp, kept_settings

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("clover chat needs a terminal", hint="clover run answers one prompt without one")
    store = Store(args.chats or default_path())
    given = {"mode": args.mode, "accept": args.accept, "max_tokens": args.predict, "temperature": args.temp}
    settings = replace(
        kept_settings(store.preference("settings", "{}")), **{k: v for k, v in given.items() if v is not None}
    )
    choice = ModelChoice(args.model, **options.load_arguments(args))
    app = CloverApp(store, choice, settings=settings, theme=args.theme, browser=not args.no_browser)
    try:
        app.run()
    finally:
        app.close()
    return app.return_code or 0
