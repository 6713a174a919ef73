"""Fixtures every test may use: the user's folders isolated, and the reference data where it is present."""

import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """A run in the background ignores SIGINT, and what it starts would too; some tests press Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def isolated_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """No test reads or writes the settings, chats or caches of the person who runs it."""
    home = tmp_path_factory.mktemp("home")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(home / name.lower()))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield home


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; tests that need it are skipped without it."""
    if not SHARED.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the reference data {SHARED} must be present under CI")
        pytest.skip(f"the reference data {SHARED} is not here")
    return SHARED


def _unpack(shared: Path, name: str, target: Path) -> Path:
    with tarfile.open(shared / "oracle" / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name


@pytest.fixture(scope="session")
def tiny_checkpoint(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small random checkpoint, unpacked."""
    return _unpack(shared, "tiny-clover", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def trained_checkpoint(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small trained checkpoint, sharded, unpacked."""
    return _unpack(shared, "clover-10m", tmp_path_factory.mktemp("trained"))


def _converted(checkpoint: Path, recipe: str) -> Path:
    from clover_local.convert.api import convert

    target = checkpoint.parent / f"{checkpoint.name}-{recipe}.gguf"
    if not target.exists():
        convert(checkpoint, target, recipe=recipe)
    return target


@pytest.fixture(scope="session")
def tiny_f32(tiny_checkpoint: Path) -> Path:
    """The small random model, converted without quantization."""
    return _converted(tiny_checkpoint, "f32")


@pytest.fixture(scope="session")
def tiny_int4(tiny_checkpoint: Path) -> Path:
    """The small random model in the int4 recipe."""
    return _converted(tiny_checkpoint, "int4")


@pytest.fixture(scope="session")
def trained_f32(trained_checkpoint: Path) -> Path:
    """The small trained model, converted without quantization."""
    return _converted(trained_checkpoint, "f32")


@pytest.fixture(scope="session")
def trained_int4(trained_checkpoint: Path) -> Path:
    """The small trained model in the int4 recipe."""
    return _converted(trained_checkpoint, "int4")
