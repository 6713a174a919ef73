"""Telling an answer's reasoning from its text while it streams in."""

from collections.abc import Sequence

OPEN, CLOSE = "<think>", "</think>"


class ThoughtCounter:
    """Counts the tokens of the reasoning; `marks` are the ids of its two marks, None where unknown."""

    def __init__(self, inside: bool, marks: tuple[int | None, int | None]) -> None:
        self.inside = inside
        self._open, self._close = marks

    def count(self, ids: Sequence[int]) -> int:
        """How many of the next tokens belong to the reasoning."""
        n = 0
        for id in ids:
            n += self.inside or id == self._open
            self.inside = id == self._open or (self.inside and id != self._close)
        return n


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
