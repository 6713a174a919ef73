"""The parallel training form against the reference's passes, and the objective on a toy run."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import demo.initial as initial  # noqa: E402
from demo import objective, parallel, rounding  # noqa: E402
from demo.corpus import RESPONSE, SLOT  # noqa: E402
from demo.optimizer import Optimizer, orthogonalized  # noqa: E402
from reference import layers, model  # noqa: E402

VOCABULARY, MASK, END, TURN_END = 64, 63, 62, 61
RULES = objective.Rules(end=END, turn_end=TURN_END, mask=MASK, blocks=2)


def _shape() -> layers.Shape:
    """The demo model's shape, two layers deep (one of each kind) with a small vocabulary."""
    whole = layers.Shape.from_config(initial.config(VOCABULARY, MASK, TURN_END, END))
    return replace(whole, attention=(False, True), expert_width=32, shared_width=32, coreset=0.6)


def _weights(shape: layers.Shape) -> dict[str, torch.Tensor]:
    """Initial weights, shaken so that every term matters."""
    g = torch.Generator().manual_seed(1)
    out = initial.weights(shape, 0)
    for name, w in out.items():
        w += torch.randn(w.shape, generator=g) * (0.3 if "right" in name or "lm_head" in name else 0.05)
    return out


def _batch() -> parallel.Batch:
    g = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 60, (2, 96), generator=g)
    block = torch.full((2, 2, 32), MASK)
    block[:, :, 0] = 7
    block[1, 1, 4:9] = 11
    return parallel.Batch(
        tokens,
        torch.tensor([0, 5]),
        torch.tensor([[0, 2], [1, 2]]),
        block,
        torch.tensor([[20, 32], [32, 11]]),
    )


def _state_before(plain: model.Model, batch: parallel.Batch, s: int, start: int) -> model.State:
    """The reference's state after a sequence's tokens before `start`."""
    pad, state = int(batch.pad[s]), model.empty_state(plain)
    return model.commit(plain, state, batch.tokens[s : s + 1, pad:start]) if start > pad else state


@torch.inference_mode()
def test_parallel_form_equals_the_passes() -> None:
    """Causal rows and every block's preview are those of the reference, padding and short blocks included."""
    shape, batch = _shape(), _batch()
    weights = _weights(shape)
    hidden, _ = parallel.forward(shape, weights, batch, torch.float32)
    ours = parallel.logits(shape, weights, hidden)
    plain = model.Model(shape, weights)
    for s in range(2):
        pad = int(batch.pad[s])
        wanted, _ = model.causal(plain, model.empty_state(plain), batch.tokens[s : s + 1, pad:])
        torch.testing.assert_close(ours[s, pad:96], wanted[0], atol=2e-4, rtol=1e-3)
        for j in range(2):
            start, width = int(batch.pick[s, j]) * 32, int(batch.width[s, j])
            state = _state_before(plain, batch, s, start)
            preview = model.preview(plain, state, batch.block[s, j : j + 1, :width])
            rows = ours[s, 96 + 32 * j : 96 + 32 * j + width]
            torch.testing.assert_close(rows, preview[0], atol=2e-4, rtol=1e-3)


def test_block_loss_is_the_previews_loss() -> None:
    """The block loss is the cross entropy of the reference's preview on the masked rows."""
    shape, batch = _shape(), _batch()
    weights = _weights(shape)
    targets = torch.randint(0, 60, (2, 2, 32), generator=torch.Generator().manual_seed(5))
    masked = (batch.block == MASK) & batch.valid
    t = objective.Targets(batch, torch.ones(2, 95), targets, masked.float())
    hidden, _ = parallel.forward(shape, weights, batch, torch.float32)
    _, loss = objective.losses(shape, weights, hidden, t)
    plain, total = model.Model(shape, weights), 0.0
    for s in range(2):
        for j in range(2):
            start, width = int(batch.pick[s, j]) * 32, int(batch.width[s, j])
            state = _state_before(plain, batch, s, start)
            rows = model.preview(plain, state, batch.block[s, j : j + 1, :width])[0].log_softmax(-1)
            chosen = -rows[torch.arange(width), targets[s, j, :width]]
            total += float((chosen * masked[s, j, :width]).sum())
    assert float(loss) == pytest.approx(total / (float(masked.sum()) + 1), abs=1e-4)


