"""The estimators: PoseLib, OpenCV's RANSAC and MAGSAC++, and the weighted eight-point algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import cv2
import numpy as np
import poselib
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_whole_number
from ananet.core import geometry
from ananet.core.cameras import calibrate, camera_matrix, camera_parameters, project
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import MIN_FOR, Estimator, MatchSelection, Model, ModelSettings

MAX_ITERATIONS = 10_000


class PoseLib(Estimator):
    """PoseLib's LO-RANSAC with refinement: the most accurate.

    The defaults are tuned for pruned matches: one-to-one matches, a tight threshold, and a loss that gives little
    weight to errors above half a pixel.

    Args:
        threshold, confidence, use_scores, match_selection: as for every estimator.
        max_iterations: largest number of samples.
        loss, loss_scale: loss function of the refinement and its scale in pixels; None for the defaults.
    """

    name = "poselib"
    defaults: ClassVar[Mapping[Model, ModelSettings]] = MappingProxyType(
        {
            "essential": ModelSettings(0.75, "one-to-one", "cauchy", 0.25),
            "fundamental": ModelSettings(1.0, "one-to-one", "cauchy", 0.25),
            "homography": ModelSettings(2.0, "one-to-one", "cauchy", 0.5),
        }
    )

    def __init__(
        self,
        threshold: float | None = None,
        confidence: float | None = None,
        use_scores: bool = False,
        match_selection: MatchSelection | None = None,
        max_iterations: int = MAX_ITERATIONS,
        loss: Literal["trivial", "truncated", "huber", "cauchy"] | None = None,
        loss_scale: float | None = None,
    ) -> None:
        super().__init__(threshold, confidence, use_scores, match_selection)
        if loss_scale is not None:
            check_positive("loss_scale", loss_scale, " of pixels")
        self.given |= {"loss": loss, "loss_scale": loss_scale}
        self.max_iterations = check_whole_number("max_iterations", max_iterations, 1)

    def options(self, model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
        """PoseLib's options of sampling and of refinement."""
        settings = self.settings(model)
        error = "max_reproj_error" if model == "homography" else "max_epipolar_error"
        sampling: dict[str, Any] = {error: settings.threshold, "max_iterations": self.max_iterations}
        sampling["progressive_sampling"] = self.use_scores
        if self.confidence is not None:
            sampling["success_prob"] = self.confidence
        return sampling, {"loss_type": str(settings.loss).upper(), "loss_scale": settings.loss_scale}

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        points0, points1 = matches.numpy_points()
        points0, camera0 = _without_skew(points0, matches.K0)
        points1, camera1 = _without_skew(points1, matches.K1)
        pose, info = poselib.estimate_relative_pose(points0, points1, camera0, camera1, *self.options("essential"))
        R, t = torch.from_numpy(np.array(pose.R)), torch.from_numpy(np.array(pose.t))
        length = t.norm()
        if info["num_inliers"] == 0 or not torch.isfinite(R).all() or not length > 0:
            return None
        return R, t / length

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        F, info = poselib.estimate_fundamental(*matches.numpy_points(), *self.options("fundamental"))
        return torch.from_numpy(np.array(F)) if info["num_inliers"] > 0 else None

    def find_homography(self, matches: Correspondences) -> Tensor | None:
        H, info = poselib.estimate_homography(*matches.numpy_points(), *self.options("homography"))
        return torch.from_numpy(np.array(H)) if info["num_inliers"] > 0 else None


def _without_skew(points: np.ndarray, camera: Tensor | None) -> tuple[np.ndarray, dict[str, Any]]:
    """Points and camera for PoseLib. Its cameras have no skew, so it is removed from the points."""
    assert camera is not None
    K = camera.double().cpu().numpy()
    parameters = camera_parameters(K)
    if K[0, 1] != 0:
        points = project(calibrate(points, K), camera_matrix(*parameters))
    # PoseLib requires an image size but does not use it.
    return points, {"model": "PINHOLE", "width": 1, "height": 1, "params": parameters.tolist()}


