"""OpenCV's RANSAC and MAGSAC++."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.estimators.base import Estimator

MAX_ITERATIONS = 10_000


class RANSAC(Estimator):
    """OpenCV's RANSAC, as in the paper."""

    name = "ransac"
    can_use_scores = False
    default_confidence = 0.99999

    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        # Rays and an identity camera, since the two cameras may differ.
        rays = matches.normalized().double().cpu()
        rays0, rays1 = rays[:, :2], rays[:, 2:]
        threshold = self.ray_threshold(matches)
        try:
            E = self._essential(rays0.numpy(), rays1.numpy(), threshold)
        except cv2.error:
            return None
        # Five points can have several solutions: take the one with most points in front of both cameras.
        best: tuple[Tensor, Tensor] | None = None
        most_in_front = -1
        for candidate in _split(E):
            near = geometry.sampson_distance(rays0, rays1, candidate) < threshold
            near = near if near.any() else torch.ones_like(near)
            R, t, in_front = geometry.recover_pose(candidate, rays0[near], rays1[near])
            if in_front > most_in_front:
                best, most_in_front = (R, t), in_front
        return best

    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        try:
            F = self._fundamental(*matches.numpy_points())
        except cv2.error:
            return None
        return next(iter(_split(F)), None)

    def _essential(self, rays0: np.ndarray, rays1: np.ndarray, threshold: float) -> np.ndarray | None:
        return cv2.findEssentialMat(rays0, rays1, np.eye(3), cv2.RANSAC, self.confidence, threshold)[0]

    def _fundamental(self, points0: np.ndarray, points1: np.ndarray) -> np.ndarray | None:
        method = cv2.FM_RANSAC
        return cv2.findFundamentalMat(points0, points1, method, self.threshold, self.confidence, MAX_ITERATIONS)[0]


class MAGSAC(RANSAC):
    """OpenCV's MAGSAC++: less sensitive to the threshold than RANSAC."""

    name = "magsac"
    can_use_scores = True

    def _essential(self, rays0: np.ndarray, rays1: np.ndarray, threshold: float) -> np.ndarray | None:
        eye = np.eye(3)
        return cv2.findEssentialMat(rays0, rays1, eye, eye, None, None, self._options(threshold))[0]

    def _fundamental(self, points0: np.ndarray, points1: np.ndarray) -> np.ndarray | None:
        return cv2.findFundamentalMat(points0, points1, self._options(self.threshold))[0]

    def _options(self, threshold: float) -> Any:
        """OpenCV's MAGSAC++ preset, with PROSAC sampling if `use_scores`."""
        options = cv2.UsacParams()
        options.score = cv2.SCORE_METHOD_MAGSAC
        options.loMethod = cv2.LOCAL_OPTIM_SIGMA
        options.loIterations = 10
        options.loSampleSize = 50
        options.final_polisher = cv2.MAGSAC
        options.sampler = cv2.SAMPLING_PROSAC if self.use_scores else cv2.SAMPLING_UNIFORM
        options.maxIterations = MAX_ITERATIONS
        options.confidence = self.confidence
        options.threshold = threshold
        return options


def _split(matrices: np.ndarray | None) -> list[Tensor]:
    """The valid matrices in OpenCV's output: one of 3 x 3, several stacked to 3k x 3, or none."""
    if matrices is None or matrices.size == 0:
        return []
    return [torch.from_numpy(M.copy()) for M in matrices.reshape(-1, 3, 3) if np.isfinite(M).all() and M.any()]
