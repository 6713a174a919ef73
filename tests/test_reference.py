"""The torch reference against what another engine recorded for two checkpoints (f16 weights, f32 arithmetic).

Logits within 1e-3, greedy ids and denoised blocks identical. The other engine keeps its weights in f16 where
the checkpoint has bf16 (no rounding) and computes in f32.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

from reference import decoding  # noqa: E402
from reference.engine import ReferenceEngine  # noqa: E402
from reference.model import causal, empty_state, preview  # noqa: E402

TOLERANCE = 1e-3
CHECKPOINTS = ("tiny-clover", "clover-10m")


@pytest.fixture(scope="module", params=CHECKPOINTS)
def case(
    request: pytest.FixtureRequest, shared: Path, tiny_checkpoint: Path, trained_checkpoint: Path
) -> tuple[ReferenceEngine, Any, list[dict[str, Any]]]:
    """An engine on a checkpoint, its tokenizer and the recorded results."""
    torch.set_num_threads(2)
    folder = tiny_checkpoint if request.param == "tiny-clover" else trained_checkpoint
    recorded = json.loads((shared / "oracle" / f"{request.param}.results.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return ReferenceEngine.open(folder), tokenizer, recorded["cases"]


def _assert_top(logits: np.ndarray, recorded: dict[str, Any]) -> None:
    """The recorded top ten of a row agree, and nothing else climbs above them."""
    np.testing.assert_allclose(logits[recorded["ids"]], recorded["logits"], atol=TOLERANCE, rtol=0)
    rest = np.delete(logits, recorded["ids"])
    assert rest.max() <= min(recorded["logits"]) + TOLERANCE


@torch.inference_mode()
def test_causal_rows(case: tuple[ReferenceEngine, Any, list[dict[str, Any]]]) -> None:
    engine, _, cases = case
    for recorded in cases:
        ids = recorded["prompt_ids"] + recorded["plain_ids"]
        logits, _ = causal(engine.model, empty_state(engine.model), torch.tensor([ids]))
        rows = logits[0, len(recorded["prompt_ids"]) - 1 :].numpy()
        for row, top in zip(rows, recorded["plain_raw_top10"], strict=False):
            _assert_top(row, top)
            total = float(torch.logsumexp(torch.from_numpy(row), 0))
            assert total == pytest.approx(top["logsumexp"], abs=TOLERANCE)


@torch.inference_mode()
def test_first_previews(case: tuple[ReferenceEngine, Any, list[dict[str, Any]]]) -> None:
    engine, _, cases = case
    widths = set()
    for recorded in cases:
        prompt = torch.tensor([recorded["prompt_ids"]])
        _, state = causal(engine.model, empty_state(engine.model), prompt)
        for run in (r for r in recorded["denoise"] if "first_preview_top10" in r):
            ids = torch.full((1, run["block"]), engine.spec.mask_id)
            logits = preview(engine.model, state, ids)[0].numpy()
            widths.add(len(logits))
            for row, top in zip(logits, run["first_preview_top10"], strict=True):
                _assert_top(row, top)
    assert widths == {16, 32}


def test_plain_ids(case: tuple[ReferenceEngine, Any, list[dict[str, Any]]]) -> None:
    engine, _, cases = case
    for recorded in cases:
        engine.reset()
        wanted = recorded["plain_ids"]
        assert decoding.plain(engine, recorded["prompt_ids"], len(wanted)) == wanted


def test_denoising(case: tuple[ReferenceEngine, Any, list[dict[str, Any]]]) -> None:
    engine, tokenizer, cases = case
    for recorded in cases:
        for run in recorded["denoise"]:
            engine.reset()
            own = run["threshold"] == "the checkpoint's"
            threshold = engine.spec.threshold if own else float(run["threshold"])
            ids, blocks, passes = decoding.denoise(
                engine, recorded["prompt_ids"], run["max_tokens"], threshold, run["block"]
            )
            kept = [i for i in ids if i not in engine.spec.stop_ids]
            # the other engine decodes token by token: bytes that only together make a character stay broken
            text = "".join(tokenizer.decode([i], skip_special_tokens=False) for i in kept)
            assert (text, blocks, passes) == (run["text"], run["blocks"], run["passes"])


def test_batch_with_padding_equals_single(tiny_checkpoint: Path) -> None:
    """Left padding changes no logit of the real rows, causal or preview."""
    model = ReferenceEngine.open(tiny_checkpoint).model
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 1500, (2, 12), generator=generator)
    block = torch.full((2, 9), model.shape.mask)
    logits, state = causal(model, empty_state(model, (0, 5)), ids)
    drafts = preview(model, state, block)
    alone, state = causal(model, empty_state(model), ids[1:, 5:])
    torch.testing.assert_close(logits[1:, 5:], alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(drafts[1:], preview(model, state, block[:1]), atol=1e-4, rtol=1e-4)


def test_split_passes_leave_the_same_state(tiny_checkpoint: Path) -> None:
    """Committing r rows of a verify equals a fresh prefill of the same tokens."""
    engine = ReferenceEngine.open(tiny_checkpoint)
    tokens = list(range(40, 60))
    for r in (1, 3, 8):
        engine.reset()
        engine.prefill(tokens[:6])
        engine.verify(tokens[6:14])
        engine.commit(r)
        ours = engine.preview([5, engine.spec.mask_id]).logits()
        engine.reset()
        engine.prefill(tokens[: 6 + r])
        np.testing.assert_allclose(ours, engine.preview([5, engine.spec.mask_id]).logits(), atol=1e-4)
