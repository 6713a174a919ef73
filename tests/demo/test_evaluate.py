"""The measures: counting of rounds, grading, and a whole evaluation of a tiny untrained model."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

import demo.initial as initial  # noqa: E402
from demo import corpus, evaluate, tokenizer  # noqa: E402
from demo.grading import is_right  # noqa: E402
from demo.questions import Question, joints, questions  # noqa: E402
from reference.layers import Shape  # noqa: E402
from reference.model import Model  # noqa: E402


@pytest.fixture(scope="module")
def vocabulary() -> object:
    return tokenizer.train(600, 300)


def test_rounds_follow_exact_acceptance() -> None:
    """Perfect drafts give width tokens a round; a wrong one gives what came before it and one more."""
    answer = list(range(33))
    perfect = [[i + 1 + j for j in range(15)] for i in range(33)]
    assert evaluate.rounds(answer, perfect)[0] == 2
    wrong = [[i + 1, -1, *[-1] * 13] for i in range(33)]
    count, verified, accepted = evaluate.rounds(answer, wrong)
    assert count == 16 and verified[:2] == [16, 16] and accepted[:2] == [16, 0] and sum(accepted[2:]) == 0


def test_grading() -> None:
    turn = corpus.Turn("story", "q", "a", gold="29")
    assert is_right(Question("g", turn), "Step 1: 3 x 12 = 36.\nAnswer: 29 pencils")
    assert not is_right(Question("g", turn), "Answer: 290 pencils")
    assert not is_right(Question("g", turn), "29")
    exact = Question("g", corpus.Turn("json", "q", "{}"))
    assert is_right(exact, "{}") and not is_right(exact, "{ }")


def test_questions_are_the_same_every_time() -> None:
    first, second = questions(8), questions(8)
    assert [q.turn for q in first] == [q.turn for q in second]
    assert {q.group for q in first} >= {"held-out pairs", "new wording", "README shape", "json"}


def test_whole_evaluation_runs(vocabulary: object) -> None:
    """An untrained model answers nothing right, and every figure is there."""
    shape = Shape.from_config(initial.config(600, 599, 596, 594))
    shape = replace(shape, attention=(False, True), expert_width=32, shared_width=32)
    model = Model(shape, initial.weights(shape, 0))
    ids = evaluate.Ids(end=594, turn_end=596, mask=599)
    report = evaluate.evaluate(model, vocabulary, ids, count=2, thresholds=(0.001,), most=5)
    assert report["groups"]["held-out pairs"]["right"] == 0
    assert report["denoise"]["0.001"]["passes_per_block"] == 1
    assert 0 <= report["joint_per_slot"] <= 1
    assert "new wording" in evaluate.table(report)


def test_joint_slots_are_one_token_each(vocabulary: object) -> None:
    """Every slot is one token, and eight answers fit one block."""
    for j in joints(30):
        ids = corpus.encode(vocabulary, corpus.answer_pieces(corpus.together(j)))
        assert sum(bool(i & corpus.SLOT) for i in ids) == len(j.answers)
        assert len(ids) <= 32
