"""Drafts for self-speculation: from the model's own preview, or free from what was already written."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

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
    """Proposes what followed the longest earlier occurrence of the text's last tokens."""

    SHORTEST = 3
    LONGEST = 24

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._text = np.empty(1024, np.int32)
        self._n = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text that is searched."""
        new = np.fromiter(tokens, np.int32)
        if self._n + new.size > self._text.size:
            grown = np.empty(2 * (self._n + new.size), np.int32)
            grown[: self._n] = self._text[: self._n]
            self._text = grown
        self._text[self._n : self._n + new.size] = new
        self._n += new.size

    def draft(self, most: int) -> Draft | None:
        """At most `most` tokens that may follow; None when the last few tokens are new."""
        text, last = self._text[: self._n], self._n - 1
        if most < 1 or last < self.SHORTEST:
            return None
        ends = np.flatnonzero(text[:last] == text[last])  # where a match may end
        matched, best = 1, ends
        while ends.size and matched < self.LONGEST:
            best = ends
            ends = ends[ends >= matched]
            ends = ends[text[ends - matched] == text[last - matched]]
            matched += bool(ends.size)
        if best.size == 0 or matched < self.SHORTEST:
            return None
        if ends.size:
            best = ends
        period = last - int(best[-1])  # the latest match; a text that repeats itself goes on repeating
        ids = text[last + 1 - period + np.arange(most) % period]
        return Draft(tuple(ids.tolist()), (matched / (matched + 2),) * most, "ngram")
