"""The planner: every byte is placed once, nothing exceeds the budget, and impossible wishes are sentences."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_local.errors import CloverError
from clover_local.ggml.gguf import GgufFile
from clover_local.model.spec import Spec
from clover_local.runtime.plan import GIB, PREFILL_LAYERS, Sizes, parse_size, plan, sizes_of

sizes = st.builds(
    Sizes,
    st.dictionaries(st.sampled_from(["attention", "head", "KV cache"]), st.integers(0, 1 << 33), min_size=1),
    st.lists(st.integers(1, 1 << 30), min_size=1, max_size=48).map(tuple),
)


@given(sizes, st.integers(1, 1 << 36), st.integers(0, 1 << 30))
def test_every_byte_is_placed_once_and_nothing_exceeds_the_budget(
    have: Sizes, budget: int, context: int
) -> None:
    whole = sum(have.fixed.values()) + sum(have.experts)
    try:
        placed = plan(have, budget, 4096, context=context)
    except CloverError as error:
        assert sum(have.fixed.values()) + context + PREFILL_LAYERS * max(have.experts) > budget
        assert "too little" in str(error) and error.hint
        return
    assert placed.card <= budget
    moved = len(placed.host_layers)
    borrowed = PREFILL_LAYERS * max(have.experts) if moved else 0
    assert placed.card + placed.host == whole + context + borrowed
    if moved > 1:  # one layer fewer with the CPU would not have fitted
        assert placed.card + have.experts[len(have.experts) - moved] > budget
    if moved == 1:
        assert whole + context > budget


@given(sizes, st.integers(0, 60))
def test_a_wish_is_followed_or_refused(have: Sizes, layers: int) -> None:
    budget = sum(have.fixed.values()) + sum(have.experts) // 2 + PREFILL_LAYERS * max(have.experts)
    try:
        placed = plan(have, budget, 4096, host_layers=layers, context=0)
    except CloverError as error:
        assert "--n-cpu-moe" in str(error) or "too little" in str(error)
        return
    assert len(placed.host_layers) == layers and placed.card <= budget, placed


def test_more_video_memory_never_moves_more_layers() -> None:
    have = Sizes({"all": GIB}, (GIB // 4,) * 40)
    counts = [len(plan(have, b * GIB, 1, context=0).host_layers) for b in range(2, 15)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 30 and counts[-1] == 0


def test_sizes_cover_the_file(trained_int4: Path) -> None:
    file = GgufFile.open(trained_int4)
    spec = Spec.from_gguf(file)
    small, large = (sizes_of(file, spec, n, ("f16", "f16")) for n in (256, 4096))
    weights = sum(have for name, have in small.fixed.items() if name not in ("KV cache", "passes"))
    stored = sum(info.nbytes for info in file.tensors.values())
    assert weights + sum(small.experts) >= stored
    assert len(small.experts) == spec.layers and min(small.experts) > 0
    assert large.fixed["KV cache"] == 16 * small.fixed["KV cache"]
    halved = sizes_of(file, spec, 4096, ("q8_0", "q8_0"))
    assert halved.fixed["KV cache"] < 0.55 * large.fixed["KV cache"]


def test_the_35b_shape_needs_the_cpu_on_a_16_gb_card() -> None:
    """18 GB of experts and 3 GB of the rest: with 15 GiB some layers move, with 24 none does."""
    have = Sizes({"rest": 3 * GIB}, (round(0.41 * GIB),) * 40)
    assert 8 <= len(plan(have, 15 * GIB, 32768).host_layers) <= 16
    assert not plan(have, 24 * GIB, 32768).host_layers


@pytest.mark.parametrize(
    ("text", "size"),
    [("16G", 16 << 30), ("15.5GiB", int(15.5 * (1 << 30))), ("800m", 800 << 20), ("4096", 4096)],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "sixteen", "-3G", "0", "1e99G", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(CloverError, match="is not a size"):
        parse_size(text)
