"""The three loops on a tiny model: same text in every way, and a state that is always where it says."""

from collections.abc import Iterable

import numpy as np
import pytest

from clover_local.decoding.answer import Answer, Meter
from clover_local.decoding.calibrate import calibrate
from clover_local.decoding.denoise import to_fix
from clover_local.decoding.events import Block, Done, Event, Prefilled, Tokens
from clover_local.decoding.generate import generate, never
from clover_local.decoding.policy import Policy
from clover_local.decoding.sampling import Sampler
from clover_local.decoding.settings import Settings
from clover_local.decoding.speculative import accept_exact, accept_release, keeps
from clover_local.errors import ContextFullError, UsageError
from tests.decoding.fake import EOS, MASK, VOCAB, FakeEngine, FakeSpec, rows_of

PROMPT = [3, 1, 4]


def kept(events: Iterable[Event]) -> list[int]:
    return [id for event in events if isinstance(event, Tokens) for id in event.ids]


def run(engine: FakeEngine, **settings: object) -> tuple[list[int], Done]:
    events = list(generate(engine, PROMPT, Settings(**settings), clock=engine.clock))
    assert isinstance(events[0], Prefilled) and isinstance(events[-1], Done)
    ids = kept(events)
    assert engine.tokens in {(*PROMPT, *ids), (*PROMPT, *ids[:-1])}
    assert events[-1].stats.tokens == len(ids)
    return ids, events[-1]


