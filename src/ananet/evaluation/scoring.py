"""Scores of predictions: precision and recall of the kept matches, and errors of the model estimated from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch

from ananet._util.checks import Settings, check_positive, check_probability, check_whole_number
from ananet._util.defaults import PAPER_DETECTOR, PAPER_KEYPOINTS, REPORTED_ESTIMATORS
from ananet._util.names import split_options
from ananet.core import geometry, metrics
from ananet.core.cameras import calibrate, mean_focal
from ananet.core.correspondences import Correspondences
from ananet.core.metrics import PoseError
from ananet.datasets.base import LabelledPair
from ananet.errors import InputError
from ananet.estimators import Estimator, Fundamental, Pose, load_estimator
from ananet.estimators.base import IN_WORDS, Model, one_to_one
from ananet.evaluation.predictions import Prediction
from ananet.twoview.overlap import check_overlap

# With fewer matches, no pose is estimated.
MIN_MATCHES = 9
COLUMNS = ("kept", "precision", "recall", "f1", "average_precision")
TRUTH_COLUMNS = ("true_precision", "true_recall")
# COLMAP's default: fewer matches do not make a pair.
MAX_FALSE_MATCHES = 15


# What is estimated, as titles of tables say it.
MODEL_WORDS: dict[Model, str] = {
    "essential": "Pose",
    "fundamental": "Pose from the fundamental matrix, true cameras in scoring only",
    "homography": "Homography, mean corner error in px",
}


@dataclass(frozen=True)
class PoseSettings(Settings):
    """Settings of pose estimation, or of that of homographies."""

    estimators: tuple[str, ...] = REPORTED_ESTIMATORS
    """Names, with options if needed; these override the ones below."""
    threshold: float | None = None
    """None for each estimator's default."""
    calibrated: bool = False
    """Whether the threshold is in calibrated coordinates instead of pixels."""
    confidence: float | None = None
    """None for each estimator's default."""
    repeats: int = 1
    """How often each pose is estimated, from matches in another order each time. AUC over some hundred hard pairs
    differs by a point or two between runs."""
    model: Model = "essential"
    """What is estimated. With "fundamental", pruners and estimators see no cameras, and the pose follows from the
    fundamental matrix and the true cameras."""

    def check(self) -> None:
        if self.model not in get_args(Model):
            raise InputError(f"model: expected one of {', '.join(get_args(Model))}, got {self.model!r}")
        if self.calibrated and self.model != "essential":
            unit = "a threshold in pixels, as without cameras there is no other"
            raise InputError(f"threshold: expected {unit}, got one in calibrated coordinates")
        if self.threshold is not None:
            check_positive("threshold", self.threshold)
        elif self.calibrated:
            raise InputError("threshold: expected a number if calibrated, got none")
        if self.confidence is not None:
            check_probability("confidence", self.confidence)
        check_whole_number("repeats", self.repeats, 1)
        if len(set(self.estimators)) < len(self.estimators):
            raise InputError(f"estimators: expected different ones, got {', '.join(self.estimators)}")
        for estimator in self.estimators:
            self.load(estimator)

    def load(self, estimator: str, matches: Correspondences | None = None) -> Estimator:
        """Load an estimator with these settings; the matches' cameras convert a calibrated threshold to pixels."""
        given = split_options(estimator, "estimator")[1]
        threshold = self.threshold
        if threshold is not None and self.calibrated and matches is not None:
            threshold *= mean_focal(matches.K0, matches.K1)
        options = {"threshold": threshold, "confidence": self.confidence}
        return load_estimator(estimator, **{name: value for name, value in options.items() if name not in given})

    def describe(self, estimator: str) -> str:
        """Describe the estimator and its settings in words."""
        name, given = split_options(estimator, "estimator")
        loaded, named = self.load(estimator), ("threshold", "confidence", "match_selection")
        own = "".join(f", {key} {value}" for key, value in given.items() if key not in named)
        unit = "px / mean focal length" if self.model == "essential" else "px"
        if self.calibrated and "threshold" not in given:
            unit = "in calibrated coordinates"
        confidence = "its default" if loaded.confidence is None else f"{loaded.confidence:.15g}"
        more = own + (f", mean of {self.repeats} runs" if self.repeats > 1 else "")
        settings = loaded.settings(self.model)
        matches = IN_WORDS[settings.match_selection]
        return f"{name}, threshold {settings.threshold:g} {unit}, confidence {confidence}, {matches}{more}"


_PAPER_INPUT: dict[str, Any] = {"detector": PAPER_DETECTOR, "max_keypoints": PAPER_KEYPOINTS}
PROTOCOLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "yfcc": ({"threshold": 1.0, "confidence": 0.99999}, {**_PAPER_INPUT, "longest_side": 1600}),
    "sun3d": ({"threshold": 0.001, "calibrated": True, "confidence": 0.99}, _PAPER_INPUT),
}
"""Published protocols: settings of poses and of matches."""


