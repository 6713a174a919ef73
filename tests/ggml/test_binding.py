"""The binding refuses what it does not know, stays silent, and its codecs keep what they promise."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_local.errors import CloverError
from clover_local.ggml import backend, lib
from clover_local.ggml.quantize import dequantize, needs_importance, quantize
from clover_local.ggml.types import IDS, tensor_type


def test_another_version_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "GGML_VERSION", "0.0.1")
    with pytest.raises(CloverError, match=r"wanted 0\.0\.1") as caught:
        lib._prove(lib.functions)
    assert caught.value.hint == f"run: pip install llama-cpp-python=={lib.BINDING}"


def test_another_struct_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "Tensor", lib.InitParams)
    with pytest.raises(CloverError, match="bytes there and"):
        lib._prove(lib.functions)


def test_loading_prints_nothing() -> None:
    code = "from clover_local.ggml.backend import *; devices(); Backend(choose_device('cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_devices() -> None:
    names = [device.name for device in backend.devices()]
    assert "CPU" in names
    assert backend.choose_device("cpu").name == "CPU"
    with pytest.raises(CloverError, match="no device 'TPU9'") as caught:
        backend.choose_device("TPU9")
    assert caught.value.hint is not None and "CPU" in caught.value.hint


def test_the_table_of_types_is_ggmls() -> None:
    for name, number in IDS.items():
        assert lib.functions["ggml_type_name"](number).decode().lower() == name
    with pytest.raises(CloverError, match="unknown tensor type 'q9_x'"):
        tensor_type("q9_x")
    with pytest.raises(CloverError, match="does not fit q4_k"):
        tensor_type("q4_k").row_bytes(100)


STEPS = {
    "f32": 0.0,
    "f16": 1e-3,
    "bf16": 8e-3,
    "q8_0": 0.01,
    "q6_k": 0.04,
    "q5_k": 0.07,
    "q4_k": 0.12,
    "q3_k": 0.25,
}


@pytest.mark.parametrize("name", STEPS)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 5), blocks=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_quantized_values_come_back_close(name: str, seed: int, rows: int, blocks: int) -> None:
    values = np.random.default_rng(seed).normal(size=(rows, 256 * blocks)).astype(np.float32)
    back = dequantize(name, quantize(name, values), values.shape[1])
    assert back.shape == values.shape
    assert np.sqrt(((back - values) ** 2).mean()) <= STEPS[name] * values.std() * 1.2


def test_types_that_need_importance_say_so() -> None:
    needy = [name for name in ("iq2_xxs", "iq2_xs", "iq1_s") if needs_importance(name)]
    assert needy
    with pytest.raises(CloverError, match="needs an importance matrix"):
        quantize(needy[0], np.zeros((1, 256), np.float32))