def test_inverse_and_its_gradient() -> None:
    a = torch.tril(torch.randn(3, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0)), -1)
    inverse = parallel.UnitTriangularInverse.apply(a)
    torch.testing.assert_close(inverse, torch.linalg.inv(torch.eye(8).double() + a))
    assert torch.autograd.gradcheck(parallel.UnitTriangularInverse.apply, (a.requires_grad_(),))


def _sequences(count: int = 64) -> torch.Tensor:
    """Turns: a prompt, an answer that repeats a pattern, an end."""
    g = torch.Generator().manual_seed(4)
    prompt = torch.randint(0, 50, (count, 20), generator=g)
    answer = torch.arange(43)[None].expand(count, -1) % 7 + 50
    end = torch.full((count, 1), TURN_END)
    return torch.cat(
        [prompt, torch.cat([answer, end], 1) | RESPONSE, prompt[:, :32], answer[:, :12] | RESPONSE], 1
    )[:, :96]


def test_targets_mask_answers_only() -> None:
    """Prompt rows stay known, loss rows are masked rows, what follows the end of a turn is the end token."""
    t = objective.targets(_sequences(), RULES, torch.Generator().manual_seed(0))
    masked = t.batch.block == MASK
    assert masked.any() and bool((t.block_weight[~masked] == 0).all())
    known_prompt = t.block_target < 50
    assert not bool((masked & known_prompt).any())
    chunks = t.batch.tokens.unflatten(1, (-1, 32)).gather(1, t.batch.pick[..., None].expand(-1, -1, 32))
    changed = chunks != t.block_target
    assert changed.any() and bool((t.block_target[changed] == END).all())
    assert bool((t.batch.pad < 32).all()) and len(set(t.batch.pad.tolist())) > 2


def test_answers_start_blocks() -> None:
    """Half of the sequences are shifted so that an answer begins exactly at a chunk."""
    rules = replace(RULES, aligned=1.0)
    t = objective.targets(_sequences(), rules, torch.Generator().manual_seed(0))
    starts = t.batch.pad + 20  # the first answer's place, or the second's at 96 - 12
    assert bool(
        (
            ((starts % 32) == 0) | (((t.batch.pad + 20 + 44) % 32) == 0) | (((t.batch.pad + 84) % 32) == 0)
        ).all()
    )


def test_slots_are_masked_together() -> None:
    ids = _sequences()
    ids[:, [22, 26, 30]] |= SLOT
    t = objective.targets(
        ids, replace(RULES, drafts=0.0, aligned=1.0, blocks=3), torch.Generator().manual_seed(0)
    )
    masked = (t.batch.block == MASK).sum(-1)
    assert bool((masked == 3).any()), "no block asks for the slots alone"


def test_toy_run_learns() -> None:
    """Both losses fall by half within twenty steps, with the rounding in the loop."""
    torch.manual_seed(0)
    shape = replace(_shape(), expert_width=256, shared_width=256)
    weights = {name: w.requires_grad_() for name, w in initial.weights(shape, 0).items()}
    optimizer, draw, seen = Optimizer(weights), torch.Generator().manual_seed(0), []
    for _ in range(20):
        t = objective.targets(_sequences(8), RULES, draw)
        shipped = rounding.rounded(weights, torch.tensor(1.0))
        hidden, balance = parallel.forward(shape, shipped, t.batch, torch.float32)
        stream, block = objective.losses(shape, shipped, hidden, t)
        (stream + block + 0.01 * balance).backward()
        optimizer.step(0.5)
        seen.append((float(stream), float(block)))
    assert seen[-1][0] < seen[0][0] / 2 and seen[-1][1] < seen[0][1] / 2


def test_orthogonalized_is_nearly_orthogonal() -> None:
    x = torch.randn(4, 16, 48, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(x).float())
    assert float(values.min()) > 0.5 and float(values.max()) < 1.4


def test_rounding_is_what_the_file_holds() -> None:
    """ggml's own 4-bit quantizer keeps every rounded weight exactly."""
    from clover_local.ggml.quantize import dequantize, quantize

    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * 0.05
    rounded = rounding.q4_k(weight)
    assert 0.02 < float((rounded - weight).norm() / weight.norm()) < 0.12
    packed = quantize("q4_k", rounded.numpy())
    kept = torch.from_numpy(dequantize("q4_k", packed, 512).reshape(64, 512).copy())
    assert torch.equal(kept, rounded)
    assert torch.equal(rounding.q4_k(rounded), rounded)
