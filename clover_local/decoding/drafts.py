"""Drafts for self-speculation: from the model's own preview, or free from what was already written."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from clover_local.decoding.answer import Meter
from clover_local.decoding.engine import Engine

Source = Literal["preview", "ngram"]


@dataclass(frozen=True)
class Draft:
    """Proposed tokens after the pending one, each with the confidence of its source, and what they cost."""

    ids: tuple[int, ...]
    confidence: tuple[float, ...]
    source: Source
    ms: float = 0.0


def preview_draft(engine: Engine, meter: Meter, pending: int, rows: int) -> Draft:
    """Draft rows - 1 tokens: one preview of [pending, mask, mask, ...]; the state is only read."""
    mask = engine.spec.mask_id
    assert mask is not None, "a model that can draft has a mask token"
    seen, ms = meter.time("draft", engine.preview, [pending, *[mask] * (rows - 1)], draft=True)
    return Draft(tuple(seen.ids[1:].tolist()), tuple(seen.p[1:].tolist()), "preview", ms)


class NgramDrafter:
    """Proposes what followed the longest earlier occurrence of the text's last tokens.

    Of the latest occurrences only, `DEPTH` of them, so that a step costs microseconds in any text.
    """

    SHORTEST, LONGEST, DEPTH = 3, 24, 16

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._text: list[int] = []
        self._before: list[int] = []  # by place: where the three tokens that end there ended before, or -1
        self._latest: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text that is searched."""
        text, before, latest = self._text, self._before, self._latest
        for token in tokens:
            text.append(token)
            key = tuple(text[-self.SHORTEST :])
            before.append(latest.get(key, -1))
            latest[key] = len(text) - 1

    def draft(self, most: int) -> Draft | None:
        """At most `most` tokens that may follow; None when the last three tokens are new."""
        text, last = self._text, len(self._text) - 1
        if most < 1 or last < self.SHORTEST:
            return None
        end, matched, best = self._before[last], 0, -1
        for _ in range(self.DEPTH):
            if end < self.SHORTEST - 1:
                break
            length = self._match(end, last)
            if length > matched:
                matched, best = length, end
            end = self._before[end]
        if matched < self.SHORTEST:
            return None
        period = last - best  # a text that repeats itself goes on repeating
        ids = tuple(text[best + 1 + i % period] for i in range(most))
        return Draft(ids, (matched / (matched + 2),) * most, "ngram")

    def _match(self, end: int, last: int) -> int:
        """How many tokens that end at `end` are those that end at `last`, counted up to LONGEST."""
        text, length = self._text, 0
        while length < self.LONGEST and length <= end and text[end - length] == text[last - length]:
            length += 1
        return length
