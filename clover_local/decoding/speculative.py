"""Self-speculation: draft a block, verify the part that pays, commit what holds.

Source of the acceptance rules: docs/model.md, "Decoding".
"""

import math
from collections.abc import Iterator, Sequence

from clover_local.decoding.answer import Answer
from clover_local.decoding.drafts import NgramDrafter, preview_draft
from clover_local.decoding.events import Block, Event, Tokens
from clover_local.decoding.policy import Chooser, Round
from clover_local.decoding.sampling import Sampler
from clover_local.runtime.rows import Rows


def speculative(
    answer: Answer, pending: int, chooser: Chooser, ngrams: NgramDrafter | None = None
) -> Iterator[Event]:
    """Continue from `pending`, the last kept token, which is not committed yet.

    `ngrams`, if given, holds the conversation up to and including `pending`. Closing the generator at any
    yield leaves the engine at its last commit.
    """
    engine, meter = answer.engine, answer.meter
    while not answer.ended():
        space = engine.n_ctx - engine.n_past
        most = min(answer.settings.draft_max, space)
        free = ngrams.draft(most - 1) if ngrams is not None else None
        width = chooser.width(most, free)
        draft = preview_draft(engine, meter, pending, width) if width else free
        if width and draft is not None:
            yield Block((pending, *draft.ids), (1.0, *draft.confidence))
            if answer.ended():
                return
        verified = chooser.prefix(draft, min(most, answer.room) - 1) if draft is not None else 0
        if draft is not None and verified:
            kept, accepted, ms = _verify(answer, pending, draft.ids[:verified])
        else:
            kept, accepted, ms = _step(answer, pending)
        chooser.learn(Round(draft, verified, accepted, ms))
        if ngrams is not None:
            ngrams.extend(kept)
        pending = kept[-1]
        yield Tokens(kept, drafted=verified, accepted=min(accepted, len(kept)))


def _step(answer: Answer, pending: int) -> tuple[tuple[int, ...], int, float]:
    rows, ms = answer.meter.time("plain", answer.engine.step, pending)
    return answer.keep([answer.sampler.choose(rows, 0, answer.position)]), 0, ms


def _verify(answer: Answer, pending: int, draft: tuple[int, ...]) -> tuple[tuple[int, ...], int, float]:
    """Judge a draft and commit what holds; returns the tokens kept, the drafts accepted, the milliseconds."""
    engine, meter = answer.engine, answer.meter
    rows, verify_ms = meter.time("verify", engine.verify, [pending, *draft])
    judge = accept_release if answer.settings.accept == "release" else accept_exact
    tokens = judge(rows, draft, answer.sampler, answer.position)
    kept = answer.keep(tokens)
    _, commit_ms = meter.time("commit", engine.commit, len(kept))  # pending and all kept but the last
    answer.count_round(len(draft), min(len(tokens) - 1, len(kept)), len(kept))
    return kept, len(tokens) - 1, verify_ms + commit_ms


def accept_exact(rows: Rows, draft: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """The accepted prefix of a draft and one more token, as plain decoding would have written them.

    Row j of `rows` judges draft j. A draft is kept when it is what the sampler chooses there: at temperature
    0 the argmax. Above it the chance of that is p(draft), and given that it is not, the choice is distributed
    as p without the draft: the lossless rejection rule for a draft that is a point mass.
    """
    out: list[int] = []
    choose = sampler.choices(rows)
    for j in range(len(draft) + 1):
        out.append(choose(j, position + j, 0))
        if j < len(draft) and out[-1] != draft[j]:
            break
    return out


def accept_release(rows: Rows, draft: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """The same by the release's rule: keep a draft with p >= min(0.9, 0.6 * exp(-entropy)) and p > 0.

    Probability and entropy (nats) are those at temperature 1. The token after the accepted prefix is the
    sampler's choice.
    """
    assert rows.entropy is not None and rows.next_p is not None, "a verify pass fills both"
    out: list[int] = []
    for j, token in enumerate(draft):
        if not keeps(float(rows.next_p[j]), float(rows.entropy[j])):
            break
        out.append(token)
    out.append(sampler.choose(rows, len(out), position + len(out)))
    return out


def keeps(p: float, entropy: float) -> bool:
    """The release's threshold for one draft."""
    return p > 0.0 and p >= min(0.9, 0.6 * math.exp(-entropy))
