"""The built-in set and the built-in model: the whole check offline."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from clover_local import cli
from clover_local.bench import tasks
from clover_local.bench.grading import Grader
from clover_local.names import DEMO_FILE


@pytest.fixture
def demo_set() -> tasks.ProblemSet:
    if importlib.util.find_spec("clover_local.bench.problems") is None:
        if os.environ.get("CI"):
            pytest.fail("the built-in problems must be present under CI")
        pytest.skip("the built-in problems are not here")
    return tasks.demo()


@pytest.fixture
def demo_model() -> Path:
    if not DEMO_FILE.is_file():
        if os.environ.get("CI"):
            pytest.fail("the demo model must be present under CI")
        pytest.skip("the demo model is not here")
    return DEMO_FILE


def test_the_set_is_the_same_every_time(demo_set: tasks.ProblemSet) -> None:
    assert demo_set == tasks.demo()
    assert len(demo_set.problems) == tasks.DEMO_PROBLEMS
    assert len({problem.prompt for problem in demo_set.problems}) == tasks.DEMO_PROBLEMS
    assert tasks.demo(seed=1).problems[0].prompt != demo_set.problems[0].prompt


def test_its_gold_answers_grade_themselves_and_no_others(demo_set: tasks.ProblemSet) -> None:
    with Grader(seconds=60) as grader:
        for problem in demo_set.problems:
            assert grader.grade(f"Answer: {problem.answer}", problem.answer).right
            assert not grader.grade(f"Answer: {problem.answer}1", problem.answer).right


def test_the_demo_model_answers_it_offline(
    demo_model: Path, demo_set: tasks.ProblemSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "math500", "--set", "demo", "--limit", "16", "--run", str(tmp_path / "run.jsonl")]
    assert (
        cli.main([*argv, "--device", "cpu", "-t", "1", "--offline", "--policy", "always", "-o", "json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    beside = found["against_plain"]["self"]
    assert beside["same_text"] == beside["problems"] == 16
    assert found["modes"]["plain"]["answers"] == found["modes"]["self"]["answers"]
    assert found["modes"]["plain"]["answers"]["right"] >= 10
    assert found["modes"]["self"]["tokens_per_pass"] > 2
