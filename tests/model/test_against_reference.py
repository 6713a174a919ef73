"""Every pass against the torch reference: the checkpoint, and a quantized file on its dequantized weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clover_local.runtime.engine import Engine
from tests.reference import from_gguf
from tests.reference import model as reference

WIDTHS = (1, 2, 3, 5, 8, 16, 31, 32)
MODELS = [("tiny_checkpoint", "tiny_f32"), ("trained_checkpoint", "trained_f32")]


def _open(path: Path) -> Engine:
    return Engine.open(path, n_ctx=512, threads=2, device="cpu", kv_type_k="f32", kv_type_v="f32")


def _ids(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1500, n).tolist()


@pytest.mark.parametrize(("checkpoint", "file"), MODELS)
def test_f32_passes(checkpoint: str, file: str, request: pytest.FixtureRequest) -> None:
    twin = reference.load(request.getfixturevalue(checkpoint))
    prompt = _ids(23, 0)
    with _open(request.getfixturevalue(file)) as engine, torch.no_grad():
        keep = np.arange(engine.spec.vocab) != engine.spec.mask_id
        engine.prefill(prompt)
        _, state = reference.causal(twin, reference.empty_state(twin), torch.tensor([prompt]))
        for width in WIDTHS:
            for known in {0, width // 2, width}:
                block = _ids(width, width)[:known] + [engine.spec.mask_id] * (width - known)
                want = reference.preview(twin, state, torch.tensor([block]))[0].numpy()
                assert np.abs(engine.preview(block).logits() - want)[:, keep].max() < 1e-3, (width, known)
            want, after = reference.causal(twin, state, torch.tensor([_ids(width, width + 50)]))
            got = engine.verify(_ids(width, width + 50)).logits()
            assert np.abs(got - want[0].numpy())[:, keep].max() < 1e-3, width
            engine.commit(width)
            state = after


def test_quantized_passes(trained_checkpoint: Path, trained_int4: Path, shared: Path) -> None:
    """ggml quantizes activations too, so on text the model knows the choices agree, not the last digits."""
    twin = from_gguf.load(trained_int4, reference.load(trained_checkpoint).shape)
    cases = json.loads((shared / "oracle" / "clover-10m.results.json").read_text())["cases"]
    with _open(trained_int4) as engine, torch.no_grad():
        keep = np.arange(engine.spec.vocab) != engine.spec.mask_id
        for case in cases:
            prompt, block = case["prompt_ids"], case["plain_ids"][:16]
            engine.reset()
            engine.prefill(prompt)
            _, state = reference.causal(twin, reference.empty_state(twin), torch.tensor([prompt]))
            masked = [block[0]] + [engine.spec.mask_id] * 15
            for ours, theirs in (
                (engine.verify(block), reference.causal(twin, state, torch.tensor([block]))[0]),
                (engine.preview(masked), reference.preview(twin, state, torch.tensor([masked]))),
            ):
                got, want = ours.logits()[:, keep], theirs[0].numpy()[:, keep]
                assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > 0.995
                top = np.sort(want, 1)
                clear = top[:, -1] - top[:, -2] > 2.0
                assert (got.argmax(1) == want.argmax(1))[clear].all()
                assert clear.sum() >= 6


def test_f32_file_holds_the_checkpoint_exactly(trained_checkpoint: Path, trained_f32: Path) -> None:
    """bf16 values survive float32 and every permutation: the file, taken back, is the checkpoint."""
    want = reference.load(trained_checkpoint)
    got = from_gguf.load(trained_f32, want.shape)
    assert set(got.weights) == set(want.weights)
    for name, tensor in want.weights.items():
        close = 2e-6 if name.endswith(("A_log", "norm.weight", "layernorm.weight")) else 0.0
        assert torch.allclose(got.weights[name], tensor, rtol=0, atol=close), name
