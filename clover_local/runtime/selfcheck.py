"""Proves our kernels against ggml's graphs on the card that is there, before they may run. The outcome is remembered.

Both compute the same passes over the same weights and the same state: every kind of pass, every width that has a
graph of its own, an empty and a filled context, and what the passes that move the state leave behind.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from clover_local.errors import CardFullError, CloverError
from clover_local.ggml.backend import download, upload
from clover_local.model.draft import DraftSettings
from clover_local.model.passes import Kind, Model
from clover_local.model.processing import Processing, process
from clover_local.model.spec import MAX_ROWS, Spec
from clover_local.runtime.graphs import Runner
from clover_local.runtime.response import Response

ROWS = (1, 2, 8, 16, 32)
COMMITTED = 37  # tokens of the filled context: no multiple of anything
LONG = 2501  # tokens of a context in which every split of attention has several turns
PIECE = 512  # rows of the prefill that fills it
MOVES = ((3, 2), (8, 5), (32, 31))  # rows of a verify and how many of them are committed
STORED = (1, 9)  # rows of a prefill
DRAFTED = (8, 16, 32)
PROBE = 3  # rows that look at what was committed
CLOSE = 0.99
"""Correlation of a row's logits from which on both count as the same network: two of ggml's own devices correlate at
0.99 and more. At least half of the passes of a kind must, by their median row. Not all: where two experts are equally
good a rounding decides, and the row (in a preview: the block) goes on with another expert."""
PASS, ROW = 0.9, 0.5
"""What the median row of every pass must reach, and every single row; rows of another expert stay far above, garbage
far below."""
STATE = 0.1
"""Difference of what a commit leaves in the first layer, which no expert has touched, over what it changed there."""
CLEAR = 8.0
"""Multiples of a row's mean difference by which the first choice must lead to count as clear."""


