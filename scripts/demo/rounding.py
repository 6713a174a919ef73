"""Training with the rounding the model ships with: weights on the grid that ggml's Q4_K can hold exactly.

A row of 256 values is 8 groups of 32; each has a 6-bit scale and a 6-bit minimum, themselves multiples of two numbers
of the row, and a value is 4 bits: scale * q - minimum. The gradient passes straight through.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ROW, GROUP = 256, 32
KEPT = (
    "gate.weight",
    "shared_expert_gate.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "conv1d.weight",
    "conv_right_weight",
)


def is_rounded(name: str, weight: Tensor) -> bool:
    """Whether a weight ships in 4 bits: the matrices, but not the router, the decay's projections and the taps."""
    small = any(name.endswith("." + kept) for kept in KEPT)
    return weight.ndim >= 2 and weight.shape[-1] % ROW == 0 and not small


def q4_k(weight: Tensor) -> Tensor:
    """The nearest values that a Q4_K tensor can hold, found without search; same shape and dtype."""
    rows = weight.float().reshape(-1, ROW // GROUP, GROUP)
    low = rows.amin(-1, keepdim=True).clamp(max=0)
    scale = (rows.amax(-1, keepdim=True) - low).clamp(min=1e-8) / 15
    d, d_min = (_half(x.amax(1, keepdim=True) / 63).clamp(min=1e-7) for x in (scale, -low))
    step = d * torch.round(scale / d).clamp(1, 63)
    minimum = d_min * torch.round(-low / d_min).clamp(0, 63)
    q = torch.round((rows + minimum) / step).clamp(0, 15)
    return (step * q - minimum).reshape(weight.shape).to(weight.dtype)


def _half(x: Tensor) -> Tensor:
    return x.half().float()


def rounded(
    weights: dict[str, Tensor], amount: Tensor, grid: Callable[[Tensor], Tensor] = q4_k
) -> dict[str, Tensor]:
    """All weights, the shipped ones moved to their grid by `amount` in [0, 1]; gradients pass straight through.

    `grid` may be a compiled `q4_k`; it runs once, over the rows of all tensors.
    """
    names = [name for name, w in weights.items() if is_rounded(name, w)]
    rows = torch.cat([weights[name].detach().reshape(-1, ROW) for name in names])
    moves = ((grid(rows) - rows) * amount).split([weights[name].numel() // ROW for name in names])
    moved = {n: weights[n] + m.view_as(weights[n]) for n, m in zip(names, moves, strict=True)}
    return weights | moved


def ship(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detached weights as they ship."""
    with torch.no_grad():
        return {name: q4_k(w) if is_rounded(name, w) else w.detach().clone() for name, w in weights.items()}
