"""Features and attention of a network, block by block (`Network.block_features`, `Network.block_views`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ananet.core import metrics
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.networks import Network
from ananet.networks.base import BlockView
from ananet.networks.input import network_input

# The k's of the paper's Fig. 7.
NEIGHBOURS = (5, 10, 20, 40, 80)
# Least distance of the two matches shown, as a share of the extent of all points.
APART = 0.25


@torch.no_grad()
def block_features(network: Network, matches: Correspondences) -> list[Tensor]:
    """[N x C] input of the first block, then the output of each block; empty if a network has none."""
    return [features[0] for features in network.block_features(_input(network, matches))]


@torch.no_grad()
def view_blocks(network: Network, matches: Correspondences) -> list[BlockView]:
    """Attention and context of each block; empty if a network has no attention."""
    return network.block_views(_input(network, matches))


def _input(network: Network, matches: Correspondences) -> Tensor:
    device = next(network.parameters()).device
    return network_input(matches, network.settings.side).to(device)[None]


def inlier_neighbours(
    network: Network, matches: Correspondences, inlier: np.ndarray, neighbours: Sequence[int] = NEIGHBOURS
) -> np.ndarray:
    """[blocks + 1 x k's] ratio of inliers among the neighbours of an inlier, before the first block and after each."""
    features = block_features(network, matches)
    if len(matches) == 0:
        return np.zeros((len(features), len(neighbours)))
    return np.array([metrics.inlier_neighbour_ratio(f.cpu().numpy(), inlier, neighbours) for f in features])


def two_apart(points: np.ndarray, logits: np.ndarray, candidates: np.ndarray) -> tuple[int, int]:
    """Of at least two candidates (indices), the one with the highest logit, and the best one far from it."""
    if len(candidates) < 2:
        raise InputError(f"pruner: expected it to keep at least two matches to explain, got {len(candidates)}")
    order = candidates[np.argsort(-logits[candidates], kind="stable")]
    first = order[0]
    distance = np.linalg.norm(points - points[first], axis=1)
    far = order[distance[order] > APART * np.ptp(points, axis=0).max()]
    second = far[0] if len(far) else order[np.argmax(distance[order])]
    return int(first), int(second)


def most_attended(attention: Tensor, pair: tuple[int, int], count: int) -> np.ndarray:
    """[2 x count] indices of the matches that each of a pair attends to most, by [N x N] attention (Fig. 2)."""
    attention = attention.clone()
    attention[list(pair), list(pair)] = -1.0
    return attention[list(pair)].topk(min(count, attention.shape[1] - 1), dim=1).indices.cpu().numpy()


def separation(values: np.ndarray, good: np.ndarray) -> float:
    """Probability that a good match has a higher value than another one; 0.5 if there are none of a kind.

    >>> separation(np.array([1.0, 2.0, 3.0, 3.0]), np.array([False, False, True, False]))
    0.8333333333333334
    """
    others = np.sort(values[~good])
    if not len(others) or not good.any():
        return 0.5
    below, not_above = (np.searchsorted(others, values[good], side) for side in ("left", "right"))
    return float((below + not_above).mean() / (2 * len(others)))


def best_head(views: Sequence[BlockView], good: np.ndarray) -> tuple[int, int, float]:
    """Block and head, from 1, with the context that separates good matches from others best, and its separation."""
    found = [
        (separation(head.cpu().numpy(), good), -block, -number)
        for block, view in enumerate(views, start=1)
        if view.context is not None
        for number, head in enumerate(view.context, start=1)
    ]
    value, block, number = max(found)
    return -block, -number, value
