"""The corpus: problems are right, held-out pairs stay out, new wording is new, rendering is the chat template's."""

import random
import re
from collections import Counter

import pytest
from demo import corpus, joint
from demo.grammar import LIMIT, held_out
from demo.questions import questions
from demo.wording import WORDINGS, new_wording
from demo.words import DAYS

KINDS = ("story", "measure", "varied", "short")
EXPRESSION = re.compile(r"(\d+) ([-+x/]) (\d+) = (?:(\d+) \+ (\d+) = )?(\d+)")


def _value(a: int, sign: str, b: int) -> float:
    return {"+": a + b, "-": a - b, "x": a * b, "/": a / b if b else 0.5}[sign]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_right_and_leads_to_the_answer(kind: str) -> None:
    r = random.Random(1)
    for _ in range(400):
        p = corpus.problem(r, kind)
        steps = [EXPRESSION.search(step) for step in p.steps]
        for step in steps:
            assert step is not None, p
            a, sign, b, first, second, result = step.groups()
            assert _value(int(a), sign, int(b)) == int(result) <= LIMIT
            assert first is None or int(first) + int(second) == int(result)
        last = steps[-1]
        assert last is not None and int(last[6]) == p.answer
        assert p.solution.splitlines()[-1].startswith(f"Answer: {p.answer}")


@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_clean_text_with_every_number_needed(kind: str) -> None:
    """No trace of the template language; the operands that no earlier step made are in the question."""
    r = random.Random(2)
    for _ in range(400):
        p = corpus.problem(r, kind)
        assert not re.search(r"[{}<>\[\]|]|  ", p.question), p.question
        assert p.question[0].isupper() or p.question[0].isdigit() or p.question[0] == "("
        assert p.question.rstrip()[-1] in "?."


def test_held_out_pairs_are_a_tenth_and_never_trained() -> None:
    pairs = [(a, b) for a in range(11, 100) for b in range(11, 100) if a % 10 and b % 10]
    assert 0.08 < sum(held_out("+", a, b) for a, b in pairs) / len(pairs) < 0.12
    assert all(held_out(s, a, b) == held_out(s, b, a) for s in "+x" for a, b in pairs[:500])
    assert not any(held_out("x", a, b) for a in range(2, 13) for b in range(2, 13))
    r = random.Random(3)
    for _ in range(1500):
        for turn in corpus.turns(r, r.choice((*KINDS, "conversation"))):
            for found in EXPRESSION.finditer(turn.answer):
                a, sign, b, first, second, _ = found.groups()
                assert not held_out(sign, int(a), int(b)), turn.answer
                assert first is None or not held_out("+", int(first), int(second))


def test_measured_problems_have_held_out_pairs() -> None:
    for question in (q for q in questions(24) if q.group == "held-out pairs"):
        found = [f.groups()[:3] for f in EXPRESSION.finditer(question.turn.answer)]
        assert any(held_out(sign, int(a), int(b)) for a, sign, b in found), question.turn.answer


def _skeleton(sentence: str) -> str:
    """A sentence without its numbers and capitals."""
    return re.sub(r"\d+", "#", sentence.lower()).strip()


def test_new_wording_shares_no_sentence_with_the_corpus() -> None:
    """But for the shortest (`How old is Nina?`, up to four words)."""
    sentences = [s for w in WORDINGS for s in re.split(r"(?<=[.?])\s", re.sub(r"{\w+}", "0", w.text))]
    ours = {_skeleton(s) for s in sentences if len(s.split()) > 4}
    r = random.Random(4)
    for _ in range(12_000):
        text = corpus.problem(r, r.choice(KINDS)).question
        shared = ours & {_skeleton(s) for s in re.split(r"(?<=[.?])\s", text)}
        assert not shared, text


def test_new_wording_answers() -> None:
    """Worked by hand for the first numbers of a seed: the formulas say what the sentences say."""
    r = random.Random(0)
    for i in range(len(WORDINGS)):
        text, answer = new_wording(r, i)
        assert answer >= 0 and "{" not in text
    shelf = WORDINGS[1]
    assert shelf.answer({"m": 18, "k": 4, "n": 17}) == 55
    brothers = WORDINGS[3]
    assert brothers.answer({"a": 20, "d": 5}) == 35
    assert len(WORDINGS) == 20


