"""Base of all estimators: matches in, one two-view geometry out; and estimators by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_probability
from ananet._util.defaults import ESTIMATOR, THRESHOLD_PIXELS
from ananet._util.names import Registry
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.core.conflicts import penalize_conflicts
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError

MatchSelection = Literal["one-to-one", "all"]
IN_WORDS = {"one-to-one": "one-to-one matches", "all": "all kept matches"}
# If fewer matches than this are one-to-one, all kept ones are used.
MIN_SELECTED = 30
MIN_FOR_POSE, MIN_FOR_FUNDAMENTAL = 5, 8


class PruningResult(Protocol):
    """The part of `ananet.Pruned` that is read here."""

    @property
    def mask(self) -> Any: ...

    @property
    def logits(self) -> Any: ...


def checked_matches(matches: object) -> Correspondences:
    """The matches with tensors as attributes."""
    if not isinstance(matches, Correspondences):
        raise InputError(f"matches: expected Correspondences, got {type(matches).__name__}")
    return matches._as_tensors()


def check_kept(kept: object, hint: str = "") -> None:
    if not hasattr(kept, "mask") or not hasattr(kept, "logits"):
        found = type(kept).__name__
        raise InputError(f"kept: expected a pruner's result, as `pruner(matches)` returns it, got {found}{hint}")


def one_to_one(matches: Correspondences, mask: Tensor, logits: Tensor) -> Tensor:
    """[N] bool: the mutual ones among `mask`; where mutuality is unknown, the best of conflicting matches."""
    matches = matches._as_tensors()
    if matches.mutual is not None:
        return mask & matches.mutual.cpu()
    if matches.K0 is None and matches.image_size0 is None:
        return mask  # without a scale, coinciding points cannot be found
    ranked = torch.where(mask, logits, -math.inf)
    penalized = penalize_conflicts(ranked[None], matches.normalized().float().cpu()[None], math.inf)[0]
    return mask & (penalized == ranked)


def select_matches(matches: Correspondences, kept: PruningResult, selection: MatchSelection) -> Tensor:
    """[N] bool on the CPU: the kept matches that an estimator uses.

    A pruner keeps every match that is likely right. Matches that share a point with another mostly lie along the
    epipolar line by chance and bias the pose, so estimators do better without them.

    >>> from types import SimpleNamespace
    >>> matches = Correspondences([[0, 0]] * 40, [[1, 1]] * 40, mutual=[True] * 32 + [False] * 8)
    >>> select_matches(matches, SimpleNamespace(mask=[True] * 36 + [False] * 4, logits=[1.0] * 40), "one-to-one").sum()
    tensor(32)
    """
    mask, logits = torch.as_tensor(kept.mask).cpu(), torch.as_tensor(kept.logits).cpu()
    if selection == "all":
        return mask
    selected = one_to_one(matches, mask, logits)
    return selected if selected.sum() >= MIN_SELECTED else mask


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
        used = matches = checked_matches(matches)
        if matches.K0 is None or matches.K1 is None:
            raise InputError("matches: a pose needs camera matrices, expected K0 and K1, got none")
        if kept is not None:
            selected = self.taken(matches, kept)
            used = matches.with_scores(torch.as_tensor(kept.logits).sigmoid())[selected]
        used = self._sorted(used)
        found = self.find_pose(used) if len(used) >= MIN_FOR_POSE else None
        if found is None:
            return None
        rays = matches.normalized().double().cpu()
        distance = geometry.sampson_distance(rays[:, :2], rays[:, 2:], geometry.essential_from_pose(*found))
        inliers = distance < self.ray_threshold(matches)
        if kept is not None:
            inliers &= torch.as_tensor(kept.mask).cpu()
        return Pose(*map(matches._as_given, (*found, inliers)))

    def taken(self, matches: Correspondences, kept: PruningResult) -> Tensor:
        """[N] bool: the kept matches that `match_selection` selects."""
        check_kept(kept)
        if len(kept.mask) != len(matches):
            raise InputError(f"kept: expected the result for these {len(matches)} matches, got {len(kept.mask)}")
        return select_matches(matches, kept, self.match_selection)

    def fundamental(self, matches: Correspondences) -> np.ndarray | Tensor | None:
        """[3 x 3] float64 fundamental matrix of matches in pixels; None if none was found, or for fewer than 8."""
        matches = checked_matches(matches)
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


_METHODS = {"poselib": "PoseLib", "ransac": "RANSAC", "magsac": "MAGSAC", "eight-point": "EightPoint"}
ESTIMATORS: Registry[Estimator] = Registry(
    "estimator", {name: f"ananet.estimators.methods:{method}" for name, method in _METHODS.items()}
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
