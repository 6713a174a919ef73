"""Reports as text: markdown for people, JSON, JSON lines and CSV for programs."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("md", "json", "jsonl", "csv")


def plain(value: Any) -> Any:
    """A value as JSON has it: not-a-number becomes null, tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def as_json(value: Any) -> str:
    """One JSON value."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False)


def as_jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    """A JSON object per line."""
    return "\n".join(json.dumps(plain(row), ensure_ascii=False) for row in rows)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of the same keys, the first line their names."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain(row) for row in rows)
    return out.getvalue().rstrip("\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table, padded so that it reads well in a terminal too; all but the first column right."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [("-" * w) if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *(line(row) for row in rows)])


def number(value: float | None, digits: int = 1) -> str:
    """A figure with so many decimals, a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent, a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def times(interval: Mapping[str, float | None]) -> str:
    """A ratio with its interval."""
    return f"{number(interval['value'], 2)}× ({number(interval['low'], 2)}–{number(interval['high'], 2)})"


def share(value: Mapping[str, Any]) -> str:
    """Right of total, the percentage and its interval."""
    found = value["accuracy"]
    low, high = percent(found["low"]).removesuffix(" %"), percent(found["high"])
    return f"{value['right']}/{value['total']} = {percent(found['value'])} ({low}–{high})"


def math500_markdown(report: Mapping[str, Any]) -> str:
    """The MATH-500 report for a person; `report` as figures.report makes it."""
    modes = report["modes"]
    parts = [_title(report), _main_table(modes, report["against_plain"])]
    if report["against_plain"]:
        parts.append("\n".join(_beside(mode, one) for mode, one in report["against_plain"].items()))
    for title, key in (("Subject", "by_subject"), ("Level", "by_level")):
        groups = sorted({name for mode in modes.values() for name in mode[key]})
        if len(groups) > 1:
            rows = [
                [name, *(share(mode[key][name]) if name in mode[key] else "–" for mode in modes.values())]
                for name in groups
            ]
            parts.append(table([title, *modes], rows))
    positions = _positions(modes)
    if positions:
        parts.append(positions)
    parts.append(_footer(report))
    return "\n\n".join(parts)


def _title(report: Mapping[str, Any]) -> str:
    fixed, model = report["fixed"], report["model"]
    name = fixed["set"] if fixed["set"] != "math500" else "MATH-500"
    if fixed["set"] == "math500" and not report["official_set"]:
        name = "a set in MATH-500's form (not the published file)"
    done = max((mode["answers"]["total"] for mode in report["modes"].values()), default=0)
    return f"**{model['name']}** on {name}, {done} of {len(fixed['problems'])} problems, {fixed['device']}"


def _main_table(modes: Mapping[str, Any], beside: Mapping[str, Any]) -> str:
    lines: list[tuple[str, Any]] = [
        ("right", lambda m: share(m["answers"])),
        ("tok/s, all tokens / all decode seconds", lambda m: number(m["tokens_per_second"])),
        ("tok/s of the median problem", lambda m: number(m["median_tokens_per_second"])),
        ("time to first token, median ms", lambda m: number(1e3 * m["first_token_seconds"])),
        ("prefill tok/s", lambda m: number(m["prompt_tokens_per_second"])),
        ("tokens a pass", lambda m: number(m["tokens_per_pass"], 2)),
        ("drafts accepted", lambda m: percent(m["acceptance"])),
        ("tokens written", lambda m: f"{m['tokens']:,}"),
        ("truncated / without answer / ungradable", _endings),
        ("wall time, s", lambda m: number(m["wall_seconds"])),
    ]
    rows = [[name, *(read(mode) for mode in modes.values())] for name, read in lines]
    if beside:
        speeds = [times(beside[mode]["speed"]) if mode in beside else "1" for mode in modes]
        rows.insert(2, ["times as fast as plain (95 %)", *speeds])
    return table(["", *modes], rows)


def _endings(mode: Mapping[str, Any]) -> str:
    return f"{mode['truncated']} / {mode['unanswered']} / {mode['ungradable']}"


def _beside(mode: str, one: Mapping[str, Any]) -> str:
    differ = one["only_plain_right"] + one["only_this_right"]
    accuracy = (
        "the same problems are right"
        if not differ
        else f"{one['only_this_right']} right only with {mode}, {one['only_plain_right']} only with plain "
        f"(McNemar p = {one['mcnemar_p']:.2g})"
    )
    return f"{mode} against plain: {one['same_text']} of {one['problems']} texts identical; {accuracy}."


def _positions(modes: Mapping[str, Any]) -> str:
    rows = [
        [mode, *(percent(value).removesuffix(" %") for value in one["acceptance_by_position"])]
        for mode, one in modes.items()
        if one["acceptance_by_position"]
    ]
    if not rows:
        return ""
    longest = max(len(row) for row in rows)
    head = ["accepted, % of verified, by place", *(str(i) for i in range(1, longest))]
    return table(head, [[*row, *["–"] * (longest - len(row))] for row in rows])


def _footer(report: Mapping[str, Any]) -> str:
    fixed, model, versions = report["fixed"], report["model"], report["versions"]
    settings = ", ".join(f"{name} {value}" for name, value in fixed["settings"].items() if value is not None)
    engine = ", ".join(f"{name} {fixed[name]}" for name in ("n_ctx", "threads", "kv") if name in fixed)
    memory = f"RSS peak {report['rss_peak_bytes'] / 2**20:,.0f} MiB"
    if report["vram_peak_bytes"]:
        memory += f", VRAM peak {report['vram_peak_bytes'] / 2**20:,.0f} MiB (all processes)"
    host = report["host"]
    return "\n".join(
        f"- {line}"
        for line in (
            f"model {model['file']}, {model['bytes']:,} bytes, sha256 {model['sha256']}",
            f"set sha256 {fixed['set sha256']}",
            f"settings: {settings}, thinking {fixed['thinking']}, strict units {fixed['strict units']}",
            f"{fixed['device']}, {engine}; {host['processor']}, {host['system']}",
            memory,
            ", ".join(f"{name} {value}" for name, value in versions.items()),
        )
    )