class RANSAC(Estimator):
    """OpenCV's RANSAC, as in the paper."""

    name = "ransac"
    can_use_scores = False
    default_confidence = 0.99999
    defaults: ClassVar[Mapping[Model, ModelSettings]] = MappingProxyType(
        {
            "essential": ModelSettings(),
            "fundamental": ModelSettings(1.0, "one-to-one"),
            "homography": ModelSettings(3.0, "one-to-one"),
        }
    )

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        # Rays and an identity camera, since the two cameras may differ.
        rays = matches.normalized().double().cpu()
        rays0, rays1 = rays[:, :2], rays[:, 2:]
        threshold = self.ray_threshold(matches)
        # Five points can have several solutions: take the one with most points in front of both cameras.
        best: tuple[Tensor, Tensor] | None = None
        most_in_front = -1
        for candidate in _matrices(self._essential, rays0.numpy(), rays1.numpy(), threshold):
            near = geometry.sampson_distance(rays0, rays1, candidate) < threshold
            near = near if near.any() else torch.ones_like(near)
            R, t, in_front = geometry.recover_pose(candidate, rays0[near], rays1[near])
            if in_front > most_in_front:
                best, most_in_front = (R, t), in_front
        return best

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        threshold = self.settings("fundamental").threshold
        return next(iter(_matrices(self._fundamental, *matches.numpy_points(), threshold)), None)

    def find_homography(self, matches: Correspondences) -> Tensor | None:
        threshold = self.settings("homography").threshold
        return next(iter(_matrices(self._homography, *matches.numpy_points(), threshold)), None)

    def _essential(self, rays0: np.ndarray, rays1: np.ndarray, threshold: float) -> Any:
        return cv2.findEssentialMat(rays0, rays1, np.eye(3), cv2.RANSAC, self.confidence, threshold)

    def _fundamental(self, points0: np.ndarray, points1: np.ndarray, threshold: float) -> Any:
        return cv2.findFundamentalMat(points0, points1, cv2.FM_RANSAC, threshold, self.confidence, MAX_ITERATIONS)

    def _homography(self, points0: np.ndarray, points1: np.ndarray, threshold: float) -> Any:
        return cv2.findHomography(points0, points1, cv2.RANSAC, threshold, None, MAX_ITERATIONS, self.confidence)


class MAGSAC(RANSAC):
    """OpenCV's MAGSAC++: less sensitive to the threshold than RANSAC."""

    name = "magsac"
    can_use_scores = True

    def _essential(self, rays0: np.ndarray, rays1: np.ndarray, threshold: float) -> Any:
        return cv2.findEssentialMat(rays0, rays1, np.eye(3), np.eye(3), None, None, self._options(threshold))

    def _fundamental(self, points0: np.ndarray, points1: np.ndarray, threshold: float) -> Any:
        return cv2.findFundamentalMat(points0, points1, self._options(threshold))

    def _homography(self, points0: np.ndarray, points1: np.ndarray, threshold: float) -> Any:
        return cv2.findHomography(points0, points1, self._options(threshold))

    def _options(self, threshold: float) -> Any:
        """OpenCV's MAGSAC++ preset, with PROSAC sampling if `use_scores`."""
        options = cv2.UsacParams()
        options.score, options.final_polisher = cv2.SCORE_METHOD_MAGSAC, cv2.MAGSAC
        options.loMethod, options.loIterations, options.loSampleSize = cv2.LOCAL_OPTIM_SIGMA, 10, 50
        options.sampler = cv2.SAMPLING_PROSAC if self.use_scores else cv2.SAMPLING_UNIFORM
        options.maxIterations, options.confidence, options.threshold = MAX_ITERATIONS, self.confidence, threshold
        return options


def _matrices(find: Callable[..., Any], *given: Any) -> list[Tensor]:
    """The valid matrices that OpenCV finds: one of 3 x 3, several stacked to 3k x 3, or none."""
    try:
        found = find(*given)[0]
    except cv2.error:
        return []
    if found is None or found.size == 0:
        return []
    return [torch.from_numpy(M.copy()) for M in found.reshape(-1, 3, 3) if np.isfinite(M).all() and M.any()]


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
        return geometry.recover_pose(E, rays[used, :2], rays[used, 2:])[:2]

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        F = _solve(matches.points0.double().cpu(), matches.points1.double().cpu(), _weights(matches))
        if F is None:
            return None
        U, values, V = torch.linalg.svd(F)
        return U[:, :2] * values[:2] @ V[:2]  # of rank 2

    def find_homography(self, matches: Correspondences) -> Tensor | None:
        weights = _weights(matches)
        if int((weights > 0).sum()) < MIN_FOR["homography"]:
            return None
        return geometry.weighted_homography(matches.points0.cpu(), matches.points1.cpu(), weights)


def _solve(points0: Tensor, points1: Tensor, weights: Tensor) -> Tensor | None:
    """[3 x 3]; None for fewer than 8 weighted matches, or coordinates with squares that overflow."""
    if int((weights > 0).sum()) < MIN_FOR["fundamental"]:
        return None
    found = geometry.weighted_eight_point(points0, points1, weights)
    return found if found.isfinite().all() else None


def _weights(matches: Correspondences) -> Tensor:
    """[N] the paper's relu(tanh(logit)) of scores that are probabilities; ones without scores."""
    if matches.scores is None:
        return torch.ones(len(matches), dtype=torch.float64)
    p = matches.scores.double().cpu()
    if ((p < 0) | (p > 1)).any():
        found = f"{p.min():g} to {p.max():g}"
        raise InputError(f"matches.scores: eight-point expects probabilities from 0 to 1, got {found}")
    return ((2 * p - 1) / (p.square() + (1 - p).square())).clamp_min(0)
