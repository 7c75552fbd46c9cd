"""The probability that two photos show the same place, from keypoints and matches alone.

Photos of two sides of one building, or of two rooms with the same chairs, keep many matches, which even agree on a
geometry. What gives them away is the rest: kept matches that contradict each other, keypoints whose angles turn
differently, and large parts of the common view without a match. A few such numbers, none of which depends on a
detector, enter a logistic regression. `tools/fit_overlap.py` fits it and writes same_place.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators import estimate_fundamental
from ananet.estimators.base import one_to_one
from ananet.io.files import read_json
from ananet.pruners.base import Pruned
from ananet.pruners.registry import CLASSICAL

WEIGHTS = Path(__file__).with_name("same_place.json")
# Fewer one-to-one matches have no geometry that could be judged.
MIN_MATCHES = 8
# As in the overlap test.
THRESHOLD_PIXELS = 3.0
# The geometry is fitted to this many matches at most, and neighbours are compared of so many: more only cost time.
GEOMETRY_MATCHES, NEIGHBOUR_MATCHES = 400, 250
# Cells along each side of a photo, and keypoints that make a cell count.
GRID, MIN_KEYPOINTS = 10, 3
# Radians by which the turn of a keypoint may differ from that of most.
ANGLE_TOLERANCE = 0.4
# A network's matches count above this logit, its default threshold of 0.4, and it is sure of those above the second.
DECISION, SURE = math.log(0.4 / 0.6), 2.0
# A count of more matches says nothing more.
MAX_COUNT = 200
# Log of the share of the photo's diagonal by which matches of a large change of view are off an affine map.
LARGE = math.log(0.05)
# Numbers that need more than points, and what they need.
NEEDS = {"mean_score": "scores", "sure": "scores", "distinctive_kept": "ratio", "angles_agree": "angles"}
ALWAYS = ("consistent", "consistent_share", "smoothness", "deviation", "coverage")
NUMBERS = (*ALWAYS, *NEEDS)


@dataclass(frozen=True)
class SamePlace:
    """How likely two photos show the same place, and why."""

    probability: float
    """0 to 1; calibrated on pairs of which half show the same place."""
    reasons: tuple[str, ...]
    """The evidence in words, what weighs most first."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What entered the regression; empty if too few matches were kept."""


def pair_probability(
    matches: Correspondences, kept: Pruned | Any, keypoints0: Any = None, keypoints1: Any = None
) -> float:
    """The probability that two photos show the same place; arguments as for `judge_pair`.

    >>> nothing = Correspondences([], [], image_size0=(640, 480), image_size1=(640, 480))
    >>> pair_probability(nothing, []) < 0.5
    True
    """
    return judge_pair(matches, kept, keypoints0, keypoints1).probability


def judge_pair(
    matches: Correspondences, kept: Pruned | Any, keypoints0: Any = None, keypoints1: Any = None
) -> SamePlace:
    """Judge from its matches whether a pair shows the same place.

    Args:
        matches: all putative matches, with image sizes; ratios, mutual flags and angles are used where they are known.
        kept: a pruner's result, whose scores are used, or an [N] mask.
        keypoints0, keypoints1: [M x 2] all keypoints of the photos in pixels; those of the matches if None. Without
            them, parts of the common view that have keypoints but no putative match are not seen.
    """
    matches = matches._as_tensors()
    if matches.image_size0 is None or matches.image_size1 is None:
        raise InputError("matches: expected image_size0 and image_size1, they are missing")
    mask = torch.as_tensor(kept.mask if isinstance(kept, Pruned) else kept).cpu().bool()
    if mask.shape != (len(matches),):
        raise InputError(f"kept: expected a mask of {len(matches)} matches, got shape {tuple(mask.shape)}")
    given = (keypoints0, keypoints1)
    keypoints = [_keypoints(n, given[n], points) for n, points in enumerate(matches.numpy_points())]
    numbers = measure(matches, kept if isinstance(kept, Pruned) else None, mask, keypoints[0], keypoints[1])
    if "kept" in numbers:
        words = (f"only {numbers['kept']:.0f} one-to-one matches were kept",)
        return SamePlace(probability_of(numbers, load_weights()), words)
    probability = probability_of(numbers, load_weights())
    parts = _parts(numbers, load_weights()["heads"][head_of(numbers)])
    # What speaks for the answer comes first, the strongest at the front.
    sign = 1 if probability >= 0.5 else -1
    reasons = dict.fromkeys(in_words(name, numbers) for name in sorted(parts, key=lambda name: -sign * parts[name]))
    return SamePlace(probability, tuple(reasons)[:3], numbers)


def probability_of(numbers: Mapping[str, float], weights: Mapping[str, Any]) -> float:
    """The probability by these weights, from what `measure` returned."""
    if "kept" in numbers:
        return _sigmoid(weights["few"][int(numbers["kept"])])
    head = weights["heads"][head_of(numbers)]
    return _sigmoid(head["bias"] + sum(_parts(numbers, head).values()))


