"""The command: results on stdout, everything else on stderr, exit codes of the errors."""

import argparse
import json
from pathlib import Path

import pytest

from clover_local.commands import convert as command
from clover_local.errors import UsageError
from tests.convert import made


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return made.checkpoint(tmp_path / "Small-Clover")


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(arguments))


def test_the_file_is_named_after_the_model_and_the_recipe(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(small), "--recipe", "q8", "-t", "2") == 0
    captured = capsys.readouterr()
    assert captured.out == "Small-Clover-q8.gguf\n"
    assert Path("Small-Clover-q8.gguf").is_file()


def test_notes_go_to_stderr_and_a_folder_is_taken_as_the_place(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").mkdir()
    assert run(str(small), "-o", str(tmp_path / "models"), "-t", "2") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}/models/Small-Clover-int4.gguf\n"
    assert "note: 12 x routed experts: q5_0 instead of q4_k" in captured.err


def test_dry_run_prints_a_table_that_adds_up(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small), "--dry-run") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "would be written to Small-Clover-int4.gguf"
    sizes = [int(line.split()[-2].replace(",", "")) for line in out[:-1]]
    assert sum(sizes[:-1]) < sizes[-1]
    assert not list(Path().glob("*.gguf*"))
    assert run(str(small), "-t", "1") == 0
    assert Path("Small-Clover-int4.gguf").stat().st_size == sizes[-1]


def test_json_is_one_object(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small), "--dry-run", "--json", "--tensor", "output.weight=q8_0") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"]["output head"] == {"q8_0": 272 * 68}
    assert facts["recipe"] == "int4" and facts["output"] == "Small-Clover-int4.gguf"


def test_recipes_in_the_help_are_those_there_are() -> None:
    from clover_local.quant.recipes import RECIPES

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for name in RECIPES:
        assert name in parser.format_help()


def test_a_wrong_recipe_is_a_usage_error(small: Path) -> None:
    with pytest.raises(UsageError) as error:
        run(str(small), "--recipe", "int3")
    assert error.value.exit_code == 2


def test_an_interrupt_says_how_to_go_on(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("clover_local.convert.run.make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(str(small), "-t", "2")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.endswith("stopped; the same command goes on from here\n")
    assert not Path("Small-Clover-int4.gguf").exists()
    assert run(str(small), "-t", "2") == 0
