"""`clover bench speed`: opens the parties, runs the tests, prints the table."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

from clover_local.bench import costs, machine, profiles, render, speed, speed_report
from clover_local.bench.simulate import Recorder
from clover_local.bench.stock import Stock
from clover_local.commands.bench import model_name, problem_set
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Settings
from clover_local.errors import CloverError, UsageError
from clover_local.ggml.backend import choose_device
from clover_local.runtime.engine import Engine

RANDOM_PROMPT = 64  # tokens of a random prompt that is answered
TEXT_PROMPTS = 8  # problems answered, unless --limit says otherwise
ROOM = 1.1  # of the file's size must be free on a GPU for a second copy, the baseline's


def run(args: argparse.Namespace) -> int:
    """Measure and print; see `clover bench speed --help`."""
    path = resolve(model_name(args), offline=args.offline)
    profile = profiles.load(args.accept_profile) if args.accept_profile else None
    _check(args, profile)
    with ExitStack() as stack:
        engine = stack.enter_context(_open(args, path))
        if args.costs:
            return _print_costs(args, engine)
        workload = _workload(args, engine, path)
        settings = _settings(args)
        stock, note = _stock(args, path, engine, stack)
        bench = speed.Bench(engine, workload, settings, stock, profile)
        modes = args.mode if engine.spec.can_draft else ("plain",)
        if modes != args.mode:
            note = f"the file holds no preview weights, so it runs one token at a time. {note}".strip()
        tests = speed.tests(args.n_prompt, args.n_gen, modes, stock=stock is not None)
        results = speed.collect(bench.run(tests, args.repetitions), _progress(args.repetitions))
        if args.record_profile:
            _record(args, engine, workload, settings, path)
        about = _about(args, engine, path, workload, profile, note)
    _print(args.output, about, speed_report.rows(about, results))
    return 0


def _check(args: argparse.Namespace, profile: profiles.Profile | None) -> None:
    if args.repetitions < 1:
        raise UsageError("--repetitions must be at least 1")
    if profile is not None and "denoise" in args.mode:
        raise UsageError("--accept-profile simulates self-speculation, so --mode denoise makes no sense with it")
    if profile is not None and args.record_profile:
        raise UsageError("--record-profile needs real drafts, so --accept-profile makes no sense with it")


def _open(args: argparse.Namespace, path: Path) -> Engine:
    return Engine.open(
        path,
        n_ctx=args.ctx_size or _context(path, args),
        threads=args.threads,
        device=args.device,
        kv_type_k=args.cache_type_k,
        kv_type_v=args.cache_type_v,
    )
