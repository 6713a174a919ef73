"""Grading: gold answers, near misses, equivalent forms, extraction, and hostile expressions."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clover_local.bench.grading import Grader, boxed_answer, final_part
from clover_local.bench.units import base_of, unit_of, units_agree

from .near_misses import GOLD, RULES, missing_unit, near_misses

EQUIVALENT = (
    ("\\frac{1}{4}", "0.25"),
    ("\\frac{1}{4}", "1/4"),
    ("\\frac43", "\\dfrac{4}{3}"),
    ("\\frac43", "1.3333333"),
    ("1\\frac{4}{5}", "\\frac{9}{5}"),
    ("137 \\frac{1}{2}", "137.5"),
    ("1.25", "\\frac{5}{4}"),
    ("11\\sqrt2", "11 \\sqrt{2}"),
    ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\pi/2)"),
    ("(2,\\infty)", "( 2 , +\\infty )"),
    ("(2,\\infty)", "x > 2"),
    ("x \\in [-2,7]", "[-2, 7]"),
    ("x=5", "5"),
    ("y = 2x + 3", "y=3+2x"),
    ("5x - 7y + 11z + 4 = 0", "-5x + 7y - 11z - 4 = 0"),
    ("1,-2", "-2, 1"),
    ("3, 5, 7", "7,3,5"),
    ("1 \\pm \\sqrt{19}", "1-\\sqrt{19}, 1+\\sqrt{19}"),
    ("(a+5)(b+2)", "(b+2)(a+5)"),
    ("(a+5)(b+2)", "ab + 2a + 5b + 10"),
    ("10,\\!080", "10080"),
    ("58,500", "58500"),
    ("\\$32,\\!348", "32,348"),
    ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
    ("90^\\circ", "90"),
    ("90^\\circ", "90 \\text{ degrees}"),
    ("5.4 \\text{ cents}", "5.4"),
    ("15\\mbox{ cm}^2", "15 \\text{ square centimeters}"),
    ("864 \\mbox{ inches}^2", "864\\ \\mathrm{in}^2"),
    ("\\text{Evelyn}", "Evelyn"),
    ("\\text{(C)}", "C"),
    (".35625", "0.35625"),
    (".0000672", "6.72 \\times 10^{-5}"),
    ("288 \\pi", "288\\pi"),
    ("6 - 5i", "-5i + 6"),
    (
        "\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}",
        "\\begin{bmatrix} -\\frac13 \\\\ \\frac23 \\end{bmatrix}",
    ),
)


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(seconds=60) as grader:
        yield grader


def right(grader: Grader, gold: str, answer: str) -> bool:
    verdict = grader.grade(f"Therefore the result is $\\boxed{{{answer}}}$.", gold)
    assert verdict.reason == "graded"
    return verdict.right


def test_every_math500_gold_answer_grades_itself_right(grader: Grader, shared: Path) -> None:
    lines = (shared / "data" / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    golds = [json.loads(line)["answer"] for line in lines]
    assert len(golds) == 500
    assert [gold for gold in golds if not right(grader, gold, gold)] == []


def test_every_math500_solution_is_read_as_its_gold_answer(grader: Grader, shared: Path) -> None:
    lines = (shared / "data" / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    wrong = [row for row in map(json.loads, lines) if not grader.grade(row["solution"], row["answer"]).right]
    assert wrong == []


def test_near_misses_are_all_rejected(grader: Grader) -> None:
    pairs = near_misses()
    assert len(pairs) >= 200
    assert {rule for rule, _, _ in pairs} == {rule.__name__ for rule in RULES}
    assert [pair for pair in pairs if right(grader, pair[1], pair[2])] == []


def test_near_misses_of_math500_are_all_rejected(grader: Grader, shared: Path) -> None:
    lines = (shared / "data" / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = near_misses(dict.fromkeys(json.loads(line)["answer"] for line in lines))
    assert [pair for pair in pairs if right(grader, pair[1], pair[2])] == []


@pytest.mark.parametrize(("gold", "answer"), EQUIVALENT)
def test_equivalent_forms_are_accepted(grader: Grader, gold: str, answer: str) -> None:
    assert right(grader, gold, answer)


def test_a_missing_unit_is_wrong_only_under_strict_units(grader: Grader) -> None:
    pairs = [(gold, miss) for gold in GOLD for miss in missing_unit(gold)]
    assert len(pairs) >= 10
    assert all(right(grader, gold, miss) for gold, miss in pairs)
    with Grader(seconds=60, strict_units=True) as strict:
        assert [pair for pair in pairs if right(strict, *pair)] == []
        assert [gold for gold in GOLD if not right(strict, gold, gold)] == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first \\boxed{1}, no: \\boxed{2}.", "2"),
        ("\\boxed{1} and $\\boxed{-\\frac{1}{2}}$", "1, -\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\fbox{7}", "7"),
        ("\\boxed{3} and then it broke off in \\boxed{4", "3"),
        ("no box", None),
    ],
)
def test_the_last_whole_box_is_the_answer(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


def test_reasoning_is_not_the_answer(grader: Grader) -> None:
    assert final_part("<think>\\boxed{1}</think>It is 2.") == "It is 2."
    assert final_part("\\boxed{1} hmm", thinking=True) is None
    assert final_part("<think>\\boxed{1} hmm") is None
    assert grader.grade("<think>\\boxed{1}", "1").reason == "no answer"
    assert grader.grade("so 1</think>\\boxed{2}", "2", thinking=True).right


def test_an_answer_without_a_box_is_the_last_result_stated(grader: Grader) -> None:
    verdict = grader.grade("Three boxes hold 3 * 12 = 36 pencils. 36 - 7 = 29 are left.", "29")
    assert verdict.right
    assert verdict.answer == "29"
    assert not grader.grade("Three boxes hold 3 * 12 = 36 pencils.", "29").right
    assert grader.grade("I do not know.", "29").reason == "no answer"


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9^{9}}}",
        "(10^9)!",
        "10^{10^{10}}",
        "(" * 5000 + "1" + ")" * 5000,
        "1" + "+1" * 50_000,
        "\\sum_{k=1}^{10^{12}} \\frac{1}{k^2}",
        "\\ud800 \x00 {",
    ],
)
def test_hostile_answers_cost_their_own_verdict_only(bomb: str) -> None:
    with Grader(seconds=2) as grader:
        assert grader.grade("\\boxed{3}", "3").right
        began = time.monotonic()
        assert not grader.grade(f"\\boxed{{{bomb}}}", "3").right
        assert time.monotonic() - began < 30  # the limit of 2 s and a new worker, on a busy machine
        assert grader.grade("\\boxed{3}", "3").right


def test_lone_surrogates_in_an_answer_do_not_stop_the_run(grader: Grader) -> None:
    assert not grader.grade("\\boxed{\ud800}", "3").right


def test_the_memory_limit_holds() -> None:
    monster = "x" * 120_000_000 + " The answer is 3."
    with Grader(seconds=60, memory_mb=250) as grader:
        assert grader.grade("\\boxed{3}", "3").right
        assert grader.grade(monster, "3").reason in ("memory limit", "crashed")
        assert grader.grade("\\boxed{3}", "3").right
    with Grader(seconds=60, memory_mb=4000) as grader:
        assert grader.grade(monster, "3").right


def test_a_killed_worker_is_replaced() -> None:
    with Grader(seconds=60) as grader:
        assert grader.grade("\\boxed{3}", "3").right
        assert grader._worker is not None
        os.kill(grader._worker._process.pid, signal.SIGKILL)
        assert grader.grade("\\boxed{3}", "3").reason == "crashed"
        assert grader.grade("\\boxed{3}", "3").right


def test_the_worker_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "from clover_local.bench.grading import Grader\n"
        "import os, signal\n"
        "g = Grader(seconds=60); g.grade('\\\\boxed{3}', '3')\n"
        "print(g._worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    worker = int(done.stdout)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _runs(worker):
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_units_and_bases_are_read() -> None:
    assert unit_of("864 \\mbox{ inches}^2") == unit_of("864 \\text{ square inches}") == "inch^2"
    assert unit_of("\\$18.90") == unit_of("18.90 \\text{ dollars}") == "dollar"
    assert unit_of("\\text{east}") is unit_of("3R^2") is unit_of("\\text{(C)}") is None
    assert base_of("4210_{5}") == 5
    assert base_of("x_1 + 3") is None
    assert not units_agree("52_8", "52_9")
    assert units_agree("52_8", "52")
