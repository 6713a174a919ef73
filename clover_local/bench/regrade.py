"""Grading answers that already lie in a file: a run of ours, or anybody's JSON lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clover_local.bench import render
from clover_local.bench.figures import by_mode, share
from clover_local.bench.grading import Grader
from clover_local.bench.store import Record, read_run
from clover_local.decoding.events import Stats
from clover_local.errors import CloverError

TEXTS = ("text", "response", "prediction", "output")


def read(path: Path) -> list[Record]:
    """The answers of a run, or of JSON lines with `answer` (or `gold`) and the response as one of TEXTS.

    A line without a response, such as one of MATH-500 itself, answers with its own gold answer: a check of
    the grader.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError) as problem:
        raise CloverError(f"{path} cannot be read as JSON lines: {problem}") from problem
    if rows and isinstance(rows[0], dict) and "clover_bench" in rows[0]:
        return read_run(path)[1]
    if not rows:
        raise CloverError(f"{path} holds no answers")
    return [_record(path, number, row) for number, row in enumerate(rows, 1)]


def _record(path: Path, number: int, row: Any) -> Record:
    gold = row.get("gold", row.get("answer")) if isinstance(row, dict) else None
    text = next((row[key] for key in TEXTS if key in row), f"\\boxed{{{gold}}}") if gold is not None else None
    if not isinstance(gold, str) or not isinstance(text, str):
        raise CloverError(
            f"line {number} of {path} holds no answer to grade",
            hint=f'each line needs "gold" or "answer", and the response as one of {", ".join(TEXTS)}',
        )
    return Record(
        problem=str(row.get("unique_id") or f"line {number}"),
        mode=str(row.get("mode") or "given"),
        subject=str(row.get("subject") or "all"),
        level=row.get("level") if isinstance(row.get("level"), int) else None,
        gold=gold,
        text=text,
        thinking=bool(row.get("thinking", False)),
        ended=str(row.get("ended") or "stop"),
        stats=Stats(),
        wall_seconds=0.0,
    )


def grade(records: Sequence[Record], grader: Grader) -> list[Record]:
    """The same answers with new verdicts."""
    out = []
    for record in records:
        verdict = grader.grade(record.text, record.gold, thinking=record.thinking)
        out.append(replace(record, right=verdict.right, answer=verdict.answer, verdict=verdict.reason))
    return out


def summary(before: Sequence[Record], after: Sequence[Record]) -> dict[str, Any]:
    """Accuracy by mode, and the verdicts that changed (of answers that had one)."""
    changed = [new for old, new in zip(before, after, strict=True) if old.verdict and old.right != new.right]
    return {
        "modes": {mode: asdict(share(own)) for mode, own in by_mode(after).items()},
        "changed": [row(record) for record in changed],
    }


def row(record: Record) -> dict[str, Any]:
    """One verdict as a flat row."""
    return {
        "problem": record.problem,
        "mode": record.mode,
        "right": record.right,
        "answer": record.answer,
        "gold": record.gold,
        "verdict": record.verdict,
    }


def markdown(before: Sequence[Record], after: Sequence[Record]) -> str:
    """The summary for a person, with every changed verdict."""
    found = summary(before, after)
    parts = [
        render.table(["mode", "right"], [[mode, render.share(one)] for mode, one in found["modes"].items()])
    ]
    if found["changed"]:
        parts.append("Verdicts that changed:\n" + "\n".join(map(_line, found["changed"])))
    return "\n\n".join(parts)


def _line(one: Mapping[str, Any]) -> str:
    now = "right" if one["right"] else f"wrong ({one['verdict']})"
    return f"- {one['problem']} ({one['mode']}): {one['answer']} against {one['gold']}, now {now}"
