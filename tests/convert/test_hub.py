"""Checkpoints from the hub, through huggingface_hub's own client and a server on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clover_local.ggml.gguf import GgufFile
from tests.convert import made
from tests.convert.fake_hub import Hub, serving

# huggingface_hub reads its settings on import, so every conversion is a process of its own.
SCRIPT = """
import json, sys, time
from clover_local.convert import convert, output, run
from clover_local.errors import CloverError
options, seen, make = json.loads(sys.argv[1]), [], run.make
def slow(*args):
    time.sleep(0.01)
    return make(*args)
def report(step):
    if step.stage == "fetching" or len(seen) == 0 or seen[-1][1] != step.stage:
        seen.append((time.monotonic(), step.stage, step.detail))
    if step.stage == "converting" and step.done > options["stop"]:
        raise KeyboardInterrupt
run.make, output.SYNC_SECONDS = slow, 0.0
try:
    convert(options["repo"], options["output"], threads=2, progress=report, discard_shards=options["discard"])
    print(json.dumps({"seen": seen}))
except CloverError as error:
    print(json.dumps({"error": str(error), "hint": error.hint}))
except KeyboardInterrupt:
    print(json.dumps({"stopped": True}))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = made.checkpoint(tmp_path / "served", shards=3)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    with serving(folder, "someone/Small-Clover") as hub:
        yield hub


def converted(hub: Hub, output: Path, refused: bool = False, **options: Any) -> dict[str, Any]:
    """Convert in a process of its own whose hub is ours; what it printed."""
    defaults = {"repo": hub.repo, "output": str(output), "discard": False, "stop": 1 << 60, "offline": False}
    given = defaults | options
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": str(int(given["offline"]))}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(given)], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    assert "error" not in result or refused, result
    return result


def refused(hub: Hub, output: Path, **options: Any) -> tuple[str, str]:
    """The sentence and the hint of a conversion that must not succeed."""
    result = converted(hub, output, refused=True, **options)
    assert not output.exists()
    return result["error"], result["hint"]


def shards(names: list[str]) -> list[str]:
    return [name[6:11] for name in names if name.endswith(".safetensors")]


def cached() -> list[Path]:
    """Shards still in the cache."""
    return [p for p in Path(os.environ["HF_HOME"]).rglob("*") if p.is_file() and p.suffix == ".safetensors"]


def test_shards_arrive_once_in_order_and_ahead_of_their_use(hub: Hub, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    result = converted(hub, output)
    assert shards(hub.files()) == ["00001", "00002", "00003"]
    keys = GgufFile.open(output).keys
    assert (keys["general.name"], keys["general.license"]) == ("Small-Clover", "apache-2.0")
    assert keys["general.source.url"] == "https://huggingface.co/someone/Small-Clover"
    asked = {name: at for at, name in hub.asked}
    needed = {detail.split()[0]: at for at, stage, detail in result["seen"] if stage == "fetching"}
    for shard in ("model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"):
        assert asked[shard] < needed[shard] - 0.05, "it was asked for while the one before was converted"


def test_offline_the_cache_gives_the_same_file(hub: Hub, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    converted(hub, first)
    count = len(hub.asked)
    converted(hub, second, offline=True)
    assert second.read_bytes() == first.read_bytes()
    assert len(hub.asked) == count, "offline asks nobody"


def test_discarded_shards_leave_the_cache_and_are_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    converted(hub, whole, discard=True)
    assert cached() == []
    size = sum(info.nbytes for info in GgufFile.open(whole).tensors.values())
    assert converted(hub, output, discard=True, stop=size * 3 // 4) == {"stopped": True}
    hub.asked.clear()
    converted(hub, output, discard=True)
    assert "00001" not in shards(hub.files()), "what was converted before is not needed any more"
    assert output.read_bytes() == whole.read_bytes()
    assert cached() == []


def test_a_single_file_without_an_index(hub: Hub, tmp_path: Path) -> None:
    for path in hub.folder.glob("model*"):
        path.unlink()
    made.checkpoint(hub.folder)
    output = tmp_path / "out.gguf"
    converted(hub, output)
    assert GgufFile.open(output).keys["general.name"] == "Small-Clover"


def test_refusals_of_the_hub_are_sentences(hub: Hub, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    error, _ = refused(hub, output, repo="someone/Nothing")
    assert error == "there is no model someone/Nothing on the hub"
    error, _ = refused(hub, output, repo="locked/Model")
    assert error == "locked/Model must be unlocked on huggingface.co first"
    error, _ = refused(hub, output, offline=True)
    assert error == f"{hub.repo} is not in the cache and HF_HUB_OFFLINE is set"
    (hub.folder / "model-00002-of-00003.safetensors").unlink()
    error, _ = refused(hub, output)
    assert "lacks files that its model.safetensors.index.json names: model-00002-of-00003" in error
    hub.endpoint = "http://127.0.0.1:9"
    error, hint = refused(hub, output)
    assert error.startswith(f"the hub did not deliver {hub.repo}: ") and hint == "run the same command again"


def test_a_broken_download_is_a_sentence(hub: Hub, tmp_path: Path) -> None:
    path = hub.folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    error, hint = refused(hub, tmp_path / "out.gguf")
    assert "is truncated" in error and hint == "download that file again"
