"""Causal steps and previews against what another engine recorded on the same checkpoints (f16, CPU)."""

import json
from pathlib import Path

import pytest

from clover_local.runtime.engine import Engine

TOLERANCE = 1e-3
NEAR_TIE = 1e-3  # greedy ids may differ only where the recorded top two lie closer than this
MODELS = [("tiny-clover", "tiny_f32"), ("clover-10m", "trained_f32")]


def _cases(shared: Path, name: str) -> list[dict]:
    return json.loads((shared / "oracle" / f"{name}.results.json").read_text())["cases"]


@pytest.mark.parametrize(("name", "fixture"), MODELS)
def test_every_recorded_row(name: str, fixture: str, shared: Path, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(fixture)
    with Engine.open(path, n_ctx=1024, threads=2, device="cpu", kv_type_k="f32", kv_type_v="f32") as engine:
        compared = 0
        for case in _cases(shared, name):
            engine.reset()
            engine.begin_response(None)
            rows = engine.prefill(case["prompt_ids"])
            assert rows is not None
            for run in case["denoise"]:
                recorded = run.get("first_preview_top10", [])
                if recorded:
                    logits = engine.preview([engine.spec.mask_id] * len(recorded)).logits()
                    compared += _compare(logits, recorded, engine.spec.mask_id)
            for token, recorded in zip(case["plain_ids"], case["plain_raw_top10"], strict=True):
                compared += _compare(rows.logits(), [recorded], engine.spec.mask_id)
                rows = engine.step(token)
        assert compared > 2000


def _compare(logits, recorded: list[dict], mask_id: int) -> int:  # type: ignore[no-untyped-def]
    count = 0
    for row, top in zip(logits, recorded, strict=True):
        for token, value in zip(top["ids"], top["logits"], strict=True):
            if token != mask_id:  # recorded raw; ours is already forbidden
                assert abs(row[token] - value) < TOLERANCE
                count += 1
    return count


@pytest.mark.parametrize(("name", "fixture"), MODELS)
def test_greedy_ids_with_response_processing(
    name: str, fixture: str, shared: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(fixture)
    with Engine.open(path, n_ctx=1024, threads=2, device="cpu", kv_type_k="f32", kv_type_v="f32") as engine:
        for case in _cases(shared, name):
            engine.reset()
            engine.begin_response(engine.spec.processing)
            rows = engine.prefill(case["prompt_ids"])
            assert rows is not None
            for place, token in enumerate(case["plain_ids"]):
                if int(rows.ids[0]) != token:
                    logits = rows.logits()[0]
                    assert abs(logits[token] - logits.max()) < NEAR_TIE, f"token {place} differs"
                rows = engine.step(token)
