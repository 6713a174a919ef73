"""Our kernels beside an engine: proved on its own weights and state, and every reason against them is a sentence.

The kernels run on the emulator over the memory of ggml's CPU backend; the driver's answers are stand-ins, because no
machine has both an old driver and too little memory.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clover_local.commands import doctor
from clover_local.convert.api import convert
from clover_local.errors import CardFullError
from clover_local.ggml import backend
from clover_local.model.passes import Kind, Model
from clover_local.names import DEMO_FILE
from clover_local.runtime import kernels, selfcheck
from clover_local.runtime.cuda import card, compiler, device, runner
from clover_local.runtime.engine import Engine

from .emulation import EmulatedDevice, library

driver = pytest.importorskip("cuda.bindings.driver", reason="the extra `cuda` is not installed")
GOOD = driver.CUresult.CUDA_SUCCESS


class Driver:
    """The driver's functions that opening a card takes; `memory` bytes can be reserved."""

    def __init__(
        self, cuda: int = 13050, capability: tuple[int, int] = (9, 0), memory: int = 1 << 40
    ) -> None:
        self.cuda, self.capability, self.memory = cuda, capability, memory
        self.held: dict[int, int] = {}
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):  # a function this driver does not have
            raise RuntimeError(f"Function {name} not found")
        return getattr(driver, name)

    def cuInit(self, flags: int) -> Any:
        return (GOOD,)

    def cuDriverGetVersion(self) -> Any:
        return GOOD, self.cuda

    def cuDeviceGet(self, ordinal: int) -> Any:
        return GOOD, ordinal

    def cuDeviceGetName(self, room: int, ordinal: int) -> Any:
        return GOOD, b"Some card" + b"\0" * (room - 9)

    def cuDeviceGetAttribute(self, kind: Any, ordinal: int) -> Any:
        names = driver.CUdevice_attribute
        known = {
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: self.capability[0],
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: self.capability[1],
        }
        return GOOD, known.get(kind, 99 << 10)

    def cuDevicePrimaryCtxRetain(self, ordinal: int) -> Any:
        self.open += 1
        return GOOD, 1

    def cuDevicePrimaryCtxRelease(self, ordinal: int) -> Any:
        self.open -= 1
        return (GOOD,)

    def cuMemAlloc(self, nbytes: int) -> Any:
        if sum(self.held.values()) + nbytes > self.memory:
            return driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        self.held[address := 256 * (len(self.held) + 1)] = nbytes
        return GOOD, address

    def cuMemFree(self, address: int) -> Any:
        del self.held[address]
        return (GOOD,)

    def cuMemsetD8(self, *_: Any) -> Any:
        return (GOOD,)

    cuCtxSetCurrent = cuCtxSynchronize = cuStreamDestroy = cuMemcpyHtoD = cuMemsetD8

    def cuStreamCreate(self, flags: int) -> Any:
        return GOOD, 1


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.open(DEMO_FILE, n_ctx=128, threads=1, device="cpu") as opened:
        yield opened


def on_a_card(model: Model) -> Model:
    """The same model, its backend said to be the first NVIDIA card."""
    backend = copy.copy(model.backend)
    backend.device = replace(backend.device, name="CUDA0")
    return replace(model, backend=backend)


def install(monkeypatch: pytest.MonkeyPatch, stand_in: Driver) -> None:
    for module in (card, device):
        monkeypatch.setattr(module, "load_driver", lambda: stand_in)


def attach(engine: Engine) -> tuple[kernels.Kernels | None, str | None]:
    return kernels.attach(on_a_card(engine._model), engine.n_ctx, engine._graphs)


def test_an_old_driver_falls_back_with_a_sentence(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "RELEASE", Path("/nowhere"))
    install(monkeypatch, Driver(cuda=11080))
    own, note = attach(engine)
    version = ".".join(map(str, compiler.nvrtc_version()))
    assert own is None
    assert note == (
        f"our own kernels are off: the NVIDIA driver (CUDA 11.8) is older than their compiler (CUDA {version}); "
        "update the driver"
    )


def test_a_driver_without_a_function_falls_back_with_a_sentence(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older(Driver):
        def cuDevicePrimaryCtxRetain(self, ordinal: int) -> Any:
            raise RuntimeError("Function cuDevicePrimaryCtxRetain not found")

    install(monkeypatch, Older())
    own, note = attach(engine)
    assert own is None and note is not None and "cuDevicePrimaryCtxRetain not found" in note


def test_an_old_card_falls_back_with_a_sentence(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(capability=(7, 5)))
    own, note = attach(engine)
    assert own is None and note is not None and "compute capability 7.5; they need 8.0" in note


@pytest.mark.parametrize("memory", [0, 64 << 10, 1 << 20])
def test_too_little_memory_falls_back_with_a_sentence(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """Whatever was reserved before is given back, and ggml's graphs run."""
    stand_in = Driver(memory=memory)
    install(monkeypatch, stand_in)
    own, note = attach(engine)
    assert own is None
    assert note == "our own kernels are off: the card has too little memory left for them"
    assert not stand_in.held and stand_in.open == 0
    assert engine.prefill([5, 6, 7]) is not None


def test_a_card_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n"
    )
    monkeypatch.setattr(card, "RELEASE", tmp_path / "version")
    install(monkeypatch, Driver(cuda=13000))
    found = card.usable()
    assert (found.name, found.capability, found.driver) == ("Some card", (9, 0), "570.86.15, CUDA 13.0")


def test_doctor_describes_card_compiler_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(cuda=13000, capability=(12, 0)))
    monkeypatch.setattr(card, "RELEASE", Path("/nowhere"))
    monkeypatch.setattr(backend, "devices", list)  # a build of llama-cpp-python without CUDA
    compiler.kernel_binary("rows", (12, 0), {})
    findings = {finding.name: finding for finding in doctor.kernels()}
    assert findings["NVIDIA card"].value == "Some card (sm_120), driver CUDA 13.0"
    assert findings["extra `cuda`"].value.startswith("installed, NVRTC ")
    assert findings["kernel cache"].value.startswith(f"{compiler.cache_folder()} (1 files, 0.")
    assert "no CUDA" in findings["self-check"].value


