"""The weighted eight-point answer: no sampling, every match counts as much as its score says."""

from __future__ import annotations

import torch
from torch import Tensor

from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import MIN_FOR_FUNDAMENTAL, Estimator


class EightPoint(Estimator):
    """Weighted least squares: what networks are trained to weigh matches for. One wrong match of weight spoils it."""

    name = "eight-point"
    can_use_scores = False

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        rays = matches.normalized().double().cpu()
        weights = _weights(matches)
        if not _enough(weights):
            return None
        E = geometry.weighted_eight_point(rays[:, :2], rays[:, 2:], weights)
        if not E.isfinite().all():
            return None  # coordinates whose squares overflow
        counting = weights > 0
        R, t, _ = geometry.recover_pose(E, rays[counting, :2], rays[counting, 2:])
        return R, t

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        weights = _weights(matches)
        if not _enough(weights):
            return None
        points0, points1 = (points.double().cpu() for points in (matches.points0, matches.points1))
        F = geometry.weighted_eight_point(points0, points1, weights)
        if not F.isfinite().all():
            return None
        U, values, V = torch.linalg.svd(F)
        return U[:, :2] * values[:2] @ V[:2]  # of rank 2


def _weights(matches: Correspondences) -> Tensor:
    """[N] the paper's relu(tanh(logit)) of scores that are probabilities; without scores all count the same."""
    if matches.scores is None:
        return torch.ones(len(matches), dtype=torch.float64)
    p = matches.scores.double().cpu()
    if ((p < 0) | (p > 1)).any():
        raise InputError(
            f"matches.scores: eight-point expects probabilities from 0 to 1, got {p.min():g} to {p.max():g}"
        )
    return ((2 * p - 1) / (p.square() + (1 - p).square())).clamp_min(0)


def _enough(weights: Tensor) -> bool:
    return int((weights > 0).sum()) >= MIN_FOR_FUNDAMENTAL
