"""The script that measures placed experts: its search finds the shares it is asked for, its steps run to the end."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from clover_local.ggml.gguf import GgufFile
from clover_local.runtime.engine import Engine

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("measure_placement", SCRIPTS / "measure_placement.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measure_placement", found)
    spec.loader.exec_module(found)
    yield found
    sys.modules.pop("make_synthetic", None)


@pytest.fixture
def model(script: ModuleType, tmp_path: Path) -> Path:
    make_synthetic, path = sys.modules["make_synthetic"], tmp_path / "tiny.gguf"
    make_synthetic.write(path, make_synthetic.SHAPES["tiny"], "int4", [], 0.0, 7)
    return path


@pytest.mark.parametrize("target", [0.55, 0.8, 0.9, 0.95])
def test_a_share_is_found_in_a_few_looks(script: ModuleType, target: float) -> None:
    looks = []

    def share(skew: float) -> float:
        looks.append(skew)
        return 1 - 0.32 * np.exp(-1.6 * skew)  # about the 35B's, 64 % of whose experts are on the card

    known = {0.0: share(0.0)}
    skew = script.find_skew(share, target, known)
    assert len(looks) <= script.TRIES + 1
    if target < known[0.0]:
        assert skew == 0.0
    else:
        assert abs(known[skew] - target) <= script.CLOSE


def test_the_search_ends_where_the_share_is_out_of_reach(script: ModuleType) -> None:
    known = {0.0: 0.6}
    skew = script.find_skew(lambda skew: min(0.6 + 0.1 * skew, 0.7), 0.9, known)
    assert known[skew] == 0.7 and len(known) <= script.TRIES + 1


def test_routers_that_were_found_give_their_share_to_a_set_learned_anew(
    script: ModuleType, model: Path
) -> None:
    shares = [script.Share.parse(text) for text in ("0.9", "uniform", "0.8=1.25")]
    with Engine.open(model, n_ctx=64, threads=1, device="cpu") as engine:
        slots = (4,) * engine.spec.layers
        found = script.find_skews(engine, shares, slots)
        assert [one.skew for one in found[1:]] == [0.0, 1.25] and found[0].skew > 0.5
        script.route_by(engine, found[0].skew)
        rng = np.random.default_rng(9)
        hot = script.busiest(script.counted(engine, script.LEARN, rng), slots)
        assert (hot.sum(1) == 4).all()
        assert script.share_of(script.counted(engine, 30, rng), hot) == pytest.approx(0.9, abs=0.02)


def test_every_step_runs_and_the_file_gets_the_main_routers(
    script: ModuleType, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, where nothing is placed: what is left of the steps, and one text throughout."""
    for name, value in (("TIMED", 1), ("WARM", 0), ("PREFILL", 64), ("TEXTS", (9,)), ("LEARN", 4)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(script, "default_threads", lambda: 1)
    monkeypatch.setattr(script.kernels, "prove", script.kernels.prove)  # it is replaced, and put back here
    options = "-c 512 --device cpu --slots 4 --shares 0.9=1.6 --tokens 6 --repetitions 1"
    monkeypatch.setattr("sys.argv", ["x", str(model), *options.split(), "--fit", str(model)])
    assert script.main() == 0
    text = capsys.readouterr().out
    assert text.count("1 of 1 answers are the uncapped run's") == 4
    rows = [line.split()[0] for line in text.splitlines() if not line.startswith(("#", " " * 11))]
    assert rows == ["uncapped", "0.9", "stock", "0.9", "fit", "fit"]
    router = "blk.0.ffn_gate_inp.weight"
    written = GgufFile.open(model).array(router).copy()
    script.rewrite_routers(model, 1.6, script.SEED)
    assert (GgufFile.open(model).array(router) == written).all()
    script.rewrite_routers(model, 1.5, script.SEED)
    assert (GgufFile.open(model).array(router) != written).any()
