"""Muon for the matrices, AdamW for the rest: the pair that learnt fastest per minute at this size.

Muon (https://kellerjordan.github.io/posts/muon/) replaces a matrix's momentum by the nearest orthogonal matrix,
found with five Newton-Schulz steps; expert tensors are stacks of matrices.
"""

from collections import defaultdict

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def is_matrix(name: str) -> bool:
    """Whether Muon trains a weight: projections and experts, not the router, embedding, head or vectors."""
    parts = (
        "in_proj_qkv",
        "in_proj_z",
        "out_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "experts.",
        "shared_expert.",
    )
    return any(part in name for part in parts)


def orthogonalized(x: Tensor) -> Tensor:
    """Roughly the orthogonal factor of each matrix [.., rows, columns], in bf16."""
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Muon with Nesterov momentum; matrices of one shape are stepped together."""

    def __init__(self, matrices: list[Tensor], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            self.groups[(matrix.shape[-2], matrix.shape[-1])].append(matrix)
        self.velocity: dict[tuple[int, int], Tensor] = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix by `rate` along its orthogonalized gradient."""
        for size, matrices in self.groups.items():
            grad = torch.cat([m.grad.reshape(-1, *size) for m in matrices if m.grad is not None])
            velocity = self.velocity.setdefault(size, torch.zeros_like(grad))
            velocity.lerp_(grad, 1 - self.momentum)
            update = orthogonalized(grad.lerp(velocity, self.momentum)).float()
            update *= rate * max(1.0, size[0] / size[1]) ** 0.5
            pieces = update.split([m.numel() // (size[0] * size[1]) for m in matrices])
            for matrix, piece in zip(matrices, pieces, strict=True):
                matrix.mul_(1 - rate * self.decay).sub_(piece.reshape(matrix.shape))


class Optimizer:
    """Both optimizers behind one step; `scale` in [0, 1] is the learning rate schedule."""

    MATRIX, OTHER, PREVIEW = 0.02, 3e-3, 9e-3

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.muon = Muon([w for name, w in weights.items() if is_matrix(name)])
        rest = {name: w for name, w in weights.items() if not is_matrix(name)}
        preview = [w for name, w in rest.items() if "bd_softmax" in name]
        other = [w for name, w in rest.items() if "bd_softmax" not in name]
        groups = [{"params": other, "base": self.OTHER}, {"params": preview, "base": self.PREVIEW}]
        fused = next(iter(weights.values())).is_cuda
        self.adam = torch.optim.AdamW(groups, lr=self.OTHER, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)

    def step(self, scale: float) -> None:
        """Apply the gradients and forget them."""
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        self.muon.step(self.MATRIX * scale)
        for weight in self.weights.values():
            weight.grad = None
