"""The speed bench: fair turns, honest ratios, llama-bench's words; costs and the baseline."""

import csv
import io
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from clover_local import cli
from clover_local.bench import costs, speed, speed_report
from clover_local.bench import stock as stock_module
from clover_local.bench.stock import Stock
from clover_local.decoding.costs import Costs
from clover_local.decoding.events import Stats
from clover_local.decoding.settings import Settings
from clover_local.errors import CloverError, UsageError
from clover_local.ggml.gguf import GgufFile
from clover_local.model.draft import DraftSettings
from clover_local.runtime.engine import Engine
from clover_local.runtime.remembered import recall


def bench(capsys: pytest.CaptureFixture[str], model: Path, *more: str) -> Any:
    argv = [
        "bench",
        "speed",
        "-m",
        str(model),
        "--device",
        "cpu",
        "-t",
        "1",
        "-p",
        "40",
        "-n",
        "24",
        "-r",
        "2",
    ]
    assert cli.main([*argv, "-o", "json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_stock_computes_what_we_compute(engine: Engine, synthetic: Path) -> None:
    tokens = np.random.default_rng(5).integers(0, engine.spec.vocab, 40).tolist()
    engine.reset()
    engine.begin_response(None)
    rows = engine.prefill(tokens)
    assert rows is not None
    with Stock(synthetic, n_ctx=512, threads=1, gpu=None) as stock:
        assert stock.prefill(tokens) > 0
        ours, theirs = rows.logits()[-1], stock.logits()[-1]
        told = np.isfinite(ours)  # all but the mask token
        assert told.sum() == engine.spec.vocab - 1
        np.testing.assert_array_equal(ours[told], theirs[told])
        stock.step(7)
        np.testing.assert_array_equal(engine.step(7).logits()[-1][told], stock.logits()[-1][told])
        stock.reset()
        stock.prefill(tokens)
        np.testing.assert_array_equal(ours[told], stock.logits()[-1][told])


def test_stock_refuses_with_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(CloverError, match=r"stock llama\.cpp cannot load .*broken\.gguf: \S"):
        Stock(broken, n_ctx=64, threads=1, gpu=None)


def test_everybody_takes_turns_and_stock_decodes_what_plain_wrote(engine: Engine, synthetic: Path) -> None:
    workload = speed.random_workload(engine.spec.vocab, 2, 8)
    with Stock(synthetic, n_ctx=512, threads=1, gpu=None) as stock:
        party = speed.Bench(engine, workload, Settings(), stock)
        tests = speed.tests((16,), 6, ("self",), stock=True)
        assert [(t.name, t.mode, t.stock) for t in tests] == [
            ("pp16", "plain", True),
            ("pp16", "plain", False),
            ("tg6", "plain", False),  # though only self was asked for: the baseline needs it
            ("tg6", "self", False),
            ("tg6", "plain", True),
        ]
        heard = [(repetition, test) for repetition, test, _ in party.run(tests, 3)]
        replayed = party.measure(tests[-1])
        assert replayed.tokens == party.measure(tests[2]).tokens == 2 * 5
        assert stock.n_past == 8 + 5  # the last token is never decoded, by plain neither
    assert [test for _, test in heard[:5]] == tests
    firsts = [next(test for r, test in heard if r == repetition) for repetition in (1, 2, 3)]
    assert firsts == tests[:3]
    assert all(sum(r == repetition for r, _ in heard) == 5 for repetition in range(4))
    assert [len(one) for one in party.written] == [6, 6]


def test_figures_are_those_of_the_samples() -> None:
    plain, own = speed.Test("tg", 8), speed.Test("tg", 8, "self")
    base = speed.Result(plain, tuple(speed.Sample(8, s) for s in (1.0, 2.0, 4.0)))
    fast = speed.Result(own, tuple(speed.Sample(8, s, Stats(tokens=8, seconds=s)) for s in (0.5, 1.0, 4.0)))
    assert base.speed == pytest.approx((8 + 4 + 2) / 3)
    assert base.spread == pytest.approx(np.std([8, 4, 2], ddof=1))
    assert fast.ratio(base) == 2.0  # the median of 2, 2 and 1
    assert fast.stats is not None
    assert fast.stats.tokens == 24
    assert base.stats is None
    assert speed.baselines({plain: base, own: fast}, own) == (None, base)
    assert speed.baselines({plain: base, own: fast}, plain) == (None, None)


def test_the_command_speaks_llama_benchs_words(synthetic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, synthetic)
    assert "random weights" in found["model_type"]
    assert found["workload"] == "random tokens"
    rows = {(row["test"], row["engine"], row["mode"]): row for row in found["tests"]}
    assert list(rows) == [
        ("pp40", "llama.cpp", "prompt"),
        ("pp40", "clover", "prompt"),
        ("tg24", "llama.cpp", "plain"),
        ("tg24", "clover", "plain"),
        ("tg24", "clover", "self"),
    ]
    for row in rows.values():
        assert row["avg_ts"] > 0
        assert row["model_n_params"] == sum(
            math.prod(t.shape) for t in GgufFile.open(synthetic).tensors.values()
        )
        assert row["n_threads"] == 1
    assert rows["tg24", "clover", "plain"]["passes"] == {"prefill": 2, "plain": 46}
    assert rows["tg24", "clover", "self"]["times_stock"] > 0
    assert rows["tg24", "clover", "self"]["times_plain"] > 0
    assert rows["tg24", "llama.cpp", "plain"]["times_stock"] is None


def test_markdown_jsonl_and_csv_hold_the_same_tests(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "speed", str(synthetic), "--device", "cpu", "-t", "1", "-p", "0", "-n", "4", "-r", "1"]
    outputs = {}
    for output in ("md", "jsonl", "csv"):
        assert cli.main([*argv, "--no-stock", "-o", output]) == 0
        outputs[output] = capsys.readouterr().out
    names = [("tg4", "plain"), ("tg4", "self")]
    lines = [json.loads(line) for line in outputs["jsonl"].splitlines()]
    assert [(row["test"], row["mode"]) for row in lines] == names
    assert [(row["test"], row["mode"]) for row in csv.DictReader(io.StringIO(outputs["csv"]))] == names
    assert "| tg4 plain" in outputs["md"]
    assert "llama.cpp" not in outputs["md"]


def test_simulated_acceptance_says_so(synthetic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(
        capsys, synthetic, "--accept-profile", "code", "--policy", "always", "-n", "200", "--no-stock"
    )
    own = next(row for row in found["tests"] if row["mode"] == "self")
    assert own["simulated_acceptance"].startswith("code")
    assert own["tokens_per_round"] > 6
    assert next(row for row in found["tests"] if row["mode"] == "plain")["simulated_acceptance"] is None
    argv = ["bench", "speed", str(synthetic), "-t", "1", "-p", "0", "-n", "4", "-r", "1", "--no-stock"]
    assert cli.main([*argv, "--accept-profile", "math", "--device", "cpu"]) == 0
    assert "self, math (simulated acceptance)" in capsys.readouterr().out


def test_one_run_simulates_several_profiles(synthetic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, synthetic, "--accept-profile", "code,none", "--policy", "always", "-n", "100")
    own = {row["simulated_acceptance"].split()[0]: row for row in found["tests"] if row["mode"] == "self"}
    assert own["code"]["tokens_per_round"] > 5 > own["none"]["tokens_per_round"] == 1.0
    assert all(row["times_stock"] > 0 and row["times_plain"] > 0 for row in own.values())
    others = [row for row in found["tests"] if row["mode"] != "self"]
    assert len(others) == 4 and all(row["simulated_acceptance"] is None for row in others)


def test_a_profile_is_recorded_and_played(
    trained_int4: Path, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "own.jsonl"
    data.write_text(
        json.dumps({"problem": "A garden is 12 m long and 5 m wide. What is its area?", "answer": "60"})
    )
    profile = tmp_path / "profile.json"
    problems = ("--data", str(data), "--no-stock", "--record-profile", str(profile))
    real = bench(capsys, trained_int4, *problems)
    assert real["workload"] == "1 problems of math500"
    recorded = json.loads(profile.read_text())
    assert recorded["model"] == real["model_type"]
    assert sum(recorded["accepted"]) == sum(recorded["kept"]) > 0
    played = bench(capsys, synthetic, "--accept-profile", str(profile), "--no-stock")
    assert "recorded from" in played["simulated_acceptance"]


def test_costs_name_every_pass_and_what_it_reads(
    synthetic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "ROWS", (1, 4, 8))
    monkeypatch.setattr(costs, "PROBE_ROWS", 4096)
    found = bench(capsys, synthetic, "--costs", "--draft-budget", "4")
    assert {row["test"] for row in found["tests"]} == {"pp40", "tg24"}, "the tests run as well"
    table = {(row["kind"], row["rows"]): row for row in found["passes"]}
    assert set(table) == {
        ("plain", 1),
        *((kind, rows) for kind in ("verify", "commit", "stock") for rows in (1, 4, 8)),
        ("draft", 4),
        ("draft", 8),
    }
    assert all(row["ms"] > 0 for row in table.values())
    assert all((row["nodes"] or 0) > 10 for (kind, _), row in table.items() if kind != "stock")
    assert table["stock", 1]["stock_steps"] == table["plain", 1]["plain_steps"] == 1.0
    assert found["bandwidth_gb_per_s"] > 0.1
    assert table["verify", 1]["distinct_experts"] == 2 < table["verify", 8]["distinct_experts"] <= 8
    assert table["draft", 8]["distinct_experts"] <= 4 and "4 experts a layer" in found["drafts"]
    assert table["plain", 1]["bytes"] < table["draft", 8]["bytes"] < table["verify", 8]["bytes"]
    assert table["verify", 8]["gb_per_s"] == pytest.approx(
        table["verify", 8]["bytes"] / table["verify", 8]["ms"] / 1e6
    )
    with Engine.open(synthetic, n_ctx=found["n_ctx"], threads=1, device="cpu") as opened:
        opened.drafts = DraftSettings(None, 4)
        policy = Costs()
        assert policy.take(recall("costs", opened.identity)), "a chat begins with what was found"
        assert policy.ms("verify", 8) == pytest.approx(table["verify", 8]["plain_steps"])
    only = ["-p", "0", "-n", "0", "--costs", "--no-stock"]
    assert cli.main(["bench", "speed", str(synthetic), "--device", "cpu", "-t", "1", *only]) == 0
    assert "draft, ms (plain steps)" in capsys.readouterr().out


def test_bytes_of_a_pass_count_each_expert_once(engine: Engine) -> None:
    spec = engine.spec
    everything = sum(t.nbytes for t in engine.file.tensors.values())
    embedding = engine.file.tensors["token_embd.weight"].nbytes
    whole = costs.weight_bytes(engine, 32, spec.experts)
    assert whole == pytest.approx(everything - embedding + 32 * embedding / spec.vocab, rel=0.01)
    experts = sum(t.nbytes for name, t in engine.file.tensors.items() if "_exps" in name)
    assert whole - costs.weight_bytes(engine, 32, spec.experts / 2) == pytest.approx(experts / 2, abs=1)


def test_wrong_calls_are_sentences(
    synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = str(tmp_path / "p.json")
    cases = (
        (["-r", "0"], "--repetitions"),
        (["-n", "1"], "--n-gen"),
        (["--accept-profile", "poetry"], "poetry"),
        (["--accept-profile", "math", "--mode", "denoise"], "denoise"),
        (["--accept-profile", "math", "--record-profile", profile], "--record-profile"),
        (["--record-profile", profile, "--no-stock"], "real text"),
        (["--set", "demo", "--no-stock"], "no vocabulary"),
        (["--device", "abacus"], "abacus"),
    )
    for more, part in cases:
        assert cli.main(["bench", "speed", str(synthetic), "-t", "1", *more]) in (1, 2)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert part in captured.err


def test_cost_rows_are_in_plain_steps_and_in_stocks() -> None:
    rows = speed_report.cost_rows(
        [
            costs.Cost("plain", 1, 2.0, 10, 2.0, 4_000_000),
            costs.Cost("verify", 8, 3.0, 10, 6.0, 9_000_000),
            costs.Cost("stock", 1, 4.0, None, None, None),
        ],
        6.0,
    )
    assert [row["plain_steps"] for row in rows] == [1.0, 1.5, 2.0]
    assert [row["stock_steps"] for row in rows] == [0.5, 0.75, 1.0]
    assert [row["gb_per_s"] for row in rows] == [2.0, 3.0, None]
    assert [row["bandwidth_share"] for row in rows] == [pytest.approx(1 / 3), 0.5, None]


def test_a_synthetic_model_is_what_it_says(
    make_synthetic: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "tiny.gguf"
    argv = ["make_synthetic.py", str(path), "--shape", "tiny", "--experts-skew", "1", "--tensor", "*=q8_0"]
    monkeypatch.setattr("sys.argv", argv)
    assert make_synthetic.main() == 0
    assert "busiest 25%" in capsys.readouterr().out
    file = GgufFile.open(path)
    assert "random weights" in file.keys["general.name"]
    assert file.tensors["blk.0.ffn_up_exps.weight"].type.name == "q8_0"
    assert make_synthetic.main() == 1
    assert "--force" in capsys.readouterr().err
    rng = np.random.default_rng(0)
    spec = make_synthetic.SHAPES["35b"]
    even, uneven = (make_synthetic.busiest_share(spec, skew, 0.25, rng) for skew in (0.0, 1.0))
    assert 0.24 <= even < 0.3 < 0.6 < uneven
    skew = make_synthetic.skew_for(spec, 0.9, 0.6, 7)
    assert make_synthetic.busiest_share(spec, skew, 0.6, rng) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("text", ["much", "-1", "0.9:2", "0.5:0.9", "1:0.5", ":"])
def test_a_skew_that_is_none_is_refused(make_synthetic: ModuleType, text: str) -> None:
    with pytest.raises(UsageError, match="experts-skew"):
        make_synthetic.parse_skew(text, make_synthetic.SHAPES["35b"], 7)


def test_the_share_that_was_asked_for_is_counted(make_synthetic: ModuleType, tmp_path: Path) -> None:
    """On the whole network, not only by simulation: what the layers add blurs the preference a little."""
    path, spec = tmp_path / "tiny.gguf", make_synthetic.SHAPES["tiny"]
    for share in (0.8, 0.95):
        make_synthetic.write(path, spec, "int4", [], make_synthetic.skew_for(spec, share, 0.5, 7), 7)
        assert make_synthetic.counted_shares(path, [0.5])[0] == pytest.approx(share, abs=0.06)


def test_routers_are_rewritten_in_place(make_synthetic: ModuleType, tmp_path: Path) -> None:
    path, spec = tmp_path / "tiny.gguf", make_synthetic.SHAPES["tiny"]
    make_synthetic.write(path, spec, "int4", [], 0.0, 7)
    before = {name: GgufFile.open(path).array(name).copy() for name in GgufFile.open(path).tensors}
    make_synthetic.rewrite_routers(path, 1.0, 8)
    after = GgufFile.open(path)
    changed = {name for name, data in before.items() if (after.array(name) != data).any()}
    assert changed == {f"blk.{layer}.ffn_gate_inp.weight" for layer in range(spec.layers)}


def test_skewed_routers_prefer_some_experts(make_synthetic: ModuleType, tmp_path: Path) -> None:
    """Count, in the first layer, which experts the tokens' own embeddings choose."""
    spec, shares = make_synthetic.SHAPES["tiny"], []
    for skew in (0.0, 1.5):
        path = tmp_path / f"skew-{skew}.gguf"
        make_synthetic.write(path, spec, "int4", [], skew, 7)
        file = GgufFile.open(path)
        router = file.array("blk.0.ffn_gate_inp.weight").view(np.float32).reshape(spec.experts, spec.hidden)
        tokens = np.random.default_rng(1).standard_normal((500, spec.hidden))
        tokens[:, make_synthetic.POPULARITY_CHANNEL] = make_synthetic.POPULARITY
        best = np.argmax(tokens @ router.T, axis=1)
        shares.append(np.bincount(best, minlength=spec.experts).max() / 500)
    assert shares[0] < 0.35 < 0.5 < shares[1]


def test_stock_with_experts_on_the_cpu_computes_the_same(synthetic: Path) -> None:
    """Here everything is on the CPU, so that only the override itself is proved: it is read, and names tensors."""
    logits = []
    for moved in (0, 2):
        with Stock(synthetic, n_ctx=64, threads=1, gpu=None, n_cpu_moe=moved) as stock:
            stock.verify([1, 2, 3])
            logits.append(stock.logits().copy())
    np.testing.assert_array_equal(*logits)


class _Loaded:
    """A baseline on a card of its own: it takes some bytes and so many per layer's experts there."""

    def __init__(self, card: "_Card", moved: int) -> None:
        self.n_cpu_moe, self._card = moved, card
        card.opened.append(self)

    def prefill(self, tokens: range) -> None:
        self._card.taken = self._card.base + sum(self._card.experts[self.n_cpu_moe :])

    def reset(self) -> None:
        pass

    def close(self) -> None:
        self._card.taken = 0
        self._card.opened.remove(self)


class _Card:
    def __init__(self, base: int, experts: list[int]) -> None:
        self.base, self.experts, self.taken, self.opened = base, experts, 0, list["_Loaded"]()

    def free(self) -> int:
        return (80 << 30) - self.taken


@pytest.mark.parametrize("base", [0, 100 << 20, 3 << 30])
def test_the_baseline_takes_what_the_cap_allows_and_no_more(synthetic: Path, base: int) -> None:
    """llama.cpp's own buffers are unknown before; every cap ends with the fewest layers moved that fit."""
    experts = stock_module.expert_bytes(synthetic)
    assert len(experts) == GgufFile.open(synthetic).keys["qwen35moe.block_count"]
    for whole in range(len(experts) + 1):
        budget = base + sum(experts[whole:]) + experts[0] // 2
        card = _Card(base, experts)
        found = stock_module.within(synthetic, budget, lambda moved: _Loaded(card, moved), card.free)  # type: ignore[arg-type, return-value]  # noqa: B023
        assert found.n_cpu_moe == whole and card.opened == [found], "everything else was closed again"
    card = _Card(2, experts)
    with pytest.raises(CloverError, match=r"not made to fit into 0\.0 GiB"):
        stock_module.within(synthetic, 1, lambda moved: _Loaded(card, moved), card.free)  # type: ignore[arg-type, return-value]
    assert not card.opened
