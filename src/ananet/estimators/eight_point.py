"""The weighted eight-point algorithm: no sampling, every match weighted by its score."""

from __future__ import annotations

import torch
from torch import Tensor

from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import MIN_FOR_FUNDAMENTAL, Estimator


class EightPoint(Estimator):
    """Weighted least squares, the loss of learned pruners. A single wrong match with a large weight spoils it."""

    name = "eight-point"
    can_use_scores = False

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        rays, weights = matches.normalized().double().cpu(), _weights(matches)
        E = _solve(rays[:, :2], rays[:, 2:], weights)
        if E is None:
            return None
        used = weights > 0
        R, t, _ = geometry.recover_pose(E, rays[used, :2], rays[used, 2:])
        return R, t

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        F = _solve(matches.points0.double().cpu(), matches.points1.double().cpu(), _weights(matches))
        if F is None:
            return None
        U, values, V = torch.linalg.svd(F)
        return U[:, :2] * values[:2] @ V[:2]  # of rank 2


def _solve(points0: Tensor, points1: Tensor, weights: Tensor) -> Tensor | None:
    """[3 x 3]; None for fewer than 8 weighted matches, or coordinates with squares that overflow."""
    if int((weights > 0).sum()) < MIN_FOR_FUNDAMENTAL:
        return None
    found = geometry.weighted_eight_point(points0, points1, weights)
    return found if found.isfinite().all() else None


def _weights(matches: Correspondences) -> Tensor:
    """[N] the paper's relu(tanh(logit)) of scores that are probabilities; ones without scores."""
    if matches.scores is None:
        return torch.ones(len(matches), dtype=torch.float64)
    p = matches.scores.double().cpu()
    if ((p < 0) | (p > 1)).any():
        raise InputError(
            f"matches.scores: eight-point expects probabilities from 0 to 1, got {p.min():g} to {p.max():g}"
        )
    return ((2 * p - 1) / (p.square() + (1 - p).square())).clamp_min(0)
