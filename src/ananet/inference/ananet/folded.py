"""ANA-Net for inference: batch norms folded into their linear layers, neighbouring linear maps multiplied out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ananet.attention import Seeds, blocked, choose_backend, move_seeds, second_order_attention, seeded_attention
from ananet.attention.reference import group_means
from ananet.attention.second_order import MOMENTS, linear_form, quadratic_form
from ananet.inference.engines import Engine, Progress, real_matches
from ananet.networks.ananet import ANABlock, ANANet, GeometricFeedback, distance_channels
from ananet.networks.base import zero_at_padding
from ananet.networks.consensus import distance_to_consensus
from ananet.networks.layers import PointwiseMLP
from ananet.networks.seeds import FIRST_STEPS, first_seeds

# Features of matches that go through a block together, and their rows of the map to the seeds, for each thread: they
# stay in the second-level cache of a core.
PART_BYTES = 5 * 2**18


class Linear(NamedTuple):
    """x -> x W^T + b."""

    weight: Tensor
    """[out x in]"""
    bias: Tensor
    """[out]"""

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class LayerNorm(NamedTuple):
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class ContextEncoder:
    """psi: [B x H x N] context to [B x N x C] features."""

    alpha: Tensor
    layers: list[Linear]
    norm: LayerNorm

    def __call__(self, context: Tensor) -> Tensor:
        return self.norm(pointwise(self.layers, torch.sigmoid(self.alpha * context.mT)))


class FoldedBlock:
    """An ANA block with its projections in one layer, and its output projection inside the first merge layer."""

    def __init__(self, block: ANABlock) -> None:
        self.settings = block.settings
        width = block.settings.width
        linears = [linear for linear in (block.query, block.key, block.value) if linear is not None]
        weight, bias = (torch.cat([getattr(x, name) for x in linears]).detach() for name in ("weight", "bias"))
        self.projections = Linear(weight, bias)
        self.context = None
        if block.second_order is not None:
            encoder = block.second_order
            alpha = torch.ones(self.settings.heads) if encoder.alpha is None else encoder.alpha.detach()
            self.context = ContextEncoder(
                alpha.to(self.projections.bias), fold_mlp(encoder.encoder), layer_norm(encoder.norm)
            )
        first, self.merge = fold_mlp(block.merge)
        # [x || O a + o] W^T + b = x Wx^T + a (Wa O)^T + (b + Wa o), with W = [Wx Wa] and O, o the output projection.
        weight, output_weight = first.weight.double(), block.output.weight.detach().double()
        bias = first.bias.double() + weight[:, width:] @ block.output.bias.detach().double()
        self.merge_features = Linear(weight[:, :width].float(), bias.float())
        self.merge_attended = (weight[:, width:] @ output_weight).float()
        self.norm = layer_norm(block.norm)

    def __call__(self, features: Tensor, mask: Tensor | None, seeds: Seeds | None = None) -> Tensor:
        heads, width = self.settings.heads, self.settings.width
        projected = self.projections(features).unflatten(-1, (-1, heads, width // heads))
        query, key, *rest = projected.permute(2, 0, 3, 1, 4)
        value = rest[0] if rest else key
        form = None if self.context is None else self.settings.form
        if seeds is None:
            attended, context = second_order_attention(query, key, value, form, mask)
        else:
            attended, context = seeded_attention(query, key, value, seeds, form, mask)
        if self.context is not None and context is not None:
            features = features + self.context(context)
        hidden = self.merge_features(features) + F.linear(attended.transpose(1, 2).flatten(2), self.merge_attended)
        return self.norm(self.merge(hidden.relu_()))

    def by_parts(self, features: Tensor, seeds: Seeds) -> Tensor:
        """The same for one pair on a CPU, [N x C] features and the seeds of this pair, N at least 1.

        Matches meet only through what the seeds are and what they attend to. Once that is known, part after part goes
        through the whole block while it is in cache.
        """
        heads, width = self.settings.heads, self.settings.width
        weights, biases = (x.split(width) for x in self.projections)
        query, key, *rest = (Linear(*layer) for layer in zip(weights, biases, strict=True))
        scale = 1 / math.sqrt(width // heads)
        scaled_query = Linear(query.weight * scale, query.bias * scale)
        used = seeds.weights[0] > 0
        means, weight = group_means(features[None, None], seeds)[0, 0, used], seeds.weights[0, used]
        seed_key, *values = (self.heads(layer(means)).contiguous() for layer in (key, *rest))
        seed_value = values[0] if values else seed_key
        context = None
        if self.context is not None:
            context = self.seed_context(self.heads(query(means)), self.heads(key(features)), weight)
        result, log_weight = torch.empty_like(features), weight.log()
        row_bytes = (heads * len(means) + width) * features.element_size()
        height = max(1, PART_BYTES * torch.get_num_threads() // row_bytes)
        for top in range(0, len(features), height):
            rows = slice(top, top + height)
            part = features[rows]
            A = torch.baddbmm(log_weight, self.heads(scaled_query(part)), seed_key.mT)
            attended = torch.bmm(torch.softmax(A, dim=-1, out=A), seed_value).transpose(0, 1).flatten(1)
            if self.context is not None and context is not None:
                part = self.context(context[:, rows]).add_(part)
            hidden = self.merge_features(part).addmm_(attended, self.merge_attended.T)
            result[rows] = self.norm(self.merge(hidden.relu_()))
        return result

    def heads(self, x: Tensor) -> Tensor:
        """[N x C] to [H x N x C/H]."""
        return x.unflatten(-1, (self.settings.heads, -1)).transpose(0, 1)

    def seed_context(self, seed_query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        """[H x N] context of one pair from what its seeds attend to, as in `seeded_attention`."""
        form, count = self.settings.form, key.shape[1]
        given = seed_query[None], key[None], key[None, ..., :0]
        columns = blocked.forward(*given, weight[None], None, MOMENTS[form])[1][:, 0]
        return linear_form(columns, count) if form == "linear" else quadratic_form(columns)


class FoldedFeedback:
    """Feedback to the last block: the geometry that the blocks before it agree on."""

    def __init__(self, feedback: GeometricFeedback) -> None:
        self.head = Linear(feedback.head.weight.detach(), feedback.head.bias.detach())
        self.encoder = fold_mlp(feedback.encoder)

    def __call__(self, features: Tensor, matches: Tensor, mask: Tensor | None) -> Tensor:
        belief = torch.sigmoid(self.head(features)[..., 0])
        distance = distance_to_consensus(matches, belief if mask is None else belief * mask)
        return features + pointwise(self.encoder, distance_channels(distance))


class FoldedANANet(Engine):
    """The same logits as the network it was folded from, in fewer and larger steps. Runs anywhere."""

    def __init__(self, network: ANANet) -> None:
        self.settings = network.settings
        self.encoder = fold_mlp(network.encoder)
        self.side_encoder = None if network.side_encoder is None else fold_mlp(network.side_encoder)
        self.blocks = [FoldedBlock(block) for block in network.blocks if isinstance(block, ANABlock)]
        self.feedback = None if network.feedback is None else FoldedFeedback(network.feedback)
        self.head = Linear(network.head.weight.detach(), network.head.bias.detach())

    @torch.inference_mode()
    def __call__(self, matches: Tensor, lengths: Tensor | None = None, progress: Progress | None = None) -> Tensor:
        return self.score(matches, real_matches(matches, lengths), progress)

    def score(self, matches: Tensor, mask: Tensor | None, progress: Progress | None = None) -> Tensor:
        """[B x N] logits for any mask [B x N], True where a match is real."""
        features = pointwise(self.encoder, matches[..., :4])
        if self.side_encoder is not None:
            features = features + pointwise(self.side_encoder, matches[..., 4:])
        seeds = first_seeds(matches, self.settings.seeds, mask) if self.settings.seeds else None
        by_parts = mask is None and features.numel() > 0 and choose_backend(features.device) == "blocked"
        for done, block in enumerate(self.blocks, start=1):
            if self.feedback is not None and done == len(self.blocks):
                features = self.feedback(features, matches, mask)
            if seeds is not None:
                seeds = move_seeds(features, seeds, mask, FIRST_STEPS if done == 1 else 1)
            if seeds is not None and by_parts:
                pairs = zip(features, *(x[:, None] for x in seeds), strict=True)
                parts = [block.by_parts(pair, Seeds(*its_seeds)) for pair, *its_seeds in pairs]
                features = parts[0][None] if len(parts) == 1 else torch.stack(parts)
            else:
                features = block(features, mask, seeds)
            if progress is not None:
                progress(done, len(self.blocks))
        return zero_at_padding(self.head(features)[..., 0], mask)


def pointwise(layers: list[Linear], x: Tensor) -> Tensor:
    for layer in layers[:-1]:
        x = layer(x).relu_()
    return layers[-1](x)


def fold_mlp(mlp: PointwiseMLP) -> list[Linear]:
    """The linear layers of an MLP with its batch norms, as they act in evaluation, multiplied in."""
    *hidden, last = (layer for layer in mlp.linears if isinstance(layer, nn.Linear))
    folded = [fold(linear, norm) for linear, norm in zip(hidden, mlp.norms, strict=True)]  # type: ignore[arg-type]
    return [*folded, Linear(last.weight.detach(), last.bias.detach())]


def fold(linear: nn.Linear, norm: nn.BatchNorm1d) -> Linear:
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = linear.weight.double() * scale[:, None]
    bias = (linear.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
    return Linear(weight.detach().float(), bias.detach().float())


def layer_norm(norm: nn.LayerNorm) -> LayerNorm:
    return LayerNorm(norm.weight.detach(), norm.bias.detach(), norm.eps)
