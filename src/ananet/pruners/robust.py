"""RANSAC and MAGSAC as pruners: keep what agrees with the one two-view geometry they find."""

from typing import ClassVar

import torch
from torch import Tensor

from ananet import geometry
from ananet.correspondences import Correspondences
from ananet.errors import InputError
from ananet.pose import estimate_fundamental, estimate_pose
from ananet.pruners.base import LARGEST_LOGIT, Pruner, margin


class RobustPruner(Pruner):
    """Fits an essential matrix if calibrated, else a fundamental one, and keeps what lies near it.

    Args:
        threshold: largest distance to the epipolar geometry (Sampson) in pixels.
    """

    estimator: ClassVar[str]

    def __init__(self, threshold: float = 1.0) -> None:
        if not threshold > 0:
            raise InputError(f"threshold: expected a positive number of pixels, got {threshold!r}")
        self.threshold = threshold

    def logits(self, matches: Correspondences) -> Tensor:
        points0, points1 = matches.points0.double().cpu(), matches.points1.double().cpu()
        if matches.K0 is not None and matches.K1 is not None:
            K0, K1 = matches.K0.double().cpu(), matches.K1.double().cpu()
            pose = estimate_pose(matches, self.estimator, threshold=self.threshold)
            if pose is None:
                return torch.full((len(matches),), -LARGEST_LOGIT)
            E = geometry.essential_from_pose(torch.from_numpy(pose.R), torch.from_numpy(pose.t))
            F = geometry.fundamental_from_essential(E, K0, K1)
        else:
            found = estimate_fundamental(matches, self.estimator, threshold=self.threshold)
            if found is None:
                return torch.full((len(matches),), -LARGEST_LOGIT)
            F = found
        return margin(self.threshold, geometry.sampson_distance(points0, points1, F))


class RANSAC(RobustPruner):
    """Keeps the inliers of OpenCV's RANSAC."""

    name = "ransac"
    estimator = "ransac"


class MAGSAC(RobustPruner):
    """Keeps the inliers of OpenCV's MAGSAC++."""

    name = "magsac"
    estimator = "magsac"
