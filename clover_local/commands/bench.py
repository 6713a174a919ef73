"""`clover bench`: speed, the MATH-500 check, and two reports side by side."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clover_local.commands import options
from clover_local.decoding.settings import Settings

if TYPE_CHECKING:
    from clover_local.bench.math500 import Plan
    from clover_local.bench.store import Header, Record, RunFile

FORMATS = ("md", "json", "jsonl", "csv")
MODES = ("plain", "self", "denoise")
MATH_TOKENS = 4096  # a worked solution; a cut-off one counts as wrong
PROMPT_ROOM = 1024  # tokens kept free for a problem's text, when no --ctx-size is given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover bench` and its three parts."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    _speed_arguments(parts.add_parser("speed", help="tokens per second, beside stock llama.cpp"))
    _math500_arguments(parts.add_parser("math500", help="how right and how fast, on MATH-500"))
    compare = parts.add_parser("compare", help="two reports of math500 side by side")
    compare.add_argument("a", type=Path, metavar="A.json")
    compare.add_argument("b", type=Path, metavar="B.json")
    compare.add_argument("-o", "--output", choices=("md", "json"), default="md")


def main(args: argparse.Namespace) -> int:
    """Run the part chosen; the report goes to stdout, everything else to stderr."""
    if args.part == "compare":
        return _compare(args)
    if args.part == "speed":
        from clover_local.bench.speed_run import run

        return run(args)
    return _regrade(args) if args.grade_only else _math500(args)


def _engine_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model_name",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, demo, or owner/name[:QUANT] (default: demo)",
    )
    add("-m", "--model", help="the same as MODEL")
    options.add_engine_options(add, "tokens of context (default: what the run needs)")


def _decoding_arguments(parser: argparse.ArgumentParser) -> None:
    default = Settings()
    add = parser.add_argument
    add(
        "--accept",
        choices=("exact", "lossless", "release"),
        default=default.accept,
        help="which drafts are kept",
    )
    add("--draft-max", type=int, default=default.draft_max, metavar="N", help="rows of a draft block")
    options.add_draft_options(add)
    add("--policy", choices=("auto", "always"), default=default.policy, help="draft where it pays, or always")
    add("--threshold", type=float, metavar="P", help="confidence that fixes a row in denoise mode")


def _set_arguments(parser: argparse.ArgumentParser, default: str, sets: tuple[str, ...]) -> None:
    add = parser.add_argument
    add("--set", choices=sets, default=default, help=f"problems to answer (default: {default})")
    add("--data", type=Path, metavar="FILE.jsonl", help="a local copy of MATH-500 or problems in its form")
    add("--limit", type=int, metavar="N", help="at most N problems")
    add("--subjects", type=_names, default=(), metavar="A,B", help="only these subjects")
    add("--levels", type=_numbers, default=(), metavar="1,2", help="only these levels")
    add("--sample", type=int, metavar="SEED", help="shuffle the problems by this seed first")


def _math500_arguments(parser: argparse.ArgumentParser) -> None:
    _engine_arguments(parser)
    _set_arguments(parser, "math500", ("math500", "demo"))
    _decoding_arguments(parser)
    add = parser.add_argument
    add("--modes", type=_modes, default=("plain", "self"), metavar="A,B", help="default: plain,self")
    add(
        "--max-tokens",
        "-n",
        "--predict",
        type=int,
        default=MATH_TOKENS,
        metavar="N",
        help="tokens of an answer",
    )
    add("--temp", type=float, default=0.0, metavar="T", help="temperature (default: 0)")
    add("--seed", type=int, default=0, help="seed of the draws above temperature 0 (default: 0)")
    add(
        "--think",
        action=argparse.BooleanOptionalAction,
        help="reason first, or not (default: the template's)",
    )
    add("--strict-units", action="store_true", help="an answer without the gold answer's unit is wrong")
    add(
        "--run", type=Path, metavar="FILE", help="where the answers are kept (default: among the user's data)"
    )
    add("--resume", action="store_true", help="go on with a run that was cut off")
    add("--grade-only", type=Path, metavar="FILE", help="grade a run, or any JSONL of answers, again")
    add("-o", "--output", choices=FORMATS, default="md")


def _speed_arguments(parser: argparse.ArgumentParser) -> None:
    _engine_arguments(parser)
    _set_arguments(parser, "auto", ("auto", "random", "demo", "math500"))
    _decoding_arguments(parser)
    add = parser.add_argument
    add("-p", "--n-prompt", type=_numbers, default=(512,), metavar="N,N", help="prompt sizes (default: 512)")
    add(
        "-n", "--n-gen", type=int, default=128, metavar="N", help="tokens of an answer at most (default: 128)"
    )
    add("-r", "--repetitions", type=int, default=5, metavar="N", help="repetitions (default: 5)")
    add("--mode", type=_modes, default=("plain", "self"), metavar="A,B", help="default: plain,self")
    add("--no-stock", action="store_true", help="leave stock llama.cpp out")
    add(
        "--costs",
        action="store_true",
        help="measure what every pass costs too, and print it (-p 0 -n 0: only)",
    )
    add(
        "--accept-profile",
        type=_names,
        default=(),
        metavar="A,B",
        help="simulate acceptance for a model of random weights: math, code, prose, none or recorded files",
    )
    add("--record-profile", type=Path, metavar="FILE", help="record how this model's drafts fare")
    add(
        "--think",
        action=argparse.BooleanOptionalAction,
        help="reason first, or not (default: the template's)",
    )
    add("-o", "--output", choices=FORMATS, default="md")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2") from None


def _modes(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_names(text)))
    if not found or not set(found) <= set(MODES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(MODES)}")
    return found


def _math500(args: argparse.Namespace) -> int:
    from clover_local.bench import machine, math500, options
    from clover_local.bench.grading import Grader

    path, plan = options.model_path(args), _plan(args)
    with Grader(strict_units=plan.strict_units) as grader:
        grader.warm()  # it imports sympy while the model loads
        model = options.load_model(args, path, args.max_tokens + PROMPT_ROOM)
        math500.check(plan, model)
        engine = {
            "n_ctx": model.engine.n_ctx,
            "threads": model.engine.threads,
            "kv": f"{args.cache_type_k}/{args.cache_type_v}",
        }
        run = _open_run(args, math500.header(plan, model, machine.model_identity(path), engine))
        finished = _answer_all(plan, model, grader, run)
    _print_report(run.header, run.records, args.output)
    if finished:
        print(f"answers: {run.path}", file=sys.stderr)
        return 0
    print(f"stopped; to go on: {_again(run.path)}", file=sys.stderr)
    return 130


def _plan(args: argparse.Namespace) -> "Plan":
    from clover_local.bench.math500 import Plan
    from clover_local.bench.options import problem_set

    settings = Settings(
        accept=args.accept,
        max_tokens=args.max_tokens,
        temperature=args.temp,
        seed=args.seed,
        draft_max=args.draft_max,
        policy=args.policy,
        threshold=args.threshold,
    )
    return Plan(problem_set(args, args.set), args.modes, settings, args.think, args.strict_units)


def _open_run(args: argparse.Namespace, header: "Header") -> "RunFile":
    from clover_local.bench.store import RunFile, new_path, unfinished

    if args.resume:
        return RunFile.resume(args.run or unfinished(header), header)
    return RunFile.create(args.run or new_path(header), header)


def _answer_all(plan: "Plan", model: Any, grader: Any, run: "RunFile") -> bool:
    """Answer what is left; False when Ctrl-C came first."""
    from clover_local.bench import math500
    from clover_local.bench.display import Board
    from clover_local.bench.store import Record

    done = {record.key for record in run.records}
    if len(done) == len(plan.jobs()):
        return True
    try:
        math500.warm(model, plan)
        with Board(plan.modes, len(plan.problems.problems), run.records) as board:
            for fact in math500.run(model, plan, grader, done):
                if isinstance(fact, Record):
                    run.append(fact)
                board.show(fact)
    except KeyboardInterrupt:
        return False
    finally:
        run.close()
    return True


def _again(path: Path) -> str:
    """The command line that goes on with a run."""
    import shlex

    words = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["clover", *words, "--resume", *([] if "--run" in words else ["--run", str(path)])])


def _print_report(header: "Header", records: "list[Record]", output: str) -> None:
    from clover_local.bench import figures, render

    if not records:
        return
    report = figures.report({**header.about, "fixed": header.fixed}, records)
    if output == "md":
        print(render.math500_markdown(report))
    elif output == "json":
        print(render.as_json(report))
    elif output == "jsonl":
        print(render.as_jsonl(report["answers"]))
    else:
        print(render.as_csv(report["answers"]))


def _regrade(args: argparse.Namespace) -> int:
    from clover_local.bench import regrade, render
    from clover_local.bench.grading import Grader

    records = regrade.read(args.grade_only)
    with Grader(strict_units=args.strict_units) as grader:
        graded = regrade.grade(records, grader)
    if args.output == "md":
        print(regrade.markdown(records, graded))
    elif args.output == "json":
        print(render.as_json(regrade.summary(records, graded)))
    else:
        rows = [regrade.row(record) for record in graded]
        print(render.as_jsonl(rows) if args.output == "jsonl" else render.as_csv(rows))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from clover_local.bench import compare, render

    a, b = compare.load_report(args.a), compare.load_report(args.b)
    found = compare.compare(a, b)
    print(render.as_json(found) if args.output == "json" else compare.markdown(a, b, found))
    return 0
