"""When to draft, how wide, and how much of a draft to verify: expected tokens per millisecond.

Every number is learned while running: what passes cost here, how often a draft of a given confidence is kept,
how far drafts have reached lately. Nothing here changes the text under exact acceptance, only its speed.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from clover_local.decoding.acceptance import Acceptance
from clover_local.decoding.costs import MAX_ROWS, Costs
from clover_local.decoding.drafts import Draft
from clover_local.decoding.guard import Guard

WIDTHS = (4, 8, 16, 32)
VERIFY_ROWS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # few shapes: each is a graph to build and a cost to learn


@dataclass(frozen=True)
class Round:
    """What one round did: the draft if there was one, how many of its tokens were verified and kept."""

    draft: Draft | None
    verified: int  # 0: a plain step
    accepted: int
    ms: float  # of the step, or of the verify pass and its commit; the draft's own cost is apart


class Chooser(Protocol):
    """Decides a round in two questions and hears how it went."""

    def width(self, most: int, free: Draft | None) -> int:
        """Rows of the preview to draft with, at most `most`; 0 for none (then `free` may be verified)."""

    def prefix(self, draft: Draft, most: int) -> int:
        """How many tokens of a draft to verify, at most `most`; 0 for a plain step."""

    def learn(self, round: Round) -> None:
        """Take in what a round did."""


@dataclass(frozen=True)
class Always:
    """Drafts and verifies everything every time; for measuring widths."""

    def width(self, most: int, free: Draft | None) -> int:
        return most if most >= 2 else 0

    def prefix(self, draft: Draft, most: int) -> int:
        return min(len(draft.ids), most)

    def learn(self, round: Round) -> None:
        return


class Policy:
    """Chooses the round with the best expected rate, and bounds what trying may cost (see Guard).

    The rate of a round: the tokens it is expected to keep, less those that being stopped by the guard would cost
    times how much nearer it brings that, per millisecond. A plain step is rated in the same way.
    """

    REFRESH = 32  # rounds after which a plain step is taken to measure its cost anew
    SAMPLE = 8  # plain steps of which one is measured, once their cost is known
    FIRST_GAP, LAST_GAP = 16, 256  # plain steps between two tries while drafting does not pay
    MEMORY = 0.8  # weight of the past in the running reach of drafts
    LONG_MEMORY = 0.97  # the same for the rate that drafted rounds reach

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.acceptance = Acceptance()
        self.guard = Guard()
        self._reach = [0.85 ** (i + 1) for i in range(MAX_ROWS - 1)]
        self._drafted = (0.0, 0.0)  # tokens and milliseconds of drafted rounds, fading
        self._since_plain = 0
        self._since_draft = 0
        self._settled = 0  # until so many steps since the last draft, no preview pays
        self._gap = self.FIRST_GAP
        self._quotes: dict[tuple[float, int], tuple[float, int]] = {}  # what _best said since it learned

    def width(self, most: int, free: Draft | None) -> int:
        """See Chooser. Compares previews of a few widths, the free draft and a plain step."""
        if free is None and self._since_draft < self._settled:
            return 0
        if self._measure_plain():
            return 0
        other = max(0.0, self._best_free(free, most - 1)[0]) if free is not None else 0.0
        gain, rows = self._best_preview(most)
        if gain > other:
            return rows
        least = min(most, WIDTHS[0])  # the cheapest draft tells whether they are good again
        if rows and other == 0.0 and self._since_draft >= self._gap and self._may_draft(least):
            return least
        if (
            free is None
        ):  # with time losses are forgiven; where not they are the reason, only a try tells more
            settled = 0 if self._would_pay(most) else self._gap
            self._settled = max((self._since_draft // self.FIRST_GAP + 1) * self.FIRST_GAP, settled)
        return 0

    def prefix(self, draft: Draft, most: int) -> int:
        """See Chooser. The prefix of the best rate, drafting included."""
        if self._measure_plain():
            return 0
        if draft.source == "ngram":
            return self._best_free(draft, most)[1]
        reach = self.acceptance.reach(draft.source, draft.confidence[:most])
        return self._best(reach, draft.ms)[1]

    def learn(self, round: Round) -> None:
        """See Chooser."""
        if round.verified == 0 and (round.draft is None or round.draft.source == "ngram"):
            self._learn_plain(round.ms)
            return
        self._settled = 0
        spent = self._spent(round)
        self.costs.observe(*(("verify", round.verified + 1) if round.verified else ("plain", 1)), round.ms)
        self._since_plain = self._since_plain + 1 if round.verified else 0
        if round.draft is not None:
            self._learn_draft(round, round.draft)
        tokens, plain = 1 + round.accepted, self.costs.ms("plain", 1)
        excess = spent - (tokens * plain if round.verified else 0.0)
        self.guard.remember(tokens, excess)
        self._count(round, tokens, spent if round.verified else spent + plain, excess)
        self._forget_quotes()

    def _learn_plain(self, ms: float) -> None:
        """A plain step teaches little, and must cost little: on a fast card this is a part of its time."""
        if not self.costs.known or self._since_draft % self.SAMPLE == 0 or self._since_plain >= self.REFRESH:
            self.costs.observe("plain", 1, ms)
        self.guard.pass_plain()
        self._since_plain = 0
        self._since_draft += 1
        if self._since_draft % self.FIRST_GAP == 0 and self._since_draft >= self._settled:
            self._forget_quotes()

    def _count(self, round: Round, tokens: int, ms: float, excess: float) -> None:
        fade = self.LONG_MEMORY
        self._drafted = fade * self._drafted[0] + tokens, fade * self._drafted[1] + ms
        if round.draft is None or round.draft.source != "preview":
            self._since_draft += 1
        else:
            self._since_draft = 0
            self._gap = self.FIRST_GAP if excess <= 0 else min(2 * self._gap, self.LAST_GAP)

    def _spent(self, round: Round) -> float:
        """Milliseconds to hold against drafting: a plain step counts as none, a hiccup (a graph built anew,
        another program's turn) as no more than twice what was expected."""
        spent = 0.0
        if round.draft is not None and round.draft.source == "preview":
            spent += min(round.draft.ms, 2 * self.costs.ms("draft", len(round.draft.ids) + 1))
        if round.verified:
            spent += min(round.ms, 2 * self.costs.ms("verify", round.verified + 1))
        return spent

    def _learn_draft(self, round: Round, draft: Draft) -> None:
        judged = min(round.accepted + 1, round.verified)
        for i in range(judged):
            self.acceptance.observe(draft.source, draft.confidence[i], i < round.accepted)
        if draft.source != "preview":
            return
        self.costs.observe("draft", len(draft.ids) + 1, draft.ms)
        reach = self.acceptance.reach(draft.source, draft.confidence)
        per_row = reach[-1] ** (1 / len(reach))
        while len(reach) < len(self._reach):  # beyond a narrow draft, go on at its mean rate
            reach.append(reach[-1] * per_row)
        self._reach = [
            self.MEMORY * old + (1 - self.MEMORY) * new for old, new in zip(self._reach, reach, strict=True)
        ]

    def _measure_plain(self) -> bool:
        return not self.costs.known or self._since_plain >= self.REFRESH

    def _best_preview(self, most: int) -> tuple[float, int]:
        """What the best round with a preview of at most `most` rows gains, and its rows; 0 if none may be."""
        key = -1.0, most
        if key not in self._quotes:
            widths = (w for w in {*WIDTHS, most} if 2 <= w <= most and self._may_draft(w))
            gains = ((self._best(self._reach[: w - 1], self.costs.ms("draft", w))[0], w) for w in widths)
            self._quotes[key] = max(gains, default=(0.0, 0))
        return self._quotes[key]

    def _would_pay(self, most: int) -> bool:
        """Whether a preview would pay if there were nothing to lose."""
        widths = (w for w in WIDTHS if w <= most)
        return any(
            self._best(self._reach[: w - 1], self.costs.ms("draft", w), bold=True)[0] > 0 for w in widths
        )

    def _may_draft(self, rows: int) -> bool:
        return self.costs.ms("draft", rows) <= self.guard.allowance(self.costs.ms("plain", 1))

    def _best_free(self, draft: Draft, most: int) -> tuple[float, int]:
        """What verifying a free draft gains, all of whose tokens are equally sure, and how many to verify."""
        key = draft.confidence[0], most
        if key not in self._quotes:
            reach = self.acceptance.reach(draft.source, draft.confidence[:most])
            self._quotes[key] = self._best(reach, 0.0)
        return self._quotes[key]

    def _forget_quotes(self) -> None:
        # quotes are kept over plain steps, which teach little: they would cost more than being plain
        self._quotes.clear()

    def _best(self, reach: list[float], spent: float, *, bold: bool = False) -> tuple[float, int]:
        """The best rate of verifying a prefix after `spent` ms, in tokens per ms beyond a plain step's, and the
        length of the prefix; `bold` as if there were nothing to lose."""
        plain, care = self.costs.ms("plain", 1), self.guard.CARE
        allowance, (drafted, ms) = math.inf if bold else self.guard.allowance(plain), self._drafted
        dread = self.guard.dread(allowance, plain, drafted / ms if ms else 0.0)
        ease = math.exp(-care)  # what a token kept takes from dread
        best, length = (1.0 - dread * (math.exp(care * spent / plain) - 1.0)) / (spent + plain), 0
        expected, kept, done, eased, all_kept = 1.0, 1.0, 0, 0.0, ease
        for rows in _shapes(len(reach)):
            for chance in reach[done : rows - 1]:
                expected += chance
                eased += (kept - chance) * all_kept  # the draft is kept up to here and no further
                kept, all_kept = chance, all_kept * ease
            done = rows - 1
            ms = spent + self.costs.ms("verify", rows)
            if ms - plain > allowance:
                break
            risk = dread * (math.exp(care * ms / plain) * (eased + kept * all_kept) - 1.0)
            if (expected - risk) / ms > best:
                best, length = (expected - risk) / ms, rows - 1
        return best - 1.0 / plain, length


def _shapes(drafts: int) -> Iterable[int]:
    """Rows of the verify passes that fit a draft, the whole draft among them."""
    yield from (rows for rows in VERIFY_ROWS if rows <= drafts)
    if drafts:
        yield drafts + 1
