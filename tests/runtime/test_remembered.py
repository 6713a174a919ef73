"""What is kept between starts: the same value comes back, and nothing unreadable ever stops a start."""

import json
import multiprocessing
from pathlib import Path

import pytest

from clover_local.api import Model, load
from clover_local.decoding.settings import Settings
from clover_local.names import DEMO_FILE
from clover_local.runtime import remembered
from clover_local.runtime.remembered import keep, recall


def files(home: Path) -> list[Path]:
    return sorted(home.rglob("measured/*"))


def test_a_value_comes_back_under_its_key_only(isolated_home: Path) -> None:
    assert recall("costs", "a") is None
    keep("costs", "a", [1, 2])
    keep("costs", "b", {"x": 3})
    assert (recall("costs", "a"), recall("costs", "b"), recall("runners", "a")) == ([1, 2], {"x": 3}, None)
    keep("costs", "a", [4])
    assert recall("costs", "a") == [4]
    assert len(files(isolated_home)) == 2, "no partial file is left"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 1}', '{"format": 1, "key": "other"}', "\0\xff"]
)
def test_broken_files_are_as_good_as_none(isolated_home: Path, text: str) -> None:
    keep("costs", "a", [1])
    (path,) = files(isolated_home)
    path.write_bytes(text.encode("latin-1"))
    assert recall("costs", "a") is None
    keep("costs", "a", [2])
    assert recall("costs", "a") == [2]


def test_an_older_format_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("costs", "a", [1])
    monkeypatch.setattr(remembered, "FORMAT", remembered.FORMAT + 1)
    assert recall("costs", "a") is None


def test_a_folder_that_cannot_be_written_is_no_error(
    isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = isolated_home / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    keep("costs", "a", [1])
    assert recall("costs", "a") is None


def _write(turn: int) -> None:
    for _ in range(200):
        keep("costs", "a", [turn] * 5000)


def test_writers_at_once_leave_one_whole_file() -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(turn,)) for turn in range(2)]
    keep("costs", "a", [0] * 5000)
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert recall("costs", "a") in ([0] * 5000, [1] * 5000)
    for writer in writers:
        writer.join()


def opened() -> Model:
    return load(DEMO_FILE, ctx=512, threads=1, device="cpu")


def test_the_second_start_measures_nothing(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "Tom has 12 apples and buys 7 more. How many apples does he have?"
    with opened() as model:
        list(model.generate([{"role": "user", "content": question}], Settings(max_tokens=12)))
        costs = model.policy.costs
        steps = {shape: costs.ms(*shape) / costs.ms("plain", 1) for shape in costs.shapes}
    assert {"plain", "draft", "verify"} == {kind for kind, _ in steps}
    monkeypatch.setattr("clover_local.api.calibrate", lambda *parts: pytest.fail("it was measured already"))
    with opened() as model:
        model.warm()
        for _ in range(2):
            model.policy.costs.observe("plain", 1, 5.0)
        for shape, count in steps.items():
            assert model.policy.costs.ms(*shape) == pytest.approx(5.0 * count, rel=0.05)


def test_other_uses_and_broken_tables_are_measured(isolated_home: Path) -> None:
    with opened() as model, load(DEMO_FILE, ctx=4096, threads=1, device="cpu") as larger:
        keys = [model.engine.identity, larger.engine.identity]
        model.engine.drafts = type(model.engine.drafts)(1, None)
        assert len({*keys, model.engine.identity}) == 3
        for broken in (
            [],
            [["plain", 1, 1.0]],
            [["plain", 1, -1], ["draft", 4, 1], ["verify", 2, 1]],
            {"plain": 3},
            7,
        ):
            keep("costs", larger.engine.identity, json.loads(json.dumps(broken)))
            assert not larger.policy.costs.take(recall("costs", larger.engine.identity))
            assert not larger.policy.costs.ready
        disturbed = [["plain", 1, 1.0], ["draft", 4, 90.0], ["verify", 2, 1.2]]
        assert not larger.policy.costs.take(disturbed), "four rows take no ninety steps"
        larger.warm()
        assert larger.policy.costs.measured()["draft"]
