"""Layers that act on every match by itself. Features are [B x N x C], masks [B x N] with True for real matches."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm over all real matches of a batch: padding does not touch its statistics."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training:
            # An affine map, written so that exporters see no reshaping of N.
            assert self.running_mean is not None and self.running_var is not None
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            return x * scale + (self.bias - self.running_mean * scale)
        if mask is None:
            return super().forward(x.flatten(0, -2)).view_as(x)
        return self._masked(x, mask)

    def _masked(self, x: Tensor, mask: Tensor) -> Tensor:
        """Sums over real matches by weights of 0 and 1: gathering would make a GPU wait for the size."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        real = mask[..., None]
        count = mask.sum().clamp_min(1)
        everywhere = tuple(range(x.dim() - 1))
        exact = x.to(self.running_mean.dtype)
        mean = exact.where(real, 0.0).sum(everywhere) / count
        centered = (exact - mean).where(real, 0.0)
        variance = centered.square().sum(everywhere) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp_min(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
            self.num_batches_tracked += 1
        return (centered * (self.weight * (variance + self.eps).rsqrt()) + self.bias).to(x.dtype)


class PointwiseMLP(nn.Module):
    """Linear layers of the given widths, batch norm and ReLU after each but the last."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(MaskedBatchNorm(width) for width in widths[1:-1])
        nn.init.zeros_(self.linears[-1].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=False):
            x = F.relu(norm(linear(x), mask))
        return self.linears[-1](x)
