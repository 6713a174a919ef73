"""Tokenizer conversion, judged by llama.cpp's own tokenizer on the converted file."""

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.convert import convert
from clover_local.convert.header import build
from clover_local.convert.tokenizer import (
    CONTROL,
    NORMAL,
    QWEN2,
    QWEN35,
    UNUSED,
    USER_DEFINED,
    pre_tokenizer,
    read_tokenizer,
)
from clover_local.errors import ModelError
from clover_local.ggml.gguf import GgufFile
from clover_local.text.tokenizer import Tokenizer
from tests.convert import made


@pytest.fixture(scope="module")
def original(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """The real Qwen3.5 vocabulary as llama.cpp ships it for its own tests."""
    path = tmp_path_factory.mktemp("vocab") / "qwen35.gguf"
    path.write_bytes(lzma.decompress((shared / "data/qwen35/ggml-vocab-qwen35.gguf.xz").read_bytes()))
    return GgufFile.open(path)


def as_tokenizer_json(file: GgufFile) -> dict[str, Any]:
    """The vocabulary in the shape of a tokenizer.json."""
    tokens, types = file.keys["tokenizer.ggml.tokens"], file.keys["tokenizer.ggml.token_type"]
    listed = list(enumerate(zip(tokens, types, strict=True)))
    added = [
        {"id": i, "content": text, "special": bool(kind == CONTROL and not text.startswith("<|fim"))}
        for i, (text, kind) in listed
        if kind in (CONTROL, USER_DEFINED)
    ]
    vocab = {text: i for i, (text, kind) in listed if kind == NORMAL}
    merges = [merge.split(" ") for merge in file.keys["tokenizer.ggml.merges"]]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": False, "byte_fallback": False}
    return made.tokenizer() | {"normalizer": {"type": "NFC"}, "added_tokens": added, "model": model}


@pytest.fixture(scope="module")
def converted(original: GgufFile, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the real vocabulary and the real chat template, through the whole converter."""
    folder = tmp_path_factory.mktemp("real") / "model"
    size = original.keys.count("tokenizer.ggml.tokens")
    config = made.CONFIG | {"vocab_size": size + 64, "mask_token_id": size - 1, "eos_token_id": 151645}
    made.checkpoint(folder, config=config | {"hidden_size": 32})
    (folder / "tokenizer.json").write_text(json.dumps(as_tokenizer_json(original)))
    (folder / "chat_template.jinja").write_bytes((shared / "data/qwen35/chat_template.jinja").read_bytes())
    path = convert(folder, folder.parent / "out.gguf", threads=2)
    assert isinstance(path, Path)
    return path


def test_the_real_vocabulary_comes_through(converted: Path, original: GgufFile, shared: Path) -> None:
    keys = GgufFile.open(converted).keys
    size = original.keys.count("tokenizer.ggml.tokens")
    assert keys["tokenizer.ggml.pre"] == "qwen35"
    assert keys["tokenizer.ggml.tokens"][:size] == original.keys["tokenizer.ggml.tokens"]
    assert (keys["tokenizer.ggml.token_type"][:size] == original.keys["tokenizer.ggml.token_type"]).all()
    assert (keys["tokenizer.ggml.token_type"][size:] == UNUSED).all()
    assert keys["tokenizer.ggml.merges"] == original.keys["tokenizer.ggml.merges"]
    template = (shared / "data/qwen35/chat_template.jinja").read_text()
    assert keys["tokenizer.chat_template"] == template


def test_llama_cpp_gives_its_own_recorded_ids(converted: Path, shared: Path) -> None:
    tokenizer = Tokenizer.from_gguf(converted)
    folder = shared / "data/qwen35"
    texts = (folder / "ggml-vocab-qwen35.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    lines = (folder / "ggml-vocab-qwen35.gguf.out").read_text().splitlines()
    checked = list(zip(texts, lines, strict=False))
    assert len(checked) > 40
    for text, line in checked:
        ids = [int(i) for i in line.split()]
        assert tokenizer.encode(text, special=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text
    tokenizer.close()


@pytest.mark.parametrize("expression", [QWEN35, QWEN2])
def test_known_pre_tokenizers_cut_as_the_original(
    expression: str, original: GgufFile, tmp_path: Path
) -> None:
    """Hugging Face's tokenizers on the tokenizer.json against llama.cpp on the converted keys."""
    tokenizers = pytest.importorskip("tokenizers")
    data = as_tokenizer_json(original) | {"normalizer": None, "added_tokens": []}
    step = made.PRE_TOKENIZER["pretokenizers"][0] | {"pattern": {"Regex": expression}}
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [step, made.PRE_TOKENIZER["pretokenizers"][1]],
    }
    theirs = tokenizers.Tokenizer.from_str(json.dumps(data))
    path = tmp_path / "vocab.gguf"
    path.write_bytes(build(vocabulary_keys(data), []).data)
    ours = Tokenizer.from_gguf(path)

    @settings(max_examples=150, deadline=None)
    @given(st.text(max_size=40) | st.text("aB'sS 0129 \n\r\té́ம்कि漢字🙂<|>", max_size=40))
    def same(text: str) -> None:
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False).ids

    same()
    ours.close()


