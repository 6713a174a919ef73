"""The run file: what is appended is what is read, and a torn tail costs one answer."""

from pathlib import Path

import pytest

from clover_local.bench.store import Header, Record, RunFile, new_path, read_run, unfinished
from clover_local.decoding.events import Stats
from clover_local.errors import CloverError

HEADER = Header({"model": "abc", "modes": ["plain", "self"]}, {"device": "CPU"})


def record(problem: str, mode: str = "plain", text: str = "It is 3.") -> Record:
    stats = Stats(
        tokens=7,
        seconds=0.25,
        passes={"plain": 3, "verify": 1},
        pass_seconds={"plain": 0.2, "verify": 0.05},
        drafted=(1, 1),
        accepted=(1, 0),
    )
    return Record(
        problem, mode, "Algebra", 3, "3", text, False, "stop", stats, 0.3, 9, 0, True, "3", "graded"
    )


def test_what_is_appended_is_what_is_read(tmp_path: Path) -> None:
    run = RunFile.create(tmp_path / "a" / "run.jsonl", HEADER)
    wanted = [record("p1"), record("p1", "self", "half a pair \ud83d, a line\nand \u2028 another")]
    for one in wanted:
        run.append(one)
    run.close()
    assert read_run(run.path) == (HEADER, wanted)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_answer_is_dropped_and_run_again(tmp_path: Path, cut: int) -> None:
    run = RunFile.create(tmp_path / "run.jsonl", HEADER)
    run.append(record("p1"))
    whole = run.path.read_bytes()
    run.append(record("p2"))
    run.close()
    run.path.write_bytes(run.path.read_bytes()[:-cut])
    again = RunFile.resume(run.path, HEADER)
    assert again.records == [record("p1")]
    assert run.path.read_bytes() == whole
    again.append(record("p2"))
    again.close()
    assert read_run(run.path)[1] == [record("p1"), record("p2")]


def test_a_run_is_never_overwritten_and_only_continued_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    RunFile.create(path, HEADER).close()
    with pytest.raises(CloverError, match="earlier run"):
        RunFile.create(path, HEADER)
    other = Header({**HEADER.fixed, "modes": ["self"], "threads": 4})
    with pytest.raises(CloverError, match="another modes and another threads"):
        RunFile.resume(path, other)
    RunFile.resume(path, Header(HEADER.fixed, {"device": "described otherwise"})).close()
    assert other.key != HEADER.key


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01\n", b"{}\n", b'{"clover_bench": 99}\n', b'[1]\n{"a": 2}\n']
)
def test_a_file_that_is_no_run_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(CloverError, match=r"other\.jsonl"):
        read_run(path)
    with pytest.raises(CloverError, match=r"missing\.jsonl"):
        read_run(tmp_path / "missing.jsonl")


def test_a_cut_off_run_is_found_by_its_settings() -> None:
    header = Header({"set": "demo", "threads": 2})
    with pytest.raises(CloverError, match="no run with these settings"):
        unfinished(header)
    path = new_path(header)
    RunFile.create(path, header).close()
    RunFile.create(new_path(Header({"set": "demo", "threads": 3})), header).close()
    assert unfinished(header) == path
