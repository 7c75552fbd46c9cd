"""Robust estimation of two-view geometry from matches."""

from ananet.estimators.base import (
    ESTIMATORS,
    Estimator,
    Fundamental,
    Homography,
    Pose,
    estimate_fundamental,
    estimate_homography,
    estimate_pose,
    load_estimator,
)
from ananet.estimators.focal import find_focal

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Fundamental",
    "Homography",
    "Pose",
    "estimate_fundamental",
    "estimate_homography",
    "estimate_pose",
    "find_focal",
    "load_estimator",
]
