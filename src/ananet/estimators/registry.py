"""Estimators by name. A new one is a file with a subclass of `Estimator`, and one line here."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ananet._util.defaults import ESTIMATOR
from ananet._util.names import Registry
from ananet.core.correspondences import Correspondences
from ananet.estimators.base import Estimator, Pose
from ananet.estimators.selection import PruningResult

ESTIMATORS: Registry[Estimator] = Registry(
    "estimator",
    {
        "poselib": "ananet.estimators.poselib:PoseLib",
        "ransac": "ananet.estimators.opencv:RANSAC",
        "magsac": "ananet.estimators.opencv:MAGSAC",
        "eight-point": "ananet.estimators.eight_point:EightPoint",
    },
)
"""Estimators by name; `@ESTIMATORS.add` adds one."""


def load_estimator(estimator: str = ESTIMATOR, **options: Any) -> Estimator:
    """Load an estimator.

    Args:
        estimator: a name, with options if needed, such as "poselib@loss=cauchy@loss_scale=0.25".
        options: settings of the estimator, such as `threshold` in pixels and `confidence`.

    >>> load_estimator("magsac", threshold=2)
    <estimator magsac@threshold=2.0>
    """
    return ESTIMATORS.make(estimator, options=options)


def estimate_pose(
    matches: Correspondences, estimator: str = ESTIMATOR, *, kept: PruningResult | None = None, **options: Any
) -> Pose | None:
    """Estimate the relative pose of two calibrated cameras; None if none was found.

    Args:
        matches: calibrated matches (with K0 and K1), at least 5 of them.
        estimator: "poselib" (LO-RANSAC and refinement), "ransac" (OpenCV), "magsac" (OpenCV's MAGSAC++) or
            "eight-point" (least squares weighted by scores, as in the papers of learned pruners).
        kept: a pruner's result on these matches; `match_selection` decides which of them are used.
        options: as for `load_estimator`: `threshold` in pixels, `confidence`, `use_scores`, `match_selection`.
    """
    return load_estimator(estimator, **options).pose(matches, kept)


def estimate_fundamental(
    matches: Correspondences, estimator: str = ESTIMATOR, **options: Any
) -> np.ndarray | Tensor | None:
    """Estimate the [3 x 3] float64 fundamental matrix of matches in pixels; None if none was found.

    Arguments as for `estimate_pose`; camera matrices are not used.
    """
    return load_estimator(estimator, **options).fundamental(matches)