FLAGS = {
    "Is it paid?": "is paid", "Is it urgent?": "is urgent", "May children come?": "may come",
    "Is there food?": "There is food", "married": " is married", "swim": " can swim",
}  # fmt: skip
OPEN = (
    (r"^Where (does|are)", joint.CITIES), ("job", joint.JOBS), ("pet", joint.PETS), ("color", joint.COLORS),
    ("^When", DAYS), ("What is in it", joint.WARES), ("^Where is", joint.PLACES),
)  # fmt: skip


def _read_back(paragraph: str, question: str) -> str:
    """The answer, from the text alone."""
    flag = re.sub(r"^(Is|Can) \w+ (married|swim)\?$", r"\2", question)
    if flag in FLAGS:
        return "yes" if FLAGS[flag] in paragraph else "no"
    told = [w for w in joint.WORDS if f" {w}." in paragraph]
    named = [w for w in joint.WORDS if re.search(rf" {w}( in it)?\?$", question)]
    if named:
        return "yes" if named[0] in told else "no"
    (values,) = [v for pattern, v in OPEN if re.search(pattern, question)]
    (value,) = [w for w in told if w in values]
    return value


def test_joint_answers_are_true_to_the_paragraph() -> None:
    """Read back from the text: yes or no against the values told, open questions answered by them."""
    r = random.Random(5)
    seen: Counter[str] = Counter()
    for _ in range(300):
        several = joint.interview(r)
        for paragraph, j in [(j.paragraph, j) for j in [joint.joint(r)]] + [
            (several[0].paragraph, j) for j in several
        ]:
            for question, answer in zip(j.questions, j.answers, strict=True):
                assert answer == _read_back(paragraph, question), (paragraph, question)
                seen[answer if answer in ("yes", "no") else "open"] += 1
    assert min(seen["yes"], seen["no"], seen["open"]) > 300
    assert abs(seen["yes"] - seen["no"]) < 0.15 * seen["yes"]


def _facts(paragraph: str) -> tuple[str, ...]:
    """What a paragraph tells, whatever the order of its sentences and their wording."""
    name = re.search(r"The (?!color|guests)\w+", paragraph)
    told = sorted(re.findall(r"(?:not |cannot |no )?\w+\.", paragraph))
    return (name[0] if name else paragraph.split()[0], *told)


def test_measured_paragraphs_are_never_trained() -> None:
    """A tenth, chosen by what is told, is measured on; no order or wording of it is in the corpus."""
    r = random.Random(8)
    held = {_facts(joint.joint(r, held=True).paragraph) for _ in range(3000)}
    trained = {_facts(joint.joint(r).paragraph) for _ in range(6000)}
    trained |= {_facts(joint.interview(r)[0].paragraph) for _ in range(3000)}
    assert not held & trained


def test_a_seed_gives_the_same_corpus() -> None:
    assert list(corpus.texts(9, 20)) == list(corpus.texts(9, 20))


def test_rendering_is_the_chat_templates() -> None:
    """The pieces of one turn are what the shipped template writes, with and without reasoning."""
    from demo.tokenizer import TEMPLATE

    from clover_local.text.template import ChatTemplate

    template = ChatTemplate(TEMPLATE, bos="", eos="<|im_end|>")
    r, seen = random.Random(6), set()
    for _ in range(200):
        system, chat = corpus.document(r)
        pieces = corpus.render(r, system, chat)
        text = "".join(piece for piece, _ in pieces)
        messages = [{"role": "system", "content": system}] if system else []
        for turn in chat[:-1]:
            messages += [
                {"role": "user", "content": turn.question},
                {"role": "assistant", "content": turn.answer},
            ]
        messages.append({"role": "user", "content": chat[-1].question})
        plain = template.render(messages)
        thinking = template.render(messages, enable_thinking=True)
        assert template.render(messages, enable_thinking=False) == plain
        if text.startswith(plain):
            seen.add("plain")
        elif text.startswith(thinking):
            seen.add("thinking")
        else:
            assert text.startswith(plain.removesuffix(corpus.NO_THINKING))
            seen.add("bare")
    assert seen == {"plain", "thinking", "bare"}
