"""Two-view geometry from matches: OpenCV's RANSAC and MAGSAC++, and PoseLib, behind one function each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from ananet import geometry
from ananet.correspondences import Correspondences
from ananet.errors import InputError, MissingExtraError, check_probability

ESTIMATORS = ("ransac", "magsac", "poselib")
CONFIDENCE = 0.99999
MAX_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False)
class Pose:
    """Motion from the first camera to the second, X1 = R X0 + t, with t of length 1."""

    R: np.ndarray
    t: np.ndarray
    inliers: np.ndarray
    """[N] bool: matches within the threshold of this pose's epipolar geometry."""


def estimate_pose(
    matches: Correspondences,
    estimator: str = "ransac",
    *,
    threshold: float = 1.0,
    use_scores: bool = False,
    confidence: float | None = None,
) -> Pose | None:
    """Relative pose of two calibrated cameras; None if there is no answer.

    Args:
        matches: calibrated matches (with K0 and K1); fewer than 5 have no answer.
        estimator: "ransac" (OpenCV), "magsac" (OpenCV's MAGSAC++) or "poselib" (LO-RANSAC and refinement; an extra).
        threshold: inlier threshold in pixels.
        use_scores: draw samples from the best matches first (PROSAC), by `matches.scores`. MAGSAC++ and
            PoseLib can, OpenCV's plain RANSAC cannot. Saves iterations; with OpenCV it costs accuracy.
        confidence: sampling stops when a better answer is this unlikely; None for 0.99999 with OpenCV and for
            PoseLib's own default.
    """
    if confidence is not None:
        check_probability("confidence", confidence)
    if matches.K0 is None or matches.K1 is None:
        raise InputError("matches: a pose needs camera matrices, expected K0 and K1, got none")
    sampled = _checked(matches, estimator, threshold, use_scores)
    if len(matches) < 5:
        return None
    rays = matches.normalized().double().cpu()
    rays0, rays1 = rays[:, :2], rays[:, 2:]
    focal = torch.stack([matches.K0.diagonal()[:2], matches.K1.diagonal()[:2]]).double().mean().item()
    limit = threshold / focal

    if estimator == "poselib":
        found = _poselib_pose(sampled, threshold, use_scores, confidence)
    else:
        found = _opencv_pose(sampled, estimator, limit, use_scores, confidence or CONFIDENCE)
    if found is None:
        return None
    R, t = found
    distance = geometry.sampson_distance(rays0, rays1, geometry.essential_from_pose(R, t))
    return Pose(R.numpy(), t.numpy(), (distance < limit).numpy())


def estimate_fundamental(
    matches: Correspondences, estimator: str = "ransac", *, threshold: float = 1.0, use_scores: bool = False
) -> Tensor | None:
    """[3 x 3] float64 fundamental matrix of matches in pixels; None if there is no answer (fewer than 8, say).

    Arguments as for `estimate_pose`; camera matrices are not used.
    """
    sampled = _checked(matches, estimator, threshold, use_scores)
    if len(matches) < 8:
        return None
    points0, points1 = sampled.numpy_points()
    if estimator == "poselib":
        F, info = _import_poselib().estimate_fundamental(points0, points1, _poselib_options(threshold, use_scores), {})
        return torch.from_numpy(np.array(F)) if info["num_inliers"] > 0 else None
    try:
        if estimator == "magsac":
            F, _ = cv2.findFundamentalMat(points0, points1, _usac_options(threshold, use_scores))
        else:
            F, _ = cv2.findFundamentalMat(points0, points1, cv2.FM_RANSAC, threshold, CONFIDENCE, MAX_ITERATIONS)
    except cv2.error:
        return None
    return next(iter(_stack(F)), None)


