"""Simulated acceptance drives the real loop, and what is recorded is what was simulated."""

import json
from pathlib import Path

import numpy as np
import pytest

from clover_local.bench.profiles import BUILT_IN, EDGES, ROWS, built_in, load
from clover_local.bench.simulate import Recorder, SimulatedAcceptance
from clover_local.decoding.events import Done, Stats
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Settings
from clover_local.errors import CloverError
from clover_local.runtime.engine import Engine

MODEL = {"name": "a model", "sha256": "00"}


def simulated(engine: Engine, name: str, seed: int = 1) -> SimulatedAcceptance:
    engine.reset()
    return SimulatedAcceptance(engine, load(name), vocab=engine.spec.vocab, seed=seed)


def run(engine: SimulatedAcceptance | Recorder, tokens: int, **settings: object) -> Stats:
    settings = {"draft_max": 16, **settings}
    wanted = Settings(mode="self", max_tokens=tokens, ignore_stop=True, **settings)  # type: ignore[arg-type]
    last = list(generate(engine, [1, 2, 3], wanted))[-1]
    assert isinstance(last, Done)
    assert last.reason == "length"
    return last.stats


@pytest.mark.parametrize(("name", "tokens"), [("code", 9.94), ("math", 6.97), ("prose", 3.39), ("none", 1.0)])
def test_built_in_profiles_expect_the_stated_tokens_a_round(name: str, tokens: float) -> None:
    assert built_in(name).tokens_per_round(16) == pytest.approx(tokens, abs=0.02)


@pytest.mark.parametrize("name", ["code", "math", "prose"])
def test_confidence_is_true_on_average_and_no_oracle(name: str) -> None:
    profile, rng = built_in(name), np.random.default_rng(3)
    kept, p = (np.concatenate(x) for x in zip(*(profile.draw(15, rng) for _ in range(4000)), strict=True))
    assert kept.mean() == pytest.approx(profile.chance[0], abs=0.005)
    for low, high in ((0.3, 0.6), (0.6, 0.9), (0.9, 1.0)):
        inside = (p >= low) & (p < high)
        assert kept[inside].mean() == pytest.approx(p[inside].mean(), abs=0.05)
    order = np.argsort(p)
    ranks = np.empty(len(p))
    ranks[order] = np.arange(len(p))
    good, bad = kept.sum(), (~kept).sum()
    area = (ranks[kept].sum() - good * (good - 1) / 2) / (good * bad)  # chance that a kept one looks better
    assert 0.7 < area < 0.95


@pytest.mark.parametrize("name", ["code", "prose"])
def test_the_loop_keeps_drafts_as_the_profile_says(engine: Engine, name: str) -> None:
    stats = run(simulated(engine, name), 1500, policy="always")
    profile = built_in(name)
    assert stats.tokens_per_round == pytest.approx(profile.tokens_per_round(16), rel=0.12)
    # of the rounds that came to judge the second draft, the share that kept it
    assert stats.accepted[1] / stats.accepted[0] == pytest.approx(profile.chance[1], abs=0.07)


def test_nothing_of_the_adversarial_profile_is_kept(engine: Engine) -> None:
    stats = run(simulated(engine, "none"), 60, policy="always")
    assert stats.rounds == stats.decoded - 1 == 58  # no draft for the last token
    assert sum(stats.accepted) == 0


def test_the_release_rule_sees_the_same_fates(engine: Engine) -> None:
    exact, release = (
        run(simulated(engine, "math"), 300, policy="always", accept=a) for a in ("exact", "release")
    )
    assert exact.accepted == release.accepted


def test_the_policy_drives_simulated_runs_too(engine: Engine) -> None:
    wrapped = simulated(engine, "code")
    stats = run(wrapped, 200)
    assert stats.passes["plain"] >= 2  # it measures plain steps first
    assert stats.tokens == 200
    assert len(engine.tokens) in (202, 203)


def test_a_recorded_profile_is_the_one_that_ran(engine: Engine, tmp_path: Path) -> None:
    recorder = Recorder(simulated(engine, "math"))
    for _ in range(2):
        engine.reset()
        run(recorder, 1500, policy="always")
    path = tmp_path / "profile.json"
    recorder.recording.save(path, "math again", MODEL, {})
    found, wanted = load(str(path)), built_in("math")
    assert found.tokens_per_round(16) == pytest.approx(wanted.tokens_per_round(16), rel=0.1)
    assert found.kept @ EDGES[:-1] == pytest.approx(wanted.kept @ EDGES[:-1], abs=0.02)
    assert found.lost @ EDGES[:-1] == pytest.approx(wanted.lost @ EDGES[:-1], abs=0.05)
    assert "recorded from a model" in found.note
    assert found.chance.shape == (ROWS,)


def test_a_profile_of_nothing_is_not_saved(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(CloverError, match="no draft"):
        Recorder(engine).recording.save(tmp_path / "p.json", "x", MODEL, {})


def test_unknown_and_broken_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CloverError, match="poetry") as caught:
        load("poetry")
    assert caught.value.hint is not None
    assert all(name in caught.value.hint for name in BUILT_IN)
    path = tmp_path / "p.json"
    good = {"clover_accept_profile": 1, "name": "x", "model": "m", "kept": [0] * 48, "lost": [0] * 48}
    for bad in ("{", "[]", "{}", json.dumps({**good, "judged": [1], "accepted": [2]})):
        path.write_text(bad)
        with pytest.raises(CloverError, match=r"p\.json"):
            load(str(path))
