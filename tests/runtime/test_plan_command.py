"""`clover plan`: the 35B on a card of 16 GB in both recipes, its speeds, and each bad case with its sentence."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from clover_local import cli
from clover_local.ggml.backend import choose_device
from clover_local.names import DEMO_FILE
from clover_local.runtime import kernels, memory
from clover_local.runtime.expect import distinct

GIB = 1 << 30
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_synthetic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_synthetic", ROOT / "scripts" / "make_synthetic.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_synthetic"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(make_synthetic: ModuleType, tmp_path: Path) -> dict[str, Path]:
    """The 35B's metadata in both recipes; where its tensors would lie there is nothing."""
    found = {}
    for recipe in ("int4", "fit16"):
        header, _ = make_synthetic.layout(make_synthetic.SPEC_35B, recipe, [], np.random.default_rng(0))
        found[recipe] = tmp_path / f"{recipe}.gguf"
        with found[recipe].open("wb") as file:
            file.write(header.data)
            file.truncate(header.size)
    return found


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer with 64 GB."""
    ram(monkeypatch, tmp_path, 62 * GIB)


def ram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int) -> None:
    (tmp_path / "meminfo").write_text(f"MemAvailable: {free >> 10} kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path / "none")


def planned(capsys: pytest.CaptureFixture[str], *args: str | Path) -> dict[str, Any]:
    assert cli.main(["plan", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_int4_on_16_gb_keeps_most_experts_on_the_card(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, files["int4"], "--vram", "16G")
    assert found["context"] == 32768 and found["card"] <= found["budget"] <= 15.2 * GIB
    assert found["card"] == sum(part["card"] for part in found["parts"].values())
    assert 0.6 < found["experts_on_the_card"] < 0.75 and found["layers_with_experts_on_the_cpu"] == 0
    assert found["parts"]["token embedding"]["card"] == 0 and found["parts"]["token embedding"]["host"] > 0
    assert found["parts"]["routed experts"]["host"] > 16 * GIB  # all of them: nothing can be lost in a swap
    speeds = [one["plain"] for one in found["expected"].values()]
    assert len(speeds) == 4 and speeds == sorted(speeds)
    assert all(one["self"] >= one["plain"] for one in found["expected"].values())
    others = found["alternatives"]
    assert others["-c 8192"]["experts_on_the_card"] > found["experts_on_the_card"]
    assert others["recipe fit16"]["expected"]["1.00"]["plain"] > max(speeds)
    assert others["--cache-type-k q8_0 --cache-type-v q8_0"]["layers_with_experts_on_the_cpu"] > 0
    assert "recipe int4" not in others


def test_fit16_leaves_room_for_32k_tokens(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert files["fit16"].stat().st_size <= 13e9
    found = planned(capsys, files["fit16"], "--vram", "16G", "-c", "32768")
    assert found["experts_on_the_card"] == 1 and found["host"] == 0 and found["card"] <= found["budget"]


def test_the_table_adds_up(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(files["int4"]), "--vram", "16G"]) == 0
    lines = capsys.readouterr().out.splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("together"))
    card = sum(float(line[40:50]) for line in lines[3:end])
    assert card == pytest.approx(float(lines[end][40:50]), abs=0.06)
    text = "\n".join(lines)
    assert "of the experts on the card" in text and "RTX 5070 Ti" in text and "tok/s" in text


def test_less_bandwidth_is_slower(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    usual = planned(capsys, files["int4"], "--vram", "16G")["expected"]["0.90"]["plain"]
    link = planned(capsys, files["int4"], "--vram", "16G", "--link-bandwidth", "25")["expected"]["0.90"][
        "plain"
    ]
    slow = planned(capsys, files["int4"], "--vram", "16G", "--memory-bandwidth", "448")["expected"]["0.90"][
        "plain"
    ]
    assert link < usual and slow < usual


def test_a_card_too_small_says_what_would_fit(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", str(files["int4"]), "--vram", "4G"]) == 1
    told = capsys.readouterr().err
    assert "3.2 GiB of video memory are too little" in told and "hint: use a smaller --ctx-size" in told


def test_a_computer_too_small_says_so(
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ram(monkeypatch, tmp_path, 12 * GIB)
    found = planned(capsys, files["int4"], "--vram", "16G")
    assert found["layers_with_experts_on_the_cpu"] > 0 and found["expected"] == {}
    assert "needs 19.1 GiB of free memory, 12.0 GiB are there" in found["note"]


def test_without_a_card_everything_is_the_computers(capsys: pytest.CaptureFixture[str]) -> None:
    if choose_device().is_gpu:
        pytest.skip("there is a card here")
    found = planned(capsys, DEMO_FILE)
    assert found["card"] == 0 and found["host"] > 0 and found["budget"] is None


def test_a_card_that_this_build_cannot_use_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if choose_device().is_gpu:
        pytest.skip("this build can use the card here")
    monkeypatch.setattr(kernels, "CARD", tmp_path)
    assert cli.main(["plan", str(DEMO_FILE)]) == 0
    told = capsys.readouterr().out
    assert "built without CUDA" in told and "GGML_CUDA=on pip install" in told


def test_experts_read_by_many_rows() -> None:
    assert distinct(256, 8, 1) == pytest.approx(8) and distinct(256, 8, 8) == pytest.approx(57.4, abs=0.1)
    assert distinct(0, 0, 8) == 0 and distinct(10, 8, 1000) == pytest.approx(10)
