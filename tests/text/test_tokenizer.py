"""The tokenizer on the real vocabulary, against llama.cpp's own recorded lines."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.errors import ModelError
from clover_local.text.tokenizer import Tokenizer


def test_recorded_lines_give_the_recorded_ids(qwen: Tokenizer, shared: Path) -> None:
    folder = shared / "data/qwen35"
    texts = (folder / "ggml-vocab-qwen35.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    lines = (folder / "ggml-vocab-qwen35.gguf.out").read_text().splitlines()
    assert len(lines) > 40
    for text, line in zip(texts, lines, strict=False):
        assert qwen.encode(text, special=False) == [int(id) for id in line.split()], repr(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_text_comes_back_whole_and_in_stream(qwen: Tokenizer, text: str) -> None:
    ids = qwen.encode(text, special=False)
    assert qwen.decode(ids) == text
    stream = qwen.stream()
    pieces = [stream.feed([id]) for id in ids]
    assert "".join(pieces) + stream.finish() == text
    assert all("�" not in piece for piece in pieces) or "�" in text


def test_a_character_split_over_tokens_appears_once_it_is_whole(qwen: Tokenizer) -> None:
    ids = qwen.encode("𓂀", special=False)
    assert len(ids) > 1, "the test needs a character of several tokens"
    stream = qwen.stream()
    assert [stream.feed([id]) for id in ids] == [""] * (len(ids) - 1) + ["𓂀"]
    cut = qwen.stream()
    assert cut.feed(ids[:-1]) + cut.finish() == ""
    assert cut.feed(qwen.encode("ok")) == "ok", "nothing of the cut character is left behind"


def test_control_tokens_are_read_and_hidden_but_reasoning_marks_are_seen(qwen: Tokenizer) -> None:
    ids = qwen.encode("<|im_start|>assistant\n<think>\nhm</think>yes<|im_end|>")
    assert qwen.is_control(ids[0]) and qwen.is_control(ids[-1])
    assert qwen.piece(ids[-1]) == b"<|im_end|>"
    assert qwen.stream().feed(ids) == "assistant\n<think>\nhm</think>yes"
    assert len(qwen.encode("<|im_end|>", special=False)) > 1


def test_lone_surrogates_are_not_an_error(qwen: Tokenizer) -> None:
    assert qwen.decode(qwen.encode("a\udcffb")) == "a?b"


def test_a_token_outside_the_vocabulary_is_refused(qwen: Tokenizer) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        qwen.piece(qwen.size)


def test_a_file_without_a_vocabulary_is_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(ModelError, match=r"bad\.gguf holds no tokenizer"):
        Tokenizer.from_gguf(bad)
    with pytest.raises(ModelError, match=r"no file .*missing\.gguf"):
        Tokenizer.from_gguf(tmp_path / "missing.gguf")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
