"""Losses. All are means over the pairs of a batch, so that every pair counts the same whatever its size."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ananet import geometry
from ananet.networks import inlier_weights

# OANet clamps the geometric loss here: beyond, a solution is simply wrong and its slope says nothing.
LARGEST_GEOMETRIC = 0.1


def class_loss(logits: Tensor, inlier: Tensor, mask: Tensor, balance: float = 1.0) -> Tensor:
    """Binary cross-entropy, balanced: within a pair, inliers weigh one half together and outliers the other.

    Args:
        logits: [B x N].
        inlier, mask: [B x N] bool.
        balance: 0 for no balance, every match weighs the same; between 0 and 1 a mean of the two.

    >>> logits = torch.tensor([[0.0, 0.0, 0.0, 5.0]])
    >>> class_loss(logits, torch.tensor([[True, False, False, False]]), torch.tensor([[True, True, True, False]]))
    tensor(0.6931)
    """
    entropy = F.binary_cross_entropy_with_logits(logits.float(), inlier.float(), reduction="none")
    positive, negative = inlier & mask, ~inlier & mask
    of_inliers, of_outliers = ((entropy * side).sum(1) / side.sum(1).clamp_min(1) for side in (positive, negative))
    share = balance * 0.5 + (1 - balance) * positive.sum(1) / mask.sum(1).clamp_min(1)
    return (share * of_inliers + (1 - share) * of_outliers).mean()


def geometric_loss(logits: Tensor, matches: Tensor, inlier: Tensor, mask: Tensor) -> Tensor:
    """How far the true inliers lie from the geometry that a weighted eight-point solution finds.

    Args:
        matches: [B x N x 4] normalised points; any isotropic scale will do.
    """
    points0, points1 = matches[..., :2].float(), matches[..., 2:].float()
    weights = inlier_weights(logits.float()) * mask
    # With fewer than nine matches left the solution is not unique, and has no slope: such pairs teach nothing.
    enough = (weights > 0).sum(1, keepdim=True) > 8
    E = geometry.weighted_eight_point(points0, points1, torch.where(enough, weights, mask.float()))
    distance = geometry.symmetric_epipolar_distance_squared(points0, points1, E).clamp(max=LARGEST_GEOMETRIC)
    true = inlier & mask & enough
    return ((distance * true).sum(1) / true.sum(1).clamp_min(1)).mean()
