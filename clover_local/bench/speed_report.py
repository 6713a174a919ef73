"""The speed bench as text: llama-bench's columns first, then what only drafting has."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from clover_local.bench.costs import Cost
from clover_local.bench.render import number, percent, table
from clover_local.bench.speed import Result, Test, baselines

MODE_ORDER = ("plain", "self", "denoise")
COST_KINDS = ("stock", "plain", "draft", "verify", "commit")


def rows(about: Mapping[str, Any], results: dict[Test, Result]) -> list[dict[str, Any]]:
    """One flat row per test. Names and units follow llama-bench where it has the same figure."""
    order = sorted(
        results,
        key=lambda test: (test.kind, test.size, not test.stock, MODE_ORDER.index(test.mode)),
    )
    return [_row(about, test, results[test], results) for test in order]


def _row(about: Mapping[str, Any], test: Test, result: Result, results: dict[Test, Result]) -> dict[str, Any]:
    stock, plain = baselines(results, test)
    stats = result.stats
    nanoseconds = [round(1e9 * sample.seconds) for sample in result.samples]
    return {
        **{key: about[key] for key in ("model_filename", "model_type", "model_size", "model_n_params")},
        **{key: about[key] for key in ("backends", "gpu_info", "cpu_info", "n_threads", "type_k", "type_v")},
        "engine": "llama.cpp" if test.stock else "clover",
        "test": test.name,
        "mode": test.mode if test.kind == "tg" else "prompt",
        "workload": about["workload"] if test.kind == "tg" else "random tokens",
        "simulated_acceptance": about["profiles"].get(test.profile),
        "n_prompt": test.size if test.kind == "pp" else 0,
        "n_gen": test.size if test.kind == "tg" else 0,
        "avg_ns": round(mean(nanoseconds)),
        "stddev_ns": round(stdev(nanoseconds)) if len(nanoseconds) > 1 else 0,
        "avg_ts": result.speed,
        "stddev_ts": result.spread,
        "times_stock": result.ratio(stock),
        "times_plain": result.ratio(plain),
        "tokens_per_pass": stats.tokens_per_pass if stats else None,
        "tokens_per_round": stats.tokens_per_round if stats and stats.rounds else None,
        "acceptance": stats.acceptance if stats else None,
        "passes": dict(stats.passes) if stats else None,
        "ms_per_pass": _pass_milliseconds(result),
    }


def _pass_milliseconds(result: Result) -> dict[str, float] | None:
    stats = result.stats
    if stats is None:
        return None
    return {
        kind: 1e3 * stats.pass_seconds.get(kind, 0.0) / count
        for kind, count in stats.passes.items()
        if count and kind != "prefill"
    }


def markdown(about: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    """The table of the tests, with what they ran on above it."""
    head = [
        "test",
        "engine",
        "t/s",
        "× stock",
        "× plain",
        "tokens/pass",
        "tokens/round",
        "accepted",
        "ms a pass",
    ]
    lines = []
    for row in found:
        mode = "" if row["n_prompt"] else f" {row['mode']}"
        name = (row["simulated_acceptance"] or "").partition(" ")[0]
        simulated = f", {name} (simulated acceptance)" if name else ""
        lines.append(
            [
                f"{row['test']}{mode}{simulated}",
                row["engine"],
                f"{number(row['avg_ts'])} ± {number(row['stddev_ts'])}",
                number(row["times_stock"], 2),
                number(row["times_plain"], 2),
                number(row["tokens_per_pass"], 2),
                number(row["tokens_per_round"], 2),
                percent(row["acceptance"]),
                ", ".join(f"{kind} {number(ms, 2)}" for kind, ms in (row["ms_per_pass"] or {}).items())
                or "–",
            ]
        )
    return f"{_title(about)}\n\n{table(head, lines)}" if lines else _title(about)


def _title(about: Mapping[str, Any]) -> str:
    size = f"{about['model_size'] / 2**30:.2f} GiB, {about['model_n_params'] / 1e9:.2f} B parameters"
    lines = [
        f"**{about['model_type']}** ({about['model_filename']}, {size})",
        f"on {about['gpu_info'] or about['cpu_info']}, {about['n_threads']} threads, KV {about['type_k']}/"
        f"{about['type_v']}; answers to {about['workload']}, {about['repetitions']} repetitions",
    ]
    if about["simulated_acceptance"]:
        lines.append(f"simulated acceptance: {about['simulated_acceptance']}")
    if about["drafts"]:
        lines.append(f"drafts: {about['drafts']}")
    if about["note"]:
        lines.append(f"note: {about['note']}")
    return "\n".join(lines)


def cost_rows(costs: Sequence[Cost], bandwidth: float | None) -> list[dict[str, Any]]:
    """One flat row per pass, with the share of the memory's bandwidth that reading its weights takes."""
    plain, stock = (
        next((cost.milliseconds for cost in costs if (cost.kind, cost.rows) == (kind, 1)), None)
        for kind in ("plain", "stock")
    )
    return [
        {
            "kind": cost.kind,
            "rows": cost.rows,
            "ms": cost.milliseconds,
            "plain_steps": cost.milliseconds / plain if plain else None,
            "stock_steps": cost.milliseconds / stock if stock else None,
            "nodes": cost.nodes,
            "distinct_experts": cost.distinct,
            "bytes": cost.bytes,
            "gb_per_s": cost.gigabytes_per_second,
            "bandwidth_share": _share_of(cost.gigabytes_per_second, bandwidth),
        }
        for cost in costs
    ]


def _share_of(reached: float | None, bandwidth: float | None) -> float | None:
    return reached / bandwidth if reached is not None and bandwidth else None


def cost_markdown(found: Sequence[Mapping[str, Any]], bandwidth: float | None) -> str:
    """Milliseconds by kind and rows, and the bytes a pass reads beside what the memory can give."""
    by_place = {(row["kind"], row["rows"]): row for row in found}
    counts, kinds = sorted({row["rows"] for row in found}), {row["kind"] for row in found}
    unit = "stock" if "stock" in kinds else "plain"

    def line(kind: str, name: str, cell: Callable[[Mapping[str, Any]], str]) -> list[str]:
        cells = (by_place.get((kind, rows)) for rows in counts)
        return [f"{kind}, {name}", *("–" if row is None else cell(row) for row in cells)]

    def milliseconds(row: Mapping[str, Any]) -> str:
        return f"{number(row['ms'], 2)} ({number(row[f'{unit}_steps'], 2)})"

    lines = [line(kind, f"ms ({unit} steps)", milliseconds) for kind in COST_KINDS if kind in kinds]
    for kind in ("verify", "draft"):
        if kind in kinds:
            lines += [
                line(kind, "nodes", lambda row: str(row["nodes"] or "–")),
                line(kind, "experts a layer", lambda row: number(row["distinct_experts"])),
                line(kind, "weights read, MB", lambda row: number(_mega(row["bytes"]))),
                line(kind, "GB/s", lambda row: number(row["gb_per_s"])),
                line(kind, "of the bandwidth", lambda row: percent(row["bandwidth_share"])),
            ]
    speed = f"{bandwidth:,.1f} GB/s" if bandwidth else "not measured"
    text = table(["rows", *map(str, counts)], lines)
    return (
        f"{text}\n\nExperts are those that the random tokens of one pass use; memory bandwidth "
        f"(an F16 matrix-vector product): {speed}."
    )


def _mega(value: int | None) -> float | None:
    return None if value is None else value / 1e6
