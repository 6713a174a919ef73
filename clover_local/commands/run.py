"""`clover run`: one prompt, one answer. The answer goes to stdout; everything else to stderr."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clover_local.commands import options
from clover_local.commands.progress import bar
from clover_local.errors import UsageError

if TYPE_CHECKING:
    from clover_local.api import Model, Prompt
    from clover_local.decoding.events import Done, Stats
    from clover_local.decoding.settings import Settings

INTERRUPTED = 130
ENDINGS = {
    "length": "stopped after the {tokens} tokens of --predict",
    "context": "stopped because the context of {context} tokens is full (--ctx-size)",
    "cancelled": "stopped by Ctrl-C",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover run`."""
    parser.add_argument("prompt", nargs="?", help="the prompt; `-` or nothing reads it from stdin")
    add = parser.add_argument_group("prompt").add_argument
    add("-f", "--file", metavar="FILE", help="read the prompt from a file")
    add("-sys", "--system-prompt", metavar="TEXT", help="what the model is told before the prompt")
    add("--raw", action="store_true", help="give the prompt to the model as it is, without its chat template")
    add("--think", action=argparse.BooleanOptionalAction, help="let the model reason first, where it can")
    add("--tools", metavar="FILE", help="a JSON list of the functions that the model may call")
    add("--chat-template-kwargs", metavar="JSON", help="more variables for the chat template, as an object")
    options.add_model_options(parser)
    options.add_decoding_options(parser)
    add = parser.add_argument_group("output").add_argument
    add("--json", action="store_true", help="print one JSON object: text, ending, figures")
    add("--no-perf", action="store_true", help="do not print timings to stderr")


def main(args: argparse.Namespace) -> int:
    """Answer the prompt; 130 when stopped by Ctrl-C, with what was written until then."""
    settings = options.settings_of(args)
    prompt, variables = read_prompt(args), template_variables(args)
    from clover_local.api import load, resolve
    from clover_local.model.draft import DraftSettings

    if args.model is None:
        print("note: this is the built-in demo model; --model names another", file=sys.stderr)
    path = resolve(args.model or "demo", offline=args.offline)
    with bar(f"loading {path.name}", "bytes") as progress:
        loaded = load(path, progress=progress, **options.load_arguments(args))
    with loaded as model:
        model.engine.drafts = DraftSettings(args.draft_experts, args.draft_budget)
        if settings.mode != "plain" and not model.spec.can_draft:
            print(f"note: {model.path} holds no preview weights: one token at a time", file=sys.stderr)
        if model.engine.note:
            print(f"note: {model.engine.note}", file=sys.stderr)
        return answer(model, prompt, settings, args, variables)


def answer(
    model: "Model",
    prompt: "Prompt",
    settings: "Settings",
    args: argparse.Namespace,
    variables: dict[str, Any],
) -> int:
    """Stream the answer to stdout and its figures to stderr; returns the exit code."""
    from clover_local.api import Done, Tokens

    parts: list[str] = []
    done: Done | None = None
    with ExitStack() as reading, _stop_on_interrupt() as stopped:
        tell = reading.enter_context(bar("reading the prompt", "tokens"))
        for event in model.generate(prompt, settings, cancelled=stopped, progress=tell, **variables):
            reading.close()  # the prompt is in; the bar must be gone before the answer begins
            if isinstance(event, Tokens) and event.text:
                parts.append(event.text)
                if not args.json:
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
            elif isinstance(event, Done):
                done = event
    assert done is not None, "an answer ends with Done"
    if args.json:
        print(json.dumps(report(model, settings, "".join(parts), done), ensure_ascii=False))
    elif parts and not parts[-1].endswith("\n"):
        print(flush=True)
    if not args.no_perf:
        print(timings(done, settings, model), file=sys.stderr)
    return INTERRUPTED if done.reason == "cancelled" else 0


