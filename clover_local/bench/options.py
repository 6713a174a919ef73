"""What the options of `clover bench` ask for, as models and problems."""

import argparse
from pathlib import Path

from clover_local.api import Model, load, resolve
from clover_local.bench import tasks
from clover_local.errors import UsageError
from clover_local.ggml.gguf import GgufFile
from clover_local.model.draft import DraftSettings
from clover_local.model.spec import Spec


def model_path(args: argparse.Namespace) -> Path:
    """The file of the model asked for, however it was written."""
    if args.model and args.model_name:
        raise UsageError("the model is given twice, as MODEL and with --model")
    return resolve(args.model or args.model_name or "demo", offline=args.offline)


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


def load_model(args: argparse.Namespace, path: Path, needed: int) -> Model:
    """The model with its tokenizer, with room for `needed` tokens unless --ctx-size says otherwise."""
    model = load(
        str(path),
        ctx=context(path, args.ctx_size, needed),
        threads=args.threads,
        device=args.device,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        vram=args.vram,
        host_layers=args.n_cpu_moe,
        offline=args.offline,
    )
    model.engine.drafts = drafts_of(args)
    return model


def drafts_of(args: argparse.Namespace) -> DraftSettings:
    """How cheap drafts are made."""
    return DraftSettings(args.draft_experts, args.draft_budget)


def context(path: Path, asked: int | None, needed: int) -> int:
    """Tokens of context to open a file with: what was asked for, else what is needed and possible."""
    return asked or min(needed, Spec.from_gguf(GgufFile.open(path)).context_length)


def render(model: Model, problem: tasks.Problem, thinking: bool | None) -> str:
    """The text that asks a problem, by the model's chat template."""
    messages = [{"role": "user", "content": problem.prompt}]
    return model.template.render(messages, enable_thinking=thinking)