@dataclass(frozen=True)
class Outcome:
    """How many comparisons were made, and for each that failed the end of a sentence."""

    made: int
    wrong: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the kernels may run."""
        return self.made > 0 and not self.wrong

    @property
    def sentence(self) -> str:
        """The outcome for people."""
        if self.good:
            return f"{self.made} of {self.made} comparisons with ggml's graphs agree on this card"
        failed = (
            f"{len(self.wrong)} of {self.made} comparisons with ggml's graphs"
            if self.made > 1
            else "their check"
        )
        return f"{failed} failed on this card: {self.wrong[0]}"


def settle(key: str, folder: Path, check: Callable[[], Outcome], *, anew: bool = False) -> Outcome:
    """The outcome remembered under a key in a folder; found out now where there is none, or `anew`.

    While `check` runs the folder says that it failed: a kernel that takes the whole process with it is not tried
    a second time. Raises CardFullError when there was no memory to check with.
    """
    path = folder / f"check-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if not anew:
        try:
            found = json.loads(path.read_text())
            return Outcome(int(found["made"]), tuple(str(one) for one in found["wrong"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # never checked, or an unreadable note: check now
    _note(path, Outcome(1, (f"never came to its end (to try again, delete {path})",)))
    try:
        outcome = check()
    except CardFullError:
        path.unlink(missing_ok=True)  # says nothing about the kernels
        raise
    except (CloverError, RuntimeError) as error:  # the bindings raise the latter
        outcome = Outcome(1, (f"ended with: {error}",))
    except BaseException:
        path.unlink(missing_ok=True)  # somebody was in a hurry: nothing is known
        raise
    _note(path, outcome)
    return outcome


def _note(path: Path, outcome: Outcome) -> None:
    fresh = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(asdict(outcome)))
        fresh.replace(path)
    except OSError:
        pass  # an unwritable cache costs seconds at the next start, nothing else


def model_key(spec: Spec, types: dict[str, str]) -> str:
    """What a model is to the kernels: its shape and the types of its tensors."""
    return repr((replace(spec, name="", preview=None), spec.can_draft, sorted(types.items())))


def check(model: Model, n_ctx: int, graphs: Runner, kernels: Runner) -> Outcome:
    """Compare both runners over an empty state, which is empty again afterwards."""
    checks = _Checks(model, n_ctx, graphs, kernels)
    empty = checks.save()
    try:
        found = list(checks.all())
    finally:
        checks.restore(empty)
    wrong = [f"{one.name} {one.problem}" for one in found if one.problem is not None]
    for kind in dict.fromkeys(one.kind for one in found if one.median is not None):
        medians = sorted(one.median for one in found if one.kind == kind and one.median is not None)
        close = sum(median >= CLOSE for median in medians)
        if 2 * close < len(medians):
            best = f"the best at {medians[-1]:.3f}"
            wrong.append(
                f"only {close} of {len(medians)} passes ({kind}) correlate with ggml's at {CLOSE}, {best}"
            )
    return Outcome(len(found), tuple(wrong))


@dataclass(frozen=True)
class _Found:
    """One comparison: the end of a sentence about what is wrong, or None; the correlation of its median row."""

    kind: str
    name: str
    problem: str | None
    median: float | None = None


@dataclass(frozen=True)
class _Checks:
    model: Model
    n_ctx: int
    graphs: Runner
    kernels: Runner

    def all(self) -> Iterator[_Found]:
        """Every comparison."""
        past = max(min(COMMITTED, self.n_ctx - 2 * MAX_ROWS), 0)
        yield from self.passes(0, (8,))
        if past:
            self.graphs.run(Kind.STORE, words(self.model.spec, past), 0, Response())
        yield from self.passes(past, ROWS)
        yield from self.processing(past)
        if self.model.spec.can_draft:
            yield from self.drafts(past)
        committed = self.save()
        for rows, kept in MOVES:
            if past + rows + PROBE <= self.n_ctx:
                yield from self.moved(committed, past, rows, kept)
        for rows in STORED:
            if past + rows + PROBE <= self.n_ctx:
                yield from self.moved(committed, past, rows, None)
        if (
            self.n_ctx >= LONG + MAX_ROWS and self.model.weights.host is None
        ):  # else the prefill takes too long
            for start in range(past, LONG, PIECE):
                piece = words(self.model.spec, min(PIECE, LONG - start))
                self.graphs.run(Kind.STORE, piece, start, Response())
            yield from self.passes(LONG, (1, MAX_ROWS))

    def passes(self, past: int, widths: Sequence[int]) -> Iterator[_Found]:
        """Passes that leave the state alone."""
        for rows in widths:
            for kind in (Kind.VERIFY, *((Kind.PREVIEW,) if self.model.spec.can_draft else ())):
                if past + rows > self.n_ctx:
                    continue
                tokens = (
                    block(self.model.spec, rows) if kind is Kind.PREVIEW else words(self.model.spec, rows)
                )
                want = self.graphs.run(kind, tokens, past, Response()).logits()
                ours = self.kernels.run(kind, tokens, past, Response())
                got = ours.logits()
                problem, median = differs(want, got)
                name = f"a {kind} of {rows} rows after {past} tokens"
                yield _Found(kind, name, problem or misjudged(got, ours.ids, ours.p), median)

    def processing(self, past: int) -> Iterator[_Found]:
        """Penalties: the numpy twin on our own logits without them."""
        tokens, settings = words(self.model.spec, 2), Processing(0.5, 0.25, 1.5)
        plain = self.kernels.run(Kind.VERIFY, tokens, past, Response()).logits()
        response = Response(settings, {tokens[1]: 3}, False, [0.0] * 2, [0.0] * 2)
        got = self.kernels.run(Kind.VERIFY, tokens, past, response).logits()
        twin = partial(process, mask_id=self.model.spec.mask_id, position=1, think_closed=True)
        want = np.stack([twin(row, settings, counts=response.counts) for row in plain])
        known = np.isfinite(want)
        off = float(np.abs(got[known] - want[known]).max(initial=0.0 if known.any() else np.nan))
        yield _Found("processing", "the response processing", None if off < 1e-3 else f"is off by {off:.3g}")

    def drafts(self, past: int) -> Iterator[_Found]:
        """Drafts with few experts: that they end, and choose by their own logits. What they propose is verified."""
        spec = self.model.spec
        few = DraftSettings(max(1, spec.experts_used - 1), max(spec.experts_used, spec.experts // 4))
        for rows in DRAFTED:
            if past + rows > self.n_ctx:
                continue
            ours = self.kernels.run(Kind.PREVIEW, block(spec, rows), past, Response(), few)
            logits = ours.logits()[1:]  # the first token of a draft is known
            problem = misjudged(logits, ours.ids[1:], ours.p[1:])
            yield _Found("draft", f"a draft of {rows} rows after {past} tokens", problem)

    def moved(self, before: list[np.ndarray], past: int, rows: int, kept: int | None) -> Iterator[_Found]:
        """Rows committed by either runner, judged by the next pass; `kept` None: a pass that commits them all."""
        spec, added = self.model.spec, rows if kept is None else kept
        tokens, probe = words(spec, rows), words(spec, PROBE)
        kind = "prefill" if kept is None else "commit"
        name = f"a prefill of {rows} rows" if kept is None else f"a commit of {kept} of {rows} rows"
        seen, left = [], []
        for mover in (self.graphs, self.kernels):
            mover.run(Kind.STORE if kept is None else Kind.VERIFY, tokens, past, Response())
            if kept is not None:
                mover.commit(kept, past)
            left.append(self.save())
            seen.append(self.graphs.run(Kind.VERIFY, probe, past + added, Response()).logits())
            if mover is self.kernels:
                seen.append(self.kernels.run(Kind.VERIFY, probe, past + added, Response()).logits())
            self.restore(before)
        for node, part in enumerate(("convolution", "memory") if before else ()):
            off = np.linalg.norm(left[1][node] - left[0][node]) / np.linalg.norm(left[0][node] - before[node])
            problem = (
                None if off < STATE else f"leaves the first layer's {part} off by {off:.0%} of the change"
            )
            yield _Found("state", name, problem)
        yield _Found(kind, f"{name}, seen by ggml,", *differs(seen[0], seen[1]))
        yield _Found(kind, f"{name}, seen by our kernels,", *differs(seen[0], seen[2]))

    def save(self) -> list[np.ndarray]:
        """A copy of what a recurrent state cannot rewind."""
        self.model.backend.synchronize()
        states = self.model.state.gdn.values()
        return [download(node, np.float32) for state in states for node in (state.ring, state.s)]

    def restore(self, saved: list[np.ndarray]) -> None:
        """Put a copy back."""
        self.model.backend.synchronize()
        states = self.model.state.gdn.values()
        nodes = [node for state in states for node in (state.ring, state.s)]
        for node, values in zip(nodes, saved, strict=True):
            upload(node, values)


def words(spec: Spec, rows: int) -> list[int]:
    """Different ordinary tokens."""
    return [int(token) for token in np.arange(1, rows + 1) * 7919 % spec.vocab]


def block(spec: Spec, rows: int) -> list[int]:
    """Tokens of which every second one is masked."""
    tokens = words(spec, rows)
    if spec.mask_id is not None:
        tokens[1::2] = [spec.mask_id] * len(tokens[1::2])
    return tokens


def differs(want: np.ndarray, got: np.ndarray) -> tuple[str | None, float]:
    """Why two arrays of logits [rows, vocab] are not those of one network, as the end of a sentence.

    The second value is the correlation of the median row.
    """
    known = np.isfinite(want)
    if got.shape != want.shape or not np.isfinite(got[known]).all():
        return "gives values that are no numbers", 0.0
    columns = known.all(0)
    want, got = want[:, columns].astype(np.float64), got[:, columns].astype(np.float64)
    rows = [_correlation(x, y) for x, y in zip(want, got, strict=True)]
    median = float(np.median(rows))
    if median < PASS or min(rows) < ROW:
        return f"correlates with ggml's at only {median:.3f} (worst row {min(rows):.3f})", median
    noise = np.sqrt(((want - got) ** 2).mean(1))
    top = np.partition(want, -2, axis=1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > CLEAR * noise
    if (want.argmax(1) != got.argmax(1))[clear].any():
        return "chooses another token where the choice is clear", median
    return None, median


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else float(np.array_equal(x, y))


def misjudged(logits: np.ndarray, ids: np.ndarray, p: np.ndarray) -> str | None:
    """Whether choices [rows] and their probabilities are not those of their own logits, as the end of a sentence."""
    top = logits.max(1)
    if not np.isfinite(top).all():
        return "gives values that are no numbers"
    if (logits[np.arange(len(ids)), ids] < top).any():
        return "chooses a token that is not the likeliest"
    chance = 1 / np.exp((logits - top[:, None]).astype(np.float64)).sum(1)
    return (
        None if np.allclose(p, chance, rtol=1e-3, atol=1e-6) else "gives another probability than its logits"
    )
