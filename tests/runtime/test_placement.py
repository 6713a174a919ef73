"""Placing single experts: what fits, what is swapped, what is remembered, and each bad case with its sentence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.errors import CardFullError, CloverError, LockedMemoryError
from clover_local.ggml.backend import GPU, Device, choose_device
from clover_local.ggml.gguf import GgufFile
from clover_local.model.spec import Spec
from clover_local.runtime import engine as engine_module
from clover_local.runtime import fitting, memory, usage
from clover_local.runtime.engine import Engine
from clover_local.runtime.fitting import Wish, fit
from clover_local.runtime.placement import swaps
from clover_local.runtime.plan import (
    CONTEXT_BYTES,
    DESKTOP,
    GIB,
    HOST_SPARE,
    Machine,
    Plan,
    Sizes,
    decide,
    place,
    sizes_of,
)
from clover_local.runtime.usage import HALF_LIFE, Usage, model_id

LAYERS, EXPERTS, EACH = 40, 256, 1728 << 10
BIG = Sizes(
    {"token embedding": 272 << 20, "attention": 3 * GIB - (272 << 20), "passes": GIB},
    (EXPERTS * EACH,) * LAYERS, EXPERTS, 8, 150 << 20, 800 << 20,
)  # fmt: skip
"""About the 35B in 4 bits: 16.9 GiB of experts."""
CAPPED = Wish(16 * GIB)
CARD = Device(0, "CUDA0", "a card", GPU, 31 * GIB // 2, 16 * GIB)


@given(
    st.lists(st.integers(1, 1 << 22), min_size=1, max_size=48),
    st.integers(1, 64),
    st.integers(0, 1 << 34),
    st.integers(0, 1 << 32),
)
def test_every_byte_is_placed_and_no_slot_more_would_fit(
    each: list[int], experts: int, budget: int, fixed: int
) -> None:
    sizes = Sizes(
        {"rest": fixed, "token embedding": 7}, tuple(size * experts for size in each), experts, 1, 1, 5
    )
    try:
        found = place(sizes, budget, 4096, context=100)
    except CardFullError as error:
        assert fixed + 106 + max(sizes.experts) + sum(each) > budget and error.hint
        return
    assert found.card <= budget and found.host == 7 + sum(sizes.experts)
    assert max(found.slots) - min(found.slots) <= 1 <= min(found.slots)
    if max(found.slots) < experts:
        assert found.card + max(each) * len(each) > budget
    kept = sum(n * size for n, size in zip(found.slots, each, strict=True))
    assert found.card == fixed + 106 + max(sizes.experts) + kept


def test_all_on_the_card_where_it_fits_and_experts_one_by_one_where_not() -> None:
    ram = 64 * GIB
    whole, note = decide(BIG, Machine(24 * GIB, ram), 4096)
    assert not whole.slots and not whole.host_layers and note is None
    part, note = decide(BIG, Machine(16 * GIB - DESKTOP, ram), 4096)
    assert note is None and not part.host_layers and 0.5 < part.on_card(EXPERTS) < 0.8
    without, note = decide(replace(BIG, kernels=0), Machine(16 * GIB - DESKTOP, ram), 4096)
    assert without.host_layers and not without.slots and note is None
    asked, _ = decide(BIG, Machine(24 * GIB, ram), 4096, slots=3)
    assert asked.slots == (3,) * LAYERS
    layered, _ = decide(BIG, Machine(16 * GIB, ram), 4096, host_layers=20)
    assert len(layered.host_layers) == 20


def test_too_little_memory_of_the_computer_is_said() -> None:
    need = sum(BIG.experts) + BIG.fixed["token embedding"] + HOST_SPARE
    assert decide(BIG, Machine(15 * GIB, need), 4096)[0].slots
    layered, note = decide(BIG, Machine(15 * GIB, need - 1), 4096)
    assert layered.host_layers and not layered.slots
    assert note is not None and "needs 19.1 GiB of free memory, 19.1 GiB are there" in note
    _, note = decide(BIG, Machine(15 * GIB, 8 * GIB), 4096)
    assert note is not None and "needs 19.1 GiB of free memory, 8.0 GiB are there" in note


@pytest.mark.parametrize(
    ("kinds", "said"),
    [(("q8_0", "q8_0"), "not q8_0"), (("f32", "q8_0"), "not f32 and q8_0"), (("f16", "f16"), "")],
)
def test_a_cache_without_kernels_leaves_whole_layers_to_the_cpu(
    trained_int4: Path, kinds: tuple[str, str], said: str
) -> None:
    file = GgufFile.open(trained_int4)
    spec = Spec.from_gguf(file)
    have = sizes_of(file, spec, 4096, kinds)
    whole = sum(have.fixed.values()) + sum(have.experts)
    room = whole - have.experts[-1]
    layered, note = decide(have, Machine(room), 4096, context=0)
    assert layered.host_layers and not layered.slots
    if not said:  # why they are off is not the model's business
        assert note is None
        return
    assert note is not None and f"our own kernels need an f16 KV cache, {said}" in note
    assert decide(have, Machine(whole), 4096, context=0)[1] is None  # all fits: every expert is on the card
    assert decide(have, Machine(whole), 4096, host_layers=2, context=0)[1] is None  # it was asked for
    other = replace(CARD, name="Vulkan0", free=room + DESKTOP + fitting.SHRINK)
    _, note = fit(have, other, 4096, Wish(), lambda placed: placed, refused=lambda _: None)
    assert note is None  # nobody expects our kernels there


def test_a_model_with_a_q8_0_cache_runs_on_a_card_that_is_too_small(
    trained_int4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU plays the card; ggml's scheduler computes the experts of the last layers elsewhere."""
    cpu = choose_device("cpu")
    stand_in = replace(cpu, name="CUDA0", kind=GPU, free=1 << 40, total=1 << 40)
    monkeypatch.setattr(engine_module, "choose_device", lambda name=None: cpu if name == "cpu" else stand_in)
    file = GgufFile.open(trained_int4)
    have = sizes_of(file, Spec.from_gguf(file), 256, ("q8_0", "q8_0"))
    room = sum(have.fixed.values()) + sum(have.experts) + CONTEXT_BYTES - have.experts[-1]
    words = [5, 9, 900, 33]
    found = []
    for vram in (None, room + DESKTOP):
        with Engine.open(
            trained_int4, n_ctx=256, threads=1, vram=vram, kv_type_k="q8_0", kv_type_v="q8_0"
        ) as engine:
            assert engine.placement is None and (engine._model.weights.host is not None) == (vram is not None)
            assert engine.note is not None
            assert ("need an f16 KV cache, not q8_0" in engine.note) == (vram is not None)
            engine.prefill(words)
            logits = engine.verify(words).logits()
            found.append(logits[np.isfinite(logits)])
    assert np.abs(found[0] - found[1]).max() < 1e-3


