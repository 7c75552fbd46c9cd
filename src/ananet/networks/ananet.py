"""ANA-Net: Learning Second-Order Attentive Context for Efficient Correspondence Pruning (Ye et al., AAAI 2023).

The paper leaves some details open; they follow its authors' released evaluation code: the value projection
is the key projection, LayerNorm after the context encoder and after the merge, no residual around a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ananet._util.checks import check_whole_number
from ananet._util.defaults import INLIER_DISTANCE
from ananet.attention import (
    SEEDED_FORMS,
    Form,
    Seeds,
    move_seeds,
    reference,
    second_order_attention,
    seeded_attention,
)
from ananet.attention.reference import CONTEXT, attention_map
from ananet.errors import InputError
from ananet.networks.base import (
    BlockView,
    Network,
    NetworkSettings,
    Supervision,
    inlier_weights,
    rescale_linear,
    zero_at_padding,
)
from ananet.networks.consensus import distance_to_consensus
from ananet.networks.layers import PointwiseMLP
from ananet.networks.seeds import FIRST_STEPS, first_seeds

MAX_SEEDS = 2**20


@dataclass(frozen=True)
class ANANetSettings(NetworkSettings):
    """The defaults are the paper's network."""

    name: str = "ananet"
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
    feedback: bool = False
    """Whether the last block is shown how far every match lies from the geometry that the blocks before it agree on.
    Not in the paper."""
    right: bool = False
    """Whether a second output tells which matches are right, where the depth of the scene places them, beside the one
    that tells which lie near their epipolar lines. Not in the paper."""
    seeds: int = 0
    """Into how many groups of similar matches the blocks put all matches, to attend to the means of the groups; 0 to
    attend to every match, as in the paper. Any weights work with any number; fewer are faster, and less exact."""

    def check(self) -> None:
        # The bounds keep a broken weight file from taking all memory.
        for name, most in (("blocks", 100), ("width", 4096), ("heads", 4096)):
            check_whole_number(name, getattr(self, name), 1, most)
        if self.width % self.heads:
            raise InputError(f"width: expected a multiple of heads ({self.heads}), got {self.width}")
        check_whole_number("seeds", self.seeds, 0, MAX_SEEDS)
        if self.seeds and self.form not in SEEDED_FORMS:
            raise InputError(f"form: expected one of {', '.join(SEEDED_FORMS)} with seeds, got {self.form!r}")


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

    def forward(self, features: Tensor, mask: Tensor | None = None, seeds: Seeds | None = None) -> Tensor:
        query, key = self.heads(self.query(features)), self.heads(self.key(features))
        value = key if self.value is None else self.heads(self.value(features))
        form = None if self.second_order is None else self.settings.form
        if seeds is None:
            attended, context = second_order_attention(query, key, value, form, mask)
        else:
            attended, context = seeded_attention(query, key, value, seeds, form, mask)
        if self.second_order is not None and context is not None:
            features = features + self.second_order(context, mask)
        consistent = self.output(attended.transpose(1, 2).flatten(2))
        return self.norm(self.merge(torch.cat([features, consistent], dim=-1), mask))

    def view(self, features: Tensor, seeds: Seeds | None = None) -> BlockView:
        """The block's attention map, built again from features [1 x N x C] by the plain reference."""
        query, key = self.heads(self.query(features)), self.heads(self.key(features))
        form = None if self.second_order is None else self.settings.form
        if seeds is None:
            attention = attention_map(query, key)
            context = None if form is None else CONTEXT[form](attention, attention.shape[-1])
        else:
            real = torch.ones_like(features[..., 0], dtype=torch.bool)
            attention = attention_map(query, reference.group_means(key, seeds), real, seeds.weights)
            # What a seed receives is shared by the matches of its group.
            shared = attention / seeds.weights.clamp_min(1)[:, None, None]
            attention = shared.gather(3, seeds.group[:, None, None].expand(*query.shape[:3], -1))
            _, context = reference.seeded_attention(query, key, key, seeds, form)
        if self.second_order is None or context is None:
            return BlockView(attention[0])
        return BlockView(attention[0], context[0], self.second_order.normalize(context)[0].mT)


class GeometricFeedback(nn.Module):
    """Tells features how far their matches lie from the geometry of the matches that are believed so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 1)
        self.encoder = PointwiseMLP((2, 16, 32, width))
        # It counts nothing at first, so that a network without it can be trained on with it.
        nn.init.zeros_(self.encoder.linears[-1].weight)  # type: ignore[arg-type]

    def forward(self, features: Tensor, matches: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The features with what they are told, and the logits [B x N] that say what is believed."""
        logits = zero_at_padding(self.head(features)[..., 0], mask)
        with torch.autocast(matches.device.type, enabled=False):
            belief = torch.sigmoid(logits.to(matches.dtype))
            shown = distance_channels(distance_to_consensus(matches, belief if mask is None else belief * mask))
            return features + self.encoder(shown, mask), logits


def distance_channels(distance: Tensor) -> Tensor:
    """[B x N] squared distances to [B x N x 2]: their logarithm, 0 at the paper's label, and how far they lie below."""
    logarithm = (distance.clamp(1e-8, 1.0).log10() + 4) / 2
    return torch.stack([logarithm, torch.exp(-distance / INLIER_DISTANCE)], dim=-1)


