"""One answer: prefill the prompt, run the mode's loop, report every step as an event. Token ids only."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence

from clover_local.decoding.answer import Answer, Meter
from clover_local.decoding.denoise import denoise
from clover_local.decoding.drafts import NgramDrafter
from clover_local.decoding.engine import Engine, Numbers
from clover_local.decoding.events import Done, Event, Prefilled, Tokens
from clover_local.decoding.plain import plain
from clover_local.decoding.policy import Always, Policy
from clover_local.decoding.sampling import Sampler
from clover_local.decoding.settings import Mode, Settings
from clover_local.decoding.speculative import speculative
from clover_local.errors import ContextFullError, UsageError
from clover_local.runtime.rows import Rows


def never() -> bool:
    """The default of `cancelled`."""
    return False


def mode_of(settings: Settings, spec: Numbers) -> Mode:
    """The mode that will run: a model without preview weights writes one token at a time."""
    return settings.mode if spec.can_draft else "plain"


def generate(
    engine: Engine,
    prompt: Sequence[int],
    settings: Settings,
    *,
    cancelled: Callable[[], bool] = never,
    policy: Policy | None = None,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Event, None, None]:
    """Prefill `prompt` (at least one token) on top of the engine's state and answer it.

    Yields Prefilled, then Block and Tokens, then Done. `cancelled` is asked between passes; `progress` hears
    (done, total) prompt tokens; a `policy` that is passed again keeps what it learned. Closing the generator
    at any yield leaves the engine at its last commit: `engine.tokens` says where. The last kept token may not
    be committed.

    Raises ContextFullError when the prompt does not fit, UsageError when it is empty.
    """
    _check(engine, prompt)
    answer = Answer(engine, settings, Sampler.of(settings), Meter(clock), cancelled, begun=clock())
    reused = engine.n_past
    engine.begin_response(engine.spec.processing)
    rows, ms = answer.meter.time("prefill", engine.prefill, prompt, cancelled=cancelled, progress=progress)
    computed = engine.n_past - reused
    yield Prefilled(computed, reused, ms / 1e3)
    if rows is None:
        answer.reason = "cancelled"
    else:
        yield from _decode(answer, rows, policy)
    assert answer.reason is not None, "a loop ends with a reason"
    yield Done(answer.reason, answer.stats(computed, reused))


def _check(engine: Engine, prompt: Sequence[int]) -> None:
    if not prompt:
        raise UsageError("the prompt is empty")
    if engine.n_past + len(prompt) > engine.n_ctx:
        raise ContextFullError(
            f"the prompt takes {engine.n_past + len(prompt):,} tokens and the context holds {engine.n_ctx:,}",
            "shorten the prompt or raise --ctx-size",
        )


def _decode(answer: Answer, rows: Rows, policy: Policy | None) -> Iterator[Event]:
    """Run the mode's loop after a prefill whose last row is `rows`."""
    engine, settings = answer.engine, answer.settings
    mode = mode_of(settings, engine.spec)
    if mode == "denoise":
        answer.decoding_since = answer.meter.clock()
        yield from denoise(answer)
        return
    first = answer.sampler.choose(rows, 0, answer.position)
    kept = answer.keep([first])
    answer.from_prefill, answer.decoding_since = 1, answer.meter.clock()
    yield Tokens(kept)
    if mode == "plain":
        yield from plain(answer, first)
    elif settings.policy == "always":
        yield from speculative(answer, first, Always())
    else:
        ngrams = NgramDrafter((*engine.tokens, first))
        yield from speculative(answer, first, policy or Policy(), ngrams)
