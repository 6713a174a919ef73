"""Every kernel compiles for every architecture that people have, without a card."""

import importlib.util
import os
from pathlib import Path

import pytest

from clover_local.errors import CloverError
from clover_local.runtime.cuda import arguments, compiler
from clover_local.runtime.cuda.compiler import SOURCES, kernel_binary
from clover_local.runtime.cuda.network import MATRIX_TYPES

ARCHITECTURES = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
COMMON = sum(1 << MATRIX_TYPES[kind] for kind in ("f32", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k"))
"""Types of the recipes int4 and fit16. All of them in one kernel take NVRTC a quarter of a minute."""
VARIANTS: dict[str, tuple[dict[str, int], ...]] = {
    "dense": ({"NT": 1}, {"NT": 2, "TYPES": COMMON}, {"NT": 4, "TYPES": COMMON}),
    "moe": ({"NT": 1, "TYPES": COMMON}, {"NT": 4, "TYPES": COMMON}),
    "gdn": ({"HEAD": 128},),
    "attention": ({"HEAD": 256},),
}


@pytest.fixture(autouse=True)
def nvrtc() -> None:
    """NVRTC comes with the extra `cuda`; a CI without it would prove nothing."""
    if importlib.util.find_spec("cuda") is None:
        if os.environ.get("CI"):
            pytest.fail("the extra `cuda` must be installed under CI")
        pytest.skip("the extra `cuda` is not installed")


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_compiles(source: str, capability: tuple[int, int]) -> None:
    for values in VARIANTS.get(source, ({},)):
        assert kernel_binary(source, capability, values)[:4] == b"\x7fELF"


@pytest.mark.parametrize("source", ["dense", "moe"])
def test_compiles_for_every_type_at_once(source: str) -> None:
    assert kernel_binary(source, (9, 0), {"NT": 4})[:4] == b"\x7fELF"


def test_second_time_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kernel_binary("rows", (9, 0), {})
    monkeypatch.setattr(compiler, "compile_source", lambda *_: pytest.fail("compiled again"))
    assert kernel_binary("rows", (9, 0), {}) == first


def test_another_source_or_architecture_is_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_binary("rows", (9, 0), {})
    kernel_binary("rows", (8, 0), {})
    files = compiler.source_files()
    monkeypatch.setattr(compiler, "source_files", lambda: {**files, "common.cuh": files["common.cuh"] + "\n"})
    kernel_binary("rows", (9, 0), {})
    assert len(list(compiler.cache_folder().glob("rows-*.cubin"))) == 3


def test_unwritable_cache_only_costs_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(compiler, "cache_folder", lambda: blocked / "below")
    assert kernel_binary("rows", (9, 0), {})


def test_a_structure_that_differs_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {**arguments.sizes(), "SIZE_NormArgs": 1}
    monkeypatch.setattr(compiler, "sizes", lambda: sizes)
    with pytest.raises(CloverError, match="differs from NormArgs"):
        kernel_binary("rows", (9, 0), {})