def test_doctor_says_that_a_card_has_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Missing(Driver):
        def cuInit(self, flags: int) -> Any:
            raise RuntimeError("the library is not there")

    install(monkeypatch, Missing())
    monkeypatch.setattr(kernels, "CARD", tmp_path)
    found = next(iter(doctor.kernels()))
    assert (found.kind, found.value) == ("problem", "there is no NVIDIA driver here")
    assert found.remedy


def test_every_kernel_has_a_name() -> None:
    names = compiler.kernel_names()
    assert {"dense", "moe_route", "gdn_causal", "attention", "choose"} <= set(names)
    assert len(names) == len(set(names))


def test_a_type_without_a_kernel_is_said(engine: Engine) -> None:
    types = {"blk.0.ffn_up_exps.weight": "iq2_xs"}
    assert runner.unsupported(engine.spec, types) == "blk.0.ffn_up_exps.weight has the type iq2_xs"


# --- with the kernels themselves -------------------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    library("rows", ())  # skips without a compiler
    install(monkeypatch, Driver())
    monkeypatch.setattr(runner, "Device", EmulatedDevice)
    monkeypatch.setattr(kernels, "WARM", 0)
    monkeypatch.setattr(kernels, "TIMED", 1)
    monkeypatch.setattr(kernels, "WIDTHS", (1, 8))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("emulated")
def test_kernels_are_proved_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the demo model: its weights and state where ggml put them. The second start remembers."""
    own, note = attach(engine)
    assert note is None and own is not None
    assert not any(ring.any() or s.any() for ring, s in engine.snapshot().layers)
    monkeypatch.setattr(selfcheck, "check", lambda *_: pytest.fail("checked again"))
    again, note = attach(engine)
    assert note is None and again is not None
    again.runner.close()
    own.runner.close()


@pytest.mark.usefixtures("emulated")
def test_kernels_that_were_wrong_stay_off(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = selfcheck.Outcome(
        23, ("a verify of 8 rows after 37 tokens correlates with ggml's at only 0.431",)
    )
    monkeypatch.setattr(selfcheck, "check", lambda *_: wrong)
    for _ in range(2):
        own, note = attach(engine)
        assert own is None and note is not None
        assert "1 of 23 comparisons with ggml's graphs failed on this card: a verify of 8 rows" in note
        monkeypatch.setattr(selfcheck, "check", lambda *_: pytest.fail("checked again"))


@pytest.mark.usefixtures("emulated")
def test_a_card_too_full_to_check_on_frees_everything_for_a_smaller_plan(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> selfcheck.Outcome:
        raise CardFullError("video memory ran out")

    closed: list[runner.Runner] = []
    monkeypatch.setattr(selfcheck, "check", full)
    monkeypatch.setattr(runner.Runner, "close", lambda own: closed.append(own))
    for _ in range(2):  # the first leaves no verdict
        with pytest.raises(CardFullError):
            attach(engine)
    assert len(closed) == 2


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("emulated")
def test_a_whole_model_of_two_and_three_bits(trained_checkpoint: Path, tmp_path: Path) -> None:
    """The fit16 recipe: rows of 256 in 2 and 3 bits, shorter ones in the types that stand in for those."""
    path = tmp_path / "fit16.gguf"
    convert(trained_checkpoint, path, recipe="fit16")
    with Engine.open(path, n_ctx=128, threads=1, device="cpu") as engine:
        types = set(runner.types_of(engine._model).values())
        assert types & {"q2_k", "q3_k", "q4_0", "q5_1"}, types
        own = runner.Runner(engine._model, engine.n_ctx)
        outcome = selfcheck.check(engine._model, engine.n_ctx, engine._graphs, own)
        assert outcome.good, outcome.wrong
        words = np.random.default_rng(0).integers(0, engine.spec.vocab, 9).tolist()
        engine._kernels = kernels.Kernels(own, frozenset({(Kind.VERIFY, 8), (Kind.PREVIEW, 8)}))
        engine.prefill(words)
        engine.verify(words[:6])
        engine.commit(4)
        assert engine.n_past == 13 and engine.step(words[0]).ids.shape == (1,)