def _parts(numbers: Mapping[str, float], head: Mapping[str, Any]) -> dict[str, float]:
    """What each number adds to the logit, compared with its mean."""
    values = {name: _bounded(numbers[name], *head["range"][name]) for name in head["weights"]}
    return {name: weight * (values[name] - head["mean"][name]) for name, weight in head["weights"].items()}


def measure(
    matches: Correspondences, kept: Pruned | None, mask: torch.Tensor, keypoints0: np.ndarray, keypoints1: np.ndarray
) -> dict[str, float]:
    """The numbers of a pair that can be known; only `kept`, the count of one-to-one matches, if they are too few."""
    # Of several pruners, one after the other, the last gives the scores; classical ones know no probabilities.
    trained = kept is not None and kept.pruner.rpartition("+")[2].partition("@")[0] not in CLASSICAL
    logits = torch.as_tensor(kept.logits).cpu() if kept is not None else torch.zeros(len(matches))
    if trained:
        # Whatever threshold the caller has for other reasons, the numbers are those of one.
        mask = logits > DECISION
    chosen = one_to_one(matches, mask, logits).numpy()
    count = int(chosen.sum())
    if count < MIN_MATCHES:
        return {"kept": float(count)}
    points0, points1 = (points[chosen] for points in matches.numpy_points())
    size0, size1 = matches.image_size0, matches.image_size1
    assert size0 is not None and size1 is not None
    affine0, misfit = robust_affine(points0, points1)
    affine1, _ = robust_affine(points1, points0)
    share = _consistent_share(points0, points1)
    numbers = {
        "consistent": math.log1p(min(share * count, MAX_COUNT)),
        "consistent_share": share,
        "smoothness": _smoothness(points0, points1, affine0),
        "deviation": math.log(misfit / math.hypot(*size1) + 1e-4),
        "coverage": min(
            _coverage(keypoints0, points0, points1, affine0, size0, size1),
            _coverage(keypoints1, points1, points0, affine1, size1, size0),
        ),
    }
    if trained:
        own = logits.numpy()[chosen]
        numbers |= {"mean_score": float(own.mean()), "sure": math.log1p(min(int((own > SURE).sum()), MAX_COUNT))}
    if matches.ratio is not None and matches.mutual is not None:
        distinctive = (matches.mutual & (matches.ratio < DISTINCTIVE_RATIO)).cpu()
        of_these = int((distinctive & mask).sum()), int((distinctive & ~mask).sum())
        numbers["distinctive_kept"] = math.log((of_these[0] + 0.5) / (of_these[1] + 0.5))
    angles = matches.angles()
    if angles is not None:
        turns = (angles[:, 1] - angles[:, 0]).double().cpu().numpy()[chosen]
        numbers["angles_agree"] = _share_of_common_turn(turns)
    return numbers


def head_of(numbers: Mapping[str, float]) -> str:
    """Name of the regression for what is known.

    >>> head_of({"sure": 1.0, "mean_score": 2.0, "angles_agree": 0.5})
    'scores+angles'
    """
    return "+".join(dict.fromkeys(need for name, need in NEEDS.items() if name in numbers)) or "points"


def in_words(name: str, numbers: Mapping[str, float]) -> str:
    """One of the numbers as a reason."""
    return WORDS[name](numbers[name], numbers)


def _agreement(_: float, numbers: Mapping[str, float]) -> str:
    count = math.expm1(numbers["consistent"])
    shown = f"more than {MAX_COUNT}" if count > MAX_COUNT - 0.5 else f"{count:.0f}"
    return f"{shown} one-to-one matches ({numbers['consistent_share']:.0%}) agree on one geometry"


# What each number says, from its value and all numbers.
WORDS: dict[str, Callable[[float, Mapping[str, float]], str]] = {
    "consistent": _agreement,
    "consistent_share": _agreement,
    "coverage": lambda value, _: f"kept matches cover {value:.0%} of the common view",
    "sure": lambda value, _: f"the network is sure of {math.expm1(value):.0f} matches",
    "mean_score": lambda value, _: f"the mean score of one-to-one matches is {_sigmoid(value):.2f}",
    "distinctive_kept": lambda value, _: f"{_sigmoid(value):.0%} of the distinctive matches were kept",
    "angles_agree": lambda value, _: f"the keypoints of {value:.0%} of the matches turn alike",
    "smoothness": lambda value, _: f"neighbouring matches differ by {math.exp(value):.0%} of their distance",
    "deviation": lambda value, _: f"the matches are those of a {'large' if value > LARGE else 'small'} change of view",
}


@cache
def load_weights() -> dict[str, Any]:
    """The fitted regressions: `heads` by what is known, and `few`, logits by the count of kept matches below 8."""
    weights: dict[str, Any] = read_json(WEIGHTS)
    return weights


