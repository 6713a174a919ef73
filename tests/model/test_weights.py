"""Where weights lie: mapped, or copied with matrices merged and bf16 copies; the numbers must agree."""

import json
from pathlib import Path

import numpy as np
import pytest

from clover_local.errors import ModelError
from clover_local.ggml.backend import Backend, choose_device
from clover_local.ggml.gguf import GgufFile
from clover_local.model import weights
from clover_local.model.spec import Spec
from clover_local.runtime.engine import Engine


@pytest.mark.parametrize("model", ["trained_f32", "trained_int4"])
def test_copied_and_merged_weights_give_the_same_passes(
    model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    path: Path = request.getfixturevalue(model)
    case = json.loads((shared / "oracle" / "clover-10m.results.json").read_text())["cases"][0]
    words = case["prompt_ids"] + case["plain_ids"]
    seen: list[tuple[int, int]] = []
    meter = lambda infos: weights._Meter(  # noqa: E731
        sum(info.nbytes for info in infos.values()), lambda *at: seen.append(at)
    )
    with Engine.open(path, n_ctx=256, threads=2, device="cpu") as engine:
        want = _passes(engine, words)
    with monkeypatch.context() as patch:
        patch.setattr(
            weights,
            "_map",
            lambda file, infos: weights._upload(file, infos, Backend(choose_device("cpu")), meter(infos)),
        )
        with Engine.open(path, n_ctx=256, threads=2, device="cpu") as engine:
            loaded = engine._model.weights
            assert len(loaded.merged) >= 2 * engine.spec.layers
            assert loaded.half
            got = _passes(engine, words)
    assert seen[-1][0] == seen[-1][1] > 0
    for ours, theirs in zip(got, want, strict=True):
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.995  # bf16 activations in the router
        assert (ours.argmax(1) == theirs.argmax(1)).mean() > 0.9


def _passes(engine: Engine, words: list[int]) -> list[np.ndarray]:
    first = engine.prefill(words[:24])
    assert first is not None
    out = [first.logits(), engine.preview([words[24], *[engine.spec.mask_id] * 15]).logits()]
    out += [engine.verify(words[24:40]).logits()]
    engine.commit(5)
    out.append(engine.step(words[29]).logits())
    return [np.delete(logits, engine.spec.mask_id, axis=1) for logits in out]


def test_all_problems_of_a_file_come_at_once(tiny_f32: Path) -> None:
    file = GgufFile.open(tiny_f32)
    spec = Spec.from_gguf(file)
    del file.tensors["output_norm.weight"], file.tensors["blk.0.ssm_a"]
    with pytest.raises(ModelError, match=r"output_norm\.weight is missing; blk\.0\.ssm_a is missing"):
        weights.check(file, spec)


def test_every_wanted_tensor_is_in_a_converted_file(tiny_f32: Path) -> None:
    file = GgufFile.open(tiny_f32)
    assert set(weights.wanted(Spec.from_gguf(file))) == set(file.tensors)
