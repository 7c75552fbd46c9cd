"""What every estimator has in common: matches in, one two-view geometry out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_probability
from ananet._util.defaults import THRESHOLD_PIXELS
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.selection import Verdict, select_matches

# A pose follows from 5 matches, a fundamental matrix from 7 or 8.
MIN_FOR_POSE, MIN_FOR_FUNDAMENTAL = 5, 8


@dataclass(frozen=True, eq=False)
class Pose:
    """Motion from the first camera to the second, X1 = R X0 + t, with t of length 1."""

    R: np.ndarray
    """[3 x 3] rotation."""
    t: np.ndarray
    """[3] direction of the translation."""
    inliers: np.ndarray
    """[N] bool: matches within the threshold of this pose's epipolar geometry; if a pruner's answer was given, only
    kept ones."""


MatchSelection = Literal["one-to-one", "all"]


class Estimator(ABC):
    """Finds the geometry that most matches follow. A subclass implements `find_pose` and `find_fundamental`.

    Args:
        threshold: inlier threshold in pixels; None for the estimator's default.
        confidence: sampling stops when the best answer is found with this probability; None for the default.
        use_scores: draw samples from the best matches first (PROSAC), by `matches.scores` or, where a pruner's answer
            is given, by its scores. Saves iterations.
        match_selection: which kept matches it uses: "all" of them, or those that are "one-to-one"; None
            for the estimator's default.
    """

    name: str
    can_use_scores = True
    default_threshold = THRESHOLD_PIXELS
    default_confidence: float | None = None
    """None where the library behind it has its own."""
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
        """R [3 x 3] and t [3] of length 1, float64, of five or more calibrated matches; None if there is no answer."""

    @abstractmethod
    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        """[3 x 3] float64 fundamental matrix of eight or more matches in pixels; None if there is no answer."""

    def pose(self, matches: Correspondences, kept: Verdict | None = None) -> Pose | None:
        """Relative pose of two calibrated cameras; None if there is no answer, as for fewer than 5 matches.

        Args:
            kept: a pruner's answer on these matches, of which the estimator uses those that its `match_selection`
                says; without one it uses all matches.
        """
        _check_matches(matches)
        if matches.K0 is None or matches.K1 is None:
            raise InputError("matches: a pose needs camera matrices, expected K0 and K1, got none")
        taken = matches
        if kept is not None:
            chosen = self.taken(matches, kept)
            taken = matches.with_scores(torch.as_tensor(kept.logits).sigmoid())[chosen]
        sampled = self._best_first(taken)
        if len(taken) < MIN_FOR_POSE:
            return None
        found = self.find_pose(sampled)
        if found is None:
            return None
        R, t = found
        rays = matches.normalized().double().cpu()
        distance = geometry.sampson_distance(rays[:, :2], rays[:, 2:], geometry.essential_from_pose(R, t))
        inliers = distance < self.ray_threshold(matches)
        if kept is not None:
            inliers &= torch.as_tensor(kept.mask).cpu()
        return Pose(R.numpy(), t.numpy(), inliers.numpy())

    def taken(self, matches: Correspondences, kept: Verdict) -> Tensor:
        """[N] bool: which of the kept matches the estimator uses."""
        if not hasattr(kept, "mask") or not hasattr(kept, "logits"):
            raise InputError(
                f"kept: expected a pruner's answer, as `pruner(matches)` gives it, got {type(kept).__name__}"
            )
        if len(kept.mask) != len(matches):
            raise InputError(f"kept: expected the answer on these {len(matches)} matches, got {len(kept.mask)}")
        return select_matches(matches, kept, self.match_selection)

    def fundamental(self, matches: Correspondences) -> Tensor | None:
        """[3 x 3] float64 fundamental matrix of matches in pixels; None if there is no answer (fewer than 8, say)."""
        _check_matches(matches)
        sampled = self._best_first(matches)
        return None if len(matches) < MIN_FOR_FUNDAMENTAL else self.find_fundamental(sampled)

    def ray_threshold(self, matches: Correspondences) -> float:
        """The threshold for calibrated points."""
        assert matches.K0 is not None and matches.K1 is not None
        return self.threshold / mean_focal(matches.K0, matches.K1)

    def _best_first(self, matches: Correspondences) -> Correspondences:
        """The matches to sample from, best first if their scores are to be used."""
        if not self.use_scores:
            return matches
        if matches.scores is None:
            raise InputError("use_scores: expected matches with scores, got none")
        return matches[torch.argsort(matches.scores, descending=True, stable=True)]

    def __repr__(self) -> str:
        return f"<estimator {self.name}>"


def _check_matches(matches: object) -> None:
    if not isinstance(matches, Correspondences):
        raise InputError(f"matches: expected Correspondences, got {type(matches).__name__}")
