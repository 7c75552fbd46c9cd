"""Base of all estimators: matches in, one two-view geometry out; and estimators by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_probability, shown
from ananet._util.defaults import ESTIMATOR, THRESHOLD_PIXELS
from ananet._util.names import Registry
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.core.conflicts import penalize_conflicts
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError

Model = Literal["essential", "fundamental", "homography"]
MatchSelection = Literal["one-to-one", "all"]
IN_WORDS = {"one-to-one": "one-to-one matches", "all": "all kept matches"}
# If fewer matches than this are one-to-one, all kept ones are used.
MIN_SELECTED = 30
# Matches that each model needs at least.
MIN_FOR: Mapping[Model, int] = MappingProxyType({"essential": 5, "fundamental": 8, "homography": 4})


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


@dataclass(frozen=True, eq=False)
class Fundamental:
    """Epipolar geometry of two photos in pixels, p1^T F p0 = 0, with F of norm 1.

    Tensors on the points' device if the points were tensors, else numpy arrays.
    """

    F: np.ndarray | Tensor
    """[3 x 3] float64 fundamental matrix."""
    inliers: np.ndarray | Tensor
    """[N] bool: matches within the threshold of the epipolar geometry; only kept ones if `kept` was given."""


@dataclass(frozen=True, eq=False)
class Homography:
    """Points of the first photo to the second, p1 ~ H p0 in pixels: a plane, or a camera that only turned.

    Tensors on the points' device if the points were tensors, else numpy arrays.
    """

    H: np.ndarray | Tensor
    """[3 x 3] float64 homography with H[2, 2] = 1, or of norm 1 if the origin goes to infinity."""
    inliers: np.ndarray | Tensor
    """[N] bool: matches within the threshold of the homography; only kept ones if `kept` was given."""


@dataclass(frozen=True)
class ModelSettings:
    """How an estimator finds one of the models."""

    threshold: float = THRESHOLD_PIXELS
    """Inlier threshold in pixels: first-order distance to the nearest match that satisfies the model exactly."""
    match_selection: MatchSelection = "all"
    """Which kept matches are used."""
    loss: str | None = None
    """Of the refinement; None if there is none, or no choice."""
    loss_scale: float | None = None
    """In pixels."""


class Estimator(ABC):
    """Robust estimation of two-view geometry. A subclass implements `find_pose`, `find_fundamental`, `find_homography`.

    Args:
        threshold: inlier threshold in pixels; None for the estimator's default, which may depend on the model.
        confidence: sampling stops at this probability of having found the best model; None for the default.
        use_scores: sample the best matches first (PROSAC), by the pruner's scores if `kept` is given, else by
            `matches.scores`. Saves iterations.
        match_selection: which kept matches to use: "all", or only those that are "one-to-one"; None for the default.
    """

    name: str
    can_use_scores = True
    default_confidence: float | None = None
    """None for the default of the wrapped library."""
    defaults: ClassVar[Mapping[Model, ModelSettings]] = MappingProxyType({model: ModelSettings() for model in MIN_FOR})
    """Settings of each model where none are given."""

    def __init__(
        self,
        threshold: float | None = None,
        confidence: float | None = None,
        use_scores: bool = False,
        match_selection: MatchSelection | None = None,
    ) -> None:
        if threshold is not None:
            check_positive("threshold", threshold, " of pixels")
        self.given: dict[str, Any] = {"threshold": threshold, "match_selection": match_selection}
        self.confidence = self.default_confidence if confidence is None else check_probability("confidence", confidence)
        self.use_scores = use_scores
        if use_scores and not self.can_use_scores:
            raise InputError(f"use_scores: the estimator {self.name!r} cannot use scores, expected magsac or poselib")

    def settings(self, model: Model) -> ModelSettings:
        """Settings of a model: what was given, else the defaults."""
        if model not in MIN_FOR:
            raise InputError(f"model: expected one of {', '.join(MIN_FOR)}, got {shown(model)}")
        return replace(self.defaults[model], **{name: value for name, value in self.given.items() if value is not None})

    @abstractmethod
    def find_pose(self, matches: Correspondences) -> tuple[Tensor, Tensor] | None:
        """R [3 x 3] and t [3] of length 1, float64, of five or more calibrated matches; None if none was found."""

    @abstractmethod
    def find_fundamental(self, matches: Correspondences) -> Tensor | None:
        """[3 x 3] float64 fundamental matrix of eight or more matches in pixels; None if none was found."""

    @abstractmethod
    def find_homography(self, matches: Correspondences) -> Tensor | None:
        """[3 x 3] float64 homography of four or more matches in pixels; None if none was found."""

    def pose(self, matches: Correspondences, kept: PruningResult | None = None) -> Pose | None:
        """Relative pose of two calibrated cameras; None if none was found, or for fewer than 5 matches.

        Args:
            kept: a pruner's result on these matches; `match_selection` decides which of them are used. None uses all.
        """
        matches = checked_matches(matches)
        if matches.K0 is None or matches.K1 is None:
            raise InputError("matches: a pose needs camera matrices, expected K0 and K1, got none")
        used = self._used(matches, kept, "essential")
        found = None if used is None else self.find_pose(used)
        if found is None:
            return None
        rays = matches.normalized().double().cpu()
        distance = geometry.sampson_distance(rays[:, :2], rays[:, 2:], geometry.essential_from_pose(*found))
        inliers = _within(distance, self.ray_threshold(matches), kept)
        return Pose(*map(matches._as_given, (*found, inliers)))

    def fundamental(self, matches: Correspondences, kept: PruningResult | None = None) -> Fundamental | None:
        """Fundamental matrix of matches in pixels; None if none was found, or for fewer than 8 matches.

        Args:
            kept: as for `pose`.
        """
        matches = checked_matches(matches)
        used = self._used(matches, kept, "fundamental")
        F = None if used is None else self.find_fundamental(used)
        if F is None or not (F.isfinite().all() and F.any()):
            return None
        F = F / torch.linalg.matrix_norm(F)
        distance = geometry.sampson_distance(*_pixels(matches), F)
        inliers = _within(distance, self.settings("fundamental").threshold, kept)
        return Fundamental(*map(matches._as_given, (F, inliers)))

    def homography(self, matches: Correspondences, kept: PruningResult | None = None) -> Homography | None:
        """Homography of matches in pixels; None if none was found, or for fewer than 4 matches.

        Args:
            kept: as for `pose`.
        """
        matches = checked_matches(matches)
        used = self._used(matches, kept, "homography")
        H = None if used is None else self.find_homography(used)
        if H is None or not (H.isfinite().all() and H.any()):
            return None
        H = geometry.normalized_homography(H)
        distance = geometry.homography_distance(*_pixels(matches), H)
        inliers = _within(distance, self.settings("homography").threshold, kept)
        return Homography(*map(matches._as_given, (H, inliers)))

    def taken(self, matches: Correspondences, kept: PruningResult, model: Model = "essential") -> Tensor:
        """[N] bool: the kept matches that `match_selection` selects."""
        check_kept(kept)
        if len(kept.mask) != len(matches):
            raise InputError(f"kept: expected the result for these {len(matches)} matches, got {len(kept.mask)}")
        return select_matches(matches, kept, self.settings(model).match_selection)

    def _used(self, matches: Correspondences, kept: PruningResult | None, model: Model) -> Correspondences | None:
        """The matches that a model is fitted to, in the order of sampling; None if they are too few."""
        if kept is not None:
            selected = self.taken(matches, kept, model)
            matches = matches.with_scores(torch.as_tensor(kept.logits).sigmoid())[selected]
        matches = self._sorted(matches)
        return matches if len(matches) >= MIN_FOR[model] else None

    def ray_threshold(self, matches: Correspondences) -> float:
        """The threshold for calibrated points."""
        return self.settings("essential").threshold / mean_focal(matches.K0, matches.K1)

    def _sorted(self, matches: Correspondences) -> Correspondences:
        """Best matches first if `use_scores`."""
        if not self.use_scores:
            return matches
        if matches.scores is None:
            raise InputError("use_scores: expected matches with scores, got none")
        return matches[torch.argsort(matches.scores, descending=True, stable=True)]

    def __repr__(self) -> str:
        return f"<estimator {self.name}>"


def _pixels(matches: Correspondences) -> tuple[Tensor, Tensor]:
    return matches.points0.double().cpu(), matches.points1.double().cpu()


def _within(distance: Tensor, threshold: float, kept: PruningResult | None) -> Tensor:
    """[N] bool: matches within the threshold, of the kept ones if those are known."""
    return distance < threshold if kept is None else (distance < threshold) & torch.as_tensor(kept.mask).cpu()


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
    matches: Correspondences, estimator: str = ESTIMATOR, *, kept: PruningResult | None = None, **options: Any
) -> Fundamental | None:
    """Estimate the fundamental matrix of matches in pixels; None if none was found.

    Arguments as for `estimate_pose`; at least 8 matches, and camera matrices are not used.
    """
    return load_estimator(estimator, **options).fundamental(matches, kept)


def estimate_homography(
    matches: Correspondences, estimator: str = ESTIMATOR, *, kept: PruningResult | None = None, **options: Any
) -> Homography | None:
    """Estimate the homography of matches in pixels, of a plane or a camera that only turned; None if none was found.

    Arguments as for `estimate_pose`; at least 4 matches, and camera matrices are not used.
    """
    return load_estimator(estimator, **options).homography(matches, kept)
