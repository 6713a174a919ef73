"""The problem sets: MATH-500 from the hub or a file, and the arithmetic of the built-in demo model."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clover_local.errors import CloverError, UsageError
from clover_local.hub import ask

REPO, FILE = "HuggingFaceH4/MATH-500", "test.jsonl"
OFFICIAL_SHA256 = "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
DEMO_SEED, DEMO_PROBLEMS = 500, 100


@dataclass(frozen=True)
class Problem:
    """One question as the model is asked it, and its gold answer (LaTeX, no dollar signs)."""

    id: str
    prompt: str
    answer: str
    subject: str
    level: int | None = None


@dataclass(frozen=True)
class ProblemSet:
    """Problems in the order they are asked; `sha256` is of the whole set before any selection."""

    name: str
    sha256: str
    problems: tuple[Problem, ...]

    @property
    def official(self) -> bool:
        """Whether this is MATH-500 as published."""
        return self.sha256 == OFFICIAL_SHA256


def math500(path: Path | None = None, *, offline: bool = False) -> ProblemSet:
    """MATH-500 from a local JSONL file, or from the hub's cache, or from the hub."""
    file = path or _from_hub(offline)
    try:
        data = file.read_bytes()
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise CloverError(f"the problem set {file} cannot be read: {problem}") from problem
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise CloverError(f"the problem set {file} is empty")
    problems = tuple(_problem(file, number, line) for number, line in rows)
    _refuse_duplicates(file, problems)
    return ProblemSet("math500", hashlib.sha256(data).hexdigest(), problems)


def _from_hub(offline: bool) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import logging

    def fetch(local: bool) -> Path:
        return Path(hf_hub_download(REPO, FILE, repo_type="dataset", local_files_only=local))

    logging.set_verbosity_error()  # its retries would be printed over the progress
    try:
        return fetch(local=True)
    except LocalEntryNotFoundError:
        pass
    try:
        return ask(REPO, lambda: fetch(local=offline))
    except CloverError as problem:
        raise CloverError(
            f"MATH-500 is not here: {problem}",
            hint="connect once, give a copy with --data FILE.jsonl, or use --set demo, which needs nothing",
        ) from problem


def _problem(file: Path, number: int, line: str) -> Problem:
    try:
        row: dict[str, Any] = json.loads(line)
        question, answer = row["problem"], row["answer"]
        level = row.get("level")
        known = isinstance(question, str) and isinstance(answer, str)
        if not known or not (level is None or isinstance(level, int)):
            raise TypeError
    except (KeyError, TypeError, ValueError) as problem:
        raise CloverError(
            f"line {number} of {file} is not a problem",
            hint='each line is a JSON object with the texts "problem" and "answer"; "subject", '
            '"unique_id" and "level" (a number) are optional',
        ) from problem
    name = str(row.get("unique_id") or f"line {number}")
    return Problem(name, f"{question}\n\n{INSTRUCTION}", answer, str(row.get("subject") or "all"), level)


def _refuse_duplicates(file: Path, problems: Sequence[Problem]) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise CloverError(f"{file} holds two problems with the unique_id {problem.id!r}")
        seen.add(problem.id)


def demo(seed: int = DEMO_SEED, count: int = DEMO_PROBLEMS) -> ProblemSet:
    """Problems like those the demo model was trained on, with numbers it never saw."""
    from clover_local.bench.problems import held_out

    made = held_out(seed, count)
    problems = tuple(
        Problem(f"demo/{seed}/{number}", one.prompt, str(one.answer), one.category)
        for number, one in enumerate(made, 1)
    )
    text = json.dumps([(one.prompt, one.answer) for one in problems])
    return ProblemSet("demo", hashlib.sha256(text.encode()).hexdigest(), problems)


def select(
    whole: ProblemSet,
    *,
    subjects: Sequence[str] = (),
    levels: Sequence[int] = (),
    sample: int | None = None,
    limit: int | None = None,
) -> ProblemSet:
    """The part of a set with these subjects and levels, shuffled by the seed `sample`, at most `limit`."""
    found = list(whole.problems)
    for wanted, have, option in (
        ({s.casefold() for s in subjects}, {p.subject.casefold() for p in found}, "--subjects"),
        (set(levels), {p.level for p in found}, "--levels"),
    ):
        unknown = sorted(map(str, wanted - have))
        if unknown:
            there = ", ".join(
                sorted(map(str, {p.subject for p in found} if option == "--subjects" else have))
            )
            raise UsageError(f"{option} {', '.join(unknown)} matches no problem; there are: {there}")
    if subjects:
        names = {s.casefold() for s in subjects}
        found = [p for p in found if p.subject.casefold() in names]
    if levels:
        found = [p for p in found if p.level in levels]
    if sample is not None:
        random.Random(sample).shuffle(found)
    found = found[:limit]
    if not found:
        raise UsageError("the selection holds no problem")
    return replace(whole, problems=tuple(found))
