"""The errors a person sees: one sentence that names the file or option, and what to do about it."""


class CloverError(Exception):
    """A problem the user can act on; the command line prints it as one line and exits with `exit_code`.

    `hint` is an optional second sentence saying what to do, printed on a `hint:` line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CloverError):
    """The command was called with options that do not make sense together."""

    exit_code = 2


class ModelError(CloverError):
    """A model file that cannot be read or does not hold what the architecture needs."""


class ContextFullError(CloverError):
    """The tokens asked for do not fit into the context the engine was opened with."""


class CardFullError(CloverError):
    """The card has less free memory than something needs; a smaller plan may fit."""


class LockedMemoryError(CloverError):
    """The computer's memory is too small, or may not be locked, for the experts that a card should read there."""
