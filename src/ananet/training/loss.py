"""Losses. All are means over the pairs of a batch, so that every pair counts the same whatever its size."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ananet.core import geometry
from ananet.datasets.base import Batch

# OANet clamps the geometric loss here: beyond, a solution is simply wrong and its slope says nothing.
MAX_GEOMETRIC = 0.1
# Virtual matches are made of a grid over both images, in focal lengths, as OANet does it.
GRID_STEPS, GRID_LIMIT = 20, 1.0
# Newton steps that bring them onto a geometry, and the squared distance that the few may have that do not get there.
GRID_CORRECTIONS, MAX_ERROR = 6, 1e-8


def class_loss(logits: Tensor, target: Tensor, weight: Tensor, balance: float = 1.0) -> Tensor:
    """Binary cross-entropy, balanced: within a pair, inliers weigh one half together and outliers the other.

    A match with a target between 0 and 1 counts on both sides, in these parts. Pairs without any weight add nothing.

    Args:
        logits: [B x N].
        target: [B x N] probability that a match is right, or bool.
        weight: [B x N] of at least 0, or a bool mask.
        balance: 0 for no balance, every match weighs the same; between 0 and 1 a mean of the two.

    >>> logits = torch.tensor([[0.0, 0.0, 0.0, 5.0]])
    >>> class_loss(logits, torch.tensor([[True, False, False, False]]), torch.tensor([[True, True, True, False]]))
    tensor(0.6931)
    """
    logits, target, weight = logits.float(), target.float(), weight.float()
    tiny = torch.finfo(logits.dtype).tiny
    if_right, if_wrong = (
        F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        for truth in (torch.ones_like(logits), torch.zeros_like(logits))
    )
    positive, negative = weight * target, weight * (1 - target)
    of_inliers = (if_right * positive).sum(1) / positive.sum(1).clamp_min(tiny)
    of_outliers = (if_wrong * negative).sum(1) / negative.sum(1).clamp_min(tiny)
    share = balance * 0.5 + (1 - balance) * positive.sum(1) / weight.sum(1).clamp_min(tiny)
    return (share * of_inliers + (1 - share) * of_outliers).mean()


def geometric_loss(weights: Tensor, matches: Tensor, inlier: Tensor, mask: Tensor) -> Tensor:
    """How far the true inliers lie from the geometry that a weighted eight-point solution finds.

    Args:
        weights: [B x N] of the solution, such as `inlier_weights` of logits.
        matches: [B x N x 4] normalised points; any isotropic scale will do.
    """
    E, enough = _solution(weights, matches, mask)
    points0, points1 = matches[..., :2].float(), matches[..., 2:].float()
    distance = geometry.symmetric_epipolar_distance_squared(points0, points1, E).clamp(max=MAX_GEOMETRIC)
    true = inlier & mask & enough
    return ((distance * true).sum(1) / true.sum(1).clamp_min(1)).mean()


def virtual_loss(weights: Tensor, matches: Tensor, E: Tensor, mask: Tensor) -> Tensor:
    """How far virtual matches, spread evenly over both images, lie from the solution's geometry (OANet, LMCNet).

    True inliers crowd where the texture is; a geometry that fits them may be off elsewhere.

    Args:
        weights, matches: as of `geometric_loss`.
        E: [B x 3 x 3] true geometry.
    """
    found, enough = _solution(weights, matches, mask)
    points0, points1 = virtual_matches(E)
    true = geometry.symmetric_epipolar_distance_squared(points0, points1, E) < MAX_ERROR
    distance = geometry.symmetric_epipolar_distance_squared(points0, points1, found).clamp(max=MAX_GEOMETRIC)
    return (((distance * true).sum(1) / true.sum(1).clamp_min(1)) * enough[:, 0]).mean()


def matrix_loss(weights: Tensor, matches: Tensor, E: Tensor, mask: Tensor) -> Tensor:
    """Squared distance of the solution from the true matrix or its negative, both of norm 1 (CNe, ACNe)."""
    found, enough = _solution(weights, matches, mask)
    true = E / torch.linalg.matrix_norm(E)[..., None, None].clamp_min(torch.finfo(E.dtype).tiny)
    distances = [(found - sign * true).square().sum((-2, -1)) for sign in (1, -1)]
    return (torch.minimum(*distances) * enough[:, 0]).mean()


def loss_of_solution(kind: str, weights: Tensor, batch: Batch) -> Tensor:
    """The geometric loss of the kind that a network's `geometric` names."""
    # Where the images show nothing in common, there is no geometry to find.
    weights = weights * (batch.share != 0)[:, None]
    if kind == "inliers":
        return geometric_loss(weights, batch.matches, batch.inlier, batch.mask)
    loss = {"virtual": virtual_loss, "matrix": matrix_loss}[kind]
    return loss(weights, batch.matches, batch.E, batch.mask)


def _solution(weights: Tensor, matches: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """[B x 3 x 3] weighted eight-point solutions, and [B x 1] where there are matches enough for one."""
    weights = weights.float() * mask
    # With fewer than nine matches left the solution is not unique, and has no slope: such pairs teach nothing.
    enough = (weights > 0).sum(1, keepdim=True) > 8
    points0, points1 = matches[..., :2].float(), matches[..., 2:4].float()
    return geometry.weighted_eight_point(points0, points1, torch.where(enough, weights, mask.float())), enough


@torch.no_grad()
def virtual_matches(E: Tensor) -> tuple[Tensor, Tensor]:
    """Matches of a geometry [B x 3 x 3], [B x M x 2] in each image: a grid, the same in both, moved onto it.

    OANet finds the nearest exact matches; here Sampson steps lead to near ones, and nothing depends on which.
    """
    ticks = torch.linspace(-GRID_LIMIT, GRID_LIMIT, GRID_STEPS, dtype=E.dtype, device=E.device)
    grid = torch.cartesian_prod(ticks, ticks).expand(len(E), -1, -1)
    points0, points1 = grid, grid
    for _ in range(GRID_CORRECTIONS):
        lines0, lines1 = geometry.homogeneous(points1) @ E, geometry.homogeneous(points0) @ E.mT
        residual = (geometry.homogeneous(points1) * lines1).sum(-1, keepdim=True)
        slope = (lines0[..., :2].square() + lines1[..., :2].square()).sum(-1, keepdim=True)
        step = residual / slope.clamp_min(torch.finfo(E.dtype).tiny)
        points0, points1 = points0 - step * lines0[..., :2], points1 - step * lines1[..., :2]
    return points0, points1
