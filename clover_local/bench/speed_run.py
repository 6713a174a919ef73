"""`clover bench speed`: opens the parties, runs the tests, prints the table."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from clover_local.api import Model
from clover_local.bench import cost_run, costs, machine, options, profiles, speed, speed_report
from clover_local.bench.simulate import Recorder
from clover_local.bench.stock import Stock, within
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Mode, Settings
from clover_local.errors import CloverError, UsageError
from clover_local.ggml.backend import choose_device, devices
from clover_local.ggml.gguf import GgufFile
from clover_local.runtime import fitting
from clover_local.runtime.engine import Engine
from clover_local.runtime.plan import parse_size

RANDOM_PROMPT = 64  # tokens of a random prompt that is answered
TEXT_PROMPTS = 8  # problems answered in a repetition, unless --limit says otherwise
TEXT_ROOM = 1024  # tokens kept free for a problem's text
SECOND_COPY = 1.1  # times the file's size that must be free on a GPU for the baseline's own copy


def run(args: argparse.Namespace) -> int:
    """Measure and print; see `clover bench speed --help`."""
    path = options.model_path(args)
    simulated = tuple(map(profiles.load, args.accept_profile))
    _check(args, simulated)
    with ExitStack() as stack:
        engine, model = _open(args, path)
        stack.callback(engine.close)
        workload = _workload(args, engine, model, simulated)
        bench = speed.Bench(engine, workload, _settings(args), profiles=simulated)
        notes = [engine.note or ""]
        if not args.no_stock:
            bench.stock, why = _stock(args, path, engine)
            notes.append(why)
            if bench.stock is not None:
                stack.enter_context(bench.stock)
        modes: tuple[Mode, ...] = args.mode if engine.spec.can_draft else ("plain",)
        if modes != args.mode:
            notes.append("the file holds no preview weights, so it runs one token at a time")
        names = [one.name for one in simulated]
        tests = speed.tests(args.n_prompt, args.n_gen, modes, stock=bench.stock is not None, profiles=names)
        results = speed.collect(bench.run(tests, args.repetitions), _progress(args.repetitions, len(tests)))
        about = _about(args, engine, path, workload, simulated, notes)
        if args.record_profile:
            _record(args, bench, about)
        passes = cost_run.measured(args, engine, bench.stock) if args.costs else None
    cost_run.print_report(args.output, about, speed_report.rows(about, results), passes)
    return 0


def _check(args: argparse.Namespace, simulated: Sequence[profiles.Profile]) -> None:
    checks = (
        (args.repetitions >= 1, "--repetitions must be at least 1"),
        (args.n_gen >= 0 and all(n >= 0 for n in args.n_prompt), "--n-prompt and --n-gen cannot be negative"),
        (args.n_gen != 1, "--n-gen must be at least 2: the first token belongs to the prompt"),
        (
            not simulated or "denoise" not in args.mode,
            "--accept-profile simulates self-speculation, so it cannot be used with --mode denoise",
        ),
        (
            not simulated or args.record_profile is None,
            "--record-profile needs real drafts, so it cannot be used with --accept-profile",
        ),
    )
    for holds, sentence in checks:
        if not holds:
            raise UsageError(sentence)


def _open(args: argparse.Namespace, path: Path) -> tuple[Engine, Model | None]:
    """The engine, and the model around it where the file has a vocabulary."""
    needed = max(*args.n_prompt, TEXT_ROOM + args.n_gen, 2 * costs.PROMPT)
    if GgufFile.open(path).keys.get("tokenizer.ggml.model") not in (None, "no_vocab"):
        model = options.load_model(args, path, needed)
        return model.engine, model
    engine = Engine.open(
        path,
        n_ctx=options.context(path, args.ctx_size, needed),
        threads=args.threads,
        device=args.device,
        kv_type_k=args.cache_type_k,
        kv_type_v=args.cache_type_v,
        vram=parse_size(args.vram) if args.vram else None,
        host_layers=args.n_cpu_moe,
    )
    engine.drafts = options.drafts_of(args)
    return engine, None


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(
        accept=args.accept, draft_max=args.draft_max, policy=args.policy, threshold=args.threshold
    )


def _workload(
    args: argparse.Namespace, engine: Engine, model: Model | None, simulated: Sequence[profiles.Profile]
) -> speed.Workload:
    """The prompts that are answered: random tokens where the text means nothing, problems elsewhere."""
    wanted = args.set
    if wanted == "auto":
        meaningless = bool(simulated) or model is None
        wanted = "math500" if args.data else "random" if meaningless else "demo"
    if wanted == "random":
        if args.record_profile:
            raise UsageError("--record-profile needs real text, so --set random makes no sense with it")
        return speed.random_workload(engine.spec.vocab, args.limit or 1, RANDOM_PROMPT)
    if model is None:
        raise UsageError(
            f"{engine.file.path} has no vocabulary, so it cannot read problems; use --set random"
        )
    problems = options.problem_set(args, wanted, limit=TEXT_PROMPTS).problems
    prompts = tuple(
        tuple(model.tokenizer.encode(options.render(model, problem, args.think))) for problem in problems
    )
    return speed.Workload(f"{len(prompts)} problems of {wanted}", prompts, random=False)


def _stock(args: argparse.Namespace, path: Path, engine: Engine) -> tuple[Stock | None, str]:
    """The baseline beside our engine, or None and why not; under a cap of video memory its best under the same."""
    device = choose_device(args.device)
    need = SECOND_COPY * path.stat().st_size
    budget = fitting.budget(device, parse_size(args.vram)) if args.vram and device.is_gpu else None
    if device.is_gpu and device.free < (budget or need):
        return None, (
            f"stock llama.cpp was left out: a second copy of the model needs {(budget or need) / 2**30:.1f} GiB "
            f"and {device.free / 2**30:.1f} are free"
        )
    gpus = [one.name for one in devices() if one.is_gpu]
    gpu = gpus.index(device.name) if device.is_gpu else None

    def load(moved: int) -> Stock:
        return Stock(path, n_ctx=engine.n_ctx, threads=engine.threads, gpu=gpu, n_cpu_moe=moved)

    try:
        if budget is not None and args.n_cpu_moe is None:
            found = within(path, budget, load, lambda: choose_device(args.device).free)
        else:
            found = load((args.n_cpu_moe or 0) if device.is_gpu else 0)
    except CloverError as problem:
        return None, str(problem)
    moved = (
        f"stock llama.cpp keeps the experts of {found.n_cpu_moe} of {engine.spec.layers} layers with the CPU"
    )
    return found, moved if device.is_gpu and (found.n_cpu_moe or budget) else ""


def _progress(repetitions: int, tests: int) -> Callable[[int, speed.Test, speed.Sample], None]:
    """A line of what was measured last, written over itself where stderr is a terminal."""
    live, done = sys.stderr.isatty(), 0

    def tell(repetition: int, test: speed.Test, sample: speed.Sample) -> None:
        nonlocal done
        done += 1
        if not live:
            return
        party = "llama.cpp" if test.stock else test.mode if test.kind == "tg" else "clover"
        name = f"{party} {test.profile}".rstrip()
        what = f"{test.name} {name} {sample.speed:,.1f} t/s" if repetition else "warming up"
        left = (repetitions + 1) * tests - done
        print(f"\r\x1b[K{what}, {left} to go" if left else "\r\x1b[K", end="", file=sys.stderr, flush=True)

    return tell


def _record(args: argparse.Namespace, bench: speed.Bench, about: dict[str, Any]) -> None:
    """Write every prompt's answer once more, drafting and verifying always, and save how the drafts fared."""
    recorder = Recorder(bench.engine)
    settings = replace(bench.settings, mode="self", max_tokens=args.n_gen, policy="always")
    for prompt in bench.workload.prompts:
        bench.engine.reset()
        for _ in generate(recorder, prompt, settings):
            pass
    path = Path(bench.engine.file.path)
    name = f"{about['model_type']}: {bench.workload.name}"
    identity = {"name": about["model_type"], "sha256": machine.file_sha256(path)}
    kept = {"workload": bench.workload.name, "draft_max": settings.draft_max, "device": about["device"]}
    recorder.recording.save(args.record_profile, name, identity, kept)
    print(f"acceptance profile: {args.record_profile}", file=sys.stderr)


