"""tokenizer.json and tokenizer_config.json to the tokenizer.* keys that llama.cpp reads.

The pre-tokenizer (how text is cut before merging) is a name in GGUF and a regular expression here: it is
looked up in a table, and an unknown one is an error, since a near miss changes token ids silently.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_local.convert.config import Config
from clover_local.convert.files import maybe_object, read_object, read_text
from clover_local.errors import ModelError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's token types

_ENDINGS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + _ENDINGS
)
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _ENDINGS
# The steps of a pre-tokenizer -> its name in GGUF. A step is a regular expression that isolates its matches.
PRE_TOKENIZERS: dict[tuple[str, ...], str] = {(QWEN35,): "qwen35", (QWEN2,): "qwen2"}


@dataclass(frozen=True)
class Tokenizer:
    """What the GGUF stores: arrays as long as the vocabulary, merges, special ids and the chat templates."""

    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    ids: tuple[tuple[str, int], ...]
    """GGUF key below tokenizer.ggml. and token id."""
    add_bos: bool
    templates: tuple[tuple[str, str], ...]
    """Name and Jinja source; the main one is named `default`."""


def read_tokenizer(folder: Path, config: Config) -> Tokenizer:
    """Read the tokenizer of a checkpoint folder; raises ModelError for what GGUF cannot express."""
    path = folder / "tokenizer.json"
    data = read_object(path)
    settings = maybe_object(folder / "tokenizer_config.json")
    model = data.get("model")
    _check_model(path, data, model)
    assert isinstance(model, dict)
    added = _added(path, data)
    tokens, types = _vocabulary(path, model["vocab"], added, config.vocab)
    by_text = {entry["content"]: entry["id"] for entry in added} | model["vocab"]
    return Tokenizer(
        pre=pre_tokenizer(path, data.get("pre_tokenizer")),
        tokens=tokens,
        types=types,
        merges=tuple(_merges(path, model.get("merges"))),
        ids=tuple(_special_ids(settings, config, by_text)),
        add_bos=settings.get("add_bos_token") is True,
        templates=tuple(_templates(folder, settings)),
    )


def pre_tokenizer(path: Path, value: Any) -> str:
    """The GGUF name of a pre-tokenizer as tokenizer.json writes it."""
    steps = value.get("pretokenizers", [value]) if isinstance(value, dict) else []
    expressions: list[str] = []
    byte_level = False
    for step in steps if isinstance(steps, list) else []:
        kind = step.get("type") if isinstance(step, dict) else None
        if kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
            pattern = step.get("pattern")
            expressions.append(str(pattern.get("Regex")) if isinstance(pattern, dict) else "")
        elif kind == "ByteLevel" and not step.get("use_regex", True) and not step.get("add_prefix_space"):
            byte_level = True
        else:
            expressions.append(f"a step of type {kind}")
    name = PRE_TOKENIZERS.get(tuple(expressions))
    if name is None or not byte_level:
        shown = " then ".join(expressions)[:200] or "none"
        raise ModelError(
            f"{path}: the pre-tokenizer is not one this program knows: {shown}",
            f"known ones: {', '.join(PRE_TOKENIZERS.values())}; guessing would change token ids silently",
        )
    return name


def _check_model(path: Path, data: dict[str, Any], model: Any) -> None:
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise ModelError(f"{path} is not a byte-level BPE tokenizer, the only kind that is converted")
    for key in (
        "byte_fallback",
        "ignore_merges",
        "fuse_unk",
        "continuing_subword_prefix",
        "end_of_word_suffix",
    ):
        if model.get(key):
            raise ModelError(f"{path}: the BPE option {key!r} is set and cannot be expressed in the GGUF")
    for key, allowed in (("normalizer", (None, "NFC")), ("post_processor", (None, "ByteLevel"))):
        step = data.get(key)
        kind = step.get("type") if isinstance(step, dict) else step
        if kind not in allowed:
            raise ModelError(f"{path}: a {key} of type {kind!r} cannot be expressed in the GGUF")


def _added(path: Path, data: dict[str, Any]) -> list[dict[str, Any]]:
    added = data.get("added_tokens") or []
    good = isinstance(added, list) and all(
        isinstance(a, dict) and isinstance(a.get("content"), str) and isinstance(a.get("id"), int)
        for a in added
    )
    if not good:
        raise ModelError(f"{path}: 'added_tokens' is not a list of tokens with content and id")
    return added


def looks_special(text: str) -> bool:
    """Tokens such as <|fim_prefix|> are control tokens even where tokenizer.json does not mark them so."""
    return text.startswith("<|") and text.endswith("|>")


def _kind(token: dict[str, Any]) -> int:
    return CONTROL if token.get("special") or looks_special(token["content"]) else USER_DEFINED


def _vocabulary(
    path: Path, vocab: dict[str, Any], added: list[dict[str, Any]], size: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    tokens: list[str | None] = [None] * size
    types = [UNUSED] * size
    marked = [(a["content"], a["id"], _kind(a)) for a in added]
    for text, number, kind in [*((text, number, NORMAL) for text, number in vocab.items()), *marked]:
        if not isinstance(number, int) or not 0 <= number < size:
            raise ModelError(
                f"{path}: token {text!r} has the id {number!r}; config.json says vocab_size {size}"
            )
        if tokens[number] not in (None, text):
            raise ModelError(f"{path}: the tokens {tokens[number]!r} and {text!r} have the same id {number}")
        tokens[number], types[number] = text, kind
    return tuple(f"[PAD{i}]" if text is None else text for i, text in enumerate(tokens)), tuple(types)


def _merges(path: Path, merges: Any) -> Iterable[str]:
    if not isinstance(merges, list):
        raise ModelError(f"{path}: the BPE model has no list of merges")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
            raise ModelError(f"{path}: {str(merge)[:60]!r} is not a merge of two tokens")
        yield f"{pair[0]} {pair[1]}"


def _special_ids(
    settings: dict[str, Any], config: Config, by_text: dict[str, int]
) -> Iterable[tuple[str, int]]:
    """eos, pad and bos: what the tokenizer names, else what the config numbers; and the mask token."""
    numbers = {"eos": config.eos_ids[0] if config.eos_ids else None, "pad": config.pad_id, "bos": None}
    for name, key in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("pad", "padding_token_id")):
        text = settings.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        number = by_text.get(text, numbers[name]) if isinstance(text, str) else numbers[name]
        if number is not None:
            yield key, number
    if config.block is not None:
        yield "mask_token_id", config.block.mask_id


def _templates(folder: Path, settings: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The chat templates: a file of its own comes before the entry in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    value = read_text(path) if path.exists() else settings.get("chat_template")
    if value is None:
        return
    entries = value if isinstance(value, list) else [{"name": "default", "template": value}]
    for entry in entries:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ModelError(
                f"{folder / 'tokenizer_config.json'}: 'chat_template' is no text and no list of named texts"
            )
        yield name, text
