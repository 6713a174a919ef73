"""A small synthetic model, made by the script that makes the large ones."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from clover_local.runtime.engine import Engine

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_synthetic.py"


@pytest.fixture(scope="session")
def make_synthetic() -> ModuleType:
    """The script, imported."""
    spec = importlib.util.spec_from_file_location("make_synthetic", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def synthetic(make_synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic model of the tiny shape."""
    path = tmp_path_factory.mktemp("synthetic") / "tiny.gguf"
    make_synthetic.write(path, make_synthetic.SHAPES["tiny"], "int4", [], 0.0, 7)
    return path


@pytest.fixture(scope="module")
def engine(synthetic: Path) -> Iterator[Engine]:
    with Engine.open(synthetic, n_ctx=2048, threads=1, device="cpu") as engine:
        yield engine