@pytest.mark.parametrize("policy", ["auto", "always"])
@pytest.mark.parametrize("width", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("skill", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_self_writes_what_plain_writes(policy: str, width: int, skill: float, temperature: float) -> None:
    rest = {"temperature": temperature, "top_k": 12, "top_p": 0.95, "max_tokens": 90, "ignore_stop": True}
    for seed in (1, 2, 3):
        plain, _ = run(FakeEngine(), mode="plain", seed=seed, **rest)
        drafted, done = run(FakeEngine(skill), mode="self", policy=policy, draft_max=width, seed=seed, **rest)
        assert drafted == plain and len(plain) == 90
        assert done.reason == "length"


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
def test_an_answer_ends_with_its_stop_token(mode: str) -> None:
    engine = FakeEngine()
    for start in range(12):
        engine = FakeEngine(1.0, n_ctx=4096)
        events = list(
            generate(engine, [start], Settings(mode=mode, max_tokens=2000, temperature=1.0, seed=start))
        )
        ids = kept(events)
        assert events[-1].reason == "stop"
        assert ids[-1] == EOS and EOS not in ids[:-1]


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
@pytest.mark.parametrize("n_ctx", [3, 4, 5, 9, 20, 37])
def test_a_full_context_ends_the_answer_and_no_pass_runs_over_it(mode: str, n_ctx: int) -> None:
    engine = FakeEngine(0.9, n_ctx=n_ctx)
    ids, done = run(engine, mode=mode, ignore_stop=True, policy="always")
    assert done.reason == "context"
    assert len(PROMPT) + len(ids) in {n_ctx, n_ctx + 1}


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
def test_a_reader_may_leave_at_any_event(mode: str) -> None:
    settings = Settings(mode=mode, max_tokens=40, ignore_stop=True, policy="always", draft_max=8)
    total = len(list(generate(FakeEngine(), PROMPT, settings)))
    for leave in range(1, total + 1):
        engine = FakeEngine()
        events = generate(engine, PROMPT, settings)
        ids = kept([next(events) for _ in range(leave)])
        events.close()
        assert engine.tokens in {(*PROMPT, *ids), (*PROMPT, *ids[:-1])}


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
def test_cancelling_at_any_question_loses_nothing(mode: str) -> None:
    settings = Settings(mode=mode, max_tokens=30, ignore_stop=True, policy="always", draft_max=8)
    whole = kept(generate(FakeEngine(), PROMPT, settings))
    for when in range(40):
        engine, asked = FakeEngine(), iter(range(10**6))
        events = list(generate(engine, PROMPT, settings, cancelled=lambda: next(asked) >= when))  # noqa: B023
        ids = kept(events)
        assert ids == whole[: len(ids)]
        done = events[-1]
        assert isinstance(done, Done) and done.reason == ("cancelled" if len(ids) < 30 else "length")
        assert (*PROMPT, *ids)[: engine.n_past] == engine.tokens
        assert engine.n_past >= len(PROMPT) + len(ids) - 1 or not ids


def test_a_draft_is_dropped_when_cancelled_between_preview_and_verify() -> None:
    engine = FakeEngine()
    settings = Settings(mode="self", policy="always", max_tokens=30)
    stop = False
    events = generate(engine, PROMPT, settings, cancelled=lambda: stop)
    for event in events:
        if isinstance(event, Block):
            stop = True
    assert isinstance(event, Done) and event.reason == "cancelled"
    assert engine.passes[-1][0] == "draft" and engine.tokens == tuple(PROMPT)


def test_a_model_without_preview_weights_writes_one_token_at_a_time() -> None:
    for mode in ("self", "denoise"):
        engine = FakeEngine(spec=FakeSpec(can_draft=False, mask_id=None))
        ids, done = run(engine, mode=mode, max_tokens=20, ignore_stop=True)
        assert set(done.stats.passes) == {"prefill", "plain"}
        assert ids == run(FakeEngine(), mode="plain", max_tokens=20, ignore_stop=True)[0]


def test_an_empty_or_too_long_prompt_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        list(generate(FakeEngine(), [], Settings()))
    with pytest.raises(ContextFullError, match=r"600 tokens and the context holds 512"):
        list(generate(FakeEngine(), [1] * 600, Settings()))


def test_prefill_reports_what_was_there_before() -> None:
    engine = FakeEngine()
    engine.prefill([1, 2])
    first, *_ = generate(engine, PROMPT, Settings(max_tokens=3))
    assert first == Prefilled(3, 2, first.seconds)


def test_figures_count_what_ran() -> None:
    engine = FakeEngine(1.0)
    engine.ms = lambda kind, rows: {"plain": 2.0, "draft": 5.0, "verify": 4.0}.get(kind, 10.0)
    ids, done = run(engine, mode="self", policy="always", draft_max=8, max_tokens=33, ignore_stop=True)
    stats = done.stats
    assert stats.passes == {"prefill": 1, "draft": 4, "verify": 4, "commit": 4}
    assert (stats.rounds, stats.round_tokens, stats.from_prefill) == (4, 32, 1)
    assert stats.drafted == stats.accepted == (4,) * 7
    assert stats.seconds == pytest.approx(4 * 0.009) and stats.decoded == 32
    assert stats.tokens_per_second == pytest.approx(32 / 0.036)
    assert stats.tokens_per_pass == 4.0 and stats.tokens_per_round == 8.0 and stats.acceptance == 1.0
    assert stats.first_token_seconds == pytest.approx(0.03) == stats.prompt_seconds
    assert len(ids) == 33


# --- denoising ---------------------------------------------------------------------------------------------


def test_the_surest_row_is_fixed_when_none_is_above_the_threshold() -> None:
    masked = np.array([True, True, False, True])
    confidence = np.array([0.2, 0.4, 0.9, 0.4])
    assert to_fix(confidence, masked, 0.3).tolist() == [False, True, False, True]
    assert to_fix(confidence, masked, 0.4).tolist() == [False, True, False, False], "above, not at"
    assert to_fix(confidence, masked, 0.95).tolist() == [False, True, False, False]


def test_a_block_fills_up_and_never_loses_a_token() -> None:
    engine = FakeEngine(0.5)
    settings = Settings(mode="denoise", threshold=0.6, block_size=16, max_tokens=64, ignore_stop=True)
    before: tuple[int | None, ...] = ()
    for event in generate(engine, PROMPT, settings):
        if isinstance(event, Block):
            assert len(event.tokens) == 16
            if before and None in before:
                fixed = [i for i, token in enumerate(before) if token is not None]
                assert all(event.tokens[i] == before[i] for i in fixed)
                assert event.tokens.count(None) < before.count(None)
            before = event.tokens
        if isinstance(event, Tokens):
            assert before == event.ids
    assert max(engine.passes.count(("denoise", 16)), 1) <= 4 * 16


def test_denoising_at_temperature_draws_and_keeps_the_confidence_at_temperature_one() -> None:
    settings = Settings(
        mode="denoise", threshold=0.0, temperature=3.0, seed=5, max_tokens=8, ignore_stop=True
    )
    engine, greedy = FakeEngine(1.0), FakeEngine(1.0)
    blocks = [e for e in generate(engine, PROMPT, settings) if isinstance(e, Block)]
    engine.committed = list(PROMPT)
    logits = engine.preview([MASK] * 8).logits()
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    assert blocks[0].confidence == pytest.approx([p[i, t] for i, t in enumerate(blocks[0].tokens)], rel=1e-5)
    assert kept(generate(greedy, PROMPT, Settings(mode="denoise", max_tokens=8))) != list(blocks[0].tokens)


# --- acceptance --------------------------------------------------------------------------------------------


def test_the_release_rule_on_its_worked_case() -> None:
    p = np.array([0.7, 0.2, 0.1])
    entropy = float(-(p * np.log(p)).sum())
    assert entropy == pytest.approx(0.8018, abs=1e-4)
    assert 0.6 * np.exp(-entropy) == pytest.approx(0.2691, abs=1e-4)
    assert [keeps(float(one), entropy) for one in p] == [True, False, False]
    assert [keeps(one, 0.0) for one in (0.59, 0.61)] == [False, True]
    assert not keeps(0.0, 1000.0), "an impossible token is refused however flat the row"


def test_release_keeps_until_the_first_refusal_and_adds_the_samplers_choice() -> None:
    logits = np.log(np.array([[0.5, 0.4, 0.1], [0.05, 0.05, 0.9], [0.8, 0.1, 0.1]]))
    sampler = Sampler.of(Settings())
    rows = rows_of(logits, [0, 1, 0])
    assert accept_release(rows, [1, 0], sampler, 1) == [1, 2], "0.4 is kept, 0.05 is not"
    rows = rows_of(logits, [0, 1, 2])
    assert accept_release(rows, [1, 2], sampler, 1) == [1, 2, 0], "all kept, and one more"


def test_release_never_refuses_the_most_probable_token() -> None:
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.5, 2.0, 8.0):
        logits = scale * rng.standard_normal((200, VOCAB))
        rows = rows_of(logits)
        assert all(keeps(float(p), float(h)) for p, h in zip(rows.p, rows.entropy, strict=True))


@pytest.mark.parametrize("draft", [0, 1, 3])
def test_lossless_acceptance_keeps_the_distribution(draft: int) -> None:
    """Two tokens judged at once are distributed as two tokens drawn one after the other."""
    first = np.log([0.4, 0.3, 0.2, 0.1])
    second = np.log([[0.1, 0.2, 0.3, 0.4]] * 4)
    counts, n, kept_drafts = np.zeros(4), 10_000, 0
    for seed in range(n):
        sampler = Sampler(Settings(temperature=1.0), seed)
        out = accept_exact(rows_of(np.stack([first, second[draft]])), [draft], sampler, 1)
        counts[out[0]] += 1
        kept_drafts += len(out) == 2
    expected = n * np.exp(first)
    # chi-square with 3 degrees of freedom: above 21.1 once in 10,000 by chance; the seeds are fixed
    assert ((counts - expected) ** 2 / expected).sum() < 21.1
    assert kept_drafts == counts[draft], "a draft is kept with its probability"


def test_exact_acceptance_stops_at_the_first_difference() -> None:
    logits = np.eye(4)[[2, 1, 3, 0]] * 5
    sampler = Sampler.of(Settings())
    assert accept_exact(rows_of(logits), [2, 1, 3], sampler, 1) == [2, 1, 3, 0]
    assert accept_exact(rows_of(logits), [2, 0, 3], sampler, 1) == [2, 1]


def test_kept_tokens_are_cut_at_stop_and_limit() -> None:
    engine = FakeEngine()
    answer = Answer(engine, Settings(max_tokens=4), Sampler.of(Settings()), Meter(engine.clock), never, 0.0)
    assert answer.keep([1, 2]) == (1, 2) and answer.reason is None
    assert answer.keep([3, EOS, 4]) == (3, EOS) and answer.reason == "stop"
    answer = Answer(engine, Settings(max_tokens=2), Sampler.of(Settings()), Meter(engine.clock), never, 0.0)
    assert answer.keep([1, 2, EOS]) == (1, 2) and answer.reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("skills", [(0.0, 0.0), (0.97, 0.0), (0.8, 0.3)])
def test_the_whole_loop_stays_within_three_percent_of_plain(
    skills: tuple[float, float], temperature: float
) -> None:
    """Every pass, commit and free draft counted, drafts turning bad after 300 tokens: no 256 tokens take longer than
    1.03 times as many plain steps."""
    engine = FakeEngine(skills[0], n_ctx=2000)
    growth = {"draft": 1.3, "verify": 1.0, "denoise": 1.3}
    engine.ms = lambda kind, rows: 4.0 * growth.get(kind, 1.0) * (1 + 0.1 * (rows - 1))
    policy = Policy()
    calibrate(engine, policy.costs, seconds=60.0, clock=engine.clock)
    settings = Settings(max_tokens=1200, ignore_stop=True, temperature=temperature, seed=1)
    seen, written = [], 0
    for event in generate(engine, PROMPT, settings, policy=policy, clock=engine.clock):
        if isinstance(event, Tokens):
            written += len(event.ids)
            seen.append((written, engine.now * 1e3))
        engine.skill = skills[written > 300]
    tokens, ms = np.array(seen).T
    worst = 0.0
    for first in range(len(seen)):
        last = int(np.searchsorted(tokens, tokens[first] + 256))
        if last < len(seen):
            worst = max(worst, (ms[last] - ms[first]) / (4.0 * (tokens[last] - tokens[first])))
    assert 0.1 < worst <= 1.03
    assert any(kind == "draft" for kind, _ in engine.passes[20:])
