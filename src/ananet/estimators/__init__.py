"""Robust estimation of two-view geometry from matches."""

from ananet.estimators.base import Estimator, Pose
from ananet.estimators.registry import ESTIMATORS, estimate_fundamental, estimate_pose, load_estimator

__all__ = ["ESTIMATORS", "Estimator", "Pose", "estimate_fundamental", "estimate_pose", "load_estimator"]
