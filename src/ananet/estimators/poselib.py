"""PoseLib: LO-RANSAC and a robust refinement."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import poselib
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_whole_number
from ananet.core.cameras import calibrate, camera_matrix, camera_parameters, project
from ananet.core.correspondences import Correspondences
from ananet.estimators.base import Estimator
from ananet.estimators.selection import MatchSelection


class PoseLib(Estimator):
    """PoseLib's LO-RANSAC with refinement: the most accurate.

    The defaults are tuned for pruned matches: one-to-one matches, a tight threshold, and a loss that gives little
    weight to errors above half a pixel.

    Args:
        threshold, confidence, use_scores, match_selection: as for every estimator.
        max_iterations: largest number of samples.
        loss: loss function of the refinement; None for PoseLib's default, truncated.
        loss_scale: scale of the loss in pixels; None for PoseLib's default.
    """

    name = "poselib"
    default_threshold = 0.75
    default_match_selection = "one-to-one"

    def __init__(
        self,
        threshold: float | None = None,
        confidence: float | None = None,
        use_scores: bool = False,
        match_selection: MatchSelection | None = None,
        max_iterations: int = 10_000,
        loss: Literal["trivial", "truncated", "huber", "cauchy"] | None = "cauchy",
        loss_scale: float | None = 0.25,
    ) -> None:
        super().__init__(threshold, confidence, use_scores, match_selection)
        self.sampling = {
            "max_epipolar_error": self.threshold,
            "max_iterations": check_whole_number("max_iterations", max_iterations, 1),
            "progressive_sampling": use_scores,
        }
        if self.confidence is not None:
            self.sampling["success_prob"] = self.confidence
        self.refinement: dict[str, Any] = {} if loss is None else {"loss_type": loss.upper()}
        if loss_scale is not None:
            check_positive("loss_scale", loss_scale, " of pixels")
            if loss is not None:
                self.refinement["loss_scale"] = loss_scale

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        points0, points1 = matches.numpy_points()
        points0, camera0 = _without_skew(points0, matches.K0)
        points1, camera1 = _without_skew(points1, matches.K1)
        pose, info = poselib.estimate_relative_pose(points0, points1, camera0, camera1, self.sampling, self.refinement)
        R, t = torch.from_numpy(np.array(pose.R)), torch.from_numpy(np.array(pose.t))
        length = t.norm()
        if info["num_inliers"] == 0 or not torch.isfinite(R).all() or not length > 0:
            return None
        return R, t / length

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        F, info = poselib.estimate_fundamental(*matches.numpy_points(), self.sampling, self.refinement)
        return torch.from_numpy(np.array(F)) if info["num_inliers"] > 0 else None


def _without_skew(points: np.ndarray, camera: Tensor | None) -> tuple[np.ndarray, dict[str, Any]]:
    """Points and camera for PoseLib. Its cameras have no skew, so it is removed from the points."""
    assert camera is not None
    K = camera.double().cpu().numpy()
    parameters = camera_parameters(K)
    if K[0, 1] != 0:
        points = project(calibrate(points, K), camera_matrix(*parameters))
    # PoseLib requires an image size but does not use it.
    return points, {"model": "PINHOLE", "width": 1, "height": 1, "params": parameters.tolist()}