def _checked(matches: Correspondences, estimator: str, threshold: float, use_scores: bool) -> Correspondences:
    """The matches to sample from, best first if their scores are to be used."""
    if estimator not in ESTIMATORS:
        raise InputError(f"estimator: expected one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    if not 0 < threshold < np.inf:
        raise InputError(f"threshold: expected a positive number of pixels, got {threshold!r}")
    if not use_scores:
        return matches
    if estimator == "ransac":
        raise InputError("use_scores: OpenCV's plain RANSAC cannot use scores, expected magsac or poselib")
    if matches.scores is None:
        raise InputError("use_scores: expected matches with scores, got none")
    return matches[torch.argsort(matches.scores, descending=True, stable=True)]


def _opencv_pose(
    matches: Correspondences, estimator: str, limit: float, use_scores: bool, confidence: float
) -> tuple[Tensor, Tensor] | None:
    # OpenCV gets rays and the identity for a camera, since the two cameras may differ.
    rays = matches.normalized().double().cpu()
    rays0, rays1 = rays[:, :2], rays[:, 2:]
    eye = np.eye(3)
    try:
        if estimator == "magsac":
            options = _usac_options(limit, use_scores, confidence)
            E, _ = cv2.findEssentialMat(rays0.numpy(), rays1.numpy(), eye, eye, None, None, options)
        else:
            E, _ = cv2.findEssentialMat(rays0.numpy(), rays1.numpy(), eye, cv2.RANSAC, confidence, limit)
    except cv2.error:
        return None
    # Five points can have several solutions: the one with most points in front of both cameras wins.
    best: tuple[Tensor, Tensor] | None = None
    most_in_front = -1
    for candidate in _stack(E):
        near = geometry.sampson_distance(rays0, rays1, candidate) < limit
        near = near if near.any() else torch.ones_like(near)
        R, t, in_front = geometry.recover_pose(candidate, rays0[near], rays1[near])
        if in_front > most_in_front:
            best, most_in_front = (R, t), in_front
    return best


def _stack(matrices: np.ndarray | None) -> list[Tensor]:
    """OpenCV answers with a 3 x 3 matrix, several stacked to 3k x 3, or nothing at all: a list of the good ones."""
    if matrices is None or matrices.size == 0:
        return []
    return [torch.from_numpy(M.copy()) for M in matrices.reshape(-1, 3, 3) if np.isfinite(M).all() and M.any()]


def _usac_options(threshold: float, use_scores: bool, confidence: float = CONFIDENCE) -> Any:
    """OpenCV's MAGSAC++ preset, with progressive sampling if matches come best first."""
    options = cv2.UsacParams()
    options.score = cv2.SCORE_METHOD_MAGSAC
    options.loMethod = cv2.LOCAL_OPTIM_SIGMA
    options.loIterations = 10
    options.loSampleSize = 50
    options.final_polisher = cv2.MAGSAC
    options.sampler = cv2.SAMPLING_PROSAC if use_scores else cv2.SAMPLING_UNIFORM
    options.maxIterations = MAX_ITERATIONS
    options.confidence = confidence
    options.threshold = threshold
    return options


def _poselib_pose(
    matches: Correspondences, threshold: float, use_scores: bool, confidence: float | None
) -> tuple[Tensor, Tensor] | None:
    poselib = _import_poselib()
    assert matches.K0 is not None and matches.K1 is not None
    points0, points1 = matches.numpy_points()
    camera0, camera1 = _poselib_camera(matches.K0, points0), _poselib_camera(matches.K1, points1)
    options = _poselib_options(threshold, use_scores)
    if confidence is not None:
        options["success_prob"] = confidence
    pose, info = poselib.estimate_relative_pose(points0, points1, camera0, camera1, options, {})
    R, t = torch.from_numpy(np.array(pose.R)), torch.from_numpy(np.array(pose.t))
    length = t.norm()
    if info["num_inliers"] == 0 or not torch.isfinite(R).all() or not length > 0:
        return None
    return R, t / length


def _poselib_options(threshold: float, use_scores: bool) -> dict[str, Any]:
    return {
        "max_epipolar_error": threshold,
        "max_iterations": MAX_ITERATIONS,
        "progressive_sampling": use_scores,
    }


def _poselib_camera(K: Tensor, points: np.ndarray) -> dict[str, Any]:
    """The camera as PoseLib describes it. It knows no skew, so that is taken out of the points, in place."""
    fx, fy, cx, cy = (K[0, 0].item(), K[1, 1].item(), K[0, 2].item(), K[1, 2].item())
    points[:, 0] -= K[0, 1].item() * (points[:, 1] - cy) / fy
    # PoseLib does not use the image size, but wants one.
    return {"model": "PINHOLE", "width": int(2 * cx), "height": int(2 * cy), "params": [fx, fy, cx, cy]}


def _import_poselib() -> Any:
    try:
        import poselib
    except ImportError:
        raise MissingExtraError("poselib", "poselib") from None
    return poselib
