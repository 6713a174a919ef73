"""The real Qwen3.5 vocabulary, unpacked once."""

import lzma
from pathlib import Path

import pytest

from clover_local.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def qwen_vocab(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary-only GGUF with 248 k entries."""
    path = tmp_path_factory.mktemp("vocab") / "qwen35.gguf"
    path.write_bytes(lzma.decompress((shared / "data/qwen35/ggml-vocab-qwen35.gguf.xz").read_bytes()))
    return path


@pytest.fixture(scope="session")
def qwen(qwen_vocab: Path) -> Tokenizer:
    return Tokenizer.from_gguf(qwen_vocab)
