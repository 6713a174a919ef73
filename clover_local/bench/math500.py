"""The MATH-500 check: every problem in every mode, one after the other, graded as it is answered.

Yields facts; `clover bench` draws them. The modes of one problem follow each other directly and
take turns at going first, so that a machine that slows down slows all of them.
"""

import time
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from clover_local.api import Model
from clover_local.bench import machine, options
from clover_local.bench.grading import Grader
from clover_local.bench.store import Header, Record
from clover_local.bench.tasks import Problem, ProblemSet
from clover_local.decoding.events import Done, Tokens
from clover_local.decoding.settings import Mode, Settings
from clover_local.errors import UsageError

LIVE_SECONDS = 0.25  # between two reports inside an answer
WARM_TOKENS = 48  # long enough for every mode to build its graphs


@dataclass(frozen=True)
class Plan:
    """What to run. `settings.mode` is replaced by each of `modes`."""

    problems: ProblemSet
    modes: tuple[Mode, ...]
    settings: Settings
    thinking: bool | None
    strict_units: bool = False

    def jobs(self) -> list[tuple[Problem, Mode]]:
        """Every problem in every mode, in the order they run."""
        turn = len(self.modes)
        return [
            (problem, mode)
            for place, problem in enumerate(self.problems.problems)
            for mode in (*self.modes[place % turn :], *self.modes[: place % turn])
        ]


@dataclass(frozen=True)
class Live:
    """Where an answer stands."""

    problem: str
    mode: Mode
    tokens: int
    seconds: float  # of decoding


def check(plan: Plan, model: Model) -> None:
    """Raise UsageError for a mode this model cannot run."""
    if not model.spec.can_draft and plan.modes != ("plain",):
        raise UsageError(
            f"{model.name} holds no preview weights, so it runs one token at a time only",
            hint="measure it with --modes plain",
        )


def header(plan: Plan, model: Model, identity: dict[str, Any], options: dict[str, Any]) -> Header:
    """What must agree for a run to be continued, and what describes it. `options` are the engine's."""
    fixed = {
        "set": plan.problems.name,
        "set sha256": plan.problems.sha256,
        "problems": [problem.id for problem in plan.problems.problems],
        "model sha256": identity["sha256"],
        "modes": list(plan.modes),
        "settings": {name: value for name, value in asdict(plan.settings).items() if name != "mode"},
        "thinking": plan.thinking,
        "strict units": plan.strict_units,
        "device": model.engine.device_name,
        **options,
    }
    about = {
        "model": identity,
        "official_set": plan.problems.official,
        "host": machine.host(),
        "versions": machine.versions(),
        "memory": dict(model.engine.memory),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    return Header(fixed, about)


def warm(model: Model, plan: Plan) -> None:
    """Answer the beginning of the first problem in every mode, unmeasured: graphs are built, pages read."""
    for mode in plan.modes:
        settings = replace(plan.settings, mode=mode, max_tokens=min(WARM_TOKENS, plan.settings.max_tokens))
        model.engine.reset()
        for _ in model.generate(_ids(model, plan, plan.problems.problems[0])[0], settings):
            pass


def run(
    model: Model, plan: Plan, grader: Grader, done: Container[tuple[str, str]] = ()
) -> Iterator[Live | Record]:
    """Answer and grade what is not `done` yet."""
    for problem, mode in plan.jobs():
        if (problem.id, mode) not in done:
            yield from _answer(model, plan, grader, problem, mode)


def _ids(model: Model, plan: Plan, problem: Problem) -> tuple[list[int], bool]:
    """The prompt's tokens, and whether it ends inside the reasoning (the answer then holds no `<think>`)."""
    prompt = options.render(model, problem, plan.thinking)
    return model.tokenizer.encode(prompt), prompt.rfind("<think>") > prompt.rfind("</think>")


def _answer(
    model: Model, plan: Plan, grader: Grader, problem: Problem, mode: Mode
) -> Iterator[Live | Record]:
    settings = replace(plan.settings, mode=mode)
    prompt, opened = _ids(model, plan, problem)
    model.engine.reset()
    began = shown = time.perf_counter()
    decoding, pieces, count, end = began, [], 0, None
    for event in model.generate(prompt, settings):
        if isinstance(event, Tokens):
            now = time.perf_counter()
            if not count:
                decoding = now
            pieces.append(event.text)
            count += len(event.ids)
            if now - shown >= LIVE_SECONDS:
                shown = now
                yield Live(problem.id, mode, count, now - decoding)
        elif isinstance(event, Done):
            end = event
    assert end is not None, "an answer ends with Done"
    spent, text = time.perf_counter() - began, "".join(pieces)
    verdict = grader.grade(text, problem.answer, thinking=opened)
    yield Record(
        problem=problem.id,
        mode=mode,
        subject=problem.subject,
        level=problem.level,
        gold=problem.answer,
        text=text,
        thinking=opened,
        ended=end.reason,
        stats=end.stats,
        wall_seconds=spent,
        rss_bytes=machine.rss_peak(),
        vram_bytes=machine.vram_used(model.engine.device_name),
        right=verdict.right,
        answer=verdict.answer,
        verdict=verdict.reason,
    )
