"""Bounds what drafting may lose over any 256 tokens: 3 % of the time of plain steps, and a tenth of what it won."""

import math
from collections import deque


class Guard:
    """Keeps what rounds took beyond plain steps, and says how much of that may still follow.

    A stretch of 256 tokens may begin anywhere, so what matters is the worst sum of a run of rounds that ends now.
    A round is only begun when its worst case, nothing kept, fits into what is left. Where nothing is left, plain
    steps follow until those rounds are 256 tokens ago.

    Gains before that run count for a tenth. If they counted for nothing, a few short rounds in a row, as every good
    drafter has them, would mean 256 plain tokens: drafts kept with a chance of .873 would then be three quarters as
    fast. Whoever loses more than 3 % over 256 tokens has won ten times the difference right before.
    """

    WINDOW = 256
    LOSS = 0.029  # the rest is for shapes whose cost is only known from those around them
    CREDIT = 0.1  # share of what was won before that may be lost again
    CARE = 0.7  # how much likelier to be stopped with a plain step less to lose: the factor is e to this

    def __init__(self) -> None:
        self._excess: deque[tuple[int, float]] = deque()  # (tokens, ms beyond plain) per round in the window
        self._steps = 0  # plain steps since the last of those
        self._worst: float | None = 0.0
        self._won = 0.0  # by the rounds before the worst run

    def pass_plain(self) -> None:
        """A plain step was taken."""
        self._steps += 1

    def remember(self, tokens: int, excess: float) -> None:
        """A round kept so many tokens and took so many ms more (or less) than as many plain steps."""
        self._flush()
        self._excess.append((tokens, excess))
        self._forget()

    def allowance(self, plain: float) -> float:
        """Milliseconds that may still be lost, a plain step taking `plain`."""
        if self._steps:
            self._flush()
            self._forget()
        if self._worst is None:
            worst = run = 0.0
            for _, excess in reversed(self._excess):
                run += excess
                worst = max(worst, run)
            self._worst, self._won = worst, max(worst - run, 0.0)
        return self.LOSS * self.WINDOW * plain + self.CREDIT * self._won - self._worst

    def dread(self, allowance: float, plain: float, rate: float) -> float:
        """Tokens that being stopped would cost, times a measure of how near it is.

        Stopped, 256 tokens are plain that would otherwise come at `rate` (tokens per ms). The chance of getting
        there falls exponentially with what is left to lose, as for a gambler who wins on average.
        """
        lost = self.WINDOW * max(rate * plain - 1.0, 0.0)
        return lost * math.exp(min(-self.CARE * allowance / plain, 50.0))

    def _flush(self) -> None:
        if self._steps and self._excess:
            self._excess.append((self._steps, 0.0))
        self._steps = 0

    def _forget(self) -> None:
        self._worst = None
        inside = 0
        for i in range(len(self._excess) - 1, -1, -1):
            inside += self._excess[i][0]
            if inside >= self.WINDOW:
                for _ in range(i):
                    self._excess.popleft()
                return
