"""The problems in the package are what the generator draws, and drawing from them is the same every time."""

import subprocess
import sys

import make_problems
import pytest

from clover_local.bench import problems
from clover_local.errors import UsageError


def test_the_file_is_what_the_generator_draws() -> None:
    assert make_problems.OUTPUT.read_text() == make_problems.text()


def test_drawing() -> None:
    assert problems.held_out(5, 40) == problems.held_out(5, 40)
    assert problems.held_out(5, 40) != problems.held_out(6, 40)
    assert {p.category for p in problems.everything()} == {"held-out pairs", "new wording"}
    assert len(set(problems.held_out(1, len(problems.everything())))) == len(problems.everything()) == 300


@pytest.mark.parametrize("count", [0, 301])
def test_a_wrong_count_is_a_sentence(count: int) -> None:
    with pytest.raises(UsageError, match="300 demo problems"):
        problems.held_out(1, count)


def test_no_torch() -> None:
    code = "import sys; from clover_local.bench.problems import held_out; held_out(1, 2); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
