"""clover inspect: what it says, as text and as JSON, and how fast on a file of 20 GB."""

import argparse
import json
import time
from pathlib import Path

import pytest

from clover_local.commands import inspect
from clover_local.convert.header import Key, build
from clover_local.convert.mapping import parts
from clover_local.convert.metadata import Origin, keys
from clover_local.convert.plan import place
from clover_local.convert.tokenizer import NORMAL, Tokenizer
from clover_local.errors import ModelError
from clover_local.quant.recipes import recipe
from tests.convert import made


def run(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    assert inspect.main(parser.parse_args([str(path), *options])) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_json_holds_shape_types_sizes_and_settings(
    tiny_int4: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = json.loads(run(tiny_int4, capsys, "--json"))
    assert facts["architecture"] == "qwen35moe" and facts["can draft"] and facts["why not"] is None
    assert facts["bytes"] == tiny_int4.stat().st_size
    assert facts["shape"]["layers"] == 4 and facts["shape"]["experts used"] == 3
    assert facts["classes"]["routed experts"]["q4_k"] == {"tensors": 12, "bytes": 3538944}
    assert facts["block"]["threshold"] == 0.9 and facts["block"]["coreset.enabled"] is True
    assert facts["generation"]["eos_token_id"] == [1502, 1500]
    assert facts["special ids"] == {"eos": 1502, "padding": 1500, "mask": 1505}
    total = sum(part["bytes"] for types in facts["classes"].values() for part in types.values())
    assert total < facts["bytes"]


def test_text_says_the_same(tiny_int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(tiny_int4, capsys)
    for piece in (
        "tiny-clover",
        "8.94 million parameters",
        "Block diffusion: can draft",
        "chat template present",
    ):
        assert piece in out
    assert [line.split()[:3] for line in out.splitlines() if "routed" in line] == [
        ["routed", "experts", "Q4_K"]
    ]


def test_a_trunk_without_preview_weights_cannot_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from clover_local.convert import convert

    folder = tmp_path / "trunk"
    config = made.write_config(folder, made.no_preview())
    made.checkpoint(folder, config=made.no_preview(), tensors=made.values_for(config))
    convert(folder, tmp_path / "trunk.gguf", threads=2)
    facts = json.loads(run(tmp_path / "trunk.gguf", capsys, "--json"))
    assert not facts["can draft"] and "one token at a time" in facts["why not"]


def test_somebody_elses_model_is_described_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "llama.gguf"
    path.write_bytes(build([("general.architecture", "llama"), ("llama.block_count", 2)], []).data)
    facts = json.loads(run(path, capsys, "--json"))
    assert (facts["architecture"], facts["shape"]) == ("llama", {"layers": 2})
    assert not facts["can draft"] and "holds the architecture 'llama'" in facts["why not"]
    assert "cannot draft" in run(path, capsys)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"PK\x03\x04 no model", "is not a GGUF file"), (b"GGUF\x03\x00\x00\x00", "GGUF")],
)
def test_what_is_no_model_is_a_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=sentence):
        inspect.main(argparse.Namespace(file=str(path), json=False))


def large_file(path: Path) -> int:
    """A sparse file with the whole header of an int4 35B: 248,320 tokens, all tensors, 20 GB of holes."""
    config = made.write_config(path.parent / "large", made.LARGE)
    tokens = tuple(f"tok{i}" for i in range(config.vocab))
    merges = tuple(f"a{i} b{i}" for i in range(247_587))
    tokenizer = Tokenizer(
        "qwen35", tokens, (NORMAL,) * len(tokens), merges, (("mask_token_id", 5),), False, ()
    )
    wanted, chosen = list(parts(config, set())), recipe("int4", 40)
    pairs: list[tuple[str, Key]] = list(keys(config, tokenizer, Origin("large"), wanted, chosen.file_type))
    header, _, _ = place(pairs, wanted, chosen, [])
    with path.open("wb") as file:
        file.write(header.data)
        file.truncate(header.size)
    return header.size


def test_twenty_gigabytes_in_under_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large.gguf"
    assert large_file(path) > 20e9
    times = []
    for _ in range(3):  # the best of three, for other programs may have the processor
        started = time.perf_counter()
        facts = json.loads(run(path, capsys, "--json"))
        times.append(time.perf_counter() - started)
    assert facts["can draft"] and facts["vocabulary"] == 248_320
    assert facts["parameters"] == pytest.approx(34.66e9, rel=0.01)
    assert min(times) < 1.0, times
