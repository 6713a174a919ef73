"""Plain decoding: one token at a time, each from one causal pass."""

from collections.abc import Iterator

from clover_local.decoding.answer import Answer
from clover_local.decoding.events import Event, Tokens


def plain(answer: Answer, pending: int) -> Iterator[Event]:
    """Continue from `pending`, the last kept token, which is not committed yet.

    Closing the generator at any yield leaves the engine at its last commit.
    """
    while not answer.ended():
        rows, _ = answer.meter.time("plain", answer.engine.step, pending)
        pending = answer.sampler.choose(rows, 0, answer.position)
        yield Tokens(answer.keep([pending]))
