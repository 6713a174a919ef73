"""Loading and selecting problems."""

import json
from pathlib import Path

import pytest

from clover_local.bench import tasks
from clover_local.errors import CloverError, UsageError


@pytest.fixture
def official(shared: Path) -> tasks.ProblemSet:
    return tasks.math500(shared / "data" / "math500.jsonl")


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_the_published_set_is_recognised(official: tasks.ProblemSet) -> None:
    assert official.official
    assert len(official.problems) == 500
    first = official.problems[0]
    assert (first.id, first.subject, first.level) == ("test/precalculus/807.json", "Precalculus", 2)
    assert first.prompt.endswith(tasks.INSTRUCTION)


def test_selection_by_subject_level_sample_and_limit(official: tasks.ProblemSet) -> None:
    some = tasks.select(official, subjects=["geometry", "Algebra"], levels=[1, 5])
    assert {p.subject for p in some.problems} == {"Geometry", "Algebra"}
    assert {p.level for p in some.problems} == {1, 5}
    assert some.sha256 == official.sha256
    drawn = [tasks.select(official, sample=seed, limit=20).problems for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert tasks.select(official, limit=3).problems == official.problems[:3]


def test_a_selection_that_matches_nothing_says_what_there_is(official: tasks.ProblemSet) -> None:
    with pytest.raises(UsageError, match=r"--subjects topology .* Algebra"):
        tasks.select(official, subjects=["Topology"])
    with pytest.raises(UsageError, match=r"--levels 9 .* 1, 2, 3, 4, 5"):
        tasks.select(official, levels=[9])
    with pytest.raises(UsageError, match="no problem"):
        tasks.select(official, limit=0)


def test_a_plain_file_needs_only_problem_and_answer(tmp_path: Path) -> None:
    found = tasks.math500(write(tmp_path / "own.jsonl", {"problem": "1+1?", "answer": "2"}, "\n"))
    assert not found.official
    assert [(p.id, p.subject, p.level, p.answer) for p in found.problems] == [("line 1", "all", None, "2")]


@pytest.mark.parametrize(
    "row",
    [
        "no json\n",
        [],
        {"problem": "1+1?"},
        {"problem": 1, "answer": "2"},
        {"problem": "", "answer": "", "level": "x"},
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object) -> None:
    path = write(tmp_path / "own.jsonl", {"problem": "1+1?", "answer": "2"}, row)
    with pytest.raises(CloverError, match=r"line 2 of .*own\.jsonl"):
        tasks.math500(path)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CloverError, match=r"none\.jsonl"):
        tasks.math500(tmp_path / "none.jsonl")
    with pytest.raises(CloverError, match="empty"):
        tasks.math500(write(tmp_path / "empty.jsonl"))
    twice = {"problem": "1+1?", "answer": "2", "unique_id": "a"}
    with pytest.raises(CloverError, match="two problems"):
        tasks.math500(write(tmp_path / "twice.jsonl", twice, twice))


def test_offline_the_error_says_how_to_go_on() -> None:
    with pytest.raises(CloverError) as caught:
        tasks.math500(offline=True)
    assert caught.value.hint is not None
    assert "--data" in caught.value.hint
    assert "--set demo" in caught.value.hint


def test_a_cached_download_is_used_offline(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "datasets--HuggingFaceH4--MATH-500"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "snapshots" / "c0ffee").mkdir(parents=True)
    (repo / "snapshots" / "c0ffee" / "test.jsonl").write_bytes(
        (shared / "data" / "math500.jsonl").read_bytes()
    )
    assert tasks.math500(offline=True).official
