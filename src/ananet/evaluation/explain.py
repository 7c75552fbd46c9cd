"""A look inside the network: attention maps, attention-consistent context and features, block by block.

Nothing here is part of the network: forward hooks take down what passes through its blocks, and the attention maps
are built again from that by the plain reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ananet.attention.reference import CONTEXT, attention_map
from ananet.correspondences import Correspondences
from ananet.errors import InputError
from ananet.evaluation import metrics
from ananet.networks import ANANet
from ananet.networks.ananet import ANABlock
from ananet.networks.input import network_input

# The k's of the paper's Fig. 7.
NEIGHBOURS = (5, 10, 20, 40, 80)
# Two matches are shown as far apart as this, as a share of the spread of all points.
APART = 0.25


@torch.no_grad()
def block_features(network: ANANet, matches: Correspondences) -> list[Tensor]:
    """[N x C] features that enter the first block, then those that leave each block."""
    taken: list[Tensor] = []

    def take(block: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not taken:
            taken.append(inputs[0][0])
        taken.append(output[0])

    hooks = [block.register_forward_hook(take) for block in network.blocks]
    try:
        network(network_input(matches, network.settings).to(network.head.weight.device))
    finally:
        for hook in hooks:
            hook.remove()
    return taken


def inlier_neighbours(
    network: ANANet, matches: Correspondences, inlier: np.ndarray, neighbours: Sequence[int] = NEIGHBOURS
) -> np.ndarray:
    """Ratio of inliers among the neighbours of an inlier, before the first block and after each (Fig. 7).

    Returns:
        [blocks + 1 x k's].
    """
    if len(matches) == 0:
        return np.zeros((len(network.blocks) + 1, len(neighbours)))
    features = block_features(network, matches)
    return np.array([metrics.inlier_neighbour_ratio(f.cpu().numpy(), inlier, neighbours) for f in features])


@dataclass(frozen=True, eq=False)
class BlockView:
    """What one block sees."""

    attention: Tensor
    """[H x N x N] how much each match (row) attends to each (column)."""
    context: Tensor | None
    """[H x N] attention-consistent context h; None for a block without second order."""
    normalized: Tensor | None
    """[H x N] the same after sigmoid(alpha h)."""


@torch.no_grad()
def view_block(block: ANABlock, features: Tensor) -> BlockView:
    """Builds a block's attention map again.

    Args:
        features: [N x C] what enters the block.
    """
    features = features[None]
    attention = attention_map(block.heads(block.query(features)), block.heads(block.key(features)))
    if block.second_order is None:
        return BlockView(attention[0], None, None)
    context = CONTEXT[block.settings.form](attention, attention.shape[-1])
    return BlockView(attention[0], context[0], block.second_order.normalize(context)[0].mT)


def view_blocks(network: ANANet, matches: Correspondences) -> list[BlockView]:
    features = block_features(network, matches)
    views = []
    for block, entering in zip(network.blocks, features, strict=False):
        assert isinstance(block, ANABlock)
        views.append(view_block(block, entering))
    return views


def two_apart(points: np.ndarray, logits: np.ndarray, candidates: np.ndarray) -> tuple[int, int]:
    """The surest of the candidate matches, and the surest of those that lie far from it.

    Args:
        points: [N x 2]; logits: [N]; candidates: indices, at least two.
    """
    if len(candidates) < 2:
        raise InputError(f"pruner: expected it to keep at least two matches to explain, got {len(candidates)}")
    order = candidates[np.argsort(-logits[candidates], kind="stable")]
    first = order[0]
    distance = np.linalg.norm(points - points[first], axis=1)
    far = order[distance[order] > APART * np.ptp(points, axis=0).max()]
    second = far[0] if len(far) else order[np.argmax(distance[order])]
    return int(first), int(second)


@dataclass(frozen=True, eq=False)
class SharedAttention:
    """What two matches attend to most."""

    pair: tuple[int, int]
    attended: tuple[np.ndarray, np.ndarray]
    """Indices of the matches that each attends to most."""

    @property
    def shared(self) -> np.ndarray:
        return np.intersect1d(*self.attended)


def shared_attention(attention: Tensor, pair: tuple[int, int], count: int) -> SharedAttention:
    """The matches that two of them attend to most (Fig. 2).

    Args:
        attention: [N x N].
        pair: the two matches.
        count: how many of the most attended to take for each.
    """
    attention = attention.clone()
    attention[list(pair), list(pair)] = -1.0
    top = attention[list(pair)].topk(min(count, attention.shape[1] - 1), dim=1).indices.cpu().numpy()
    return SharedAttention(pair, (top[0], top[1]))
