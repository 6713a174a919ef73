"""Two MATH-500 reports side by side, paired by problem."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clover_local.bench import render
from clover_local.bench.statistics import mcnemar, paired_ratio
from clover_local.errors import CloverError, UsageError


def load_report(path: Path) -> dict[str, Any]:
    """A report written with `--output json`; raises CloverError when the file is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["clover_bench_report"] != 1 or value["task"] != "math500":
            raise ValueError
        value["answers"], value["modes"], value["model"]["name"]
    except OSError as problem:
        raise CloverError(f"{path} cannot be read: {problem.strerror}") from problem
    except (KeyError, TypeError, ValueError) as problem:
        raise CloverError(
            f"{path} is not a report of clover bench math500",
            hint="make one with: clover bench math500 MODEL --output json > report.json",
        ) from problem
    return value


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A comparison per pair of modes: the modes both reports have, or the only one of each."""
    common = [mode for mode in a["modes"] if mode in b["modes"]]
    pairs = [(mode, mode) for mode in common]
    if not pairs and len(a["modes"]) == len(b["modes"]) == 1:
        pairs = [(next(iter(a["modes"])), next(iter(b["modes"])))]
    if not pairs:
        raise UsageError(
            f"the reports share no mode: {', '.join(a['modes'])} against {', '.join(b['modes'])}"
        )
    return [_pair(a, b, *modes) for modes in pairs]


def _pair(a: Mapping[str, Any], b: Mapping[str, Any], mode_a: str, mode_b: str) -> dict[str, Any]:
    left = {row["problem"]: row for row in a["answers"] if row["mode"] == mode_a}
    right = {row["problem"]: row for row in b["answers"] if row["mode"] == mode_b}
    both = [(row, right[name]) for name, row in left.items() if name in right]
    if not both:
        raise UsageError("the reports share no problem, so there is nothing to compare")
    only_a = sum(x["right"] and not y["right"] for x, y in both)
    only_b = sum(y["right"] and not x["right"] for x, y in both)
    sides = ([(row["decoded"], row["decode_seconds"]) for row in side] for side in zip(*both, strict=True))
    return {
        "mode_a": mode_a,
        "mode_b": mode_b,
        "problems": len(both),
        "right_a": sum(x["right"] for x, _ in both),
        "right_b": sum(y["right"] for _, y in both),
        "only_a_right": only_a,
        "only_b_right": only_b,
        "mcnemar_p": mcnemar(only_a, only_b),
        "tokens_a": sum(x["tokens"] for x, _ in both),
        "tokens_b": sum(y["tokens"] for _, y in both),
        "tokens_per_second_a": a["modes"][mode_a]["tokens_per_second"],
        "tokens_per_second_b": b["modes"][mode_b]["tokens_per_second"],
        "speed": asdict(paired_ratio(*sides)),
    }


def markdown(a: Mapping[str, Any], b: Mapping[str, Any], found: list[dict[str, Any]]) -> str:
    """The comparison for a person, differences in what was run first."""
    parts = [f"A: {_name(a)}\n\nB: {_name(b)}"]
    differences = [
        f"- {key}: {a['fixed'].get(key)} against {b['fixed'].get(key)}"
        for key in a["fixed"]
        if key not in ("problems", "model sha256", "modes") and a["fixed"].get(key) != b["fixed"].get(key)
    ]
    if differences:
        parts.append("The runs differ in:\n" + "\n".join(differences))
    head = [
        "mode",
        "problems",
        "right A",
        "right B",
        "only A",
        "only B",
        "p",
        "tok/s A",
        "tok/s B",
        "B/A (95 %)",
    ]
    parts.append(render.table(head, [_row(one) for one in found]))
    parts.append(
        "p: McNemar's exact test that A and B are equally often right. B/A: speed, paired by problem."
    )
    return "\n\n".join(parts)


def _row(one: Mapping[str, Any]) -> list[str]:
    mode = one["mode_a"] if one["mode_a"] == one["mode_b"] else f"{one['mode_a']} / {one['mode_b']}"
    counts = [str(one[key]) for key in ("problems", "right_a", "right_b", "only_a_right", "only_b_right")]
    speeds = [render.number(one[key]) for key in ("tokens_per_second_a", "tokens_per_second_b")]
    return [mode, *counts, f"{one['mcnemar_p']:.2g}", *speeds, render.times(one["speed"])]


def _name(report: Mapping[str, Any]) -> str:
    fixed = report["fixed"]
    return f"{report['model']['name']} on {fixed['set']}, {fixed['device']}, {report.get('began', '')}"
