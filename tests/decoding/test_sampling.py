"""Properties of the sampler: what each cut keeps, and that draws follow the distribution."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clover_local.decoding.sampling import Sampler, distribution, draw
from clover_local.decoding.settings import Settings
from clover_local.errors import UsageError
from tests.decoding.fake import rows_of

# a coarse grid makes ties common
LOGITS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.integers(-12, 12).map(lambda i: i / 2))
TEMPERATURE = st.sampled_from([0.3, 0.7, 1.0, 1.5])


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    e = np.exp(scaled - scaled.max())
    return e / e.sum()


@given(LOGITS, TEMPERATURE)
def test_without_cuts_it_is_the_softmax(logits: np.ndarray, temperature: float) -> None:
    expected = softmax(logits, temperature)
    np.testing.assert_allclose(distribution(logits, temperature), expected, rtol=1e-9)


@given(LOGITS, TEMPERATURE, st.integers(1, 45))
def test_top_k_keeps_the_largest_and_their_ties(logits: np.ndarray, temperature: float, k: int) -> None:
    kept = distribution(logits, temperature, top_k=k) > 0
    expected = logits >= np.sort(logits)[::-1][min(k, logits.size) - 1]
    assert (kept == expected).all()


@given(LOGITS, TEMPERATURE, st.floats(0.01, 0.999))
def test_top_p_keeps_while_the_mass_before_is_at_most_p(
    logits: np.ndarray, temperature: float, top_p: float
) -> None:
    p = softmax(logits, temperature)
    order = np.lexsort((np.arange(p.size), -p))
    before = np.cumsum(p[order]) - p[order]
    assume(np.abs(before - top_p).min() > 1e-9)
    expected = np.zeros(p.size, bool)
    expected[order[before <= top_p]] = True
    out = distribution(logits, temperature, top_p=top_p)
    assert ((out > 0) == expected).all()
    np.testing.assert_allclose(out[expected], p[expected] / p[expected].sum(), rtol=1e-6)


def test_top_p_keeps_one_more_where_the_mass_before_equals_it() -> None:
    assert (distribution(np.zeros(4), 1.0, top_p=0.5) > 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.99])
def test_top_p_on_a_large_vocabulary_equals_a_full_sort(top_p: float) -> None:
    for spread in (
        0.1,
        1.0,
        6.0,
    ):  # nearly flat, so that more than the first few hundred are needed, to peaked
        logits = spread * np.random.default_rng(0).standard_normal(5000).astype(np.float32)
        p = np.sort(softmax(logits))[::-1]
        expected = int((np.cumsum(p) - p <= top_p).sum())
        assert (distribution(logits, 1.0, top_p=top_p) > 0).sum() == expected


@given(LOGITS, st.floats(0.001, 0.99))
def test_min_p_keeps_what_is_near_the_best(logits: np.ndarray, min_p: float) -> None:
    p = softmax(logits)
    assume(np.abs(p - min_p * p.max()).min() > 1e-9)
    assert ((distribution(logits, 1.0, min_p=min_p) > 0) == (p >= min_p * p.max())).all()


@given(LOGITS, TEMPERATURE, st.integers(0, 9), st.floats(0.05, 1), st.floats(0, 0.9), st.floats(0, 0.9999))
def test_every_draw_is_a_kept_token_and_the_best_always_is(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    p = distribution(logits, temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert p.sum() == pytest.approx(1.0)
    assert p[np.argmax(logits)] > 0
    assert p[draw(p, uniform)] > 0


def test_draws_follow_the_distribution() -> None:
    p = distribution(np.array([2.0, 1.0, 0.0, -1.0]), 1.0)
    sampler = Sampler(Settings(temperature=1.0), seed=3)
    counts = np.bincount([draw(p, sampler.uniform(i)) for i in range(20_000)], minlength=4)
    # chi-square with 3 degrees of freedom: above 21.1 by chance once in 10,000, and the seed is fixed
    assert ((counts - 20_000 * p) ** 2 / (20_000 * p)).sum() < 21.1


def test_a_seed_and_a_place_settle_the_number() -> None:
    one, two = (Sampler(Settings(temperature=1.0, seed=seed), seed) for seed in (1, 2))
    assert one.uniform(5) == one.uniform(5)
    assert len({one.uniform(5), one.uniform(6), one.uniform(5, attempt=1), two.uniform(5)}) == 4
    assert Sampler.of(Settings(seed=2**64 - 1)).seed == 2**64 - 1
    assert Sampler.of(Settings()).seed != Sampler.of(Settings()).seed


def test_greedy_takes_the_passes_own_choice_without_fetching_logits() -> None:
    rows = rows_of(np.array([[0.0, 3.0, 1.0]]))
    rows = type(rows)(rows.ids, rows.p, None, None, lambda: pytest.fail("fetched"))
    assert Sampler.of(Settings()).choose(rows, 0, 1) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"temperature": -1.0}, "--temp"),
        ({"top_p": 0.0}, "--top-p"),
        ({"top_k": -1}, "--top-k"),
        ({"min_p": 1.0}, "--min-p"),
        ({"draft_max": 33}, "--draft-max"),
        ({"max_tokens": 0}, "--predict"),
        ({"mode": "fast"}, "--mode"),
        ({"accept": "all"}, "--accept"),
        ({"policy": "never"}, "--policy"),
        ({"block_size": 33}, "--block-size"),
        ({"seed": -1}, "--seed"),
        ({"threshold": 1.5}, "--threshold"),
    ],
)
def test_impossible_settings_name_the_option(wrong: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Settings(**wrong)
