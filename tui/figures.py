"""Figures as a person reads them, and the live meter of an answer being written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from clover_local.decoding.events import Stats

BARS = "▁▂▃▄▅▆▇█"
BIN = 0.25  # seconds per bar of the sparkline
SETTLED = 0.2  # seconds: a first block comes at once, and would read as tens of thousands a second


def short(count: int) -> str:
    """1234 as 1.2k, 131072 as 131k."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:.0f}k"


def context_size(tokens: int) -> str:
    """A context's size as people say it: 4096 is 4k, 131072 is 128k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else short(tokens)


def gigabytes(size: int) -> str:
    """Bytes as 13.9 GB; small ones as MB."""
    return f"{size / 1e9:.1f} GB" if size >= 5e8 else f"{size / 1e6:.0f} MB"


def of_gigabytes(done: int, total: int) -> str:
    """13.9/15.9 GB, in the unit of the total."""
    unit, name, digits = (1e9, "GB", 1) if total >= 5e8 else (1e6, "MB", 0)
    return f"{done / unit:.{digits}f}/{total / unit:.{digits}f} {name}"


def bar(share: float, width: int = 8) -> str:
    """A gauge of so many cells."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "▓" * full + "░" * (width - full)


def footer(stats: Stats, mode: str) -> tuple[str, ...]:
    """The one line of figures under an answer, the most telling first: what does not fit is left out."""
    parts = [f"{stats.tokens_per_second:.1f} tok/s", f"{stats.tokens} tokens", f"{stats.seconds:.2f} s"]
    if mode:
        parts.append(mode)
    if stats.acceptance is not None:
        parts.append(f"{stats.tokens_per_round:.1f} tokens/round")
        parts.append(f"accepted {stats.acceptance:.0%}".replace("%", " %"))
    elif mode == "denoise":
        parts.append(f"{stats.tokens_per_pass:.1f} tokens/pass")
    return tuple(parts)


def table(stats: Stats) -> list[tuple[str, str]]:
    """All figures of an answer, name and value."""
    rows = [
        ("speed", f"{stats.tokens_per_second:.1f} tok/s"),
        ("tokens kept", f"{stats.tokens}"),
        ("time", f"{stats.seconds:.2f} s"),
        ("first token", f"{stats.first_token_seconds * 1e3:.0f} ms"),
        ("prompt", f"{stats.prompt_tokens} tokens computed, {stats.prompt_reused} reused"),
        ("prompt speed", f"{stats.prompt_tokens_per_second:.0f} tok/s"),
        ("tokens per pass", f"{stats.tokens_per_pass:.2f}"),
    ]
    if stats.rounds:
        rows.append(("tokens per round", f"{stats.tokens_per_round:.2f} over {stats.rounds} rounds"))
    if stats.acceptance is not None:
        rows.append(("accepted", f"{stats.acceptance:.1%} of {sum(stats.drafted)} drafts"))
    for kind, count in stats.passes.items():
        ms = stats.pass_seconds.get(kind, 0.0) / count * 1e3 if count else 0.0
        rows.append((f"{kind} passes", f"{count}, {ms:.1f} ms each"))
    return rows


def by_position(stats: Stats) -> str:
    """Acceptance by place in the draft as bars, the first place left."""
    shares = [a / d for a, d in zip(stats.accepted, stats.drafted, strict=False) if d]
    return "".join(BARS[min(int(s * len(BARS)), len(BARS) - 1)] for s in shares)


@dataclass
class Meter:
    """Tokens kept over wall time, from the first decode step; `clock` returns seconds."""

    clock: Callable[[], float] = monotonic
    started: float | None = None
    tokens: int = 0
    bins: list[int] = field(default_factory=list)

    def start(self) -> None:
        """The prompt is in the state; decoding begins."""
        if self.started is None:
            self.started = self.clock()

    def add(self, tokens: int) -> None:
        """Tokens were kept now."""
        self.start()
        assert self.started is not None
        self.tokens += tokens
        at = int((self.clock() - self.started) / BIN)
        self.bins += [0] * (at + 1 - len(self.bins))
        self.bins[at] += tokens

    @property
    def rate(self) -> float:
        """Tokens kept per second so far; 0 until enough time has passed for a figure that means something."""
        spent = self.clock() - self.started if self.started is not None else 0.0
        return self.tokens / spent if spent >= SETTLED else 0.0

    def sparkline(self, width: int = 10) -> str:
        """The last moments as bars, the newest right, the fastest full height."""
        shown = self.bins[-width:]
        top = max(shown, default=0)
        if not top:
            return ""
        return "".join(BARS[round(n / top * (len(BARS) - 1))] for n in shown)