def _about(
    args: argparse.Namespace,
    engine: Engine,
    path: Path,
    workload: speed.Workload,
    simulated: Sequence[profiles.Profile],
    notes: Sequence[str],
) -> dict[str, Any]:
    """What llama-bench's columns say about a run, and what ours add."""
    device = choose_device(args.device)
    return {
        "model_filename": path.name,
        "model_type": str(engine.file.keys.get("general.name") or path.stem),
        "model_size": sum(tensor.nbytes for tensor in engine.file.tensors.values()),
        "model_n_params": sum(prod(tensor.shape) for tensor in engine.file.tensors.values()),
        "backends": device.name,
        "gpu_info": device.description if device.is_gpu else "",
        "cpu_info": machine.host()["processor"],
        "n_threads": engine.threads,
        "type_k": args.cache_type_k,
        "type_v": args.cache_type_v,
        "device": engine.device_name,
        "n_ctx": engine.n_ctx,
        "workload": workload.name,
        "repetitions": args.repetitions,
        "settings": {
            "accept": args.accept,
            "draft_max": args.draft_max,
            "draft_experts": args.draft_experts,
            "draft_budget": args.draft_budget,
            "policy": args.policy,
        },
        "profiles": {one.name: f"{one.name} ({one.note})" for one in simulated},
        "simulated_acceptance": "; ".join(f"{one.name} ({one.note})" for one in simulated) or None,
        "drafts": _drafts(engine),
        "note": "; ".join(note for note in notes if note),
        "versions": machine.versions(),
    }


def _drafts(engine: Engine) -> str:
    """Draft settings that are not the model's own, in words."""
    drafts = engine.drafts
    parts = (
        (drafts.experts_used, "experts a row"),
        (drafts.budget, "experts a layer"),
    )
    return ", ".join(f"{count} {what}" for count, what in parts if count is not None)
