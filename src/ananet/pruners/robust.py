"""RANSAC and MAGSAC as pruners: keep what agrees with the one two-view geometry they find."""

from typing import ClassVar

import torch
from torch import Tensor

from ananet._util.defaults import THRESHOLD_PIXELS
from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.estimators import load_estimator
from ananet.pruners.base import MAX_LOGIT, Pruner, logits_of_possible, margin


class RobustPruner(Pruner):
    """Fits an essential matrix if calibrated, else a fundamental one, and keeps what lies near it.

    Args:
        threshold: largest distance to the epipolar geometry (Sampson) in pixels.
    """

    estimator_name: ClassVar[str]

    def __init__(self, threshold: float = THRESHOLD_PIXELS) -> None:
        self.estimator = load_estimator(self.estimator_name, threshold=threshold)

    def logits(self, matches: Correspondences) -> Tensor:
        return logits_of_possible(matches, self._logits)

    def _logits(self, matches: Correspondences) -> Tensor:
        F = self._fundamental(matches)
        if F is None:
            return torch.full((len(matches),), -MAX_LOGIT)
        points0, points1 = matches.points0.double().cpu(), matches.points1.double().cpu()
        return margin(self.estimator.threshold, geometry.sampson_distance(points0, points1, F))

    def _fundamental(self, matches: Correspondences) -> Tensor | None:
        if matches.K0 is None or matches.K1 is None:
            F = self.estimator.fundamental(matches)
            return None if F is None else torch.as_tensor(F).cpu()
        pose = self.estimator.pose(matches)
        if pose is None:
            return None
        E = geometry.essential_from_pose(torch.as_tensor(pose.R).cpu(), torch.as_tensor(pose.t).cpu())
        return geometry.fundamental_from_essential(E, matches.K0.double().cpu(), matches.K1.double().cpu())


class RANSAC(RobustPruner):
    """Keeps the inliers of OpenCV's RANSAC."""

    name = estimator_name = "ransac"


class MAGSAC(RobustPruner):
    """Keeps the inliers of OpenCV's MAGSAC++."""

    name = estimator_name = "magsac"
