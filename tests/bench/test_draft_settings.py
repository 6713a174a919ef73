"""The script that compares draft settings: every setting writes the same text, and the table has them all."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from clover_local.api import load
from clover_local.model.draft import DraftSettings

SCRIPT = Path(__file__).parents[2] / "scripts" / "draft_settings.py"


def test_the_table_of_settings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("draft_settings", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "draft_settings", script)  # dataclasses look their module up
    spec.loader.exec_module(script)
    monkeypatch.setattr(
        "sys.argv", ["draft_settings.py", "--problems", "1", "--threads", "1", "--width", "8"]
    )
    script.main()
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    rounds = {cells[1].strip(): float(cells[2]) for cells in lines}
    assert {"the model's own", "budget 2", "1 experts a row", "2 most used"} <= rounds.keys()
    assert all(1.0 <= tokens <= 8.0 for tokens in rounds.values())
    with load("demo", ctx=256, threads=1, device="cpu") as model:
        prompt = model.tokenizer.encode("Anna has 3 pens and buys 4.")
        mask = script.most_used(model, prompt, 3)
        assert (mask.sum(1) == 3).all()
        model.engine.reset()
        usage = np.stack([np.bincount(one.ravel(), minlength=8) for one in model.engine.routing(prompt)])
        for layer in range(model.spec.layers):
            assert usage[layer][mask[layer]].min() >= usage[layer][~mask[layer]].max()
        assert model.engine.drafts == DraftSettings()