def test_a_cap_too_small_for_the_dense_weights_is_said() -> None:
    with pytest.raises(
        CardFullError, match=r"4\.0 GiB of video memory are too little: 5\.\d GiB are needed"
    ) as caught:
        decide(BIG, Machine(4 * GIB, 64 * GIB), 4096)
    assert caught.value.hint is not None and "--ctx-size" in caught.value.hint


# --- loading ---------------------------------------------------------------------------------------------------------


def opened(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[Plan], Plan],
    wish: Wish = CAPPED,
    device: Device = CARD,
    reason: str | None = None,
    free: int = 15 * GIB,
) -> tuple[Plan, str | None]:
    """What `fit` opens on a machine with 64 GiB."""
    monkeypatch.setattr(fitting, "free_ram", lambda: 64 * GIB)
    again = lambda: replace(device, free=free)  # noqa: E731
    return fit(BIG, device, 4096, wish, build, refused=lambda _: reason, again=again)


def test_memory_taken_between_plan_and_load_is_explained_and_tried_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Plan] = []

    def build(placed: Plan) -> Plan:
        tried.append(placed)
        if placed.card > 12 * GIB:
            raise CardFullError("CUDA0 lacks free memory: allocation failed")
        return placed

    placed, note = opened(monkeypatch, build, free=12 * GIB)
    assert len(tried) == 2 and placed.card <= 12 * GIB
    assert note == "video memory ran out while loading, another program may have taken it: 12.0 GiB are used"
    assert sum(placed.slots) < sum(tried[0].slots)


def test_it_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(placed: Plan) -> Plan:
        raise CardFullError("CUDA0 lacks free memory: allocation failed")

    with pytest.raises(CardFullError, match="lacks free memory"):
        opened(monkeypatch, build)
    with pytest.raises(CardFullError):  # what was asked for by number is not changed
        opened(monkeypatch, build, Wish(16 * GIB, slots=4))


def test_another_error_is_no_reason_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def build(placed: Plan) -> Plan:
        tried.append(placed)
        raise CloverError("the device could not be opened")

    with pytest.raises(CloverError, match="could not be opened"):
        opened(monkeypatch, build)
    assert len(tried) == 1


def test_memory_that_cannot_be_locked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(placed: Plan) -> Plan:
        if placed.slots:
            raise LockedMemoryError("the system did not let CUDA0 lock memory for the experts")
        return placed

    placed, note = opened(monkeypatch, build)
    assert placed.host_layers and note is not None
    assert note == (
        "the system did not let CUDA0 lock memory for the experts; whole layers' experts stay with the CPU, "
        "which is slower"
    )


def test_kernels_that_do_not_run_leave_whole_layers_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    placed, note = opened(
        monkeypatch, lambda plan: plan, reason="our own kernels are off: the driver is too old"
    )
    assert (
        placed.host_layers and not placed.slots and note == "our own kernels are off: the driver is too old"
    )


