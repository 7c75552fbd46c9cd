"""ACNe: Attentive Context Normalization for Robust Permutation-Equivariant Learning (Sun et al., CVPR 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ananet._util.checks import check_whole_number
from ananet.errors import InputError
from ananet.networks.base import Network, NetworkSettings, Supervision, rescale_linear, zero_at_padding
from ananet.networks.cne import start_small
from ananet.networks.layers import equal_weights, exact, inverse_deviation, linear_map, moments

GROUPS = 32
GROUP_EPS = 1e-5


@dataclass(frozen=True)
class ACNeSettings(NetworkSettings):
    """The defaults are the paper's network."""

    name: str = "acne"
    blocks: int = 12
    """Residual blocks of two layers."""
    width: int = 128
    """Number of features of a match; groups of the group norm share it."""

    def check(self) -> None:
        for name, most in (("blocks", 100), ("width", 4096)):
            check_whole_number(name, getattr(self, name), 1, most)
        if self.width % GROUPS:
            raise InputError(f"width: expected a multiple of {GROUPS}, got {self.width}")


def attention_weights(everywhere: Tensor, itself: Tensor, mask: Tensor | None) -> Tensor:
    """[B x N] weights proportional to exp(everywhere) sigmoid(itself), each [B x N]; 1 together in each pair."""
    logs = exact(everywhere) + F.logsigmoid(exact(itself))
    if mask is None:
        return logs.softmax(-1)
    return logs.masked_fill(~mask, torch.finfo(logs.dtype).min).softmax(-1) * mask


class AttentiveNorm(nn.Module):
    """Attentive context norm, then group norm: both together one linear map a channel and pair."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Linear(width, 2)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalised features, and the logits b [B x N] of a match counting at all."""
        everywhere, itself = self.attention(x).unbind(-1)
        features = exact(x)
        centre, variance = moments(features, attention_weights(everywhere, itself, mask))
        context = inverse_deviation(centre, variance)
        # Group norm counts all matches alike; its moments follow from those that the channels had before.
        plain_mean, plain_variance = moments(features, equal_weights(mask, features.dtype))
        means = ((plain_mean - centre) * context).unflatten(-1, (GROUPS, -1))
        variances = (plain_variance * context.square()).unflatten(-1, (GROUPS, -1))
        mean = means.mean(-1, keepdim=True)
        group = ((variances + (means - mean).square()).mean(-1, keepdim=True) + GROUP_EPS).rsqrt()
        group, mean = (one.expand_as(means).flatten(-2) for one in (group, mean))
        scale = context * group * self.weight
        return linear_map(x, scale, self.bias - mean * group * self.weight - centre * scale, mask), itself


class ACNeBlock(nn.Module):
    """Twice linear layer, attentive norm, ReLU; nothing after the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(AttentiveNorm(width) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        inner, layers = x, []
        for linear, norm in zip(self.linears, self.norms, strict=True):
            normalized, itself = norm(linear(inner), mask)
            inner = F.relu(normalized)
            layers.append(itself)
        return x + inner, layers


class ACNe(Network):
    """ACNe: CNe whose norms attend to likely inliers; the attention of every norm is supervised."""

    name = "acne"
    Settings = ACNeSettings
    settings: ACNeSettings
    geometric = "matrix"

    def __init__(self, settings: ACNeSettings | None = None) -> None:
        super().__init__(settings)
        width = self.settings.width
        self.encoder = nn.Linear(self.settings.channels, width)
        self.blocks = nn.ModuleList(ACNeBlock(width) for _ in range(self.settings.blocks))
        self.head = nn.Linear(width, 1)
        self.weight_head = nn.Linear(width, 1)
        self.apply(start_small)

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._answers(matches, mask)[0]

    def supervision(self, matches: Tensor, mask: Tensor | None = None) -> Supervision:
        logits, everywhere, layers = self._answers(matches, mask)
        return Supervision([logits], layers, [attention_weights(everywhere, logits, mask)])

    def _answers(self, matches: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits, what the eight-point weights attend to, and the attention of every norm, [B x N] each."""
        with torch.autocast(matches.device.type, enabled=False):
            features = self.encoder(matches)
        layers: list[Tensor] = []
        for block in self.blocks:
            features, of_block = block(features, mask)
            layers += of_block
        logits, everywhere = self.head(features)[..., 0], self.weight_head(features)[..., 0]
        return zero_at_padding(logits, mask), everywhere, layers

    def rescale_logits(self, scale: float, shift: float) -> None:
        rescale_linear(self.head, scale, shift)
