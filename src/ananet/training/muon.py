"""Muon: matrices between hidden features take steps along the orthogonal matrix nearest to their momentum.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with steps as long as AdamW's,
so that one learning rate serves both (Liu et al., "Muon is scalable for LLM training", 2025). `torch.optim.Muon` takes
the same steps one matrix at a time: several times as many kernel launches for the 43 small matrices of ANA-Net.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
# A smaller side than this is an input or an output, not a set of features.
FEATURES = 32
# The usual root mean square of AdamW's steps, in learning rates.
ADAMW_STEP = 0.2


class Muon(torch.optim.AdamW):
    """AdamW, except that matrices between hidden features move along orthogonal matrices; only they decay."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, fused: bool = False) -> None:
        parameters = list(parameters)
        hidden = [p for p in parameters if p.dim() == 2 and min(p.shape) >= FEATURES]
        others = [p for p in parameters if p.dim() != 2 or min(p.shape) < FEATURES]
        groups: list[dict[str, Any]] = [{"params": hidden, "weight_decay": weight_decay}, {"params": others}]
        super().__init__(groups, lr, weight_decay=0.0, fused=fused)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        hidden = self.param_groups[0]
        # Matrices of one shape are one batch: a few large kernels instead of many small ones.
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in hidden["params"]:
            if matrix.grad is not None:
                by_shape[matrix.shape].append(matrix)
        for matrices in by_shape.values():
            self._move(matrices, hidden["lr"], hidden["weight_decay"])
            for matrix in matrices:
                matrix.grad = None  # AdamW moves what still has a gradient
        super().step()
        return loss

    def _move(self, matrices: list[Tensor], lr: float, weight_decay: float) -> None:
        for matrix in matrices:
            if not self.state[matrix]:
                # AdamW expects a step number where there is a state, and makes nothing of it here.
                self.state[matrix] = {"step": torch.zeros(()), "momentum": torch.zeros_like(matrix)}
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        directions = orthogonalized(torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM)))
        length = lr * ADAMW_STEP * max(matrices[0].shape) ** 0.5
        torch._foreach_mul_(matrices, 1 - lr * weight_decay)
        torch._foreach_add_(matrices, list(directions), alpha=-length)


OPTIMIZERS = {"adamw": torch.optim.AdamW, "muon": Muon}


def orthogonalized(matrices: Tensor) -> Tensor:
    """[K x M x N] to matrices with the same singular vectors and singular values near 1, by Newton-Schulz iterations.

    >>> matrix = torch.randn(1, 32, 48, generator=torch.Generator().manual_seed(0))
    >>> values = torch.linalg.svdvals(orthogonalized(matrix))
    >>> bool(values.min() > 0.5 and values.max() < 1.3)
    True
    """
    # Singular values need be right to a third, so half precision will do where it is fast.
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        # The polynomial's slope at 0 is steep, so that small values grow fast; near 1 it wavers.
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)