def robust_affine(points0: np.ndarray, points1: np.ndarray) -> tuple[np.ndarray, float]:
    """[3 x 2] affine map of most matches, so that `(x, y, 1) @ map` is the second point, and the median misfit."""
    rows = np.column_stack([points0, np.ones(len(points0))])
    weights, misfit = np.ones(len(rows)), np.zeros(len(rows))
    fitted = np.zeros((3, 2))
    for _ in range(5):
        weighted = rows * weights[:, None]
        # With a ridge far below a pixel, so that points on a line have an answer too.
        fitted = np.linalg.solve(weighted.T @ rows + 1e-6 * np.eye(3), weighted.T @ points1)
        misfit = np.linalg.norm(rows @ fitted - points1, axis=1)
        weights = 1 / (1 + (misfit / max(float(np.median(misfit)), 1e-3)) ** 2)
    return fitted, float(np.median(misfit))


def _consistent_share(points0: np.ndarray, points1: np.ndarray) -> float:
    """Share of the matches near the epipolar lines of the geometry that fits most of them."""
    some = slice(None, None, 1 + (len(points0) - 1) // GEOMETRY_MATCHES)
    fitted = Correspondences(points0[some], points1[some])
    found = estimate_fundamental(fitted, "magsac", threshold=THRESHOLD_PIXELS)
    if found is None:
        return 0.0
    tensors = torch.from_numpy(points0), torch.from_numpy(points1)
    distance = geometry.epipolar_distance(*tensors, torch.as_tensor(found.F).cpu().double())
    return float((distance < THRESHOLD_PIXELS).double().mean())


def _smoothness(points0: np.ndarray, points1: np.ndarray, affine: np.ndarray) -> float:
    """Log of how far neighbours land from where the affine map puts them, over their distance; median."""
    some = slice(None, None, 1 + (len(points0) - 1) // NEIGHBOUR_MATCHES)
    first, second = points0[some], points1[some]
    apart = first[:, None] - first[None]
    distance = np.linalg.norm(apart, axis=2)
    # Several keypoints in one place say nothing of their surroundings.
    distance[distance < 2] = np.inf
    nearest = np.argsort(distance, axis=1)[:, :3]
    rows = np.arange(len(first))[:, None]
    misfit = np.linalg.norm(second[:, None] - second[nearest] - apart[rows, nearest] @ affine[:2], axis=2)
    # Without any neighbour the distance is infinite, and the quotient 0.
    relative = np.median(misfit / (distance[rows, nearest] + 2), axis=1)
    return math.log(float(np.median(relative)) + 0.01)


def _coverage(
    keypoints: np.ndarray,
    own: np.ndarray,
    other: np.ndarray,
    affine: np.ndarray,
    size: tuple[float, float],
    other_size: tuple[float, float],
) -> float:
    """Share of the cells of a photo that hold a kept match, among cells with keypoints that the other photo sees too.

    Where a cell lies in the other photo is predicted from its nearest kept match and the affine map.
    """
    cell, kept_cell = _cells(keypoints, size), _cells(own, size)
    count = np.bincount(cell, minlength=GRID**2)
    filled = np.bincount(kept_cell, minlength=GRID**2) > 0
    used = np.flatnonzero(count >= MIN_KEYPOINTS)
    if not len(used):
        return 1.0
    centres = np.stack([np.bincount(cell, axis, GRID**2)[used] / count[used] for axis in keypoints.T], axis=1)
    nearest = np.linalg.norm(centres[:, None] - own[None], axis=2).argmin(axis=1)
    predicted = other[nearest] + (centres - own[nearest]) @ affine[:2]
    seen = ((predicted >= 0) & (predicted < other_size)).all(axis=1) | filled[used]
    return float(filled[used][seen].mean()) if seen.any() else 0.0


def _cells(points: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """[N] number of the grid cell of each point."""
    column, row = np.clip(np.floor(points / size * GRID), 0, GRID - 1).astype(np.int64).T
    return row * GRID + column


def _share_of_common_turn(turns: np.ndarray) -> float:
    """Share of the keypoints that turn like most of them: the best of 32 angles, with its neighbourhood."""
    candidates = np.linspace(-np.pi, np.pi, 32, endpoint=False)
    off = np.abs(np.angle(np.exp(1j * (turns[:, None] - candidates[None]))))
    return float((off < ANGLE_TOLERANCE).mean(axis=0).max())


def _keypoints(number: int, given: Any, points: np.ndarray) -> np.ndarray:
    """[M x 2] float64 keypoints, those of the matches if none are given."""
    if given is None:
        return np.unique(points, axis=0)
    values = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    if values.ndim != 2 or values.shape[1] != 2:
        raise InputError(f"keypoints{number}: expected shape (M, 2), got {values.shape}")
    values = values.astype(np.float64)
    # Lenses have keypoints without a place in a pinhole camera.
    return values[np.isfinite(values).all(axis=1)]


def _bounded(value: float, low: float, high: float) -> float:
    """A number within what was seen when the regression was fitted: it does not hold beyond."""
    return min(max(value, low), high)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-min(max(logit, -30.0), 30.0)))
