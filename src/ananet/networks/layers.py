"""Layers: of every match by itself, and context norms, by whose moments matches see each other.

Features are [B x N x C], masks [B x N] with True for real matches. Moments are in single precision at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Of the context norm, in the code of all four papers (CNe, ACNe, OANet, LMCNet).
CONTEXT_EPS = 1e-3


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


def exact(x: Tensor) -> Tensor:
    """At least in single precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def equal_weights(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """[B x N] the same for all real matches of a pair, 1 together; None for no padding."""
    return None if mask is None else mask.to(dtype) / mask.sum(1, keepdim=True).clamp_min(1)


def moments(x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """[B x 1 x C] mean and variance of features [B x N x C] by weights [B x N]; by equal ones if None."""
    if weights is None:
        mean = x.mean(1, keepdim=True)
        return mean, (x - mean).square().mean(1, keepdim=True)
    weights = weights[..., None]
    mean = (x * weights).sum(1, keepdim=True)
    return mean, ((x - mean).square() * weights).sum(1, keepdim=True)


def inverse_deviation(mean: Tensor, variance: Tensor, eps: float = CONTEXT_EPS) -> Tensor:
    """1 / sqrt(variance + eps), and 0 where features are all the same.

    What varies there is rounding, and slopes of it, a thousand times larger after every norm, would leave all bounds.
    """
    rounding = (16 * torch.finfo(mean.dtype).eps * mean).square()
    return (variance + eps).rsqrt() * (variance > rounding)


def linear_map(x: Tensor, scale: Tensor, shift: Tensor, mask: Tensor | None) -> Tensor:
    """x * scale + shift, in the precision of x; 0 at padding, so that nothing grows there from block to block."""
    mapped = torch.addcmul(shift, exact(x), scale).to(x.dtype)
    return mapped if mask is None else mapped.masked_fill(~mask[..., None], 0.0)


class ContextBatchNorm(nn.BatchNorm1d):
    """Context norm (Yi et al., CVPR 2018) within each pair, then batch norm over all pairs: one linear map a channel.

    What a context norm leaves has mean 0 and variance v / (v + eps) in every pair, so the statistics of the batch norm
    follow from those of the pairs.
    """

    def __init__(
        self, width: int, context_eps: float = CONTEXT_EPS, affine: bool = True, batch_eps: float = 1e-5
    ) -> None:
        super().__init__(width, eps=batch_eps, affine=affine)
        self.context_eps = context_eps

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        features = exact(x)
        mean, variance = moments(features, equal_weights(mask, features.dtype))
        context = inverse_deviation(mean, variance, self.context_eps)
        left_mean, left_variance = self._of_batch(variance * context.square(), mask, x.shape[1])
        batch = (left_variance + self.eps).rsqrt()
        if self.affine:
            batch = batch * self.weight
        shift = -left_mean * batch - mean * context * batch
        return linear_map(x, context * batch, shift + self.bias if self.affine else shift, mask)

    def _of_batch(self, left: Tensor, mask: Tensor | None, matches: int) -> tuple[Tensor, Tensor]:
        """[C] mean and variance that the batch norm divides out, from what context norm left in the pairs."""
        assert self.running_mean is not None and self.running_var is not None
        if not self.training:
            return self.running_mean, self.running_var
        assert self.num_batches_tracked is not None and self.momentum is not None
        per_pair = left.new_full((len(left),), matches) if mask is None else mask.sum(1).to(left.dtype)
        count = per_pair.sum().clamp_min(1)
        variance = (left[:, 0] * (per_pair / count)[:, None]).sum(0)
        with torch.no_grad():
            self.running_mean.mul_(1 - self.momentum)
            self.running_var.lerp_((variance * count / (count - 1).clamp_min(1)).to(self.running_var), self.momentum)
            self.num_batches_tracked += 1
        return torch.zeros_like(variance), variance


class PreActivated(nn.Module):
    """Context norm, batch norm, ReLU, linear layer."""

    def __init__(self, width: int, out: int, context_eps: float = CONTEXT_EPS) -> None:
        super().__init__()
        self.norm = ContextBatchNorm(width, context_eps)
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.linear(F.relu(self.norm(x, mask)))


class PointCN(nn.Module):
    """A residual block of two pre-activated layers, as OANet and LMCNet have it."""

    def __init__(self, width: int, out: int | None = None) -> None:
        super().__init__()
        out = out or width
        self.first, self.second = PreActivated(width, out), PreActivated(out, out)
        self.shortcut = nn.Linear(width, out) if out != width else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        past = x if self.shortcut is None else self.shortcut(x)
        return past + self.second(self.first(x, mask), mask)


class Pool(nn.Module):
    """Differentiable pooling (Zhang et al., ICCV 2019): clusters are means of matches, by softmax over matches."""

    def __init__(self, width: int, clusters: int) -> None:
        super().__init__()
        self.assign = PreActivated(width, clusters)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B x N x C] to [B x K x C]."""
        logits = self.assign(x, mask)
        if mask is not None:
            logits = logits.masked_fill(~mask[..., None], torch.finfo(logits.dtype).min)
        return logits.softmax(1).to(x.dtype).mT @ x


class Unpool(nn.Module):
    """Back to matches: weighted means of clusters, softmax over clusters, each match choosing by its own features."""

    def __init__(self, width: int, clusters: int) -> None:
        super().__init__()
        self.assign = PreActivated(width, clusters)

    def forward(self, x: Tensor, clusters: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B x N x C] features of matches and [B x K x C] of clusters to [B x N x C]."""
        return self.assign(x, mask).softmax(-1).to(clusters.dtype) @ clusters


class OrderAware(nn.Module):
    """The order-aware block on clusters [B x K x C]: they come in a learned order, so a linear layer may mix them.

    `bottleneck` below the number of clusters is the authors' OAFilterBottleneck, for small data.
    """

    def __init__(self, width: int, clusters: int, bottleneck: int | None = None) -> None:
        super().__init__()
        self.first, self.last = PreActivated(width, width), PreActivated(width, width)
        widths = (clusters, clusters) if bottleneck is None else (clusters, bottleneck, clusters)
        self.norms = nn.ModuleList(MaskedBatchNorm(points) for points in widths[:-1])
        self.mixes = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        mixed = features.mT
        for norm, mix in zip(self.norms, self.mixes, strict=True):
            mixed = mix(F.relu(norm(mixed)))
        return x + self.last(features + mixed.mT)
