"""What the options of `clover bench` ask for, as models and problems."""

import argparse
from pathlib import Path

from clover_local.bench import tasks
from clover_local.errors import UsageError


def model_name(args: argparse.Namespace) -> str:
    """The model asked for, however it was written."""
    if args.model and args.model_name:
        raise UsageError("the model is given twice, as MODEL and with --model")
    return args.model or args.model_name or "demo"


def problem_set(args: argparse.Namespace, name: str, *, limit: int | None = None) -> tasks.ProblemSet:
    """The problems that the options select; `limit` where they name none."""
    if args.data and name == "demo":
        raise UsageError("--data belongs to --set math500, not to --set demo")
    whole = tasks.demo() if name == "demo" else tasks.math500(args.data, offline=args.offline)
    return tasks.select(
        whole,
        subjects=args.subjects,
        levels=args.levels,
        sample=args.sample,
        limit=limit if args.limit is None else args.limit,
    )


def context(path: Path, asked: int | None, needed: int) -> int:
    """Tokens of context to open a file with: what was asked for, else what is needed and possible."""
    from clover_local.ggml.gguf import GgufFile
    from clover_local.model.spec import Spec

    return asked or min(needed, Spec.from_gguf(GgufFile.open(path)).context_length)
