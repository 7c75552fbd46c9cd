"""Every number of the paper as a plain function on arrays.

Shares are between 0 and 1. Undefined cases have a value by convention, stated where it applies, so that
a mean over pairs is always a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ananet._util.checks import check_whole_number
from ananet.errors import InputError

THRESHOLDS = (5.0, 10.0, 20.0)
# Of the mean corner error of homographies, in pixels.
CORNER_THRESHOLDS = (1.0, 3.0, 5.0, 10.0)
# Error of a pair without an estimate, in degrees.
FAILURE = 180.0
# Of which the best assignment is searched, at 2 to this power.
MAX_MOTIONS = 16
# Width of the bins of OANet's mAP, in degrees.
MAP_BIN = 5.0


@dataclass(frozen=True)
class PoseError:
    """How far an estimate is from the truth."""

    rotation: float
    """Degrees."""
    translation: float
    """Degrees between directions, sign ignored."""
    failed: bool = False
    """Whether there was no estimate; both errors are then 180."""

    @classmethod
    def of_failure(cls) -> PoseError:
        return cls(FAILURE, FAILURE, failed=True)

    @property
    def worse(self) -> float:
        """The pose error of all protocols."""
        return max(self.rotation, self.translation)


def precision_recall_f1(mask: np.ndarray, inlier: np.ndarray) -> tuple[float, float, float]:
    """Precision, recall and their harmonic mean.

    Args:
        mask, inlier: [N] bool: kept matches and right ones.

    Precision is 0 if nothing is kept, recall if there is no inlier, F1 if both are 0.

    >>> precision_recall_f1(np.array([True, True, True, False]), np.array([True, True, False, True]))
    (0.6666666666666666, 0.6666666666666666, 0.6666666666666666)
    >>> precision_recall_f1(np.zeros(3, bool), np.ones(3, bool))
    (0.0, 0.0, 0.0)
    """
    mask, inlier = _flags("mask", mask), _flags("inlier", inlier)
    _same_length("mask", mask, "inlier", inlier)
    hits = int((mask & inlier).sum())
    precision = hits / max(int(mask.sum()), 1)
    recall = hits / max(int(inlier.sum()), 1)
    return precision, recall, 2 * precision * recall / (precision + recall) if hits else 0.0


def misclassification_error(labels: np.ndarray, truth: np.ndarray) -> float:
    """Smallest share of matches with a wrong label, over all ways to assign the motions found to the true ones.

    The metric of AdelaideRMF (Wong et al., ICCV 2011). "No motion" is a label too, and is never reassigned.

    Args:
        labels: [N] whole numbers: 0, 1, ... for the motions found, -1 for none.
        truth: [N] whole numbers: 1, 2, ... for the true motions, 0 for none.

    0 for no matches.

    >>> misclassification_error(np.array([1, 1, 0, 0, -1]), np.array([1, 1, 2, 0, 0]))
    0.2
    """
    labels, truth = _whole_numbers("labels", labels, -1), _whole_numbers("truth", truth, 0)
    _same_length("labels", labels, "truth", truth)
    if len(labels) == 0:
        return 0.0
    both = (labels >= 0) & (truth > 0)
    # Motions by their rank, as a label may be any number.
    found, rows = np.unique(labels[both], return_inverse=True)
    true, columns = np.unique(truth[both], return_inverse=True)
    common = np.zeros((len(found), len(true)), np.int64)
    np.add.at(common, (rows, columns), 1)
    if len(found) < len(true):
        common = common.T
    if common.shape[1] > MAX_MOTIONS:
        raise InputError(f"labels and truth: expected at most {MAX_MOTIONS} motions, got {common.shape[1]}")
    # The best assignment for every set of columns that are taken, row by row.
    best = np.full(2 ** common.shape[1], -1, np.int64)
    best[0] = 0
    sets = np.arange(len(best))
    for row in common:
        before = best.copy()
        for column, count in enumerate(row):
            free = sets[(sets >> column & 1 == 0) & (before >= 0)]
            taken = free | 1 << column
            best[taken] = np.maximum(best[taken], before[free] + count)
    right = int(best.max()) + int(((labels < 0) & (truth == 0)).sum())
    return (len(labels) - right) / len(labels)


def corner_error(H: np.ndarray, truth: np.ndarray, size: tuple[float, float]) -> float:
    """Mean distance, over the four corners of the first photo, between where two homographies map them.

    SuperGlue's and LightGlue's measure of a homography. Its area under the curve is `pose_auc` with
    `CORNER_THRESHOLDS`.

    Args:
        H, truth: [3 x 3], from the first photo to the second, of any scale.
        size: (width, height) of the first photo; corners are the centres of its outermost pixels.

    Infinite where H is not finite or maps a corner to infinity.

    >>> shift = np.array([[1.0, 0.0, 3.0], [0.0, 1.0, 4.0], [0.0, 0.0, 1.0]])
    >>> corner_error(np.eye(3), shift, (640, 480))
    5.0
    """
    matrices = [_array(name, matrix, np.float64) for name, matrix in (("H", H), ("truth", truth))]
    for name, matrix in zip(("H", "truth"), matrices, strict=True):
        if matrix.shape != (3, 3):
            raise InputError(f"{name}: expected shape (3, 3), got {matrix.shape}")
    right, bottom = (float(side) - 1 for side in size)
    corners = np.array([[0, 0, 1], [right, 0, 1], [right, bottom, 1], [0, bottom, 1]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mapped, true = ((rows := corners @ matrix.T)[:, :2] / rows[:, 2:] for matrix in matrices)
        error = float(np.linalg.norm(mapped - true, axis=1).mean())
    return error if np.isfinite(error) else np.inf


def pose_auc(errors: Sequence[float] | np.ndarray, thresholds: Sequence[float] = THRESHOLDS) -> list[float]:
    """Area under the curve of recall over pose error up to each threshold, over the threshold.

    The curve is the one that SuperGlue and the paper integrate: it joins (0, 0) and the points (error i, i / N) of the
    sorted errors by straight lines and stays level after the last. Not to be confused with `binned_map`, which is
    larger.

    Args:
        errors: [N] degrees; for homographies, `corner_error`s in pixels. NaN and infinity stand for pairs without an
            estimate; they are never recalled.
        thresholds: in the same unit, such as `CORNER_THRESHOLDS`.

    No errors at all have an area of 0.

    >>> pose_auc([2.0, 4.0, 30.0])  # (0, 0), (2, 1/3), (4, 2/3), then level
    [0.4, 0.5333333333333333, 0.6]
    """
    ordered = _ordered(errors)
    recall = np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    ordered, recall = np.r_[0.0, ordered], np.r_[0.0, recall]
    areas = []
    for threshold in thresholds:
        # The point at (0, 0) is there even where errors are 0 too.
        last = max(1, int(np.searchsorted(ordered, threshold)))
        x, y = np.r_[ordered[:last], threshold], np.r_[recall[:last], recall[last - 1]]
        areas.append(float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / threshold))
    return areas


def binned_map(errors: Sequence[float] | np.ndarray, thresholds: Sequence[float] = THRESHOLDS) -> list[float]:
    """OANet's mAP: the mean, over bins of 5 degrees up to the threshold, of the recall at the upper end of each.

    Args:
        errors: [N] degrees, as for `pose_auc`.
        thresholds: degrees, multiples of 5.

    >>> binned_map([2.0, 4.0, 30.0])  # recall is 2/3 at 5, 10, 15 and 20 degrees
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666]
    >>> binned_map([2.0, 7.0])
    [0.5, 0.75, 0.875]
    """
    ordered = _ordered(errors)
    means = []
    for threshold in thresholds:
        count = round(threshold / MAP_BIN)
        if count < 1 or count * MAP_BIN != threshold:
            raise InputError(f"thresholds: expected multiples of {MAP_BIN:g} degrees, got {threshold:g}")
        # Bins are half open, as in numpy's histogram, which OANet uses: an error of just 5 belongs to the second.
        reached = np.searchsorted(ordered, MAP_BIN * np.arange(1, count + 1))
        means.append(float(reached.mean() / max(len(ordered), 1)))
    return means


def recall_curve(errors: Sequence[float] | np.ndarray, at: np.ndarray) -> np.ndarray:
    """[M] share of errors up to each value of `at`; the area under it is about `pose_auc`.

    >>> recall_curve([2.0, 4.0, np.nan, 1.0], np.array([0.0, 2.0, 180.0]))
    array([0.  , 0.5 , 0.75])
    """
    ordered = _ordered(errors)
    return np.searchsorted(ordered, _array("at", at, np.float64), side="right") / max(len(ordered), 1)


def mean_by_bin(values: np.ndarray, position: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of values by bin of position, and how many fall into each: F1 by inlier ratio, say.

    Args:
        values, position: [N].
        edges: [B + 1] increasing; a bin includes its lower edge, the last one its upper edge too.

    Returns:
        [B] means, NaN for an empty bin, and [B] counts. Positions outside the edges are left out.

    >>> mean_by_bin(np.array([0.2, 0.4, 0.9]), np.array([0.0, 0.1, 1.0]), np.array([0.0, 0.2, 0.6, 1.0]))
    (array([0.3, nan, 0.9]), array([2, 0, 1]))
    """
    values, position, edges = _numbers("values", values), _numbers("position", position), _numbers("edges", edges)
    _same_length("values", values, "position", position)
    if len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise InputError(f"edges: expected at least two rising numbers, got {edges.tolist()}")
    number = np.searchsorted(edges, position, side="right") - 1
    number[position == edges[-1]] = len(edges) - 2
    inside = (number >= 0) & (number < len(edges) - 1)
    count = np.bincount(number[inside], minlength=len(edges) - 1)
    total = np.bincount(number[inside], weights=values[inside], minlength=len(edges) - 1)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0), count


@dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Precision and recall when all matches down to a score are kept, for every score that occurs, highest first."""

    precision: np.ndarray
    recall: np.ndarray
    score: np.ndarray


def precision_recall_curve(scores: np.ndarray, inlier: np.ndarray) -> PrecisionRecallCurve:
    """Precision and recall at every threshold.

    Args:
        scores: [N] higher is better, on any scale. Equal scores are kept or removed together.
        inlier: [N] bool. Without any, recall is 0 throughout.

    >>> curve = precision_recall_curve(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, False, True, False]))
    >>> curve.score, curve.precision.round(3), curve.recall
    (array([3., 2., 1.]), array([1.   , 0.667, 0.5  ]), array([0.5, 1. , 1. ]))
    """
    scores, inlier = _numbers("scores", scores), _flags("inlier", inlier)
    _same_length("scores", scores, "inlier", inlier)
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(inlier[order])
    last_of_score = np.flatnonzero(np.r_[np.diff(scores) != 0, True]) if len(scores) else np.zeros(0, np.int64)
    hits = hits[last_of_score]
    return PrecisionRecallCurve(hits / (last_of_score + 1), hits / max(int(inlier.sum()), 1), scores[last_of_score])


def average_precision(scores: np.ndarray, inlier: np.ndarray) -> float:
    """Mean of the precision at each inlier when matches are taken best first: sum of precision times rise in recall.

    Arguments as for `precision_recall_curve`; 0 without inliers.

    >>> average_precision(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False]))  # (1 + 2/3) / 2
    0.8333333333333333
    """
    curve = precision_recall_curve(scores, inlier)
    return float((curve.precision * np.diff(curve.recall, prepend=0.0)).sum())


def wrong_share_at_recall(scores: np.ndarray, right: np.ndarray, recall: float = 0.95) -> float:
    """Share of wrong matches among the kept, at the highest threshold that keeps the given share of the right ones.

    Args:
        scores: [N] of the matches whose truth is known; higher is better, equal ones are kept together.
        right: [N] bool.
        recall: above 0, at most 1.

    0 without right matches.

    >>> wrong_share_at_recall(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False]))
    0.333...
    """
    if not 0 < recall <= 1:
        raise InputError(f"recall: expected a share above 0 and at most 1, got {recall!r}")
    curve = precision_recall_curve(scores, right)
    # Rounding must not ask for one match more.
    enough = np.flatnonzero(curve.recall >= recall - 1e-9)
    return float(1 - curve.precision[enough[0]]) if len(enough) else 0.0


@dataclass(frozen=True, eq=False)
class Reliability:
    """Mean score and share of inliers, per bin of scores."""

    score: np.ndarray
    """[B] mean score; NaN for an empty bin."""
    inlier_ratio: np.ndarray
    """[B] share of inliers; equal to the score if scores are probabilities."""
    count: np.ndarray
    """[B]."""


def reliability(scores: np.ndarray, inlier: np.ndarray, bins: int = 15) -> Reliability:
    """Mean score and share of inliers in equal bins of the score.

    Args:
        scores: [N] probabilities in [0, 1].
        inlier: [N] bool.

    >>> reliability(np.array([0.1, 0.3, 0.9]), np.array([False, True, True]), bins=2)
    Reliability(score=array([0.2, 0.9]), inlier_ratio=array([0.5, 1. ]), count=array([2, 1]))
    """
    scores, inlier = _numbers("scores", scores), _flags("inlier", inlier)
    if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
        raise InputError(f"scores: expected probabilities in [0, 1], got {scores.min():g} to {scores.max():g}")
    _same_length("scores", scores, "inlier", inlier)
    check_whole_number("bins", bins, 1)
    edges = np.linspace(0, 1, bins + 1)
    mean_score, count = mean_by_bin(scores, scores, edges)
    inlier_ratio, _ = mean_by_bin(inlier.astype(float), scores, edges)
    return Reliability(mean_score, inlier_ratio, count)


def expected_calibration_error(scores: np.ndarray, inlier: np.ndarray, bins: int = 15) -> float:
    """Mean distance between score and share of inliers over the bins of `reliability`, weighted by their counts.

    0 for perfectly calibrated scores, and if there are no scores.

    >>> expected_calibration_error(np.array([0.1, 0.3, 0.9]), np.array([False, True, True]), bins=2)  # (2 0.3 + 0.1)/3
    0.2333...
    """
    found = reliability(scores, inlier, bins)
    filled = found.count > 0
    gap = np.abs(found.score - found.inlier_ratio)[filled]
    return float((gap * found.count[filled]).sum() / max(found.count.sum(), 1))


def inlier_neighbour_ratio(features: np.ndarray, inlier: np.ndarray, neighbours: Sequence[int]) -> list[float]:
    """Share of inliers among the k nearest neighbours of an inlier in feature space, mean over inliers (Fig. 7).

    Args:
        features: [N x D]; a match is not its own neighbour.
        inlier: [N] bool.
        neighbours: the k's, each at least 1. Where there are fewer than k other matches, all of them count.

    0 where no inlier has a neighbour.

    >>> inlier_neighbour_ratio(np.array([[0.0], [1.0], [9.0], [3.0]]), np.array([True, True, False, True]), [1, 3])
    [1.0, 0.6666666666666666]
    """
    features, inlier = _array("features", features, np.float64), _flags("inlier", inlier)
    if features.ndim != 2 or not np.isfinite(features).all():
        raise InputError(f"features: expected finite numbers of shape (N, D), got shape {features.shape}")
    _same_length("features", features, "inlier", inlier)
    neighbours = _whole_numbers("neighbours", neighbours, 1).tolist()
    own = np.flatnonzero(inlier)
    most = min(max(neighbours, default=1), len(features) - 1)
    if len(own) == 0 or most < 1:
        return [0.0] * len(neighbours)
    square = (features**2).sum(1)
    distance = square[own, None] + square[None] - 2 * features[own] @ features.T
    distance[np.arange(len(own)), own] = np.inf
    nearest = np.argpartition(distance, most - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(distance, nearest, 1), axis=1, kind="stable")
    found = inlier[np.take_along_axis(nearest, order, 1)]
    return [float(found[:, : min(k, most)].mean()) for k in neighbours]


def _array(name: str, values: Any, kind: type | None = None) -> np.ndarray:
    try:
        return np.asarray(values, kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None


def _ordered(errors: Sequence[float] | np.ndarray) -> np.ndarray:
    array = _array("errors", errors, np.float64)
    if array.ndim != 1 or (array < 0).any():
        raise InputError(f"errors: expected numbers of at least 0 in one dimension, got {errors!r}")
    return np.sort(np.where(np.isnan(array), np.inf, array))


def _flags(name: str, values: np.ndarray) -> np.ndarray:
    array = _array(name, values)
    if array.ndim != 1 or (array.dtype != bool and array.size):
        raise InputError(f"{name}: expected an array of bool in one dimension, got {array.dtype} {array.shape}")
    return array.astype(bool)


def _whole_numbers(name: str, values: Sequence[int] | np.ndarray, least: int) -> np.ndarray:
    array = _array(name, values)
    if array.ndim != 1 or (array.size and (not np.issubdtype(array.dtype, np.integer) or array.min() < least)):
        raise InputError(f"{name}: expected whole numbers of at least {least} in one dimension, got {values!r}")
    return array.astype(np.int64)


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    array = _array(name, values, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InputError(f"{name}: expected finite numbers in one dimension, got {array.shape} with NaN or infinity")
    return array


def _same_length(name0: str, values0: np.ndarray, name1: str, values1: np.ndarray) -> None:
    if len(values0) != len(values1):
        raise InputError(f"{name0} and {name1}: expected the same length, got {len(values0)} and {len(values1)}")
