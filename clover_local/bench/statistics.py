"""How sure a measurement is: intervals for shares and ratios, and a paired test. Numbers in, numbers out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054  # standard normal quantile of 97.5 %


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(right: int, total: int) -> Interval:
    """A share with Wilson's score interval, sound for few trials and for shares near 0 and 1.

    Formula: E. B. Wilson, "Probable inference", JASA 22 (1927).
    """
    if total == 0:
        return Interval(math.nan, 0.0, 1.0)
    p, z2 = right / total, Z95**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2))
    low = 0.0 if right == 0 else centre - half
    high = 1.0 if right == total else centre + half
    return Interval(p, low, high)


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p value that a and b are equally often right.

    `only_a` problems were right in a alone, `only_b` in b alone; if both are alike, a fair coin decides.
    """
    n, k = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, i) for i in range(k + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_ratio(
    a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]], *, rounds: int = 2000, seed: int = 0
) -> Interval:
    """How many times faster b is than a on the same problems, each given as (tokens, seconds).

    The value is the ratio of total tokens per total second; the interval is the 2.5 and 97.5 percentile of
    `rounds` bootstrap samples that draw problems, keeping the pairs together.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} measurements are not pairs")
    ta, sa = (np.array(column, float) for column in zip(*a, strict=True)) if a else (np.zeros(0), np.zeros(0))
    tb, sb = (np.array(column, float) for column in zip(*b, strict=True)) if b else (np.zeros(0), np.zeros(0))
    if not ta.sum() or not tb.sum() or not sa.sum() or not sb.sum():
        return Interval(math.nan, math.nan, math.nan)
    picks = np.random.default_rng(seed).integers(0, len(ta), (rounds, len(ta)))
    with np.errstate(divide="ignore", invalid="ignore"):
        speed_a = ta[picks].sum(1) / sa[picks].sum(1)
        ratios = tb[picks].sum(1) / sb[picks].sum(1) / speed_a
    low, high = np.nanpercentile(ratios, [2.5, 97.5])
    return Interval(float(tb.sum() / sb.sum() / (ta.sum() / sa.sum())), float(low), float(high))
