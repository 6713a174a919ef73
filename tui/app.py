"""The chat application: owns the engine, the store and the settings, and ends them however it ends."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from clover_local.chat.protocol import ModelChoice, Report
from clover_local.chat.store import Store
from clover_local.decoding.settings import Settings
from clover_local.errors import CloverError
from clover_local.tui.clipboard import osc52
from clover_local.tui.compare import Compare
from clover_local.tui.conversation import Conversation
from clover_local.tui.engine import EngineLink
from clover_local.tui.notice import Notice
from clover_local.tui.screen import ChatScreen
from clover_local.tui.shelf import Shelf
from clover_local.tui.theme import DARK, LIGHT, SIXTEEN, THEMES

T = TypeVar("T")
_PALETTE = (
    ("mode plain", "One token at a time"),
    ("mode self", "Draft and verify"),
    ("mode denoise", "The release's block sampler"),
    ("compare", "Plain and self side by side"),
    ("stats", "All figures of the answer"),
    ("open", "The answer's HTML in the browser"),
    ("save", "Write this chat to a Markdown file"),
)
_KEPT = ("mode", "accept", "temperature", "top_k", "top_p", "min_p", "threshold", "draft_max", "max_tokens")


class CloverApp(App[int]):
    """`clover chat`."""

    TITLE = "clover"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", priority=True)]

    def __init__(
        self,
        store: Store,
        choice: ModelChoice,
        *,
        settings: Settings | None = None,
        theme: str = "auto",
        browser: bool = True,
    ) -> None:
        """`settings` None takes those of the last time. `browser` False makes /open print the path only."""
        super().__init__()
        self.shelf = Shelf(store)
        self.browser = browser
        self.link = EngineLink(choice, self._receive)
        kept = self.shelf.now(
            lambda s: (s.preference("settings", "{}"), s.preference("theme"), s.questions())
        )
        self.conversation = Conversation(self.shelf, self.link, _Silent(), settings or kept_settings(kept[0]))
        self._history = kept[2]
        for one in THEMES:
            self.register_theme(one)
        self.theme = self._theme_name(theme, kept[1])

    # Start and end

    async def on_mount(self) -> None:
        """Put the screen up, then start the engine behind it."""
        self.chat_screen = ChatScreen()
        self.conversation.view = self.chat_screen
        await self.push_screen(self.chat_screen)
        self.chat_screen.composer.asked = self._history
        self.theme_changed_signal.subscribe(self, lambda theme: self._keep_theme(theme.name))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self.exit, 128 + number)
            except (NotImplementedError, RuntimeError, ValueError):
                break  # not the main thread, or a platform without them
        self.chat_screen.attempt(self.conversation.load_chats())
        self.restart_engine()
        gc.freeze()  # modules stay: looking through them for garbage held the loop for 25 ms in mid-answer

    def close(self) -> None:
        """Keep what is being written, end the engine, close the store; called after the screen is gone."""
        self.conversation.keep_live()
        self.link.kill()
        self.shelf.close()

    def restart_engine(self) -> None:
        """Start the engine, in place of one there may be."""
        self.chat_screen.notify_about(None)
        self.conversation.abandon("The engine was restarted before this answer was complete.")
        self.chat_screen.engine_starts(self.link.choice.model)
        self.run_worker(self.link.start(), exclusive=True, group="engine")

    async def change_model(self, model: str) -> None:
        """Load another model in place of this one."""
        self.chat_screen.engine_starts(model)
        choice = self.link.choice
        await self.link.start(ModelChoice(**{**asdict(choice), "model": model}))

    def known_models(self) -> list[str]:
        """Model files to offer: those beside the one that is loaded."""
        here = Path(self.link.choice.model)
        folder = here.parent if here.suffix == ".gguf" else Path()
        return sorted(str(path) for path in folder.glob("*.gguf"))

    def _receive(self, reports: list[Report]) -> None:
        if not self.is_running or not self.screen_stack:
            return  # what is still on its way while the program ends
        self.chat_screen.receive(reports)
        if isinstance(self.screen, Compare):
            for report in reports:
                self.screen.receive(report)
            self.screen.draw()

    # Settings

    @property
    def mode_label(self) -> str:
        """The mode as the title shows it."""
        settings, about = self.conversation.settings, self.link.about
        mode = settings.mode if about is None or about.can_draft else "plain"
        label = f"self/{settings.accept}" if mode == "self" else mode
        return f"{label} · temp {settings.temperature:g}" if settings.temperature else label

    def keep_settings(self) -> None:
        """Remember the settings for the next time."""
        values = {name: getattr(self.conversation.settings, name) for name in _KEPT}
        self.chat_screen.attempt(self.shelf(lambda s: s.set_preference("settings", json.dumps(values))))

    def _keep_theme(self, name: str) -> None:
        self.chat_screen.attempt(self.shelf(lambda s: s.set_preference("theme", name)))

    def _theme_name(self, wanted: str, kept: str) -> str:
        named = {"dark": DARK.name, "light": LIGHT.name, "16": SIXTEEN.name}
        if wanted in named:
            return named[wanted]
        if self.console.color_system == "standard" and sys.stdout.isatty():
            return SIXTEEN.name
        if kept in self.available_themes:
            return kept
        # rxvt, konsole and others tell the colours of the terminal: 7 and 15 are light backgrounds
        return LIGHT.name if os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else DARK.name

    # Services of the screens

    def copy(self, text: str, what: str) -> None:
        """Copy through the terminal and say so."""
        self.copy_to_clipboard(text)
        self.chat_screen.notify_about(Notice(f"Copied {what}, {len(text):,} characters."))

    def copy_to_clipboard(self, text: str) -> None:
        """Copy by OSC 52, also out of tmux and screen."""
        self._clipboard = text
        if self._driver is not None:
            self._driver.write(osc52(text, os.environ))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do blocking work without holding up the screen."""
        return await asyncio.to_thread(work)

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        """What the command palette offers."""
        yield SystemCommand("Light or dark", "Switch between the light and the dark theme", self.action_shade)
        yield SystemCommand("Theme", "Choose among all themes", self.action_change_theme)
        yield SystemCommand("Quit", "End the program", self.action_quit)
        if not isinstance(screen, ChatScreen):
            return
        for binding in ChatScreen.BINDINGS:
            if isinstance(binding, Binding) and binding.show:
                action = binding.action
                yield SystemCommand(binding.description, binding.key, lambda a=action: self._run(screen, a))
        for name, help in _PALETTE:
            line = f"/{name}"
            yield SystemCommand(line, help, lambda line=line: screen.attempt(screen.slash.run(line)))
        yield SystemCommand("Restart the engine", "End it and load the model again", self.restart_engine)

    def _run(self, screen: ChatScreen, action: str) -> None:
        self.run_worker(screen.run_action(action))

    def action_shade(self) -> None:
        """Switch between light and dark."""
        self.theme = DARK.name if self.theme == LIGHT.name else LIGHT.name


class _Silent:
    """A view for the moments before the screen is up."""

    def branch_changed(self) -> None: ...
    def chats_changed(self) -> None: ...
    def answer_changed(self) -> None: ...
    def answer_ended(self, live: object, trouble: str) -> None: ...
    def failed(self, error: CloverError) -> None: ...
    def overflowed(self, report: object) -> None: ...
    def counted(self, tokens: int, n_ctx: int) -> None: ...


def kept_settings(text: str) -> Settings:
    """The settings of the last time; whatever this version cannot use is left at its default."""
    try:
        known = {f.name for f in fields(Settings)}
        return Settings(**{k: v for k, v in json.loads(text).items() if k in known})
    except (ValueError, TypeError, AttributeError, CloverError):
        return Settings()
