"""The whole check on a small trained model: honest numbers, kills, Ctrl-C, every output."""

import csv
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clover_local import cli
from clover_local.api import load
from clover_local.bench import figures, math500, options, speed
from clover_local.bench.grading import Grader
from clover_local.bench.store import Record, read_run
from clover_local.bench.tasks import Problem, ProblemSet
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Settings

PROBLEMS = (
    ("A garden is 12 m long and 5 m wide. What is its area?", "60", "area", 1),
    (
        "There are 6 boxes with 8 eggs each. 4 children share all the eggs equally. "
        "How many eggs does each child get?",
        "12",
        "share",
        2,
    ),
    ("Mia is 23 years old. Sam is 7 years older than Mia. How old will Sam be in 5 years?", "35", "age", 2),
    (
        "Tom buys 4 pens at 12 dollars each and 3 cups at 7 dollars each. How much does he pay?",
        "69",
        "price",
        1,
    ),
)
TIMED = ("seconds", "per_second", "milliseconds", "speed", "rss_", "vram_", "began", "memory")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [dict(zip(("problem", "answer", "subject", "level"), one, strict=True)) for one in PROBLEMS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(model: Path, data: Path, run: Path, *more: str) -> list[str]:
    fixed = ["bench", "math500", str(model), "--data", str(data), "--run", str(run), "-t", "1"]
    return [*fixed, "--device", "cpu", "--max-tokens", "60", *more]


def timeless(value: Any) -> Any:
    """A report without what the clock and the memory say."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not any(part in k for part in TIMED)}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert cli.main(argv) == 0
    return json.loads(capsys.readouterr().out)


def start(argv: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "clover_local", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_for_answers(run: Path, count: int) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if run.exists() and run.read_bytes().count(b"\n") > count:
            return
        time.sleep(0.01)
    pytest.fail(f"{count} answers did not come")


def test_plain_and_self_write_the_same_texts(
    trained_f32: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.jsonl"
    # always drafting is the hardest case: every token goes through a verify pass
    found = report(capsys, *command(trained_f32, data, run, "--policy", "always", "-o", "json"))
    texts = {record.key: record.text for record in read_run(run)[1]}
    assert len(texts) == 2 * len(PROBLEMS)
    assert all(texts[name, "plain"] == text for (name, mode), text in texts.items() if mode == "self")
    beside = found["against_plain"]["self"]
    assert beside["same_text"] == beside["problems"] == len(PROBLEMS)
    assert found["modes"]["plain"]["answers"] == found["modes"]["self"]["answers"]
    assert found["modes"]["self"]["answers"]["right"] >= 1
    assert found["modes"]["self"]["tokens_per_pass"] > 1.5
    assert found["modes"]["plain"]["acceptance"] is None


@pytest.mark.parametrize("answers", [1, 4])
def test_a_killed_run_resumes_to_the_same_table(
    trained_f32: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: int
) -> None:
    always = ("--policy", "always", "-o", "json")  # what auto does depends on the clock
    whole = report(capsys, *command(trained_f32, data, tmp_path / "whole.jsonl", *always))
    run = tmp_path / "killed.jsonl"
    process = start(command(trained_f32, data, run, *always))
    wait_for_answers(run, answers)
    process.kill()
    process.communicate()
    kept = len(read_run(run)[1])
    assert answers <= kept < 2 * len(PROBLEMS)
    resumed = report(capsys, *command(trained_f32, data, run, *always, "--resume"))
    assert timeless(resumed) == timeless(whole)
    assert len(read_run(run)[1]) == 2 * len(PROBLEMS)
    again = report(capsys, *command(trained_f32, data, run, *always, "--resume"))
    assert again == resumed


def test_ctrl_c_prints_what_is_done_and_how_to_go_on(trained_f32: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    process = start(command(trained_f32, data, run))
    wait_for_answers(run, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "| right" in out
    assert f"clover bench math500 {trained_f32}" in err
    assert "--resume" in err
    assert "Traceback" not in err


def test_every_output_and_the_comparison(
    trained_f32: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, modes in (("a", "plain"), ("b", "plain,self")):
        argv = command(trained_f32, data, tmp_path / f"{name}.jsonl", "--limit", "2", "--modes", modes)
        found = report(capsys, *argv, "-o", "json")
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(found))
    for key in ("sha256", "bytes", "file"):
        assert found["model"][key]
    assert found["versions"]["llama-cpp-python"] == "0.3.36"
    assert cli.main([*argv, "--resume", "-o", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert cli.main([*argv, "--resume", "-o", "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["problem"], r["mode"]) for r in rows] == [(r["problem"], r["mode"]) for r in table]
    assert len(rows) == 4
    assert cli.main([*argv, "--resume"]) == 0
    assert "self against plain: 2 of 2 texts identical" in capsys.readouterr().out
    assert cli.main(["bench", "compare", *map(str, files), "-o", "json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)
    assert (pair["mode_a"], pair["mode_b"], pair["problems"], pair["mcnemar_p"]) == ("plain", "plain", 2, 1.0)
    assert cli.main(["bench", "compare", *map(str, files)]) == 0
    assert "B/A" in capsys.readouterr().out


def test_a_run_is_graded_again_without_the_model(
    trained_f32: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.jsonl"
    found = report(capsys, *command(trained_f32, data, run, "--limit", "2", "-o", "json"))
    again = report(capsys, "bench", "math500", "--grade-only", str(run), "-o", "json")
    assert again["changed"] == []
    assert again["modes"]["self"] == found["modes"]["self"]["answers"]
    lines = run.read_text().splitlines()
    wrong = {**json.loads(lines[1]), "text": "</think>\\boxed{-1}"}
    run.write_text("\n".join([lines[0], json.dumps(wrong), *lines[2:]]) + "\n")
    assert cli.main(["bench", "math500", "--grade-only", str(run)]) == 0
    assert "-1 against 60, now wrong" in capsys.readouterr().out


def test_math500_itself_is_graded_all_right(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "math500", "--grade-only", str(shared / "data" / "math500.jsonl")]) == 0
    assert "500/500 = 100.0 %" in capsys.readouterr().out


def test_speed_means_the_same_as_in_bench_speed(trained_f32: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # every look at the decoding clock takes a millisecond
    monkeypatch.setitem(generate.__kwdefaults__, "clock", lambda: next(ticks) / 1000)
    problems = tuple(Problem(str(i), text, answer, s, n) for i, (text, answer, s, n) in enumerate(PROBLEMS))
    settings = Settings(max_tokens=50, policy="always")
    plan = math500.Plan(ProblemSet("own", "", problems), ("plain", "self"), settings, None)
    with load(str(trained_f32), ctx=512, threads=1, device="cpu") as model, Grader() as grader:
        records = [fact for fact in math500.run(model, plan, grader) if isinstance(fact, Record)]
        prompts = tuple(tuple(model.tokenizer.encode(options.render(model, p, None))) for p in problems)
        bench = speed.Bench(model.engine, speed.Workload("own", prompts, random=False), settings)
        for mode, own in figures.by_mode(records).items():
            sample = bench.measure(speed.Test("tg", 50, mode))  # type: ignore[arg-type]
            assert sample.speed == pytest.approx(figures.mode_figures(own).tokens_per_second, rel=0.001)


def test_wrong_calls_are_sentences(
    tiny_f32: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = (
        (["bench", "math500", str(tiny_f32), "-m", str(tiny_f32)], "twice"),
        (["bench", "math500", str(tiny_f32), "--modes", "fast"], "fast"),
        (["bench", "math500", str(tiny_f32), "--levels", "one"], "one"),
        (["bench", "math500", str(tiny_f32), "--set", "demo", "--data", str(data)], "--data"),
        (["bench", "math500", str(tiny_f32), "--data", str(data), "--resume"], "no run"),
        (["bench", "compare", str(data), str(data)], "not a report"),
        (["bench", "math500", "--grade-only", str(tmp_path / "none.jsonl")], "none.jsonl"),
    )
    for argv, part in cases:
        assert cli.main(argv) in (1, 2)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert part in captured.err
