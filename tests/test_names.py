"""What a model's name means, with a hub on this machine that serves one folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import errors
from hypothesis import given
from hypothesis import strategies as st

from clover_local.errors import CloverError, ModelError
from clover_local.hub import ask
from clover_local.names import choose, resolve
from tests.convert.fake_hub import serving

FILES = [
    "README.md",
    "Model-F16.gguf",
    "Model-Q4_K_M.gguf",
    "Model-Q8_0.gguf",
    "Model-Q4_K_M.preview.gguf",
    "mmproj-Model-F16.gguf",
    "Model-BF16-00001-of-00002.gguf",
]


def test_a_file_wins_over_every_other_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "owner/name", "model.gguf"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
        assert resolve(name) == Path(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    "name", ["model.gguf", "./a/b", "a/b/c", "owner/", "owner/na me", "dir/model.gguf", ""]
)
def test_what_is_neither_file_nor_hub_id(name: str) -> None:
    with pytest.raises(ModelError, match=r"there is no file|is a folder"):
        resolve(name)


@pytest.mark.parametrize(
    ("quant", "file"),
    [
        (None, "Model-Q4_K_M.gguf"),
        ("Q8_0", "Model-Q8_0.gguf"),
        ("q4_k_m", "Model-Q4_K_M.gguf"),
        ("f16", "Model-F16.gguf"),
    ],
)
def test_a_quant_chooses_the_file(quant: str | None, file: str) -> None:
    assert choose(FILES, "o/m", quant) == file
    assert choose([name.replace("-Q", ".Q").replace("-F", ".F") for name in FILES], "o/m", quant)


def test_a_quant_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(ModelError, match="o/m holds no quant Q2_K") as caught:
        choose(FILES, "o/m", "Q2_K")
    assert caught.value.hint == "it holds: Model-F16.gguf, Model-Q4_K_M.gguf, Model-Q8_0.gguf"
    with pytest.raises(ModelError, match="holds no GGUF file") as caught:
        choose(["model.safetensors"], "o/m", None)
    assert "clover convert o/m" in str(caught.value.hint)
    with pytest.raises(ModelError, match="only one split into parts"):
        choose(["M-00001-of-00002.gguf"], "o/m", None)


@given(st.lists(st.sampled_from(FILES), unique=True), st.sampled_from([None, "Q4_K_M", "Q8_0", "x"]))
def test_the_choice_is_always_one_of_the_files_or_an_error(names: list[str], quant: str | None) -> None:
    try:
        chosen = choose(names, "o/m", quant)
    except ModelError:
        return
    assert chosen in names and not chosen.endswith(".preview.gguf") and "mmproj" not in chosen


def test_a_hub_model_is_fetched_once_and_then_found_offline(
    trained_int4: Path, tmp_path: Path, isolated_home: Path
) -> None:
    for name in ("M-Q4_K_M.gguf", "M-Q8_0.gguf"):
        (tmp_path / name).write_bytes(trained_int4.read_bytes())
    (tmp_path / "M-Q8_0.preview.gguf").write_bytes(b"not opened where the model has its own preview weights")

    def run(model: str, *more: str, offline: str = "0") -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "clover_local",
            "run",
            "-m",
            model,
            "-t",
            "1",
            "-n",
            "3",
            "--raw",
            "1",
        ]
        environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": offline}
        return subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    with serving(tmp_path, "owner/name") as hub:
        assert run("owner/name", "--offline").returncode == 1
        assert "owner/name is not in the cache" in run("owner/name", offline="1").stderr
        assert hub.asked == []
        done = run("owner/name:q8_0")
        assert done.returncode == 0, done.stderr
        assert sorted(hub.files()) == ["M-Q8_0.gguf", "M-Q8_0.preview.gguf"]
        assert run("owner/name:q8_0").stdout == done.stdout and len(hub.asked) == 2, "not fetched again"
        assert "there is no model owner/other on the hub" in run("owner/other").stderr
        assert "locked/model must be unlocked" in run("locked/model").stderr
        refused = run("owner/name:Q2_K").stderr
        assert "error: owner/name holds no quant Q2_K\nhint: it holds: M-Q4_K_M.gguf, M-Q8_0.gguf" in refused
    for more, offline in ((["--offline"], "0"), ([], "1")):
        assert run("owner/name:q8_0", *more, offline=offline).stdout == done.stdout
    assert "the hub did not deliver" in run("owner/fresh").stderr, "the hub is gone"


def raising(error: Exception) -> Callable[[], None]:
    def question() -> None:
        raise error

    return question


def hub_error(kind: type[Exception]) -> Exception:
    """An error of the hub's library without the response it usually carries."""
    error = kind.__new__(kind)
    Exception.__init__(error, "details\nmore details")
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (hub_error(errors.GatedRepoError), "o/m must be unlocked on huggingface.co first"),
        (hub_error(errors.RepositoryNotFoundError), "there is no model o/m on the hub"),
        (hub_error(errors.LocalEntryNotFoundError), "o/m is not in the cache, and the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("off"), "o/m is not in the cache, and the hub cannot be reached"),
        (hub_error(errors.HfHubHTTPError), "the hub did not deliver o/m: details"),
        (OSError(28, "no space left"), "o/m could not be stored in the cache: no space left"),
    ],
)
def test_the_hubs_refusals_are_sentences(error: Exception, says: str) -> None:
    with pytest.raises(CloverError) as caught:
        ask("o/m", raising(error))
    assert str(caught.value).startswith(says) and "more details" not in str(caught.value)
