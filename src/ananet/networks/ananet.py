"""ANA-Net: Learning Second-Order Attentive Context for Efficient Correspondence Pruning (Ye et al., AAAI 2023).

The paper leaves some details open; they follow its authors' released evaluation code: the value projection
is the key projection, LayerNorm after the context encoder and after the merge, no residual around a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from ananet.attention import FORMS, Form, second_order_attention
from ananet.errors import InputError
from ananet.networks.layers import PointwiseMLP


@dataclass(frozen=True)
class ANANetSettings:
    """Everything that defines the network's shape. The defaults are the paper's network."""

    form: Form = "linear"
    """Form of the second-order context: linear (Eq. 5), quadratic (Eq. 4) or cubic (Eq. 1)."""
    blocks: int = 5
    """Number of ANA blocks, the paper's L."""
    width: int = 128
    """Number of features of a match, the paper's d."""
    heads: int = 4
    """Attention heads; they share the width between them."""
    second_order: bool = True
    """Whether blocks use second-order context at all (SOC in the paper's Table 6)."""
    learnable_normalization: bool = True
    """Whether the sigmoid that normalises the context has a learned slope alpha (LNN in Table 6)."""
    share_kv: bool = True
    """Whether the value projection is the key projection, as in the authors' code."""
    side_channels: int = 0
    """Input channels beside the four coordinates."""

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"form: expected one of {', '.join(FORMS)}, got {self.form!r}")
        for name, least in (("blocks", 1), ("width", 1), ("heads", 1), ("side_channels", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}")
        for name in ("second_order", "learnable_normalization", "share_kv"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}: expected true or false, got {getattr(self, name)!r}")
        if self.width % self.heads:
            raise InputError(f"width: expected a multiple of heads ({self.heads}), got {self.width}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ANANetSettings:
        """Settings from a mapping; an unknown name is an error."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InputError(f"unknown network setting {', '.join(unknown)}: expected some of {', '.join(known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class SecondOrderEncoder(nn.Module):
    """psi of the paper: normalises the context h by sigmoid(alpha h) and lifts it to the width of features."""

    def __init__(self, settings: ANANetSettings) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((settings.heads,), 2.0)) if settings.learnable_normalization else None
        self.encoder = PointwiseMLP((settings.heads, 32, 64, settings.width, settings.width))
        self.norm = nn.LayerNorm(settings.width)

    def normalize(self, context: Tensor) -> Tensor:
        """[B x H x N] context to [B x N x H] values in (0, 1)."""
        context = context.transpose(-2, -1)
        normalized = torch.sigmoid(context if self.alpha is None else self.alpha * context)
        # The context of half-precision features comes in single precision.
        return normalized.to(self.norm.weight.dtype)

    def forward(self, context: Tensor, mask: Tensor | None) -> Tensor:
        return self.norm(self.encoder(self.normalize(context), mask))


class ANABlock(nn.Module):
    """f_out = merge([f_in + psi(h) || phi(v)]): both contexts of one attention map join the features."""

    def __init__(self, settings: ANANetSettings) -> None:
        super().__init__()
        width = settings.width
        self.settings = settings
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = None if settings.share_kv else nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.second_order = SecondOrderEncoder(settings) if settings.second_order else None
        self.merge = PointwiseMLP((2 * width, width, width))
        self.norm = nn.LayerNorm(width)

    def heads(self, x: Tensor) -> Tensor:
        """[B x N x C] to [B x H x N x C/H]."""
        return x.unflatten(-1, (self.settings.heads, -1)).transpose(1, 2)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key = self.heads(self.query(features)), self.heads(self.key(features))
        value = key if self.value is None else self.heads(self.value(features))
        form = None if self.second_order is None else self.settings.form
        attended, context = second_order_attention(query, key, value, form, mask)
        if self.second_order is not None and context is not None:
            features = features + self.second_order(context, mask)
        consistent = self.output(attended.transpose(1, 2).flatten(2))
        return self.norm(self.merge(torch.cat([features, consistent], dim=-1), mask))


class ANANet(nn.Module):
    """Scores every match by what it attends to, what attends to it, and the company it keeps."""

    def __init__(self, settings: ANANetSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or ANANetSettings()
        width = self.settings.width
        self.encoder = PointwiseMLP((4, 16, 32, 64, width, width))
        side = self.settings.side_channels
        self.side_encoder = PointwiseMLP((side, 16, 32, width)) if side else None
        if self.side_encoder is not None:
            # Side input counts nothing at first, so that a network without it can be trained on with it.
            nn.init.zeros_(self.side_encoder.linears[-1].weight)  # type: ignore[arg-type]
        self.blocks = nn.ModuleList(ANABlock(self.settings) for _ in range(self.settings.blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of being an inlier: positive means keep.

        Args:
            matches: [B x N x (4 + side channels)] or [N x (4 + side channels)]: normalised x0 y0 x1 y1, then
                side input.
            mask: [B x N] or [N], True where a match is real, False where it pads the batch.

        Returns:
            [B x N] or [N] logits; 0 at padding.
        """
        if matches.dim() == 2:
            return self(matches[None], None if mask is None else mask[None])[0]
        # Never in bfloat16, which rounds coordinates to two pixels or so.
        with torch.autocast(matches.device.type, enabled=False):
            features = self.encoder(matches[..., :4], mask)
            if self.side_encoder is not None:
                # An encoder of its own: next to coordinates, whose last pixel matters, anything else is noise.
                features = features + self.side_encoder(matches[..., 4:], mask)
        for block in self.blocks:
            features = block(features, mask)
        logits = self.head(features)[..., 0]
        return logits if mask is None else logits.masked_fill(~mask, 0.0)


def inlier_weights(logits: Tensor) -> Tensor:
    """The paper's w = relu(tanh(o)) in [0, 1): the weight of a match in a weighted eight-point solution."""
    largest = 1 - torch.finfo(logits.dtype).eps / 2
    return torch.tanh(logits).clamp(min=0.0, max=largest)
