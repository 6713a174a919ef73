"""Recipes: fallbacks fit, sizes at the real shape, what never is quantized, overrides."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_local.convert.mapping import parts
from clover_local.convert.plan import Plan
from clover_local.errors import UsageError
from clover_local.ggml.types import tensor_type
from clover_local.quant.classes import OTHER, tensor_class
from clover_local.quant.recipes import (
    FALLBACKS,
    RECIPES,
    WEIGHT_TYPES,
    choose,
    fitting,
    parse_override,
    recipe,
)
from tests.convert import made

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    """Names and shapes of the 35B's tensors."""
    config = made.write_config(tmp_path_factory.mktemp("large"), made.LARGE)
    return {part.target: part.shape for part in parts(config, set()) if not part.is_key}


def sizes(name: str, shapes: Shapes, layers: int = 40) -> Counter[tuple[str, str]]:
    made_recipe, out = recipe(name, layers), Counter[tuple[str, str]]()
    for target, shape in shapes.items():
        kind = choose(made_recipe, target, shape).type
        rows = 1
        for extent in shape[:-1]:
            rows *= extent
        out[tensor_class(target), kind] += rows * tensor_type(kind).row_bytes(shape[-1])
    return out


@given(st.sampled_from(WEIGHT_TYPES), st.integers(1, 5000))
def test_the_fitting_type_fits_and_is_no_smaller(name: str, row: int) -> None:
    got, wanted = tensor_type(fitting(name, row)), tensor_type(name)
    assert row % got.block == 0
    assert got.size / got.block >= wanted.size / wanted.block, "a fallback never loses bits"
    assert (got == wanted) == (row % wanted.block == 0)


def test_every_type_of_large_blocks_has_a_fallback_with_blocks_of_32() -> None:
    for name in WEIGHT_TYPES:
        if tensor_type(name).block == 256:
            assert tensor_type(FALLBACKS[name]).block == 32, name


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("int4", 19.5, 20.2), ("fit16", 12.0, 12.98), ("q8", 36, 37.5), ("f16", 69, 70), ("f32", 138, 139)],
)
def test_size_of_the_35b(name: str, least: float, most: float, large: Shapes) -> None:
    """In GB of tensors; a 248 k vocabulary adds 0.01. fit16 must leave room on a card of 16 GB: 13 in all."""
    total = sum(sizes(name, large).values()) / 1e9
    assert least <= total <= most, f"{name}: {total:.3f} GB"


def test_int4_types_by_class(large: Shapes) -> None:
    types = dict(sizes("int4", large).keys())
    assert types == {
        "routed experts": "q4_k",
        "attention": "q6_k",
        "GDN projections": "q6_k",
        "shared experts": "q8_0",
        "token embedding": "q4_k",
        "output head": "q6_k",
        "router": "f32",
        "GDN gates": "f32",
        OTHER: "f32",
    }


def test_tensors_that_are_multiplied_together_share_a_type(large: Shapes) -> None:
    """Loading merges them into one matrix, which needs one type."""
    merged = (
        "attn_q attn_k attn_v",
        "attn_qkv attn_gate",
        "ffn_gate_exps ffn_up_exps",
        "ffn_gate_shexp ffn_up_shexp",
    )
    for name in RECIPES:
        made_recipe = recipe(name, 40)
        for group in merged:
            for layer in range(40):
                targets = [f"blk.{layer}.{part}.weight" for part in group.split()]
                kinds = {choose(made_recipe, t, large[t]).type for t in targets if t in large}
                assert len(kinds) <= 1, (name, targets)


@given(st.sampled_from(list(RECIPES)), st.sampled_from(WEIGHT_TYPES))
def test_norms_vectors_and_the_convolution_stay_f32(name: str, wanted: str) -> None:
    made_recipe = recipe(name, 4)
    for target, shape in (
        ("blk.0.attn_norm.weight", (2048,)),
        ("blk.0.ssm_conv1d.weight", (8192, 256)),
        ("blk.0.ssm_a", (32,)),
        ("blk.0.ssm_dt.bias", (32,)),
        ("output_norm.weight", (2048,)),
        ("blk.0.ffn_gate_inp_shexp.weight", (2048,)),
    ):
        assert choose(made_recipe, target, shape, [("*", wanted)]).type == "f32"


def test_overrides_win_in_order_and_fall_back_too() -> None:
    made_recipe = recipe("int4", 4)
    rules = [parse_override("blk.*=q8_0"), parse_override("blk.1.attn_q.weight=Q3_K")]
    assert choose(made_recipe, "blk.0.attn_q.weight", (64, 256), rules).type == "q8_0"
    assert choose(made_recipe, "blk.1.attn_q.weight", (64, 256), rules).type == "q3_k"
    short = choose(made_recipe, "blk.1.attn_q.weight", (64, 96), rules)
    assert (short.wanted, short.type) == ("q3_k", "q4_0")


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="there is no recipe 'tiny'") as error:
        recipe("tiny", 4)
    assert error.value.hint == "recipes: " + ", ".join(RECIPES)


def test_each_recipe_plans_a_model_of_any_row_length(tmp_path: Path) -> None:
    """Rows of 32 to 96 values, none a multiple of 256: everything falls back and says so."""
    from clover_local.convert import convert

    folder = made.checkpoint(tmp_path / "model")
    for name in RECIPES:
        plan = convert(folder, recipe=name, dry_run=True)
        assert isinstance(plan, Plan)
        assert bool(plan.notes) == (name in ("int4", "fit16")), plan.notes
