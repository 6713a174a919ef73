"""When to draft, how wide, and how much of a draft to verify: expected tokens per millisecond.

Every number is learned while running: what passes cost here, how often a draft of a given confidence is kept,
how far drafts have reached lately. Nothing here changes the text under exact acceptance, only its speed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from clover_local.decoding.acceptance import Acceptance
from clover_local.decoding.costs import MAX_ROWS, Costs
from clover_local.decoding.drafts import Draft

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
    """Chooses the round with the best expected rate, and bounds what trying may cost.

    The bound: a round is only tried when its worst case, nothing kept, fits into an allowance of 3 % of the
    time of 256 plain steps, over any 256 tokens. A stretch that gained lends a fifth of its gain, at most as
    much again: otherwise two unlucky rounds would stop drafting that is twice as fast on average. So a text
    on which drafting does not pay is never more than 3 % slower than plain over any 256 tokens; where good
    drafts turn bad all at once, those 256 tokens may be up to 6 % slower, after a gain of five times that.
    """

    WINDOW = 256
    LOSS = 0.03
    CREDIT = 0.2  # share of the window's gains that may be lost again before drafting stops
    REFRESH = 32  # rounds after which a plain step is taken to measure its cost anew
    FIRST_GAP, LAST_GAP = 16, 256  # plain steps between two tries while drafting does not pay
    MEMORY = 0.8  # weight of the past in the running reach of drafts

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.acceptance = Acceptance()
        self._reach = [0.85 ** (i + 1) for i in range(MAX_ROWS - 1)]
        self._excess: deque[tuple[int, float]] = deque()  # (tokens, ms beyond plain) per round in the window
        self._since_plain = 0
        self._since_draft = 0
        self._gap = self.FIRST_GAP
        self._quotes: dict[tuple[float, int], tuple[float, int]] = {}  # what _best said since it learned

    def width(self, most: int, free: Draft | None) -> int:
        """See Chooser. Compares previews of a few widths, the free draft and a plain step."""
        if self._measure_plain():
            return 0
        plain = 1.0 / self.costs.ms("plain", 1)
        other = plain
        if free is not None:
            other = max(plain, self._best_free(free, most - 1)[0])
        rate, rows = self._best_preview(most)
        if rate > other:
            return rows
        due = rate > 0.0 and other == plain and self._since_draft >= self._gap
        return min(most, WIDTHS[0]) if due else 0  # the cheapest draft tells whether they are good again

    def prefix(self, draft: Draft, most: int) -> int:
        """See Chooser. The prefix with the most expected tokens per millisecond, drafting included."""
        if self._measure_plain():
            return 0
        if draft.source == "ngram":
            return self._best_free(draft, most)[1]
        reach = self.acceptance.reach(draft.source, draft.confidence[:most])
        return self._best(reach, draft.ms, self._allowance())[1]

    def learn(self, round: Round) -> None:
        """See Chooser."""
        plain_step = round.verified == 0
        spent = self._spent(round)
        self.costs.observe(*(("plain", 1) if plain_step else ("verify", round.verified + 1)), round.ms)
        self._since_plain = 0 if plain_step else self._since_plain + 1
        if round.draft is not None:
            self._learn_draft(round, round.draft)
        if not plain_step or (round.draft is not None and round.draft.source == "preview"):
            self._forget_quotes()
        tokens, plain = 1 + round.accepted, self.costs.ms("plain", 1)
        excess = spent - (0.0 if plain_step else tokens * plain)
        self._remember(tokens, excess)
        if round.draft is None or round.draft.source != "preview":
            self._since_draft += 1
            if self._since_draft % self.FIRST_GAP == 0:
                self._forget_quotes()
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
        """The best rate of a round with a preview of at most `most` rows, and its rows."""
        key = -1.0, most
        if key not in self._quotes:
            allowance = self._allowance()
            rates = ((self._preview_rate(w, allowance), w) for w in {*WIDTHS, most} if 2 <= w <= most)
            self._quotes[key] = max(rates, default=(0.0, 0))
        return self._quotes[key]

    def _best_free(self, draft: Draft, most: int) -> tuple[float, int]:
        """The best rate of verifying a free draft, all of whose tokens are equally sure, and how many."""
        key = draft.confidence[0], most
        if key not in self._quotes:
            reach = self.acceptance.reach(draft.source, draft.confidence[:most])
            self._quotes[key] = self._best(reach, 0.0, self._allowance())
        return self._quotes[key]

    def _forget_quotes(self) -> None:
        # quotes are kept over plain steps, which teach little: they would cost more than being plain
        self._quotes.clear()

    def _preview_rate(self, rows: int, allowance: float) -> float:
        """Expected tokens per ms of a round with a preview of `rows`; 0 where it may not be tried."""
        draft = self.costs.ms("draft", rows)
        return self._best(self._reach[: rows - 1], draft, allowance)[0] if draft <= allowance else 0.0

    def _best(self, reach: list[float], spent: float, allowance: float | None = None) -> tuple[float, int]:
        """The best rate (tokens per ms) of verifying a prefix and its length, after `spent` ms."""
        plain = self.costs.ms("plain", 1)
        best, length = 1.0 / (spent + plain), 0
        expected, done = 1.0, 0
        for rows in _shapes(len(reach)):
            expected += sum(reach[done : rows - 1])
            done = rows - 1
            verify = self.costs.ms("verify", rows)
            if allowance is not None and spent + verify - plain > allowance:
                break
            if expected / (spent + verify) > best:
                best, length = expected / (spent + verify), rows - 1
        return best, length

    def _allowance(self) -> float:
        """Milliseconds that may still be lost: budget and credit, less the worst run of losses so far."""
        worst = run = 0.0
        for _, excess in reversed(self._excess):
            run += excess
            worst = max(worst, run)
        budget = self.LOSS * self.WINDOW * self.costs.ms("plain", 1)
        gained = worst - run  # in the window, before that run
        return budget + min(self.CREDIT * gained, budget) - worst

    def _remember(self, tokens: int, excess: float) -> None:
        if excess == 0.0 and self._excess and self._excess[-1][1] == 0.0:
            self._excess[-1] = (self._excess[-1][0] + tokens, 0.0)  # a run of plain steps is one entry
        elif excess or self._excess:
            self._excess.append((tokens, excess))
        inside = 0
        for i in range(len(self._excess) - 1, -1, -1):
            inside += self._excess[i][0]
            if inside >= self.WINDOW:
                for _ in range(i):
                    self._excess.popleft()
                    self._forget_quotes()
                break


def _shapes(drafts: int) -> Iterable[int]:
    """Rows of the verify passes that fit a draft, the whole draft among them."""
    yield from (rows for rows in VERIFY_ROWS if rows <= drafts)
    if drafts:
        yield drafts + 1
