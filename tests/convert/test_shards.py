"""Safetensors shards: exact values, a sentence for every fault, no crash or large allocation."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.convert.shards import Shard
from clover_local.errors import ModelError
from tests.convert import made

PEAK = 4 << 20  # bytes a header of a few hundred may cost while it is read


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return path


def with_header(header: Any, body: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype: str = "F32", shape: Any = (4, 4), offsets: Any = (0, 64)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_rows_come_back_exactly(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(0).integers(-128, 128, (5, 3, 7)).astype(np.float32) / 64
    shard = Shard.open(written(tmp_path, made.safetensors({"first": values[0], "t": values}, dtype)))
    found = shard.entries["t"]
    assert (found.shape, found.row_length) == ((5, 3, 7), 7)
    assert (shard.rows(found, 0, 15) == values.reshape(15, 7)).all()
    assert (shard.rows(found, 4, 6) == values.reshape(15, 7)[4:10]).all()
    shard.close()


def test_special_values_survive_bfloat16(tmp_path: Path) -> None:
    values = np.array([[np.inf, -np.inf, 0.0, -0.0, 2.0**-130, 3e38]], np.float32)
    shard = Shard.open(written(tmp_path, made.safetensors({"t": values})))
    got = shard.rows(shard.entries["t"], 0, 1)
    assert (np.signbit(got) == np.signbit(values)).all()
    assert np.isinf(got[0, :2]).all() and got[0, 4] == np.float32(2.0**-130)
    shard.close()


FAULTS = {
    "an empty file": (b"", "not a complete safetensors file"),
    "a header longer than the file": (
        (1 << 40).to_bytes(8, "little") + b"{}",
        "not a complete safetensors file",
    ),
    "a header of 2^64-1 bytes": (b"\xff" * 8 + b"{}", "not a complete safetensors file"),
    "no JSON": (with_header(b"nonsense"), "not valid JSON"),
    "a list": (with_header(b"[1]"), "holds no JSON object"),
    "deep nesting": (with_header(b"[" * 200_000), "not valid JSON"),
    "a name twice": (with_header(b'{"a": 1, "a": 2}'), "a name occurs twice"),
    "an unknown dtype": (with_header({"a": entry("Q4")}), "no known dtype"),
    "a negative extent": (with_header({"a": entry(shape=[-4, -4])}), "no valid shape"),
    "a huge extent": (with_header({"a": entry(shape=[1 << 60])}), "no valid shape"),
    "many dimensions": (with_header({"a": entry(shape=[1] * 99)}), "no valid shape"),
    "true as an offset": (with_header({"a": entry(offsets=[True, 64])}), "no valid data_offsets"),
    "too few bytes for the shape": (
        with_header({"a": entry(shape=[4, 5])}),
        "covers 64 bytes, not those of F32",
    ),
    "a gap": (with_header({"a": entry(shape=[2], offsets=[8, 16])}), "does not begin where"),
    "an overlap": (
        with_header({"a": entry(shape=[2], offsets=[0, 8]), "b": entry(shape=[2], offsets=[4, 12])}),
        "does not begin where",
    ),
    "a cut body": (with_header({"a": entry()}, bytes(63)), "is truncated"),
    "bytes left over": (with_header({"a": entry()}, bytes(65)), "1 bytes that its header does not describe"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_sentence(tmp_path: Path, fault: str) -> None:
    data, sentence = FAULTS[fault]
    with pytest.raises(ModelError, match=sentence) as error:
        Shard.open(written(tmp_path, data))
    assert "model.safetensors" in str(error.value) and len(str(error.value)) < 400


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the shard .*gone\.safetensors is missing"):
        Shard.open(tmp_path / "gone.safetensors")


def test_a_file_cut_short_while_it_is_read(tmp_path: Path) -> None:
    """Under a memory map this would kill the process."""
    path = written(tmp_path, made.safetensors({"t": np.zeros((100, 64), np.float32)}))
    shard = Shard.open(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 64 * 50)
    with pytest.raises(ModelError, match="ends inside the tensor t"):
        shard.rows(shard.entries["t"], 0, 100)
    shard.close()


def opens_or_refuses(path: Path) -> None:
    """Either every tensor can be read whole, or there is a sentence; memory stays small."""
    tracemalloc.start()
    try:
        shard = Shard.open(path)
        for found in shard.entries.values():
            if found.dtype in ("BF16", "F16", "F32") and found.nbytes and found.row_length:
                shard.rows(found, 0, int(np.prod(found.shape[:-1], dtype=int)))
        shard.close()
    except ModelError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < PEAK


GOOD = made.safetensors({"a.weight": np.ones((3, 4), np.float32), "b": np.zeros((6,), np.float32)})


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8),
    keep=st.integers(0, len(GOOD)),
)
def test_any_damage_to_a_file(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], keep: int
) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    opens_or_refuses(written(tmp_path_factory.mktemp("fuzz"), bytes(data[:keep])))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["BF16", "F16", "F32", "I64", "Q4"]) | JSON,
        "shape": st.lists(st.integers(-1, 9) | st.integers(), max_size=5) | JSON,
        "data_offsets": st.lists(st.integers(0, 70) | st.integers(), min_size=2, max_size=2) | JSON,
    },
)


@settings(max_examples=300, deadline=None)
@given(header=st.dictionaries(st.text(max_size=8), ENTRY | JSON, max_size=4), body=st.binary(max_size=72))
def test_any_header(tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], body: bytes) -> None:
    opens_or_refuses(written(tmp_path_factory.mktemp("fuzz"), with_header(header, body)))
