"""PoseLib: LO-RANSAC and a robust refinement, the most accurate of the estimators."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import poselib
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_whole_number
from ananet.core.cameras import calibrate, camera_matrix, camera_parameters, project
from ananet.core.correspondences import Correspondences
from ananet.estimators.base import Estimator, MatchSelection

MAX_ITERATIONS = 10_000


class PoseLib(Estimator):
    """PoseLib's LO-RANSAC with refinement: the most accurate.

    Its defaults are the best hand-over known for pruned matches: those that are one to one, a tight threshold, and a
    loss that hardly counts what is off by more than half a pixel.

    Args:
        threshold, confidence, use_scores, match_selection: as for every estimator.
        max_iterations: at most so many samples.
        loss: of the refinement; None for PoseLib's own, a truncated one with a scale of its own.
        loss_scale: of that loss, in pixels; None for PoseLib's default.
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
        max_iterations: int = MAX_ITERATIONS,
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
        if loss_scale is not None:
            check_positive("loss_scale", loss_scale, " of pixels")
        self.refinement: dict[str, Any] = {}
        if loss is not None:
            self.refinement = {"loss_type": loss.upper()} | ({} if loss_scale is None else {"loss_scale": loss_scale})

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        points, cameras = [], []
        for pixels, K in zip(matches.numpy_points(), (matches.K0, matches.K1), strict=True):
            assert K is not None
            pixels, camera = _without_skew(pixels, K.double().cpu().numpy())
            points.append(pixels)
            cameras.append(camera)
        pose, info = poselib.estimate_relative_pose(*points, *cameras, self.sampling, self.refinement)
        R, t = torch.from_numpy(np.array(pose.R)), torch.from_numpy(np.array(pose.t))
        length = t.norm()
        if info["num_inliers"] == 0 or not torch.isfinite(R).all() or not length > 0:
            return None
        return R, t / length

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        F, info = poselib.estimate_fundamental(*matches.numpy_points(), self.sampling, self.refinement)
        return torch.from_numpy(np.array(F)) if info["num_inliers"] > 0 else None


def _without_skew(points: np.ndarray, K: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """The camera as PoseLib describes it. It knows no skew, so that is taken out of the points."""
    parameters = camera_parameters(K)
    if K[0, 1] != 0:
        points = project(calibrate(points, K), camera_matrix(*parameters))
    # PoseLib does not use the image size, but wants one.
    return points, {"model": "PINHOLE", "width": 1, "height": 1, "params": parameters.tolist()}
