"""OANet: Learning Two-View Correspondences and Geometry Using Order-Aware Network (Zhang et al., ICCV 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ananet._util.checks import check_whole_number
from ananet.core import geometry
from ananet.networks.base import Network, NetworkSettings, inlier_weights, rescale_linear, zero_at_padding
from ananet.networks.layers import OrderAware, PointCN, Pool, Unpool

# Of the careful eight-point solution: squared epipolar distances beyond are the same to the second stage. Near an
# epipole they have no limit.
MAX_RESIDUAL = 10.0


@dataclass(frozen=True)
class OANetSettings(NetworkSettings):
    """The defaults are the paper's network."""

    name: str = "oanet"
    stages: int = 2
    """Each but the first sees how far the matches are from the geometry that the one before found."""
    depth: int = 3
    """PointCN blocks before and after pooling, and order-aware blocks between, in each stage."""
    width: int = 128
    """Number of features of a match."""
    clusters: int = 500
    """Clusters that matches are pooled to."""
    bottleneck: int | None = None
    """If given, order-aware blocks mix clusters through this many (the authors' OAFilterBottleneck, which they
    recommend for small data sets)."""
    eight_point: Literal["plain", "careful"] = "plain"
    """How geometry is found between stages. plain: as its authors do, from calibrated coordinates as they are, with
    residuals as they come. careful: from centred and scaled ones, with limited residuals."""
    before: ClassVar[Mapping[str, Any]] = {"eight_point": "careful"}

    def check(self) -> None:
        for name, most in (("stages", 10), ("depth", 100), ("width", 4096), ("clusters", 4096)):
            check_whole_number(name, getattr(self, name), 1, most)
        if self.bottleneck is not None:
            check_whole_number("bottleneck", self.bottleneck, 1, 4096)


class OANetStage(nn.Module):
    """Matches to clusters and back, with blocks before, between and after; then a logit for every match."""

    def __init__(self, settings: OANetSettings, channels: int) -> None:
        super().__init__()
        width, clusters, depth = settings.width, settings.clusters, settings.depth
        self.encoder = nn.Linear(channels, width)
        self.before = nn.ModuleList(PointCN(width) for _ in range(depth))
        self.pool = Pool(width, clusters)
        self.between = nn.ModuleList(OrderAware(width, clusters, settings.bottleneck) for _ in range(depth))
        self.unpool = Unpool(width, clusters)
        self.after = nn.ModuleList(PointCN(width if n else 2 * width, width) for n in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        # Never in half precision, which rounds coordinates to pixels.
        with torch.autocast(matches.device.type, enabled=False):
            features = self.encoder(matches)
        for block in self.before:
            features = block(features, mask)
        clusters = self.pool(features, mask)
        for block in self.between:
            clusters = block(clusters)
        features = torch.cat([features, self.unpool(features, clusters, mask)], dim=-1)
        for block in self.after:
            features = block(features, mask)
        logits = self.head(features)[..., 0]
        return zero_at_padding(logits, mask)


class OANet(Network):
    """OANet: pools matches to clusters, mixes these, and repeats with the residuals to the estimated geometry."""

    name = "oanet"
    Settings = OANetSettings
    settings: OANetSettings
    geometric = "virtual"

    def __init__(self, settings: OANetSettings | None = None) -> None:
        super().__init__(settings)
        channels = self.settings.channels
        self.parts = nn.ModuleList(
            OANetStage(self.settings, channels + 2 * (n > 0)) for n in range(self.settings.stages)
        )

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.stages(matches, mask)[-1]

    def stages(self, matches: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        found = [self.parts[0](matches, mask)]
        for part in list(self.parts)[1:]:
            found.append(part(torch.cat([matches, self._verdict(matches, found[-1], mask)], dim=-1), mask))
        return found

    @torch.no_grad()
    def _verdict(self, matches: Tensor, logits: Tensor, mask: Tensor | None) -> Tensor:
        """[B x N x 2] squared distance to the geometry that a stage found, and the stage's weights."""
        careful = self.settings.eight_point == "careful"
        with torch.autocast(matches.device.type, enabled=False):
            points0, points1 = matches[..., :2], matches[..., 2:4]
            real = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
            weights = inlier_weights(logits.to(matches.dtype)) * real
            # With fewer left rounding would choose among solutions: then all matches have a say.
            enough = (weights > 0).sum(1, keepdim=True) > (8 if careful else 7)
            trusted = torch.where(enough, weights, real.to(weights.dtype))
            E = geometry.weighted_eight_point(points0, points1, trusted, normalize=careful)
            residual = geometry.symmetric_epipolar_distance_squared(points0, points1, E)
            return torch.stack([residual.clamp(max=MAX_RESIDUAL) if careful else residual, weights], dim=-1)

    def rescale_logits(self, scale: float, shift: float) -> None:
        rescale_linear(self.parts[-1].head, scale, shift)  # type: ignore[arg-type]