def test_a_second_model_gets_what_the_first_left(monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(CARD, free=9 * GIB)
    placed, note = opened(monkeypatch, lambda plan: plan, device=device)
    assert placed.card <= 9 * GIB
    assert note == "other programs hold 7.0 GiB of the card's 16.0 GiB, so 9.0 GiB are used"
    with pytest.raises(CardFullError, match=r"2\.0 GiB of video memory are too little"):
        opened(monkeypatch, lambda plan: plan, device=replace(CARD, free=2 * GIB))


def test_a_cap_is_a_card_of_that_size_and_what_is_free_counts() -> None:
    assert fitting.budget(replace(CARD, free=100 * GIB), 16 * GIB) == 16 * GIB - DESKTOP
    assert fitting.budget(replace(CARD, free=10 * GIB), 16 * GIB) == 10 * GIB
    assert fitting.budget(replace(CARD, free=10 * GIB), None) == 10 * GIB - fitting.RESERVE


@pytest.mark.parametrize(("limit", "left"), [("max", 9 << 30), (str(6 << 30), 3 << 30)])
def test_a_container_has_what_its_limit_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, left: int
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {9 << 20} kB\n")
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(f"{4 << 30}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 29}\nactive_file {1 << 29}\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert memory.free_ram() == left


# --- swaps -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(1, 11), st.one_of(st.none(), st.integers(0, 4000)))
def test_swaps_gain_and_stay_within_their_bytes(seed: int, slots: int, limit: int | None) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.gamma(0.5, 200, (3, 12)).round()
    held = [rng.permutation(12)[:slots].astype(np.int32) for _ in range(3)]
    sizes = (100, 150, 300)
    found = swaps(counts, held, sizes, limit)
    assert limit is None or sum(sizes[one.layer] for one in found) <= limit
    assert len({(one.layer, one.slot) for one in found}) == len(found)
    after = [row.copy() for row in held]
    for one in found:
        assert one.expert not in after[one.layer]
        assert counts[one.layer][one.expert] > counts[one.layer][after[one.layer][one.slot]]
        after[one.layer][one.slot] = one.expert
    assert all(len(set(row.tolist())) == slots for row in after)
    if limit is None:
        assert swaps(counts, after, sizes, None) == []


def test_what_may_be_chance_moves_nothing() -> None:
    held = [np.array([0, 1], np.int32)]
    assert swaps(np.array([[10.0, 12.0, 15.0, 11.0]]), held, [1], None) == []
    found = swaps(np.array([[10.0, 12.0, 60.0, 11.0]]), held, [1], None)
    assert [(one.slot, one.expert) for one in found] == [(0, 2)]


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spec(trained_int4: Path) -> Spec:
    return Spec.from_gguf(GgufFile.open(trained_int4))


def test_counts_are_kept_and_fade(spec: Spec, isolated_home: Path) -> None:
    known = Usage.load("some", spec)
    assert not known.counts.any() and not known.add(np.zeros((spec.layers, spec.experts), np.uint32))
    fresh = np.zeros((spec.layers, spec.experts), np.uint32)
    fresh[:, 3] = HALF_LIFE * spec.experts_used
    assert known.add(fresh)
    fresh[:, 3], fresh[:, 1] = 0, HALF_LIFE * spec.experts_used
    known.add(fresh)
    assert known.counts[0, 3] == pytest.approx(known.counts[0, 1] / 2)
    known.save()
    again = Usage.load("some", spec)
    assert (again.counts == known.counts).all() and again.order()[0, :2].tolist() == [1, 3]
    assert again.order()[0, 2:].tolist() == [e for e in range(spec.experts) if e not in (1, 3)]
    assert [path.name for path in usage.folder().iterdir()] == ["some.npy"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00"])
def test_a_broken_note_is_as_good_as_none(spec: Spec, content: bytes) -> None:
    usage.folder().mkdir(parents=True, exist_ok=True)
    (usage.folder() / "broken.npy").write_bytes(content)
    assert not Usage.load("broken", spec).counts.any()
    np.save(usage.folder() / "broken.npy", np.full((spec.layers, spec.experts), np.nan))
    assert not Usage.load("broken", spec).counts.any()
    np.save(usage.folder() / "broken.npy", np.ones((spec.layers + 1, spec.experts)))
    assert not Usage.load("broken", spec).counts.any()


def test_a_folder_nobody_may_write_is_no_error(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(usage, "folder", lambda: tmp_path / "file" / "usage")
    Usage.load("some", spec).save()


def test_quantizations_of_one_checkpoint_share_their_counts(
    trained_int4: Path, trained_f32: Path, tiny_f32: Path
) -> None:
    first, second, other = (GgufFile.open(path) for path in (trained_int4, trained_f32, tiny_f32))
    key = model_id(first, Spec.from_gguf(first))
    assert key == model_id(second, Spec.from_gguf(second)) != model_id(other, Spec.from_gguf(other))


def test_a_plan_counts_what_our_kernels_and_long_prompts_take(trained_int4: Path) -> None:
    file = GgufFile.open(trained_int4)
    spec = Spec.from_gguf(file)
    plain, ours = (sizes_of(file, spec, 4096, ("f16", "f16"), own_kernels=own) for own in (False, True))
    assert plain.kernels == plain.placed_passes == 0 and plain.fixed == ours.fixed
    assert ours.kernels > 32 * 4 * spec.vocab and ours.placed_passes > 2048 * 4 * spec.hidden
    longer = sizes_of(file, spec, 8192, ("f16", "f16"), own_kernels=True)
    assert longer.placed_passes > ours.placed_passes
