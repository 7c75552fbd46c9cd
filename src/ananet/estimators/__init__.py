"""Robust estimation of two-view geometry from matches."""

from ananet.estimators.base import ESTIMATORS, Estimator, Pose, estimate_fundamental, estimate_pose, load_estimator

__all__ = ["ESTIMATORS", "Estimator", "Pose", "estimate_fundamental", "estimate_pose", "load_estimator"]
