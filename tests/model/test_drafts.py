"""Drafts with fewer experts than the model's, against the torch reference told to use as few."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clover_local.errors import CloverError
from clover_local.model.draft import DraftSettings
from clover_local.runtime.engine import Engine
from tests.reference import layers
from tests.reference import model as reference

WIDTHS = (2, 5, 16, 32)
MODELS = [("tiny_checkpoint", "tiny_f32"), ("trained_checkpoint", "trained_f32")]


def _open(path: Path) -> Engine:
    return Engine.open(path, n_ctx=512, threads=1, device="cpu", kv_type_k="f32", kv_type_v="f32")


def _ids(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1500, n).tolist()


@contextmanager
def _few(monkeypatch: pytest.MonkeyPatch, budget: int | None, resident: np.ndarray | None) -> Iterator[None]:
    """The reference with a coreset by count, and with router logits only where a layer's experts are resident."""
    with monkeypatch.context() as patch:
        if budget is not None:
            patch.setattr(layers, "coreset", lambda weights, valid, top_p: _most(weights, budget))
        if resident is not None:
            whole, turns = layers.router_logits, iter(range(len(resident)))

            def some(p: layers.Layer, h: torch.Tensor) -> torch.Tensor:
                return whole(p, h).masked_fill(~torch.tensor(resident[next(turns)]), -1e30)

            patch.setattr(layers, "router_logits", some)
        yield


def _most(weights: torch.Tensor, budget: int) -> torch.Tensor:
    mass = weights.sum(-2)
    keep = torch.zeros_like(mass, dtype=torch.bool)
    keep.scatter_(-1, mass.argsort(dim=-1, descending=True, stable=True)[..., :budget], True)
    return keep[..., None, :]


@pytest.mark.parametrize(("checkpoint", "file"), MODELS)
def test_few_experts_equal_the_reference_with_as_few(
    checkpoint: str, file: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = reference.load(request.getfixturevalue(checkpoint))
    shape, prompt, rng = twin.shape, _ids(23, 0), np.random.default_rng(1)
    masks = [None, rng.random((len(shape.attention), shape.experts)) < 0.5]
    masks[1][:, :3] = True  # at least as many as a row uses
    with _open(request.getfixturevalue(file)) as engine, torch.no_grad():
        keep = np.arange(engine.spec.vocab) != engine.spec.mask_id
        engine.prefill(prompt)
        _, state = reference.causal(twin, reference.empty_state(twin), torch.tensor([prompt]))
        for resident in masks:
            engine.restrict_drafts(resident)
            for used in (None, 1, 2):
                least = used or shape.active
                for budget in (None, least, least + 2, shape.experts):
                    engine.drafts = DraftSettings(used, budget)
                    few = replace(twin, shape=replace(shape, active=used or shape.active))
                    if budget is not None:
                        few = replace(few, shape=replace(few.shape, coreset=0.5))
                    for width in WIDTHS:
                        block = [*_ids(1, width), *[engine.spec.mask_id] * (width - 1)]
                        with _few(monkeypatch, budget, resident):
                            want = reference.preview(few, state, torch.tensor([block]))[0].numpy()
                        rows = engine.preview(block, draft=True)
                        difference = np.abs(rows.logits()[1:] - want[1:])[:, keep]
                        assert difference.max() < 1e-3, (used, budget, width)
                        assert (
                            rows.ids[0] == block[0]
                            and rows.p[0] == 1
                            and rows.logits()[0].argmax() == block[0]
                        )


def test_only_drafts_change(trained_f32: Path) -> None:
    with _open(trained_f32) as engine:
        engine.prefill(_ids(20, 3))
        block = [5, *[engine.spec.mask_id] * 15]
        exact, judged = engine.preview(block).logits(), engine.verify(_ids(8, 4)).logits()
        usual = engine.preview(block, draft=True)
        assert np.array_equal(usual.logits()[1:], exact[1:]), "with nothing set a draft is the preview"
        engine.drafts = DraftSettings(1, 2)
        allowed = np.zeros((engine.spec.layers, engine.spec.experts), bool)
        allowed[:, :4] = True
        engine.restrict_drafts(allowed)
        assert not np.allclose(engine.preview(block, draft=True).logits()[1:], exact[1:])
        assert np.array_equal(engine.preview(block).logits(), exact)
        assert np.array_equal(engine.verify(_ids(8, 4)).logits(), judged)
        engine.restrict_drafts(None)
        engine.drafts = DraftSettings()
        assert np.array_equal(engine.preview(block, draft=True).logits(), usual.logits())
        masks = [engine.spec.mask_id] * 4
        assert np.array_equal(engine.preview(masks, draft=True).logits(), engine.preview(masks).logits())


def test_impossible_settings_are_refused(trained_f32: Path) -> None:
    with _open(trained_f32) as engine:
        for wrong in (DraftSettings(0), DraftSettings(3), DraftSettings(2, 1), DraftSettings(1, 99)):
            with pytest.raises(CloverError, match="draft"):
                engine.drafts = wrong
        shape = engine.spec.layers, engine.spec.experts
        for mask in (np.ones(3, bool), np.zeros(shape, bool)):
            with pytest.raises(ValueError, match="drafts need"):
                engine.restrict_drafts(mask)


def test_routing_says_whom_the_rows_are_sent_to(
    trained_checkpoint: Path, trained_f32: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin, prompt, words = reference.load(trained_checkpoint), _ids(23, 0), _ids(8, 5)
    seen: list[torch.Tensor] = []
    whole = layers.router_logits
    with _open(trained_f32) as engine, torch.no_grad():
        engine.prefill(prompt)
        _, state = reference.causal(twin, reference.empty_state(twin), torch.tensor([prompt]))
        monkeypatch.setattr(layers, "router_logits", lambda p, h: seen.append(whole(p, h)) or seen[-1])
        reference.causal(twin, state, torch.tensor([words]))
        want = torch.stack(seen).squeeze(1).topk(twin.shape.active).indices.numpy()
        assert np.array_equal(np.sort(engine.routing(words)), np.sort(want))
        resident = np.random.default_rng(2).permuted(
            np.tile(np.arange(8) < 5, (engine.spec.layers, 1)), axis=1
        )
        engine.restrict_drafts(resident)
        engine.drafts = DraftSettings(1, 3)
        routed = engine.routing([5, *[engine.spec.mask_id] * 15], draft=True)
        assert routed.shape == (engine.spec.layers, 16, 1)
        for layer, experts in enumerate(routed):
            assert resident[layer][experts].all() and len(np.unique(experts)) <= 3
        assert engine.tokens == tuple(prompt)
