"""`clover convert`: a checkpoint becomes one quantized GGUF."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clover_local.convert.plan import Plan
    from clover_local.convert.run import Progress

DEFAULT_RECIPE = "int4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover convert`."""
    add = parser.add_argument
    add("source", help="a checkpoint folder, or a hub id such as Diffuspace/Clover-35B-A3B-Preview")
    add("-o", "--output", help="file or folder to write to (default: <name>-<recipe>.gguf here)")
    add("--recipe", default=DEFAULT_RECIPE, help="int4 (default), fit16, q8, f16 or f32")
    add(
        "--tensor",
        action="append",
        default=[],
        metavar="PATTERN=TYPE",
        dest="overrides",
        help="type of the tensors whose names match, e.g. 'blk.*.ffn_down_exps.weight=q6_k'; repeatable",
    )
    add("--dry-run", action="store_true", help="print sizes per kind of tensor and write nothing")
    add("--discard-shards", action="store_true", help="delete each downloaded shard once it is converted")
    add("--force", action="store_true", help="overwrite an existing file")
    add("-t", "--threads", type=int, help="threads (default: all)")
    add("--json", action="store_true", help="print the result as JSON")


def main(args: argparse.Namespace) -> int:
    """Run the conversion; the file's name goes to stdout, everything else to stderr."""
    from clover_local.convert.api import execute, prepare

    job = prepare(
        args.source,
        args.output,
        recipe=args.recipe,
        overrides=args.overrides,
        discard_shards=args.discard_shards,
    )
    for note in job.plan.notes:
        print(f"note: {note}", file=sys.stderr)
    if not args.dry_run:
        try:
            with _bar() as report:
                execute(job, force=args.force, threads=args.threads, progress=report)
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
            raise
    if args.json:
        print(json.dumps(describe(job.plan)))
    else:
        print(table(job.plan) if args.dry_run else job.plan.output)
    return 0


def describe(plan: "Plan") -> dict[str, object]:
    """A plan as plain values, sizes in bytes."""
    return {
        "output": str(plan.output),
        "recipe": plan.recipe,
        "bytes": plan.size,
        "classes": plan.by_class(),
        "notes": list(plan.notes),
    }


def table(plan: "Plan") -> str:
    """Sizes per class and type as text, the largest first."""
    rows = [(kind, name, size) for kind, types in plan.by_class().items() for name, size in types.items()]
    rows.sort(key=lambda row: -row[2])
    width = max(len(kind) for kind, _, _ in rows)
    lines = [f"{kind:<{width}}  {name.upper():<8}{size:>16,} bytes" for kind, name, size in rows]
    total = f"{'whole file':<{width}}  {plan.recipe:<8}{plan.size:>16,} bytes"
    return "\n".join([*lines, total, f"would be written to {plan.output}"])


@contextmanager
def _bar() -> Iterator[Callable[["Progress"], None]]:
    """A progress bar on stderr: bytes of the file, bytes per second, time left."""
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, rich.TaskID] = {}

        def report(now: "Progress") -> None:
            kind = "checking" if now.stage == "checking" else "converting"
            if kind not in tasks:
                tasks[kind] = bar.add_task(kind, total=now.total, completed=now.done)
            text = f"{now.stage} {now.detail}".strip()
            bar.update(tasks[kind], completed=now.done, description=text)

        yield report
