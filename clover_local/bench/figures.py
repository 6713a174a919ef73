"""From the answers of a run to its figures. Speed itself is computed in decoding/events.py."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import Any, TypeVar

from clover_local.bench.statistics import Interval, mcnemar, paired_ratio, wilson
from clover_local.bench.store import Record
from clover_local.decoding.events import PassKind, Stats

N = TypeVar("N", int, float)


def total(stats: Iterable[Stats]) -> Stats:
    """Many answers as one: every count and time added up."""
    many = list(stats)
    return Stats(
        tokens=sum(one.tokens for one in many),
        seconds=sum(one.seconds for one in many),
        prompt_tokens=sum(one.prompt_tokens for one in many),
        prompt_reused=sum(one.prompt_reused for one in many),
        prompt_seconds=sum(one.prompt_seconds for one in many),
        first_token_seconds=sum(one.first_token_seconds for one in many),
        passes=_by_kind(one.passes for one in many),
        pass_seconds=_by_kind(one.pass_seconds for one in many),
        from_prefill=sum(one.from_prefill for one in many),
        rounds=sum(one.rounds for one in many),
        round_tokens=sum(one.round_tokens for one in many),
        drafted=_by_place(one.drafted for one in many),
        accepted=_by_place(one.accepted for one in many),
    )


def _by_kind(tables: Iterable[Mapping[PassKind, N]]) -> dict[PassKind, N]:
    out: dict[PassKind, N] = {}
    for table in tables:
        for kind, amount in table.items():
            out[kind] = out[kind] + amount if kind in out else amount
    return out


def _by_place(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*counts, fillvalue=0))


@dataclass(frozen=True)
class Share:
    """How many of a group were right, with a 95 % interval."""

    right: int
    total: int
    accuracy: Interval


@dataclass(frozen=True)
class ModeFigures:
    """Everything about one mode of a run. Speeds in tokens per second, times in seconds."""

    answers: Share
    by_subject: dict[str, Share]
    by_level: dict[str, Share]
    tokens: int
    decode_seconds: float
    tokens_per_second: float  # all tokens over all decode seconds
    median_tokens_per_second: float  # of the problems
    first_token_seconds: float  # median
    prompt_tokens_per_second: float
    tokens_per_pass: float
    acceptance: float | None
    acceptance_by_position: tuple[float, ...]  # of the drafts verified there
    pass_milliseconds: dict[str, float]  # mean by kind
    truncated: int  # ended by --max-tokens or a full context
    unanswered: int
    ungradable: int  # answers that broke the grader's limits
    wall_seconds: float


@dataclass(frozen=True)
class AgainstPlain:
    """A mode beside plain on the problems both answered."""

    problems: int
    speed: Interval  # times as fast
    same_text: int
    only_plain_right: int
    only_this_right: int
    mcnemar_p: float


def share(records: Iterable[Record]) -> Share:
    """Count what was right."""
    rights = [record.right for record in records]
    return Share(sum(rights), len(rights), wilson(sum(rights), len(rights)))


def mode_figures(records: Sequence[Record]) -> ModeFigures:
    """The figures of one mode's answers; at least one answer."""
    whole = total(record.stats for record in records)
    return ModeFigures(
        answers=share(records),
        by_subject=_grouped(records, lambda record: record.subject),
        by_level=_grouped(records, lambda record: "" if record.level is None else str(record.level)),
        tokens=whole.tokens,
        decode_seconds=whole.seconds,
        tokens_per_second=whole.tokens_per_second,
        median_tokens_per_second=median(record.stats.tokens_per_second for record in records),
        first_token_seconds=median(record.stats.first_token_seconds for record in records),
        prompt_tokens_per_second=whole.prompt_tokens_per_second,
        tokens_per_pass=whole.tokens_per_pass,
        acceptance=whole.acceptance,
        acceptance_by_position=tuple(
            kept / tried if tried else math.nan
            for kept, tried in zip(whole.accepted, whole.drafted, strict=True)
        ),
        pass_milliseconds={
            kind: 1e3 * whole.pass_seconds.get(kind, 0.0) / count
            for kind, count in whole.passes.items()
            if count
        },
        truncated=sum(record.ended in ("length", "context") for record in records),
        unanswered=sum(record.verdict == "no answer" for record in records),
        ungradable=sum(record.verdict not in ("graded", "no answer") for record in records),
        wall_seconds=sum(record.wall_seconds for record in records),
    )


def _grouped(records: Sequence[Record], group: Callable[[Record], str]) -> dict[str, Share]:
    names = sorted({group(record) for record in records} - {""})
    return {name: share(record for record in records if group(record) == name) for name in names}


def against_plain(plain: Sequence[Record], other: Sequence[Record]) -> AgainstPlain | None:
    """Compare a mode with plain; None without common problems."""
    mine = {record.problem: record for record in other}
    pairs = [(record, mine[record.problem]) for record in plain if record.problem in mine]
    if not pairs:
        return None
    only_plain = sum(a.right and not b.right for a, b in pairs)
    only_other = sum(b.right and not a.right for a, b in pairs)
    return AgainstPlain(
        problems=len(pairs),
        speed=paired_ratio(
            *([(r.stats.decoded, r.stats.seconds) for r in side] for side in zip(*pairs, strict=True))
        ),
        same_text=sum(a.text == b.text for a, b in pairs),
        only_plain_right=only_plain,
        only_this_right=only_other,
        mcnemar_p=mcnemar(only_plain, only_other),
    )


def by_mode(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records in their order, by mode in order of first appearance in the canonical order of modes."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.mode, []).append(record)
    order = {"plain": 0, "self": 1, "denoise": 2}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], 9)))


def report(about: dict[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """The run as one JSON value: what was run, figures by mode, an entry per answer (without its text)."""
    modes = by_mode(records)
    plain = modes.get("plain", [])
    beside = {mode: against_plain(plain, own) for mode, own in modes.items() if mode != "plain"}
    return {
        "clover_bench_report": 1,
        "task": "math500",
        **about,
        "modes": {mode: asdict(mode_figures(own)) for mode, own in modes.items()},
        "against_plain": {mode: asdict(one) for mode, one in beside.items() if one is not None},
        "rss_peak_bytes": max((record.rss_bytes for record in records), default=0),
        "vram_peak_bytes": max((record.vram_bytes for record in records), default=0),
        "answers": [answer_row(record) for record in records],
    }


def answer_row(record: Record) -> dict[str, Any]:
    """One answer's line in the JSON lines and CSV outputs, which comparing two reports needs too."""
    stats = record.stats
    return {
        "problem": record.problem,
        "mode": record.mode,
        "subject": record.subject,
        "level": record.level,
        "right": record.right,
        "answer": record.answer,
        "gold": record.gold,
        "verdict": record.verdict,
        "ended": record.ended,
        "tokens": stats.tokens,
        "decoded": stats.decoded,
        "decode_seconds": stats.seconds,
        "tokens_per_second": stats.tokens_per_second,
        "first_token_seconds": stats.first_token_seconds,
        "prompt_tokens": stats.prompt_tokens,
        "prompt_seconds": stats.prompt_seconds,
        "tokens_per_pass": stats.tokens_per_pass,
        "acceptance": stats.acceptance,
        "wall_seconds": record.wall_seconds,
    }