def vocabulary_keys(data: dict[str, Any]) -> list[tuple[str, Any]]:
    """The least a vocabulary-only GGUF needs."""
    tokens = {i: text for text, i in data["model"]["vocab"].items()}
    return [
        ("general.architecture", "qwen35moe"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", pre_tokenizer(Path("tokenizer.json"), data["pre_tokenizer"])),
        ("tokenizer.ggml.tokens", tuple(tokens[i] for i in range(len(tokens)))),
        ("tokenizer.ggml.token_type", np.full(len(tokens), NORMAL, np.int32)),
        ("tokenizer.ggml.merges", tuple(" ".join(pair) for pair in data["model"]["merges"])),
    ]


def read(tmp_path: Path, data: dict[str, Any], extra: dict[str, Any] | None = None) -> Any:
    config = made.write_config(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    if extra is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(extra))
    return read_tokenizer(tmp_path, config)


def test_kinds_ids_and_gaps(tmp_path: Path) -> None:
    got = read(tmp_path, made.tokenizer())
    assert len(got.tokens) == len(got.types) == 272
    assert got.types[0] == NORMAL and got.types[258] == CONTROL
    assert (got.tokens[261], got.types[261]) == ("<think>", USER_DEFINED)
    assert (got.tokens[263], got.types[263]) == ("[PAD263]", UNUSED)
    assert dict(got.ids) == {"eos_token_id": 260, "padding_token_id": 258, "mask_token_id": 262}
    assert got.merges == ("i n", "Ġ a") and not got.add_bos
    assert got.templates == (("default", made.TEMPLATE),)


def test_special_tokens_may_be_objects_and_templates_lists(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": ""}]
    extra = {"eos_token": {"content": "<|endoftext|>"}, "bos_token": "<|im_start|>", "chat_template": named}
    got = read(tmp_path, made.tokenizer(), extra | {"add_bos_token": True})
    assert dict(got.ids)["eos_token_id"] == 258 and dict(got.ids)["bos_token_id"] == 259
    assert got.templates == (("default", "a"), ("tool_use", "")), "an empty template is not dropped"
    assert got.add_bos


BAD = {
    "another regex": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated"}},
        r"the pre-tokenizer is not one this program knows: x\+",
    ),
    "no byte level": (
        {"pre_tokenizer": made.PRE_TOKENIZER["pretokenizers"][0]},
        "the pre-tokenizer is not one this program knows",
    ),
    "another step": (
        {"pre_tokenizer": {"type": "Metaspace"}},
        "the pre-tokenizer is not one this program knows: a step of type Metaspace",
    ),
    "no pre-tokenizer": ({"pre_tokenizer": None}, "not one this program knows: none"),
    "unigram": ({"model": {"type": "Unigram"}}, "is not a byte-level BPE tokenizer"),
    "a normalizer": ({"normalizer": {"type": "Lowercase"}}, "a normalizer of type 'Lowercase'"),
    "a template post-processor": (
        {"post_processor": {"type": "TemplateProcessing"}},
        "a post_processor of type 'TemplateProcessing'",
    ),
    "two tokens of one id": (
        {"added_tokens": [{"id": 5, "content": "<x>"}]},
        "the tokens '.*' and '<x>' have the same id 5",
    ),
    "an id beyond": ({"added_tokens": [{"id": 999, "content": "<x>"}]}, "token '<x>' has the id 999"),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_gguf_cannot_express_is_refused(fault: str, tmp_path: Path) -> None:
    change, sentence = BAD[fault]
    with pytest.raises(ModelError, match=sentence) as error:
        read(tmp_path, made.tokenizer() | change)
    assert "tokenizer.json" in str(error.value)


def test_invalid_unicode_in_a_token_is_a_sentence(tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model")
    text = (folder / "tokenizer.json").read_text().replace('"<think>"', '"\\ud800"')
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="is not valid Unicode"):
        convert(folder, tmp_path / "out.gguf")
