"""LMCNet: Learnable Motion Coherence for Correspondence Pruning (Liu et al., CVPR 2021), on coordinates alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ananet._util.checks import check_positive, check_share, check_whole_number
from ananet.errors import InputError
from ananet.networks.base import Network, NetworkSettings, rescale_linear, zero_at_padding
from ananet.networks.graphs import (
    Basis,
    Neighbours,
    eigenvector_basis,
    nearest_matches,
    subspace_basis,
    with_itself,
)
from ananet.networks.layers import MaskedBatchNorm, OrderAware, PointCN, Pool, PreActivated, Unpool

# Of the context norms in coherence layers, which the authors left at PyTorch's default.
COHERENCE_EPS = 1e-5
BASES = {"eigenvectors": eigenvector_basis, "subspace": subspace_basis}


@dataclass(frozen=True)
class LMCNetSettings(NetworkSettings):
    """The defaults are the authors' network for outdoor scenes."""

    name: str = "lmcnet"
    blocks: int = 4
    width: int = 128
    """Number of features of a match."""
    clusters: int = 128
    """Clusters that matches are pooled to in every block."""
    neighbours: int = 8
    """Nearest matches that a local layer looks at, the match itself among them, and edges of a match in the graph."""
    local_width: int = 8
    """Number of features in local layers."""
    eta: float = 10.0
    """How smooth motion is expected to be; every coherence layer learns its own, from here."""
    vectors: int = 32
    """Eigenvectors of the graph's Laplacian that smooth fields are made of."""
    sigma: float = 0.1
    """Distance of matches, in focal lengths, at which the weight of an edge has fallen to 1 / e."""
    floor: float = 0.05
    """Smallest weight of an edge. The authors use none indoors."""
    basis: Literal["eigenvectors", "subspace"] = "eigenvectors"
    """eigenvectors: as the authors find them, on the CPU, in time cubic in the number of matches. subspace: nearly the
    space that they span, much faster, for a batch at once."""
    before: ClassVar[Mapping[str, Any]] = {"basis": "subspace"}

    def check(self) -> None:
        limits = {
            "blocks": 100,
            "width": 4096,
            "clusters": 4096,
            "neighbours": 100,
            "local_width": 4096,
            "vectors": 256,
        }
        for name, most in limits.items():
            check_whole_number(name, getattr(self, name), 1, most)
        check_positive("sigma", self.sigma)
        check_share("floor", self.floor)
        if not 0 <= self.eta < math.inf:
            raise InputError(f"eta: expected at least 0, got {self.eta}")


class LocalLayer(nn.Module):
    """How a match differs from its nearest ones: the largest of what a small network says of each."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(width, inner)
        self.first, self.second = nn.Linear(inner, inner), nn.Linear(inner, inner)
        self.norm = MaskedBatchNorm(inner)
        self.expand = nn.Linear(inner, width)

    def forward(self, x: Tensor, near: Neighbours) -> Tensor:
        own = self.reduce(x)
        index = near.numbers.flatten(1)[..., None].expand(-1, -1, own.shape[-1])
        others = own.gather(1, index).unflatten(1, near.numbers.shape[1:])
        differences = self.second(F.relu(self.norm(self.first(own[:, :, None] - others), near.real)))
        # The match itself is always among them, so what fills up does not count. At padding the first does, for a
        # maximum to exist.
        counts = near.real | (torch.arange(near.real.shape[-1], device=x.device) == 0)
        return self.expand(differences.where(counts[..., None], -math.inf).amax(2))


class CoherenceLayer(nn.Module):
    """What is left of features when the smooth part is taken away, seen through two layers (the paper's Eq. 9)."""

    def __init__(self, width: int, eta: float) -> None:
        super().__init__()
        self.eta = nn.Parameter(torch.tensor(eta))
        self.first = PreActivated(width, width, COHERENCE_EPS)
        self.second = PreActivated(width, width, COHERENCE_EPS)

    def forward(self, x: Tensor, basis: Basis, mask: Tensor | None = None) -> Tensor:
        # A difference of similar numbers: not in half precision.
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(basis.vectors.dtype)
            residual = (basis.smooth(exact, self.eta.clamp_min(0)) - exact).to(x.dtype)
        return self.second(self.first(residual, mask), mask)


class LMCBlock(nn.Module):
    """Local layer, PointCN and coherence layer; clusters; and the three again. All but PointCN add to the features."""

    def __init__(self, settings: LMCNetSettings) -> None:
        super().__init__()
        width = settings.width
        self.local = nn.ModuleList(LocalLayer(width, settings.local_width) for _ in range(2))
        self.context = nn.ModuleList(PointCN(width) for _ in range(2))
        self.coherence = nn.ModuleList(CoherenceLayer(width, settings.eta) for _ in range(2))
        self.pool = Pool(width, settings.clusters)
        self.clusters = OrderAware(width, settings.clusters)
        self.unpool = Unpool(width, settings.clusters)

    def forward(self, x: Tensor, near: Neighbours, basis: Basis, mask: Tensor | None = None) -> Tensor:
        x = self._half(0, x, near, basis, mask)
        x = x + self.unpool(x, self.clusters(self.pool(x, mask)), mask)
        return self._half(1, x, near, basis, mask)

    def _half(self, n: int, x: Tensor, near: Neighbours, basis: Basis, mask: Tensor | None) -> Tensor:
        x = self.context[n](x + self.local[n](x, near), mask)
        return x + self.coherence[n](x, basis, mask)


class LMCNet(Network):
    """LMCNet: compares each match with a smooth motion field, repeatedly: first of points, then of features."""

    name = "lmcnet"
    Settings = LMCNetSettings
    settings: LMCNetSettings
    geometric = "virtual"
    # Outdoors; 0.9 indoors.
    authors_probability = 0.95

    def __init__(self, settings: LMCNetSettings | None = None) -> None:
        super().__init__(settings)
        width = self.settings.width
        self.encoder = nn.Linear(self.settings.channels + 2, width)
        self.context = PointCN(width)
        self.blocks = nn.ModuleList(LMCBlock(self.settings) for _ in range(self.settings.blocks))
        self.norm = MaskedBatchNorm(width)
        self.head = nn.Linear(width, 1)
        self.find_basis = BASES[self.settings.basis]

    def prepare_to_compile(self) -> None:
        # It makes the host wait, which no CUDA graph can hold.
        self.find_basis = torch.compiler.disable(BASES[self.settings.basis])

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        settings = self.settings
        if matches.shape[1] == 0:
            return matches[..., 0]
        # Never in half precision, which rounds coordinates to pixels.
        with torch.autocast(matches.device.type, enabled=False):
            edges = nearest_matches(matches, settings.neighbours, mask)
            basis = self.find_basis(matches, edges, settings.vectors, settings.sigma, settings.floor, mask)
            motion = matches[..., 2:4] - matches[..., :2]
            features = self.encoder(torch.cat([matches, basis.smooth(motion, settings.eta) - motion], dim=-1))
        features = self.context(features, mask)
        near = with_itself(edges, mask)
        for block in self.blocks:
            features = block(features, near, basis, mask)
        logits = self.head(F.relu(self.norm(features, mask)))[..., 0]
        return zero_at_padding(logits, mask)

    def rescale_logits(self, scale: float, shift: float) -> None:
        rescale_linear(self.head, scale, shift)
