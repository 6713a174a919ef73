"""Bad checkpoints: each fault a sentence that names file and tensor, and nothing left that looks done."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.convert import convert
from clover_local.convert.config import read_config
from clover_local.convert.tokenizer import read_tokenizer
from clover_local.errors import CloverError, ModelError, UsageError
from tests.convert import made


def refused(folder: Path, tmp_path: Path, sentence: str, **options: Any) -> CloverError:
    """Convert and expect that sentence; nothing but a partial file may be left."""
    output = tmp_path / "refused.gguf"
    with pytest.raises(CloverError, match=sentence) as error:
        convert(folder, output, threads=2, **options)
    assert not output.exists()
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    return error.value


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.2.mlp.experts.down_proj",
        "model.layers.1.linear_attn.out_proj.weight",
        "model.layers.0.linear_attn.A_log",
        "model.layers.1.linear_attn.bd_softmax_history_c",
    ],
)
def test_nan_and_infinity_are_found_in_any_tensor(name: str, value: float, tmp_path: Path) -> None:
    weights = made.values_for(made.write_config(tmp_path / "unused"))
    weights[name].reshape(-1)[-1] = value
    folder = made.checkpoint(tmp_path / "model", tensors=weights, shards=2)
    error = refused(
        folder, tmp_path, rf"model-0000\d-of-00002\.safetensors: tensor {name} holds NaN or infinite"
    )
    assert isinstance(error, ModelError)


def test_values_beyond_float16_are_refused_unless_kept_in_bf16(tmp_path: Path) -> None:
    weights = made.values_for(made.write_config(tmp_path / "unused"))
    weights["lm_head.weight"][5, 5] = 1e6
    folder = made.checkpoint(tmp_path / "model", tensors=weights)
    error = refused(folder, tmp_path, r"tensor lm_head\.weight holds 9\.994e\+05, beyond q8_0")
    assert error.hint == "keep it in bf16: --tensor 'output.weight=bf16'"
    convert(folder, tmp_path / "kept.gguf", overrides=["output.weight=bf16"], threads=2)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    weights = made.values_for(made.write_config(tmp_path / "unused"))
    weights["model.layers.3.self_attn.k_proj.weight"] = np.zeros((65, 64), np.float32)
    folder = made.checkpoint(tmp_path / "model", tensors=weights)
    refused(
        folder,
        tmp_path,
        r"layers\.3\.self_attn\.k_proj\.weight has the shape \[65, 64\], config\.json asks for \[64, 64\]",
    )


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"BF16"', b'"I16" ', 1))
    refused(folder, tmp_path, r"tensor model\.embed_tokens\.weight is I16; BF16, F16, F32 can be converted")


def test_missing_shards_are_named_together(tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model", shards=4)
    (folder / "model-00002-of-00004.safetensors").unlink()
    (folder / "model-00004-of-00004.safetensors").unlink()
    refused(folder, tmp_path, r"lacks 2 of the files .*: model-00002-of-00004.*, model-00004-of-00004")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_shard_is_named(keep: int, tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model", shards=3)
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(
        folder, tmp_path, r"model-00002-of-00003\.safetensors (is truncated|is not a complete|ends inside)"
    )


def test_an_index_that_places_a_tensor_in_the_wrong_shard(tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model", shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = "model-00002-of-00002.safetensors"
    path.write_text(json.dumps(index))
    refused(
        folder, tmp_path, r"model-00002-of-00002\.safetensors lacks the tensor lm_head\.weight that the index"
    )


@pytest.mark.parametrize("file", ["../../etc/passwd.safetensors", "/tmp/x.safetensors", "x.bin", 7])
def test_an_index_may_only_name_files_beside_it(file: object, tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model", shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    refused(folder, tmp_path, r"the file of tensor 'a', is not a safetensors name")


def test_the_same_tensor_in_two_files_without_an_index(tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model")
    (folder / "other.safetensors").write_bytes(
        made.safetensors({"lm_head.weight": np.ones((2, 2), np.float32)})
    )
    refused(folder, tmp_path, r"lm_head\.weight is both in model\.safetensors and in other\.safetensors")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"recipe": "int5"}, "there is no recipe 'int5'"),
        ({"overrides": ["output.weight"]}, "not of the form PATTERN=TYPE"),
        ({"overrides": ["output.weight=q9_k"]}, "there is no weight type 'q9_k'"),
        ({"overrides": ["output.weight=i32"]}, "there is no weight type 'i32'"),
        ({"overrides": ["output.weight=iq2_xxs"]}, "iq2_xxs can only be made with an importance matrix"),
        ({"overrides": ["blk.*.ffn_dwn_exps.weight=q6_k"]}, r"ffn_dwn_exps\.weight=q6_k matches no matrix"),
        ({"overrides": ["output_norm.weight=q8_0"]}, r"output_norm\.weight=q8_0 matches no matrix"),
        ({"threads": 0}, "--threads must be at least 1"),
    ],
)
def test_bad_options_are_usage_errors(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model")
    with pytest.raises(UsageError, match=sentence):
        convert(folder, tmp_path / "out.gguf", **options)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere", "there is no folder nowhere"),
        ("./owner/name/deep", "there is no folder"),
        ("{tmp}", "holds no config.json"),
        ("{tmp}/file.gguf", "is a file; clover convert takes a checkpoint folder or a hub id"),
    ],
)
def test_sources_that_are_none(source: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=sentence):
        convert(source.format(tmp=tmp_path), tmp_path / "out.gguf")


def test_a_folder_without_weights(tmp_path: Path) -> None:
    made.write_config(tmp_path / "model")
    refused(tmp_path / "model", tmp_path, "holds no safetensors files")


def test_a_folder_of_ones_own_is_never_discarded(tmp_path: Path) -> None:
    folder = made.checkpoint(tmp_path / "model")
    refused(folder, tmp_path, "is a folder of your own", discard_shards=True)
    assert (folder / "model.safetensors").exists()


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model_type": "llama"}, "the model type 'llama' cannot be converted"),
    "no type": ({"model_type": None}, "'model_type' is missing"),
    "no hidden size": ({"hidden_size": None}, "'hidden_size' is missing, wanted a whole number"),
    "zero layers": ({"num_hidden_layers": 0}, "'num_hidden_layers' is '0', wanted"),
    "a text for a number": ({"num_experts": "8"}, "'num_experts' is '8', wanted"),
    "an immense vocabulary": ({"vocab_size": 10**15}, "'vocab_size' is '1000000000000000', wanted"),
    "another activation": ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu', wanted 'silu'"),
    "biases": ({"attention_bias": True}, "'attention_bias' is 'True', wanted False"),
    "no renormalising": ({"norm_topk_prob": False}, "'norm_topk_prob' is 'False', wanted True"),
    "other layers": ({"layer_types": ["full_attention"] * 4}, "'layer_types' does not say"),
    "scaled positions": (
        {"rope_parameters": {"rope_type": "yarn"}},
        "'rope_type' is 'yarn', wanted 'default'",
    ),
    "odd heads": ({"linear_num_value_heads": 5}, "value heads are not a multiple of key heads"),
    "two head sizes": ({"linear_value_head_dim": 32}, "linear_key_head_dim and linear_value_head_dim differ"),
    "a mask beyond the vocabulary": ({"mask_token_id": 272}, "lies beyond vocab_size"),
    "no block size": ({"block_size": None}, "'block_size' is missing"),
}


@pytest.mark.parametrize("fault", BAD_CONFIGS)
def test_configs_that_cannot_be_expressed(fault: str, tmp_path: Path) -> None:
    change, sentence = BAD_CONFIGS[fault]
    folder = made.checkpoint(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(made.CONFIG | change))
    error = refused(folder, tmp_path, sentence)
    assert "config.json" in str(error)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def bent(value: Any, draw: Callable[[Any], Any]) -> Any:
    """The JSON value with one drawn part of it, at any depth, replaced or removed."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: bent(value[key], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], bent(value[at], draw), *value[at + 1 :]]
    return draw(ANY)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_config_and_tokenizer_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in the JSON files: a sentence or a result, never another exception."""
    folder = tmp_path_factory.mktemp("bent")
    config = made.write_config(folder)
    files = {
        "config.json": made.CONFIG,
        "generation_config.json": {"eos_token_id": [260], "dllm_length_penalty": 1.0, "stop_token_ids": [3]},
        "tokenizer.json": made.tokenizer(),
        "tokenizer_config.json": made.settings(),
    }
    name = data.draw(st.sampled_from(sorted(files)))
    (folder / name).write_text(json.dumps(bent(files[name], data.draw)))
    try:
        read_config(folder)
        read_tokenizer(folder, config)
    except ModelError as error:
        assert "\n" not in str(error) or name in str(error)
