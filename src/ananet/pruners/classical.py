"""Pruners that look at each match by itself (keep all, mutual, the ratio test), or at one two-view geometry of all."""

from typing import ClassVar

import torch
from torch import Tensor

from ananet._util.checks import is_number
from ananet._util.defaults import DISTINCTIVE_RATIO, THRESHOLD_PIXELS
from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators import load_estimator
from ananet.pruners.base import MAX_LOGIT, PossibleMatchesPruner, Pruner, margin


class KeepAll(Pruner):
    """Keeps every match: what a pruner has to beat."""

    name = "all"

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.full_like(matches.points0[:, 0], MAX_LOGIT)


class Mutual(Pruner):
    """Keeps matches that are nearest neighbours in both directions."""

    name = "mutual"

    def logits(self, matches: Correspondences) -> Tensor:
        if matches.mutual is None:
            raise InputError(f"mutual: the pruner {self.name!r} needs the mutual flag of every match, got none")
        return torch.where(matches.mutual, MAX_LOGIT, -MAX_LOGIT)


class Ratio(Pruner):
    """Lowe's ratio test on mutual matches: what most systems use today.

    Without a mutual flag the ratio decides alone.
    """

    name = "ratio"

    def __init__(self, threshold: float = DISTINCTIVE_RATIO) -> None:
        if not is_number(threshold) or not 0 < threshold < 1:
            raise InputError(f"threshold: expected a ratio between 0 and 1, got {threshold!r}")
        self.threshold = threshold

    def logits(self, matches: Correspondences) -> Tensor:
        if matches.ratio is None:
            raise InputError(f"ratio: the pruner {self.name!r} needs the ratio of every match, got none")
        # Log-odds of the ratio, shifted to be 0 at the threshold.
        tiny = torch.finfo(matches.ratio.dtype).tiny
        odds = (1 - matches.ratio).clamp_min(tiny) / matches.ratio.clamp_min(tiny)
        logits = (odds * self.threshold / (1 - self.threshold)).log().clamp(-MAX_LOGIT, MAX_LOGIT)
        return logits if matches.mutual is None else logits.where(matches.mutual, -MAX_LOGIT)


class RobustPruner(PossibleMatchesPruner):
    """Fits an essential matrix if calibrated, else a fundamental one, and keeps what lies near it.

    Args:
        threshold: largest distance to the epipolar geometry (Sampson) in pixels.
    """

    estimator_name: ClassVar[str]

    def __init__(self, threshold: float = THRESHOLD_PIXELS) -> None:
        self.threshold = threshold
        self.estimator = load_estimator(self.estimator_name, threshold=threshold)

    def _logits(self, matches: Correspondences) -> Tensor:
        F = self._fundamental(matches)
        if F is None:
            return torch.full((len(matches),), -MAX_LOGIT)
        points0, points1 = matches.points0.double().cpu(), matches.points1.double().cpu()
        return margin(self.threshold, geometry.sampson_distance(points0, points1, F))

    def _fundamental(self, matches: Correspondences) -> Tensor | None:
        if matches.K0 is None or matches.K1 is None:
            found = self.estimator.fundamental(matches)
            return None if found is None else torch.as_tensor(found.F).cpu()
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
