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

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Fundamental",
    "Homography",
    "Pose",
    "estimate_fundamental",
    "estimate_homography",
    "estimate_pose",
    "load_estimator",
]
