"""The epipolar geometry that most of the believed matches agree on, and how far every match lies from it."""

from __future__ import annotations

import torch
from torch import Tensor

from ananet.core import geometry

# Distances in normalised coordinates at which a match begins to count less, one for each reweighting: from some five
# pixels of a photo down to one.
SCALES = (5e-3, 2e-3, 1e-3)
# Weights are this power of the belief: one wrong match in a hundred spoils least squares, so half-believed ones hardly
# count.
SHARPNESS = 8
# Believed little is still believed: without any, no belief at all would leave no equations.
MIN_WEIGHT = 1e-9


@torch.no_grad()
def distance_to_consensus(matches: Tensor, belief: Tensor) -> Tensor:
    """[B x N] squared symmetric epipolar distance, at most 1, to a robust weighted eight-point solution.

    Reweighted least squares from the believed matches on, at ever smaller scales. Nothing is differentiated, nothing
    waits for the device, and degenerate input (few matches, all the same) gives some finite distance. Matches are
    [B x N x 4 or more] normalised x0 y0 x1 y1; belief is [B x N] in [0, 1], 0 at padding.
    """
    belief = belief.double()
    prior = belief**SHARPNESS + MIN_WEIGHT * (belief > 0)
    points0, points1 = matches[..., :2].double(), matches[..., 2:4].double()
    weights = prior / prior.sum(-1, keepdim=True).clamp_min(MIN_WEIGHT)
    # One normalisation serves all solutions: it is there for the sake of numbers, not of weights.
    p0, T0 = geometry.hartley_normalize(points0, weights)
    p1, T1 = geometry.hartley_normalize(points1, weights)
    equations = (p1[..., :, None] * p0[..., None, :]).flatten(-2)

    def solve(weights: Tensor) -> Tensor:
        vector = geometry.smallest_eigenvector((equations * weights[..., None]).mT @ equations)
        return T1.mT @ vector.unflatten(-1, (3, 3)) @ T0

    for scale in SCALES:
        residual, normal0, normal1 = geometry.residual_and_lines(points0, points1, solve(weights))
        # Cauchy's weight of the Sampson distance, over the gradient that turns algebraic residuals into distances.
        weights = prior / (normal0 + normal1 + (residual / scale).square()).clamp_min(geometry.tiny(residual))
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(geometry.tiny(weights))
    distance = geometry.symmetric_epipolar_distance_squared(points0, points1, solve(weights))
    return distance.clamp(max=1.0).to(matches.dtype)