def protocol_settings(protocol: str, **changes: Any) -> tuple[PoseSettings, dict[str, Any]]:
    """A protocol's pose settings with the changes that are not None, and its settings of matches by name."""
    if protocol not in PROTOCOLS:
        raise InputError(f"protocol: expected one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    posing, matching = PROTOCOLS[protocol]
    return PoseSettings(**posing | {k: v for k, v in changes.items() if v is not None}), dict(matching)


def pose_error(
    pair: LabelledPair, prediction: Prediction, estimator: str, settings: PoseSettings, repeat: int = 0
) -> PoseError:
    """Error of the pose of the kept matches, in their order or, from repeat 1 on, shuffled with the repeat as seed."""
    loaded, used = _handed_over(pair, prediction, estimator, settings, repeat)
    if len(used) < MIN_MATCHES:
        return PoseError.of_failure()
    if settings.model == "fundamental":
        return pair.pose_error(_pose_with_cameras(pair, used, loaded.fundamental(used)))
    return pair.pose_error(loaded.pose(used))


def homography_error(
    pair: LabelledPair, prediction: Prediction, estimator: str, settings: PoseSettings, repeat: int = 0
) -> float:
    """Mean corner error of the homography of the kept matches, in pixels; infinite if none was found."""
    loaded, used = _handed_over(pair, prediction, estimator, settings, repeat)
    found = loaded.homography(used)
    return pair.corner_error(None if found is None else found.H)


def _handed_over(
    pair: LabelledPair, prediction: Prediction, estimator: str, settings: PoseSettings, repeat: int
) -> tuple[Estimator, Correspondences]:
    """The estimator, and the kept matches that it takes, shuffled from repeat 1 on."""
    import cv2

    loaded = settings.load(estimator, pair.matches)
    used = pair.matches[loaded.taken(pair.matches, prediction, settings.model)]
    if repeat:
        used = used[np.random.default_rng(repeat).permutation(len(used))]
    cv2.setRNGSeed(0)  # some estimators draw from OpenCV's global generator
    return loaded, used


def _pose_with_cameras(pair: LabelledPair, matches: Correspondences, found: Fundamental | None) -> Pose | None:
    """The pose that a fundamental matrix means for the true cameras, with most matches in front of both."""
    assert pair.cameras is not None
    if found is None:
        return None
    K0, K1 = (K.double().cpu() for K in pair.cameras)
    E = geometry.essential_from_fundamental(torch.as_tensor(found.F).double().cpu(), K0, K1)
    if not E.isfinite().all():
        return None
    inliers = torch.as_tensor(found.inliers).cpu()
    near = inliers if inliers.any() else torch.ones_like(inliers)
    points = (torch.from_numpy(points)[near] for points in matches.numpy_points())
    R, t, _ = geometry.recover_pose(E, *(calibrate(p, K) for p, K in zip(points, (K0, K1), strict=True)))
    return Pose(R, t, inliers)


@dataclass(frozen=True)
class PairScore:
    """Scores of one pruner on one pair."""

    kept: int
    """Number of kept matches."""
    precision: float
    recall: float
    f1: float
    average_precision: float
    poses: Mapping[str, Sequence[PoseError]]
    """By estimator, one for each repeat; empty if the source has no poses."""
    true_precision: float = math.nan
    """Share of right ones among the kept matches whose truth is known; NaN if there are none."""
    true_recall: float = math.nan
    """Share of kept ones among the matches known to be right; NaN if there are none."""
    homographies: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By estimator, mean corner errors in pixels, one for each repeat, infinite where none was found; empty if poses
    are estimated."""


def score_pair(pair: LabelledPair, prediction: Prediction, settings: PoseSettings) -> PairScore:
    inlier, of_plane = pair.inlier.numpy(), settings.model == "homography"

    def errors(measure: Callable[..., Any], known: bool) -> dict[str, list[Any]]:
        runs = range(settings.repeats)
        named = settings.estimators if known else ()
        return {name: [measure(pair, prediction, name, settings, n) for n in runs] for name in named}

    return PairScore(
        int(prediction.mask.sum()),
        *metrics.precision_recall_f1(prediction.mask, inlier),
        metrics.average_precision(prediction.logits, inlier),
        errors(pose_error, pair.R is not None and not of_plane),
        *true_precision_recall(pair, prediction.mask),
        errors(homography_error, pair.H is not None and of_plane),
    )


def true_precision_recall(pair: LabelledPair, mask: np.ndarray) -> tuple[float, float]:
    """Precision and recall over the matches whose truth is known by depth; NaN where there are none."""
    truth = pair.truth()
    if truth is None:
        return math.nan, math.nan
    known, right = (flags.numpy() for flags in truth)
    hits, judged, to_find = (int(flags.sum()) for flags in (mask & right, mask & known, right))
    return hits / judged if judged else math.nan, hits / to_find if to_find else math.nan


@dataclass(frozen=True)
class EmptyPairScore:
    """What one pruner kept of a pair whose photos have nothing in common."""

    kept: int
    """Number of kept matches."""
    one_to_one: int
    """Number of kept matches that are one-to-one."""
    overlap: bool
    """Whether the overlap test says that the photos show the same scene."""


def score_empty_pair(pair: LabelledPair, prediction: Prediction) -> EmptyPairScore:
    import cv2

    mask, logits = torch.from_numpy(prediction.mask), torch.from_numpy(prediction.logits)
    cv2.setRNGSeed(0)
    return EmptyPairScore(
        int(mask.sum()),
        int(one_to_one(pair.matches, mask, logits).sum()),
        check_overlap(pair.matches, prediction.mask).found,
    )


@dataclass(frozen=True, eq=False)
class PrunerScores:
    """Scores of one pruner on all pairs of a source."""

    pairs: Sequence[PairScore]
    calibration_error: float
    """Calibration error of the probabilities of all matches together."""
    inlier_neighbours: np.ndarray | None = None
    """[blocks + 1 x k's] mean over pairs of `metrics.inlier_neighbour_ratio`, for the input and after every block."""
    wrong_at_95: float | None = None
    """Share of wrong ones among the kept matches whose truth is known, at the threshold that keeps 95 % of the right
    ones, over the matches of all pairs together; None if no depth is known."""
    wrong_at_95_mutual: float | None = None
    """The same over mutual matches."""
    empty_pairs: Sequence[EmptyPairScore] = ()
    """Of the pairs whose photos have nothing in common, which are not among `pairs`."""

    def column(self, name: str) -> np.ndarray:
        """[P] one field of `PairScore`."""
        return np.array([getattr(pair, name) for pair in self.pairs], np.float64)

    def errors(self, estimator: str, part: str = "worse") -> np.ndarray:
        """[repeats x P] pose errors: "rotation", "translation" or the "worse" of the two."""
        rows = [[getattr(error, part) for error in pair.poses[estimator]] for pair in self.pairs]
        return np.array(rows, np.float64).T

    def corner_errors(self, estimator: str) -> np.ndarray:
        """[repeats x P] mean corner errors of homographies in pixels."""
        return np.array([pair.homographies[estimator] for pair in self.pairs], np.float64).T

    def only(self, chosen: Sequence[int]) -> PrunerScores:
        """The scores of some of the pairs."""
        return replace(self, pairs=[self.pairs[number] for number in chosen])

    def matches_summary(self) -> dict[str, float]:
        """Means over pairs."""
        means = {name: float(self.column(name).mean()) if self.pairs else 0.0 for name in COLUMNS}
        return {**means, "calibration_error": self.calibration_error}

    def truth_summary(self) -> dict[str, float | None]:
        """Means over the pairs that have them, and shares of wrong matches of all pairs together; None if unknown."""
        columns = {name: self.column(name) for name in TRUTH_COLUMNS}
        known = {name: values[np.isfinite(values)] for name, values in columns.items()}
        means = {name: float(values.mean()) if len(values) else None for name, values in known.items()}
        return {**means, "wrong_at_95": self.wrong_at_95, "wrong_at_95_mutual": self.wrong_at_95_mutual}

    def empty_summary(self) -> dict[str, float]:
        """Of pairs whose photos have nothing in common: mean number of kept matches, and shares of false alarms."""
        kept, many, overlap = np.array(
            [(pair.kept, pair.one_to_one > MAX_FALSE_MATCHES, pair.overlap) for pair in self.empty_pairs], np.float64
        ).T
        return {"kept": kept.mean(), "more_than_15": many.mean(), "same_scene": overlap.mean()}

    def pose_summary(self, estimator: str) -> dict[str, Any]:
        """AUC and mAP in percent, means over repeats; deviation of AUC between them; number of failed pairs."""

        def percent(metric: Callable[[np.ndarray], list[float]], part: str = "worse") -> np.ndarray:
            return 100 * np.array([metric(errors) for errors in self.errors(estimator, part)])

        auc = percent(metrics.pose_auc)
        return {
            "auc": auc.mean(0).tolist(),
            "auc_deviation": auc.std(0, ddof=1).tolist() if len(auc) > 1 else None,
            **{f"{p}_auc": percent(metrics.pose_auc, p).mean(0).tolist() for p in ("rotation", "translation")},
            "map": percent(metrics.binned_map).mean(0).tolist(),
            "failures": sum(any(error.failed for error in pair.poses[estimator]) for pair in self.pairs),
        }

    def homography_summary(self, estimator: str) -> dict[str, Any]:
        """AUC of the mean corner error in percent, mean over repeats and deviation between them; number of failures."""
        errors = self.corner_errors(estimator)
        auc = 100 * np.array([metrics.pose_auc(row, metrics.CORNER_THRESHOLDS) for row in errors])
        return {
            "auc": auc.mean(0).tolist(),
            "auc_deviation": auc.std(0, ddof=1).tolist() if len(auc) > 1 else None,
            "failures": int(np.isinf(errors).any(axis=0).sum()),
        }
