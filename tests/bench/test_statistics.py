"""Intervals and tests against published values and against their own promise."""

import math

import numpy as np
import pytest

from clover_local.bench.statistics import mcnemar, paired_ratio, wilson


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(right: int, total: int, low: float, high: float) -> None:
    found = wilson(right, total)
    assert found.value == right / total
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_wilson_at_the_ends() -> None:
    assert wilson(20, 20).high == 1.0
    assert wilson(20, 20).low == pytest.approx(1 - wilson(0, 20).high)
    assert math.isnan(wilson(0, 0).value)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def test_mcnemar_is_the_two_sided_binomial_test() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 * 0.5**5)
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(2 * (1 + 10) / 2**10)


def test_paired_ratio_of_equal_ratios_has_no_width() -> None:
    a = [(100, 1.0), (50, 0.4), (10, 0.3)]
    found = paired_ratio(a, [(tokens, seconds / 2) for tokens, seconds in a])
    assert found.value == found.low == found.high == pytest.approx(2.0)


def test_paired_ratio_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        tokens = rng.integers(50, 400, 40)
        slow = tokens / 50 * rng.lognormal(0, 0.2, 40)
        fast = tokens / 50 / 1.8 * rng.lognormal(0, 0.2, 40)
        found = paired_ratio(
            list(zip(tokens.tolist(), slow.tolist(), strict=True)),
            list(zip(tokens.tolist(), fast.tolist(), strict=True)),
            rounds=400,
            seed=trial,
        )
        covered += found.low <= 1.8 <= found.high
    assert (
        176 <= covered <= 200
    )  # 95 % of 200 is 190; three standard deviations and the bootstrap's bias below


def test_paired_ratio_of_nothing_is_not_a_number() -> None:
    assert math.isnan(paired_ratio([], []).value)
    assert math.isnan(paired_ratio([(0, 0.0)], [(5, 1.0)]).value)
    with pytest.raises(ValueError, match="not pairs"):
        paired_ratio([(1, 1.0)], [])
