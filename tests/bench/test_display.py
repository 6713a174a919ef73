"""The live picture: what it says about each mode."""

import pytest

from clover_local.bench.display import Board
from clover_local.bench.math500 import Live
from clover_local.bench.store import Record
from clover_local.decoding.events import Stats


def record(problem: str, mode: str, seconds: float, *, right: bool) -> Record:
    stats = Stats(tokens=100, seconds=seconds, passes={"plain": 50})
    return Record(problem, mode, "all", None, "3", "3", False, "stop", stats, seconds, right=right)


def test_each_mode_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Board(("plain", "self"), 3, [record("1", "plain", 2.0, right=True)]) as board:
        board.show(record("1", "self", 1.0, right=True))
        board.show(record("2", "self", 1.0, right=False))
        board.show(Live("2", "plain", 30, 0.5))
    captured = capsys.readouterr()
    assert captured.out == ""
    plain, own = (
        next(line for line in captured.err.splitlines() if mode in line) for mode in ("plain", "self")
    )
    assert "1/3" in plain
    assert "2/3" in own
    notes = {mode: list(board._notes(mode, board._records[mode], None)) for mode in ("plain", "self")}
    assert notes["plain"][:2] == ["100.0 % right", "50.0 overall"]
    assert notes["self"][:4] == ["50.0 % right", "100.0 overall", "2.00× plain", "2.00 a pass"]
    assert notes["self"][4].endswith("left")
    assert list(board._notes("plain", [], Live("1", "plain", 30, 0.5))) == ["60.0 tok/s now"]
