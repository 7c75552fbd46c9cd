"""Conflicting matches: they share a point in one image and lie apart in the other, so they cannot all be right.

Labels of two-view training only use the distance from the epipolar line, so a network learns to keep all matches along
it that end in one point, though at most one of them is right. They bias the poses of estimators.
"""

import math

import torch
from torch import Tensor

from ananet._util.devices import plain_calls
from ananet.attention import choose_backend

# Normalised coordinates, some five pixels of a photo: half the distance from its epipolar line at which a match still
# counts as right. Nearer ones are one point found twice (at two angles, say).
APART = 0.005
# What a logit loses at most.
MAX_DOUBT = 100.0


def penalize_conflicts(logits: Tensor, matches: Tensor, odds: float, mask: Tensor | None = None) -> Tensor:
    """Lower the logit of every match that conflicts with a better one, so that only odds above the given ones keep it.

    Args:
        logits: [B x N].
        matches: [B x N x 4 or more] normalised x0 y0 x1 y1.
        odds: 1 changes nothing, infinity leaves no conflicts.
        mask: [B x N] True where a match is real.

    >>> matches = torch.tensor([[[0.1, 0.1, 0.5, 0.5], [0.4, 0.1, 0.5, 0.5], [0.4, 0.3, 0.2, 0.2]]])
    >>> penalize_conflicts(torch.tensor([[3.0, 2.0, 1.0]]), matches, odds=math.e)
    tensor([[3., 1., 1.]])
    """
    if odds == 1:
        return logits
    doubt = doubt_at(odds)
    if choose_backend(logits.device) == "fused" and not plain_calls():
        from ananet.core.fused_conflicts import lower_conflicting

        return lower_conflicting(logits, matches, APART, doubt, mask)
    ranking = logits if mask is None else logits.masked_fill(~mask, -math.inf)
    order = ranking.argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    first, second = matches[..., :2], matches[..., 2:4]
    outdone = torch.zeros_like(logits, dtype=torch.bool)
    for here, there in ((first, second), (second, first)):
        group = _same_points(here)
        best_rank = torch.full_like(rank, rank.shape[1]).scatter_reduce(1, group, rank, "amin")
        best = order.gather(1, best_rank.gather(1, group))
        distance = (there - there.gather(1, best[..., None].expand_as(there))).norm(dim=-1)
        outdone |= distance > APART
    return torch.where(outdone, logits - doubt, logits)


def doubt_at(odds: float) -> float:
    """What logits lose: they stay finite even where the odds are not."""
    return min(math.log(odds), MAX_DOUBT)


def _same_points(points: Tensor) -> Tensor:
    """[B x N x 2] to [B x N] numbers below N, the same for the same points."""
    # Two float32 read as one int64 sort at once; adding 0 makes -0 and 0 the same.
    keys = (points.float() + 0.0).contiguous().view(torch.int64)[..., 0]
    ordered, order = keys.sort(dim=1, stable=True)
    new = torch.zeros_like(order)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(order).scatter(1, order, new.cumsum(1))