class Steps(NamedTuple):
    """What one pass through the network leaves behind."""

    features: list[Tensor]
    """[B x N x C] input of every block, and the output of the last."""
    seeds: list[Seeds | None]
    """The groups of matches whose means every block attends to; None if it attends to all matches."""
    stages: list[Tensor]
    """[B x N] logits of lying near the line: those of the feedback, if there is any, and the final ones."""
    right: list[Tensor]
    """[B x N] logits of being right, if there is an output for it."""


class ANANet(Network):
    """ANA-Net: scores every match by first-order attention and second-order context."""

    name = "ananet"
    Settings = ANANetSettings
    settings: ANANetSettings

    def __init__(self, settings: ANANetSettings | None = None) -> None:
        super().__init__(settings)
        width = self.settings.width
        self.encoder = PointwiseMLP((4, 16, 32, 64, width, width))
        side = self.settings.channels - 4
        self.side_encoder = PointwiseMLP((side, 16, 32, width)) if side else None
        if self.side_encoder is not None:
            # Side input counts nothing at first, so that a network without it can be trained on with it.
            nn.init.zeros_(self.side_encoder.linears[-1].weight)  # type: ignore[arg-type]
        self.blocks = nn.ModuleList(ANABlock(self.settings) for _ in range(self.settings.blocks))
        self.feedback = GeometricFeedback(width) if self.settings.feedback else None
        self.head = nn.Linear(width, len(self.labels))
        self.seeds = self.settings.seeds
        """Of the next pass; training takes turns with and without."""

    @property
    def labels(self) -> tuple[str, ...]:
        return ("line", "right") if self.settings.right else ("line",)

    def encode(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        """The features that enter the first block, [B x N x width], of [B x N x channels], or of points alone."""
        channels = self.settings.channels
        if matches.dim() == 3 and matches.shape[2] == 4:
            # Points alone: no side input is known.
            matches = nn.functional.pad(matches, (0, channels - 4))
        if matches.dim() != 3 or matches.shape[2] != channels:
            raise InputError(f"matches: expected shape [B x N x {channels}], got {tuple(matches.shape)}")
        # Never in bfloat16, which rounds coordinates to two pixels or so.
        with torch.autocast(matches.device.type, enabled=False):
            features = self.encoder(matches[..., :4], mask)
            if self.side_encoder is not None:
                # An encoder of its own: next to coordinates, whose last pixel matters, anything else is noise.
                features = features + self.side_encoder(matches[..., 4:], mask)
        return features

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        steps = self._steps(matches, mask)
        return [*steps.stages, *steps.right][-1]

    def stages(self, matches: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        return self._steps(matches, mask).stages

    def supervision(self, matches: Tensor, mask: Tensor | None = None) -> Supervision:
        steps = self._steps(matches, mask)
        weights = [inlier_weights(logits.float()) for logits in steps.stages]
        return Supervision(steps.stages, [], weights, steps.right)

    def _steps(self, matches: Tensor, mask: Tensor | None = None) -> Steps:
        features = self.encode(matches, mask)
        seeds = first_seeds(matches, self.seeds, mask) if self.seeds else None
        steps = Steps([], [], [], [])
        for number, block in enumerate(self.blocks):
            if self.feedback is not None and number == len(self.blocks) - 1:
                features, believed = self.feedback(features, matches, mask)
                steps.stages.append(believed)
            if seeds is not None:
                seeds = move_seeds(features, seeds, mask, FIRST_STEPS if number == 0 else 1)
            steps.features.append(features)
            steps.seeds.append(seeds)
            features = block(features, mask, seeds)
        steps.features.append(features)
        line, *right = (zero_at_padding(logits, mask) for logits in self.head(features).unbind(-1))
        steps.stages.append(line)
        steps.right.extend(right)
        return steps

    def block_features(self, matches: Tensor) -> list[Tensor]:
        return self._steps(matches).features

    def block_views(self, matches: Tensor) -> list[BlockView]:
        steps = self._steps(matches)
        entering = zip(self.blocks, steps.features[:-1], steps.seeds, strict=True)
        return [
            block.view(features[:1], None if seeds is None else Seeds(*(x[:1] for x in seeds)))  # type: ignore[operator]
            for block, features, seeds in entering
        ]

    def rescale_logits(self, scale: float, shift: float, label: str | None = None) -> None:
        rescale_linear(self.head, scale, shift, self._output(label))

    def telling(self, label: str | None = None) -> ANANet:
        output = self._output(label)
        if not self.settings.right:
            return self
        network = ANANet(replace(self.settings, right=False))
        weights = self.state_dict()
        network.load_state_dict(weights | {n: weights[n][output][None] for n in ("head.weight", "head.bias")})
        return network.to(self.head.weight).train(self.training)

    def _output(self, label: str | None) -> int:
        """Number of the output that tells what a label names; of the last one by default."""
        self._check_label(label)
        return self.labels.index(label or self.labels[-1])

    def start_from(self, other: Network) -> None:
        """Take over the weights of any form and any number of seeds.

        Side input or feedback that the other lacks has no effect at first. An output that it lacks starts as the other.
        """
        have = other.settings
        if isinstance(have, ANANetSettings):
            want = self.settings
            have = replace(
                have,
                form=want.form,
                side=have.side or want.side,
                feedback=have.feedback or want.feedback,
                right=have.right or want.right,
                seeds=want.seeds,
            )
        if have != self.settings:
            super().start_from(other)  # which says what is different
        own, others = self.state_dict(), dict(other.state_dict())
        for name in ("head.weight", "head.bias"):
            others[name] = others[name].expand(own[name].shape)
        self.load_state_dict({name: others.get(name, value) for name, value in own.items()})
