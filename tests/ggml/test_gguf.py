"""The GGUF reader: what it reads; damaged headers end in a sentence, never in a crash or a huge list."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clover_local.errors import CloverError, ModelError
from clover_local.ggml.gguf import GgufFile
from clover_local.model.spec import Spec

U8, U32, F32, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _key(name: bytes, kind: int, payload: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + payload


def sample() -> bytes:
    """Two tensors and a key of every sort, built byte by byte."""
    keys = [
        _key(b"general.architecture", STRING, _text(b"qwen35moe")),
        _key(b"a.count", U32, struct.pack("<I", 7)),
        _key(b"a.rate", F32, struct.pack("<f", 0.5)),
        _key(b"a.flag", BOOL, b"\1"),
        _key(
            b"a.words", ARRAY, struct.pack("<IQ", STRING, 3) + _text(b"x") + _text(b"") + _text("ü".encode())
        ),
        _key(b"a.numbers", ARRAY, struct.pack("<IQ", F32, 3) + struct.pack("<3f", 1, 2, 3)),
    ]
    tensors = [
        _text(b"one") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0),
        _text(b"two") + struct.pack("<IQIQ", 1, 256, 12, 32),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    head += b"\0" * (-len(head) % 32)
    return head + np.arange(8, dtype=np.float32).tobytes() + bytes(range(144))


def _write(folder: Path, data: bytes) -> Path:
    path = folder / "sample.gguf"
    path.write_bytes(data)
    return path


def test_reads_every_kind(tmp_path: Path) -> None:
    file = GgufFile.open(_write(tmp_path, sample()))
    assert file.keys["a.count"] == 7 and file.keys["a.rate"] == 0.5 and file.keys["a.flag"] is True
    assert file.keys["a.words"] == ["x", "", "ü"] and file.keys.count("a.words") == 3
    assert file.keys["a.numbers"].tolist() == [1, 2, 3]
    assert file.tensors["one"].shape == (4, 2)
    assert file.array("one").view(np.float32).tolist() == list(range(8))
    assert file.tensors["two"].type.name == "q4_k"
    assert bytes(file.array("two")) == bytes(range(144))


MATRIX, ROW = struct.pack("<IQQIQ", 2, 4, 2, 0, 0), struct.pack("<IQIQ", 1, 256, 12, 32)
DAMAGES = {
    "not a GGUF file": lambda d: b"NOPE" + d[4:],
    "version 9": lambda d: d[:4] + struct.pack("<I", 9) + d[8:],
    "complete GGUF": lambda d: d[:8] + struct.pack("<Q", 1 << 60) + d[16:],
    "ends inside its metadata": lambda d: d[:16] + struct.pack("<Q", 1 << 60) + d[24:],
    "ends at byte": lambda d: d[:-1],
    "ends inside": lambda d: d[:100],
    "9 dimensions": lambda d: d.replace(MATRIX, struct.pack("<IQQIQ", 9, 4, 2, 0, 0)),
    "impossible": lambda d: d.replace(ROW, struct.pack("<IQIQ", 1, 255, 12, 32)),
    "unknown type 99": lambda d: d.replace(ROW, struct.pack("<IQIQ", 1, 256, 99, 32)),
    "same name": lambda d: d.replace(b"two", b"one"),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_each_damage_has_its_sentence(sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=sentence):
        GgufFile.open(_write(tmp_path, DAMAGES[sentence](sample())))


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        GgufFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        GgufFile.open(_write(tmp_path, b""))
    with pytest.raises(ModelError, match="cannot be read"):
        GgufFile.open(tmp_path)


@given(data=st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_mutation_crashes_or_allocates_without_bound(data: st.DataObject, tmp_path: Path) -> None:
    raw = bytearray(sample())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        size = data.draw(st.sampled_from([1, 4, 8]))
        value = data.draw(
            st.one_of(
                st.integers(0, 255),
                st.sampled_from([2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8]),
            )
        )
        raw[at : at + size] = (value % (1 << (8 * size))).to_bytes(size, "little")
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    path = _write(tmp_path, bytes(raw))
    tracemalloc.start()
    try:
        file = GgufFile.open(path)
        for key in file.keys:
            assert file.keys[key] is not None
        Spec.from_gguf(file)
    except CloverError as error:
        assert str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20


@given(tail=st.binary(max_size=400))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_random_bytes_after_the_magic(tail: bytes, tmp_path: Path) -> None:
    path = _write(tmp_path, b"GGUF\3\0\0\0" + tail)
    try:
        GgufFile.open(path)
    except ModelError as error:
        assert str(path) in str(error)


def test_a_quarter_million_strings_are_skipped_quickly(tmp_path: Path) -> None:
    words = b"".join(_text(f"word{i}".encode()) for i in range(250_000))
    key = _key(b"tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 250_000) + words)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key
    tracemalloc.start()
    file = GgufFile.open(_write(tmp_path, data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert file.keys.count("tokenizer.ggml.tokens") == 250_000
    assert peak < 1 << 20
    assert file.keys["tokenizer.ggml.tokens"][249_999] == "word249999"
