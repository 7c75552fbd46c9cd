"""CNe: Learning to Find Good Correspondences (Yi et al., CVPR 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ananet._util.checks import check_positive, check_whole_number
from ananet.networks.base import Network, NetworkSettings, rescale_linear, zero_at_padding
from ananet.networks.layers import ContextBatchNorm


@dataclass(frozen=True)
class CNeSettings(NetworkSettings):
    """The defaults are the paper's network."""

    name: str = "cne"
    blocks: int = 12
    """Residual blocks of two layers."""
    width: int = 128
    """Number of features of a match."""
    batch_eps: float = 1e-3
    """Of the batch norms: the default of its authors' framework."""
    before: ClassVar[Mapping[str, Any]] = {"batch_eps": 1e-5}

    def check(self) -> None:
        for name, most in (("blocks", 100), ("width", 4096)):
            check_whole_number(name, getattr(self, name), 1, most)
        check_positive("batch_eps", self.batch_eps)


class CNeBlock(nn.Module):
    """Twice linear layer, context norm, batch norm, ReLU; nothing after the sum."""

    def __init__(self, width: int, batch_eps: float) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(ContextBatchNorm(width, affine=False, batch_eps=batch_eps) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        inner = x
        for linear, norm in zip(self.linears, self.norms, strict=True):
            inner = F.relu(norm(linear(inner), mask))
        return x + inner


class CNe(Network):
    """CNe: scores every match by itself; matches interact through context norm only."""

    name = "cne"
    Settings = CNeSettings
    settings: CNeSettings
    geometric = "matrix"

    def __init__(self, settings: CNeSettings | None = None) -> None:
        super().__init__(settings)
        width = self.settings.width
        self.encoder = nn.Linear(self.settings.channels, width)
        self.blocks = nn.ModuleList(CNeBlock(width, self.settings.batch_eps) for _ in range(self.settings.blocks))
        self.head = nn.Linear(width, 1)
        self.apply(start_small)

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        # Never in half precision, which rounds coordinates to pixels.
        with torch.autocast(matches.device.type, enabled=False):
            features = self.encoder(matches)
        for block in self.blocks:
            features = block(features, mask)
        logits = self.head(features)[..., 0]
        return zero_at_padding(logits, mask)

    def rescale_logits(self, scale: float, shift: float) -> None:
        rescale_linear(self.head, scale, shift)


def start_small(module: nn.Module) -> None:
    """The weights that CNe and ACNe begin with: truncated normal of standard deviation 2 / fan-in, biases 0."""
    if isinstance(module, nn.Linear):
        deviation = 2 / module.in_features
        nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.zeros_(module.bias)
