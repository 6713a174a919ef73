"""Telling an answer's reasoning from its text while it streams in."""

OPEN, CLOSE = "<think>", "</think>"


class Splitter:
    """Splits streamed text at `<think>` and `</think>`, wherever the pieces are cut.

    `inside` says whether the stream begins in the reasoning (the prompt ended with `<think>`).
    """

    def __init__(self, inside: bool) -> None:
        self.inside = inside
        self._held = ""
        self._fresh = (
            True  # nothing but white space since the section began: leading blank lines are not shown
        )

    def feed(self, text: str) -> tuple[str, str]:
        """What a piece adds to (reasoning, answer)."""
        self._held += text
        reasoning, answer = "", ""
        while True:
            tag = CLOSE if self.inside else OPEN
            at = self._held.find(tag)
            end = at if at >= 0 else len(self._held) - _overlap(self._held, tag)
            piece = self._trim(self._held[:end])
            if self.inside:
                reasoning += piece
            else:
                answer += piece
            if at < 0:
                self._held = self._held[end:]
                return reasoning, answer
            self._held = self._held[at + len(tag) :]
            self.inside, self._fresh = not self.inside, True

    def finish(self) -> tuple[str, str]:
        """What was held back because it could have begun a tag."""
        held, self._held = self._trim(self._held), ""
        return (held, "") if self.inside else ("", held)

    def _trim(self, piece: str) -> str:
        if self._fresh:
            piece = piece.lstrip()
            self._fresh = not piece
        return piece


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
