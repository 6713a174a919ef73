"""What training asks for: the next token of the clean stream, and masked tokens of blocks over the clean prefix."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from reference.layers import Shape
from torch import Tensor

from . import parallel as P
from .corpus import RESPONSE, SLOT, TOKEN

CHUNK = P.CHUNK


@dataclass(frozen=True)
class Rules:
    """How blocks are made. Shares are of the blocks, weights of a token's loss."""

    end: int  # <|endoftext|>, what follows the end of a turn inside a block
    turn_end: int  # <|im_end|>
    mask: int
    blocks: int = 10  # previewed blocks of a sequence, those with most to predict
    digits: tuple[int, ...] = ()
    drafts: float = 0.3  # share of blocks as a draft sees them: first row known, the rest masked
    numbers: float = 0.35  # share of the other blocks with only digits masked, what denoising fixes last
    whole: float = 0.25  # share of the other blocks that are masked wholly
    known_prefix: float = 0.3  # share of the other blocks whose first rows are known
    after_end: float = 0.3  # weight of rows after the end of the turn
    prompt: float = 0.1  # weight of prompt tokens in the stream's loss
    slot: float = 5.0  # weight of a one-token answer there: few tokens, each of which decides a question
    aligned: float = 0.6  # share of sequences in which some answer starts a block


@dataclass(frozen=True)
class Targets:
    """A batch and what it shall predict, with weights."""

    batch: P.Batch
    next_weight: Tensor  # [batch, length - 1]
    block_target: Tensor  # [batch, blocks, 32]
    block_weight: Tensor  # [batch, blocks, 32]; zero where nothing is masked


def _shift(ids: Tensor, rules: Rules, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pad every sequence on the left by 0 to 31 so that blocks start anywhere, often exactly where an answer does."""
    batch, length = ids.shape
    device = ids.device
    answer = (ids & RESPONSE).bool()
    starts = answer & ~F.pad(answer[:, :-1], (1, 0))
    chosen = (starts * torch.rand(batch, length, device=device, generator=draw)).argmax(1)
    free = torch.randint(CHUNK, (batch,), device=device, generator=draw)
    use = torch.rand(batch, device=device, generator=draw) < rules.aligned
    pad = torch.where(use, -chosen % CHUNK, free)
    t = torch.arange(length, device=device)[None] - pad[:, None]
    return torch.where(t < 0, rules.end, ids.gather(1, t.clamp(min=0))), pad


def _pick(answer: Tensor, pad: Tensor, blocks: int, draw: torch.Generator) -> Tensor:
    """The chunks worth previewing: those that start in an answer and hold much of it."""
    worth = answer.float().mean(-1) + 0.5 * answer[..., 0]
    worth = worth + 0.4 * torch.rand(worth.shape, device=worth.device, generator=draw)
    worth[:, 0] = torch.where(pad > 0, -1.0, worth[:, 0])  # a block must not begin in the padding
    return worth.topk(blocks, 1).indices


def _mask(
    maskable: Tensor, slots: Tensor, digits: Tensor, rules: Rules, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Which rows of each block are masked, and how many rows it has: [batch, blocks, 32] and [batch, blocks]."""
    device, shape = maskable.device, maskable.shape[:2]
    i = torch.arange(CHUNK, device=device)

    def chance() -> Tensor:
        return torch.rand(shape, device=device, generator=draw)

    draft = chance() < rules.drafts
    u, any_width = chance(), (4 + chance() * 29).long()
    width = torch.where(u < 0.15, 8, torch.where(u < 0.65, 16, torch.where(u < 0.85, 32, any_width)))
    width = torch.where(draft, width, torch.where(chance() < 0.85, 32, any_width.clamp(min=8)))
    ratio = torch.where(chance() < rules.whole, 1.0, chance())
    masked = torch.rand(*shape, CHUNK, device=device, generator=draw) < ratio[..., None]
    prefix = (chance() < rules.known_prefix)[..., None] & (i < (chance() * 28)[..., None])
    masked = masked & torch.where((chance() < rules.numbers)[..., None], digits, ~prefix)
    masked = torch.where(draft[..., None], i > 0, masked) & maskable
    together = slots.any(-1) & (chance() < 0.6)  # joint answers: the layout known, the slots not
    return torch.where(together[..., None], slots, masked), torch.where(together, 32, width)


def targets(ids: Tensor, rules: Rules, draw: torch.Generator) -> Targets:
    """Make a training batch of packed sequences [batch, length] of flagged ids."""
    flagged, pad = _shift(ids, rules, draw)
    tokens, answer, slots = flagged & TOKEN, (flagged & RESPONSE).bool(), (flagged & SLOT).bool()
    chunked = [x.unflatten(1, (-1, CHUNK)) for x in (tokens, answer, slots)]
    pick = _pick(chunked[1], pad, rules.blocks, draw)
    block, answer_rows, slot_rows = (x.gather(1, pick[..., None].expand(-1, -1, CHUNK)) for x in chunked)
    ends = ((block == rules.turn_end) & answer_rows).long()
    after = (ends.cumsum(-1) - ends) > 0
    block = torch.where(after, rules.end, block)
    digits = torch.isin(block, torch.tensor(rules.digits, dtype=block.dtype, device=block.device))
    masked, width = _mask(answer_rows | after, slot_rows & ~after, digits, rules, draw)
    first = (pick == 0) & (pad > 0)[:, None]
    weight = masked.float() * torch.where(after, rules.after_end, 1.0) * ~first[..., None]
    batch = P.Batch(tokens, pad, pick, torch.where(masked, rules.mask, block), width)
    weight = weight * batch.valid
    weight = weight / weight.sum(-1, keepdim=True).clamp(
        min=1e-3
    )  # a block with few masks counts like any other
    stream = torch.where(answer[:, 1:], 1.0, rules.prompt) * torch.where(slots[:, 1:], rules.slot, 1.0)
    stream = stream * (torch.arange(1, ids.shape[1], device=ids.device)[None] > pad[:, None])
    return Targets(batch, stream, block, weight)


def losses(shape: Shape, weights: P.Weights, hidden: Tensor, t: Targets) -> tuple[Tensor, Tensor]:
    """Mean loss of the stream and of the masked rows, from the hidden rows of `parallel.forward`."""
    logits = P.logits(shape, weights, hidden)
    n, vocab = t.batch.tokens.shape[1], logits.shape[-1]
    stream = F.cross_entropy(
        logits[:, : n - 1].reshape(-1, vocab), t.batch.tokens[:, 1:].reshape(-1), reduction="none"
    )
    block = F.cross_entropy(logits[:, n:].reshape(-1, vocab), t.block_target.reshape(-1), reduction="none")
    stream_weight, block_weight = t.next_weight.reshape(-1), t.block_weight.reshape(-1)
    return (stream * stream_weight).sum() / stream_weight.sum(), (block * block_weight).sum() / (
        block_weight.sum() + 1
    )
