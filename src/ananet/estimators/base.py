"""Base of all estimators: matches in, one two-view geometry out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_probability
from ananet._util.defaults import THRESHOLD_PIXELS
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.selection import MatchSelection, PruningResult, select_matches

MIN_FOR_POSE, MIN_FOR_FUNDAMENTAL = 5, 8


@dataclass(frozen=True, eq=False)
class Pose:
    """Motion from the first camera to the second, X1 = R X0 + t, with t of length 1.

    Tensors on the points' device if the points were tensors, else numpy arrays.
    """

    R: np.ndarray | Tensor
    """[3 x 3] rotation."""
    t: np.ndarray | Tensor
    """[3] direction of the translation."""
    inliers: np.ndarray | Tensor
    """[N] bool: matches within the threshold of the epipolar geometry; only kept ones if `kept` was given."""


class Estimator(ABC):
    """Robust estimation of two-view geometry. A subclass implements `find_pose` and `find_fundamental`.

    Args:
        threshold: inlier threshold in pixels; None for the estimator's default.
        confidence: sampling stops at this probability of having found the best model; None for the default.
        use_scores: sample the best matches first (PROSAC), by the pruner's scores if `kept` is given, else by
            `matches.scores`. Saves iterations.
        match_selection: which kept matches to use: "all", or only those that are "one-to-one"; None for the default.
    """

    name: str
    can_use_scores = True
    default_threshold = THRESHOLD_PIXELS
    default_confidence: float | None = None
    """None for the default of the wrapped library."""
    default_match_selection: MatchSelection = "all"

    def __init__(
        self,
        threshold: float | None = None,
        confidence: float | None = None,
        use_scores: bool = False,
        match_selection: MatchSelection | None = None,
    ) -> None:
        self.threshold = self.default_threshold if threshold is None else threshold
        check_positive("threshold", self.threshold, " of pixels")
        self.confidence = self.default_confidence if confidence is None else check_probability("confidence", confidence)
        self.match_selection = match_selection or self.default_match_selection
        self.use_scores = use_scores
        if use_scores and not self.can_use_scores:
            raise InputError(f"use_scores: the estimator {self.name!r} cannot use scores, expected magsac or poselib")

    @abstractmethod
    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        """R [3 x 3] and t [3] of length 1, float64, of five or more calibrated matches; None if none was found."""

    @abstractmethod
    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        """[3 x 3] float64 fundamental matrix of eight or more matches in pixels; None if none was found."""

    def pose(self, matches: Correspondences, kept: PruningResult | None = None) -> Pose | None:
        """Relative pose of two calibrated cameras; None if none was found, or for fewer than 5 matches.

        Args:
            kept: a pruner's result on these matches; `match_selection` decides which of them are used. None uses all.
        """
        matches = _checked(matches)
        if matches.K0 is None or matches.K1 is None:
            raise InputError("matches: a pose needs camera matrices, expected K0 and K1, got none")
        used = matches
        if kept is not None:
            selected = self.taken(matches, kept)
            used = matches.with_scores(torch.as_tensor(kept.logits).sigmoid())[selected]
        used = self._sorted(used)
        found = self.find_pose(used) if len(used) >= MIN_FOR_POSE else None
        if found is None:
            return None
        R, t = found
        rays = matches.normalized().double().cpu()
        distance = geometry.sampson_distance(rays[:, :2], rays[:, 2:], geometry.essential_from_pose(R, t))
        inliers = distance < self.ray_threshold(matches)
        if kept is not None:
            inliers &= torch.as_tensor(kept.mask).cpu()
        return Pose(*map(matches._as_given, (R, t, inliers)))

    def taken(self, matches: Correspondences, kept: PruningResult) -> Tensor:
        """[N] bool: the kept matches that `match_selection` selects."""
        if not hasattr(kept, "mask") or not hasattr(kept, "logits"):
            raise InputError(
                f"kept: expected a pruner's result, as `pruner(matches)` returns it, got {type(kept).__name__}"
            )
        if len(kept.mask) != len(matches):
            raise InputError(f"kept: expected the result for these {len(matches)} matches, got {len(kept.mask)}")
        return select_matches(matches, kept, self.match_selection)

    def fundamental(self, matches: Correspondences) -> np.ndarray | Tensor | None:
        """[3 x 3] float64 fundamental matrix of matches in pixels; None if none was found, or for fewer than 8."""
        matches = _checked(matches)
        used = self._sorted(matches)
        F = self.find_fundamental(used) if len(matches) >= MIN_FOR_FUNDAMENTAL else None
        return None if F is None else matches._as_given(F)

    def ray_threshold(self, matches: Correspondences) -> float:
        """The threshold for calibrated points."""
        return self.threshold / mean_focal(matches.K0, matches.K1)

    def _sorted(self, matches: Correspondences) -> Correspondences:
        """Best matches first if `use_scores`."""
        if not self.use_scores:
            return matches
        if matches.scores is None:
            raise InputError("use_scores: expected matches with scores, got none")
        return matches[torch.argsort(matches.scores, descending=True, stable=True)]

    def __repr__(self) -> str:
        return f"<estimator {self.name}>"


def _checked(matches: object) -> Correspondences:
    """The matches with tensors as attributes."""
    if not isinstance(matches, Correspondences):
        raise InputError(f"matches: expected Correspondences, got {type(matches).__name__}")
    return matches._as_tensors()
