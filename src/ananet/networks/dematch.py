"""DeMatch: Deep Decomposition of Motion Field for Two-View Correspondence Learning (Zhang et al., CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ananet._util.checks import check_whole_number
from ananet.errors import InputError
from ananet.networks.base import Network, NetworkSettings, rescale_linear, zero_at_padding
from ananet.networks.layers import ContextBatchNorm, PointwiseMLP

# What tokens gather from, then among themselves; last, matches gather from tokens.
FROM_MATCHES, AMONG_TOKENS = 2, 4
ENCODER = (2, 32, 64)
HEAD = (64, 16, 4)
# Score of a match that the block before thinks wrong: if all are, they count alike.
WRONG = -1e6


@dataclass(frozen=True)
class DeMatchSettings(NetworkSettings):
    """The defaults are the paper's network."""

    name: str = "dematch"
    blocks: int = 5
    """Each but the first lets tokens see only the matches that the one before thinks right."""
    width: int = 128
    """Number of features of a match; the heads share it."""
    heads: int = 4
    tokens: int = 48
    """Parts that the field of motions is decomposed into."""

    def check(self) -> None:
        for name, most in (("blocks", 100), ("width", 4096), ("heads", 4096), ("tokens", 4096)):
            check_whole_number(name, getattr(self, name), 1, most)
        if self.width % self.heads:
            raise InputError(f"width: expected a multiple of heads ({self.heads}), got {self.width}")
        if self.side:
            raise InputError(f"side: expected none, as DeMatch reads motions alone, got {', '.join(self.side)}")


class Gather(nn.Module):
    """What each item gathers from others by attention, seen through two layers together with itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.merge = PointwiseMLP((2 * width, 2 * width, width))

    def forward(
        self,
        x: Tensor,
        others: Tensor,
        mask: Tensor | None = None,
        kept: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """What to add to [B x N x C] items, real by `mask`, from [B x M x C] others, of which some are kept or real."""
        query, key, value = (
            layer(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, given in ((self.query, x), (self.key, others), (self.value, others))
        )
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if kept is not None:
            scores = scores.masked_fill(~kept[:, None, None], WRONG)
        if real is not None:
            scores = scores.masked_fill(~real[:, None, None], torch.finfo(scores.dtype).min)
        gathered = (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).flatten(-2)
        return self.merge(torch.cat([x, self.out(gathered)], dim=-1), mask)


class Predictor(nn.Module):
    """A logit for each match by how a block changed it: linear layers with context norm, batch norm, ReLU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((width, *HEAD)))
        self.norms = nn.ModuleList(ContextBatchNorm(b) for b in HEAD)
        self.last = nn.Linear(HEAD[-1], 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = F.relu(norm(linear(x), mask))
        return self.last(x)[..., 0]


class DeMatchBlock(nn.Module):
    """Tokens take the field of motions apart, agree among themselves, and matches are put together from them."""

    def __init__(self, settings: DeMatchSettings) -> None:
        super().__init__()
        width, heads = settings.width, settings.heads
        self.from_matches = nn.ModuleList(Gather(width, heads) for _ in range(FROM_MATCHES))
        self.among_tokens = nn.ModuleList(Gather(width, heads) for _ in range(AMONG_TOKENS))
        self.from_tokens = Gather(width, heads)
        self.predictor = Predictor(width)

    def forward(self, x: Tensor, tokens: Tensor, kept: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B x N x C] features of matches and [B x T x C] tokens to features and [B x N] logits."""
        for gather in self.from_matches:
            tokens = tokens + gather(tokens, x, kept=kept, real=mask)
        for gather in self.among_tokens:
            tokens = tokens + gather(tokens, tokens)
        # Changes differ little from match to match, and context norm divides by that: not in half precision.
        with torch.autocast(x.device.type, enabled=False):
            change = self.from_tokens(x, tokens.to(x.dtype), mask)
            return x + change, zero_at_padding(self.predictor(change, mask), mask)


class DeMatch(Network):
    """DeMatch: a smooth motion field as a sum of few learned parts, fitted to the likely matches again and again."""

    name = "dematch"
    Settings = DeMatchSettings
    settings: DeMatchSettings
    geometric = "virtual"

    def __init__(self, settings: DeMatchSettings | None = None) -> None:
        super().__init__(settings)
        width = self.settings.width
        self.tokens = nn.Parameter(torch.randn(self.settings.tokens, width))
        self.position, self.motion = (PointwiseMLP((*ENCODER, width)) for _ in range(2))
        self.blocks = nn.ModuleList(DeMatchBlock(self.settings) for _ in range(self.settings.blocks))

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.stages(matches, mask)[-1]

    def stages(self, matches: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        if matches.shape[1] == 0:
            return [matches[..., 0]] * len(self.blocks)
        position, motion = matches[..., :2], matches[..., 2:4] - matches[..., :2]
        # Never in half precision, which rounds coordinates to pixels.
        with torch.autocast(matches.device.type, enabled=False):
            x = self.motion(motion, mask) + self.position(position, mask)
        tokens = self.tokens.expand(len(matches), -1, -1)
        found: list[Tensor] = []
        for block in self.blocks:
            x, logits = block(x, tokens, found[-1] > 0 if found else None, mask)
            found.append(logits)
        return found

    def rescale_logits(self, scale: float, shift: float) -> None:
        rescale_linear(self.blocks[-1].predictor.last, scale, shift)  # type: ignore[union-attr, arg-type]