def read_prompt(args: argparse.Namespace) -> "Prompt":
    """The prompt, a text (--raw) or messages; raises UsageError when there is none or it is not UTF-8."""
    if args.prompt not in (None, "-") and args.file:
        raise UsageError("the prompt is given twice, as an argument and with --file")
    text = _text(args)
    if not text.strip():
        raise UsageError("the prompt is empty")
    if args.raw:
        given = [
            n
            for n in ("system_prompt", "think", "tools", "chat_template_kwargs")
            if getattr(args, n) is not None
        ]
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} needs the chat template, so it excludes --raw")
        return text
    system = [] if args.system_prompt is None else [{"role": "system", "content": args.system_prompt}]
    return [*system, {"role": "user", "content": text}]


def _text(args: argparse.Namespace) -> str:
    if args.file:
        try:
            return _decode(Path(args.file).read_bytes(), args.file)
        except OSError as error:
            raise UsageError(f"the prompt file {args.file} cannot be read: {error.strerror}") from error
    if args.prompt in (None, "-"):
        if sys.stdin is None or (args.prompt is None and sys.stdin.isatty()):
            raise UsageError("there is no prompt", 'write it behind the command: clover run "How are you?"')
        return _decode(sys.stdin.buffer.read(), "stdin")
    # Python keeps bytes of an argument that are no UTF-8 as lone surrogates
    return _decode(str(args.prompt).encode("utf-8", "surrogateescape"), "the argument")


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the prompt from {where} is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
        ) from error


def template_variables(args: argparse.Namespace) -> dict[str, Any]:
    """What the chat template is given besides the messages."""
    variables = _json("--chat-template-kwargs", args.chat_template_kwargs, dict) or {}
    if args.tools:
        try:
            variables["tools"] = _json("--tools", Path(args.tools).read_text(encoding="utf-8"), list)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--tools: {args.tools} cannot be read: {error}") from error
    if args.think is not None:
        variables["thinking"] = args.think
    return variables


def _json(option: str, text: str | None, kind: type) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise UsageError(f"{option} must be a JSON {'object' if kind is dict else 'list'}")
    return value


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C end the answer between two passes; the second one ends the program."""
    pressed = False

    def press(signum: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def timings(done: "Done", settings: "Settings", model: "Model") -> str:
    """The figures of an answer for people, two or three lines."""
    from clover_local.decoding.generate import mode_of

    s = done.stats
    mode = mode_of(settings, model.spec)
    parts = [f"{s.tokens} tokens", f"{s.seconds:.2f} s", f"{s.tokens_per_second:,.1f} tok/s"]
    if s.model_passes:
        parts.append(f"{s.tokens_per_pass:.2f} tokens/pass")
    if s.rounds:
        parts.append(f"{s.tokens_per_round:.1f} tokens/{'block' if mode == 'denoise' else 'round'}")
    if s.acceptance is not None:
        parts.append(f"{s.acceptance:.0%} of drafts accepted")
    how = f"self/{settings.accept}" if mode == "self" else mode
    lines = [
        f"prompt: {s.prompt_tokens} tokens, {s.prompt_tokens_per_second:,.1f} tok/s, "
        f"first token after {s.first_token_seconds:.2f} s",
        f"answer: {', '.join(parts)} ({how})",
    ]
    if done.reason in ENDINGS:
        lines.append("note: " + ENDINGS[done.reason].format(tokens=s.tokens, context=model.engine.n_ctx))
    return "\n".join(lines)


def report(model: "Model", settings: "Settings", text: str, done: "Done") -> dict[str, Any]:
    """An answer and its figures as plain values."""
    from clover_local.decoding.generate import mode_of

    return {
        "text": text,
        "reason": done.reason,
        "model": model.name,
        "device": model.engine.device_name,
        "mode": mode_of(settings, model.spec),
        "accept": settings.accept,
        **figures(done.stats),
    }


def figures(stats: "Stats") -> dict[str, Any]:
    """The figures of an answer and what follows from them."""
    return {
        **asdict(stats),
        "prompt_tokens_per_second": stats.prompt_tokens_per_second,
        "tokens_per_second": stats.tokens_per_second,
        "tokens_per_pass": stats.tokens_per_pass,
        "tokens_per_round": stats.tokens_per_round,
        "acceptance": stats.acceptance,
    }
