"""The table of tensors: complete, each tensor met once, permutations that can be undone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_local.convert.config import Config, read_config
from clover_local.convert.mapping import (
    gate_rows,
    parts,
    plain_name,
    tiled_channels,
    tiled_heads,
    tiled_values,
    up_rows,
)
from clover_local.convert.plan import match_names
from clover_local.convert.slices import runs
from clover_local.convert.source import LocalSource
from clover_local.errors import ModelError
from tests.convert import made


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return made.write_config(tmp_path)


@pytest.mark.parametrize("name", ["tiny_checkpoint", "trained_checkpoint"])
def test_every_tensor_of_a_checkpoint_meets_the_table(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    weight_map = LocalSource.open(folder).weight_map
    wanted, places, dropped = match_names(read_config(folder), weight_map)
    assert dropped == 0
    assert {source for part in wanted for source in part.sources} == set(places) == set(weight_map)
    targets = [(part.target, part.layer) for part in wanted]
    assert len(set(targets)) == len(targets), "no target is made twice"


def test_rows_use_every_source_value_exactly_once(config: Config) -> None:
    """Over all parts made from one tensor, the row numbers together are all its rows."""
    used: dict[str, list[np.ndarray]] = {}
    for part in parts(config, set()):
        rows = np.arange(part.row_count) if part.row.rows is None else part.row.rows(config)
        used.setdefault(part.sources[0], []).append(rows)
        assert len(rows) == part.row_count
        if part.row.cols is not None:
            assert sorted(part.row.cols(config)) == list(range(part.row_length))
    for part in parts(config, set()):
        total = np.prod(part.source_shape[:-1], dtype=int)
        assert sorted(np.concatenate(used[part.sources[0]])) == list(range(total)), part.sources[0]


@given(keys=st.integers(1, 6), per_key=st.integers(1, 6), dim=st.integers(1, 5))
def test_value_heads_tile_and_tile_back(keys: int, per_key: int, dim: int) -> None:
    base = Config(*[1] * 24, None, ())  # type: ignore[arg-type]
    config = replace(base, key_heads=keys, value_heads=keys * per_key, gdn_head_dim=dim)
    heads, values, channels = tiled_heads(config), tiled_values(config), tiled_channels(config)
    assert [int(h) // per_key for h in heads] == [h % keys for h in range(keys * per_key)]
    for index in (heads, values, channels):
        data = np.random.default_rng(0).random(len(index))
        assert (data[index][np.argsort(index)] == data).all(), "the inverse is the identity"
    assert (channels[: 2 * keys * dim] == np.arange(2 * keys * dim)).all(), "queries and keys stay"
    assert (values.reshape(-1, dim)[:, 0] == heads * dim).all(), "a head moves as a whole"


def test_gates_and_ups_share_the_fused_rows(config: Config) -> None:
    both = np.concatenate([gate_rows(config), up_rows(config)])
    assert sorted(both) == list(range(config.experts * config.gate_up_width))
    assert gate_rows(config)[config.expert_width] == config.gate_up_width, "expert 1 begins after gate and up"


@given(rows=st.lists(st.integers(0, 40), min_size=1, max_size=30), rows_each=st.integers(1, 9))
def test_runs_say_the_same_rows(rows: list[int], rows_each: int) -> None:
    made_runs = runs(np.array(rows), rows_each)
    again = [source * rows_each + first + k for source, first, count in made_runs for k in range(count)]
    assert again == rows
    assert all(first + count <= rows_each for _, first, count in made_runs), "no run leaves its source"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.visual.blocks.0.attn.qkv.weight", None),
        ("visual.patch_embed.proj.weight", None),
        ("mtp.layers.0.mlp.gate.weight", None),
        ("model.layers.3.self_attn.rotary_emb.inv_freq", None),
    ],
)
def test_prefixes_and_what_is_left_out(name: str, plain: str | None) -> None:
    assert plain_name(name) == plain


def test_missing_and_unknown_tensors_are_named_together(config: Config) -> None:
    names = dict.fromkeys(made.values_for(config), "a.safetensors")
    del names["model.layers.1.linear_attn.A_log"], names["model.layers.3.self_attn.q_norm.weight"]
    names["model.layers.0.mlp.surprise.weight"] = "a.safetensors"
    with pytest.raises(ModelError) as error:
        match_names(config, names)
    assert str(error.value) == (
        "the checkpoint lacks 2 tensors: model.layers.1.linear_attn.A_log, "
        "model.layers.3.self_attn.q_norm.weight and holds the unknown tensor "
        "model.layers.0.mlp.surprise.weight"
    )


def test_a_bare_trunk_needs_no_preview_weights_but_all_of_them_if_one(config: Config) -> None:
    trunk = replace(config, block=None)
    names = dict.fromkeys(made.values_for(trunk), "a.safetensors")
    wanted, _, _ = match_names(trunk, names)
    assert not any(part.is_key for part in wanted)
    names["model.layers.0.linear_attn.conv_right_weight"] = "a.safetensors"
    with pytest.raises(ModelError, match="lacks 11 tensors"):
        match_names(trunk, names)
