"""Prefix reuse: what is reused gives the logits of a fresh prefill, and only what is new is computed."""

import numpy as np
import pytest

from clover_local.api import Model
from clover_local.chat.protocol import Turn
from clover_local.chat.session import PromptTooLongError, Session, common_prefix
from clover_local.decoding.events import Done, Prefilled, Tokens
from clover_local.decoding.settings import Settings
from clover_local.text.template import ChatTemplate

FIRST = Turn("user", "Tom has 3 boxes of 12 pencils and gives away 7. How many pencils are left?")
SECOND = Turn("user", "List the first 4 multiples of 6.")
PLAIN = Settings(mode="plain", max_tokens=24)

# Answers keep no reasoning in the history, as Qwen's template has it; the model's own does the same.
WITHOUT_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def session(model: Model) -> Session:
    model.engine.reset()
    return Session(model)


def ask(session: Session, turns: list[Turn], **options: object) -> tuple[str, Prefilled, Done]:
    events = list(session.reply(turns, options.pop("settings", PLAIN), **options))  # type: ignore[arg-type]
    text = "".join(e.text for e in events if isinstance(e, Tokens))
    prefilled, done = events[0], events[-1]
    assert isinstance(prefilled, Prefilled) and isinstance(done, Done)
    return text, prefilled, done


def logits_after(session: Session, turns: list[Turn]) -> np.ndarray:
    """The logits [vocab] that choose the first token of an answer."""
    prompt = session.prompt(turns)
    session.rewind(prompt)
    engine = session.model.engine
    engine.begin_response(None)
    rows = engine.prefill(prompt.ids[engine.n_past :])
    assert rows is not None and engine.tokens == prompt.ids
    return rows.logits()[-1].copy()


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2


def test_the_prompt_tells_where_the_answer_begins(session: Session) -> None:
    prompt = session.prompt([FIRST])
    text = session.model.tokenizer.decode(prompt.ids)
    assert text.endswith("<|im_start|>assistant\n<think>\n") and prompt.reasoning
    assert session.model.tokenizer.decode(prompt.ids[: prompt.stable]).endswith("<|im_end|>\n")
    assert not session.prompt([FIRST], thinking=False).reasoning


def test_a_next_turn_computes_only_what_is_new_though_reasoning_is_dropped(session: Session) -> None:
    answer, first, _ = ask(session, [FIRST])
    assert first.reused == 0
    shown = Turn("assistant", "29 pencils are left.", answer)
    turns = [FIRST, shown, SECOND]
    _, second, done = ask(session, turns)
    before, after = session.prompt([FIRST]), session.prompt(turns)
    assert second.reused == before.stable
    assert second.tokens == len(after.ids) - before.stable
    assert (done.stats.prompt_tokens, done.stats.prompt_reused) == (second.tokens, second.reused)


def test_reused_state_gives_the_logits_of_a_fresh_prefill(session: Session) -> None:
    answer, _, _ = ask(session, [FIRST])
    turns = [FIRST, Turn("assistant", "29 pencils are left.", answer), SECOND]
    reused = logits_after(session, turns)
    assert session.marks
    session.model.engine.reset()
    session.marks.clear()
    fresh = logits_after(session, turns)
    # the prefill is cut into other pieces, and the CPU's sums depend a little on the number of rows
    np.testing.assert_allclose(reused, fresh, atol=2e-3)
    assert int(reused.argmax()) == int(fresh.argmax())


def test_answering_anew_starts_before_the_answer_and_gives_the_same_text(session: Session) -> None:
    once, _, _ = ask(session, [FIRST])
    again, prefilled, _ = ask(session, [FIRST])
    assert again == once
    assert prefilled.reused == session.prompt([FIRST]).stable


def test_an_edited_question_shares_what_comes_before_it(session: Session) -> None:
    shown = Turn("assistant", "29 pencils are left.")
    ask(session, [FIRST, shown, SECOND])
    _, edited, _ = ask(session, [FIRST, shown, Turn("user", "Count 5 numbers from 3 in steps of 2.")])
    assert edited.reused == 0  # the first question was never answered here, so no state before it was kept
    ask(session, [FIRST])
    _, edited, _ = ask(session, [FIRST, shown, Turn("user", "Hello!")])
    assert edited.reused == session.prompt([FIRST]).stable


def test_without_reasoning_the_state_goes_on_where_it_is(model: Model) -> None:
    model.engine.reset()
    object.__setattr__(session := Session(model), "model", _with_template(model, WITHOUT_THINKING))
    answer, _, done = ask(session, [FIRST], settings=Settings(mode="plain", max_tokens=64))
    committed = len(model.engine.tokens)
    turns = [FIRST, Turn("assistant", answer), SECOND]
    after = session.prompt(turns)
    if tuple(after.ids[:committed]) != model.engine.tokens:
        pytest.fail(f"the answer's ids are not those of its text: {answer!r}, {done.reason}")
    _, second, _ = ask(session, turns)
    assert second.reused == committed


def _with_template(model: Model, source: str) -> Model:
    from dataclasses import replace

    return replace(model, template=ChatTemplate(source))


def test_a_stopped_prefill_keeps_what_it_did(session: Session) -> None:
    long = Turn("user", " ".join(f"{n} apples," for n in range(150)))
    calls = iter([False, True, True, True])
    events = list(session.reply([long], PLAIN, cancelled=lambda: next(calls)))
    assert isinstance(events[-1], Done) and events[-1].reason == "cancelled"
    _, prefilled, _ = ask(session, [long])
    assert prefilled.reused > 0


def test_too_long_a_conversation_is_refused_before_anything_is_computed(session: Session) -> None:
    turns: list[Turn] = []
    for n in range(40):
        turns += [Turn("user", f"Tom has {n} pencils and gives away 1. How many pencils are left?")]
        turns += [Turn("assistant", f"Tom has {n - 1} pencils left now, as everybody can see.")]
    turns += [SECOND]
    with pytest.raises(PromptTooLongError) as refused:
        next(session.reply([Turn("system", "Be brief."), *turns], PLAIN))
    assert session.model.engine.n_past == 0
    drop = refused.value.drop
    assert drop > 0 and turns[drop].role == "user"
    fits = session.count([Turn("system", "Be brief."), *turns[drop:]])
    assert fits <= 512 < session.count([Turn("system", "Be brief."), *turns[drop - 2 :]])
    _, prefilled, _ = ask(session, turns[drop:])
    assert prefilled.tokens > 0


def test_a_message_longer_than_the_context_cannot_be_helped(session: Session) -> None:
    with pytest.raises(PromptTooLongError) as refused:
        next(session.reply([Turn("user", "apples " * 2000)], PLAIN))
    assert refused.value.drop == 0


def test_only_so_many_states_are_kept(model: Model) -> None:
    model.engine.reset()
    session = Session(model, keep=2)
    for n in range(4):
        ask(session, [Turn("user", f"Convert {n} km to m.")], settings=Settings(mode="plain", max_tokens=2))
    assert len(session.marks) <= 2


def test_reasoning_tokens_are_counted_by_their_marks(session: Session) -> None:
    tokenizer = session.model.tokenizer
    inside = tokenizer.encode("so 36 - 7 = 29</think>")
    counter = session.thought_counter(True)
    assert counter.count(inside[:3]) == 3
    assert counter.count([*inside[3:], *tokenizer.encode("29 are left")]) == len(inside) - 3
