"""The cost table of a run: every pass timed, stock llama.cpp's beside it, and the whole report printed."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clover_local.bench import costs, render, speed_report
from clover_local.bench.stock import Stock
from clover_local.runtime.engine import Engine, default_threads
from clover_local.runtime.remembered import keep


@dataclass(frozen=True)
class Passes:
    """What passes cost, and how fast the device reads memory (GB/s)."""

    rows: list[dict[str, Any]]
    bandwidth: float


def measured(args: argparse.Namespace, engine: Engine, stock: Stock | None) -> Passes:
    """Time every pass of an engine, and of stock llama.cpp where it is there; chats begin with what is found."""
    found = list(costs.measure(engine, mixed=bool(args.accept_profile)))
    policy = [(cost.kind, cost.rows, cost.milliseconds) for cost in found if cost.kind != "commit"]
    keep("costs", engine.identity, policy)
    if stock is not None:
        found += costs.measure_stock(stock, engine)
    bandwidth = costs.read_bandwidth(args.device, args.threads or default_threads())
    return Passes(speed_report.cost_rows(found, bandwidth), bandwidth)


def print_report(
    output: str, about: dict[str, Any], tests: Sequence[dict[str, Any]], passes: Passes | None
) -> None:
    """Print the tests, then the passes; as flat rows those of the tests, or of the passes where there is no test."""
    if output == "md":
        print(speed_report.markdown(about, tests))
        if passes is not None:
            print(f"\n{speed_report.cost_markdown(passes.rows, passes.bandwidth)}")
    elif output == "json":
        value = {"clover_bench_speed": 1, **about, "tests": tests}
        if passes is not None:
            value |= {"bandwidth_gb_per_s": passes.bandwidth, "passes": passes.rows}
        print(render.as_json(value))
    else:
        rows = tests if tests or passes is None else passes.rows
        print(render.as_jsonl(rows) if output == "jsonl" else render.as_csv(rows))
