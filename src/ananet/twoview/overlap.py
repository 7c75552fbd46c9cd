"""Whether two photos show the same scene: how likely it is, and a statistical test of agreement.

The probability (`ananet.twoview.same_place`) decides. The test says whether agreement is more than chance, which it
also is between look-alikes.

A robust estimator always returns something, and among hundreds of wrong matches some agree with any geometry by chance.
The a-contrario test (Moisan & Stival, IJCV 2004) computes the number of false alarms (NFA): how often a geometry fitted
to seven of N random matches is expected to agree with at least as many others. If it is far below one, the agreement is
not chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators import estimate_fundamental
from ananet.pruners.base import Pruned
from ananet.twoview.same_place import judge_pair

THRESHOLD_PIXELS = 3.0
# The largest log10 NFA of photos that overlap. Matches are not quite independent (keypoints cluster, texture
# repeats), so an NFA below 1 is not enough.
MAX_LOG10_NFA = -6.0
# Photos are said to show the same scene from this probability on.
MIN_PROBABILITY = 0.5
# A fundamental matrix follows from this many matches.
FIT = 7
SUBSETS = (25, 50, 100, 200, 400)


@dataclass(frozen=True)
class Overlap:
    """Whether two photos overlap, and the evidence."""

    found: bool
    """Whether they overlap: a probability of at least one half; without one, what the test says."""
    consistent: int
    """How many one-to-one matches agree with the best common geometry."""
    tested: int
    """How many one-to-one matches there were."""
    log10_nfa: float
    """Log10 of the number of false alarms: how often chance is expected to agree this well. Very negative if photos
    overlap."""
    probability: float | None = None
    """How likely they show the same place; None if only the test was made."""
    reasons: tuple[str, ...] = ()
    """What speaks for the probability, in words."""

    @property
    def summary(self) -> str:
        """The verdict and its evidence in words."""
        verdict = "show the same scene" if self.found else "do not seem to show the same scene"
        if self.probability is not None:
            because = f": {'; '.join(self.reasons)}" if self.reasons else ""
            return f"The photos {verdict} (probability {self.probability:.2f}){because}."
        if math.isinf(self.log10_nfa):
            return f"The photos {verdict}: too few of {self.tested} mutual matches agree on a common geometry."
        times = f"{10**self.log10_nfa:.2g}" if abs(self.log10_nfa) < 4 else f"10^{self.log10_nfa:.0f}"
        needed = "" if self.found else f" (must be below 10^{MAX_LOG10_NFA:.0f})"
        agree = f"{self.consistent} of {self.tested} mutual matches agree on a common geometry"
        return f"The photos {verdict}: {agree}. Expected number of chance agreements: {times}{needed}."

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        counts = {"found": self.found, "consistent": self.consistent, "tested": self.tested}
        log10_nfa = self.log10_nfa if math.isfinite(self.log10_nfa) else None
        judged = {"probability": self.probability, "reasons": list(self.reasons)}
        return counts | {"log10_false_alarms": log10_nfa, **judged, "summary": self.summary}


def judge_overlap(
    matches: Correspondences,
    kept: Pruned,
    keypoints0: Any = None,
    keypoints1: Any = None,
    neighbours: Correspondences | None = None,
) -> Overlap:
    """Whether two photos overlap, by the probability, with the counts of the test; arguments as for both."""
    judged = judge_pair(matches, kept, keypoints0, keypoints1)
    tested = check_overlap(matches, kept.mask, neighbours)
    if not judged.numbers and tested.found and matches.ratio is not None and matches.mutual is not None:
        # A pruner may fail where the photos do overlap: the most distinctive matches get a try of their own.
        distinctive = torch.as_tensor(matches.mutual) & (torch.as_tensor(matches.ratio) < DISTINCTIVE_RATIO)
        judged = judge_pair(matches, distinctive, keypoints0, keypoints1)
    found = judged.probability >= MIN_PROBABILITY
    return replace(tested, found=found, probability=judged.probability, reasons=judged.reasons)


def check_overlap(matches: Correspondences, mask: Any, neighbours: Correspondences | None = None) -> Overlap:
    """Test whether more matches follow a geometry fitted to the kept ones than chance explains.

    Args:
        matches: all putative matches, with image sizes, ratios and mutual flags. Only mutual ones are counted, so
            that many keypoints matched to the same one do not vote many times; the most distinctive ones are
            also tested by themselves, since a few right matches are lost among many wrong ones.
        mask: [N] bool, the matches that a pruner kept; a geometry is fitted to these.
        neighbours: nearest neighbours by descriptor, which are counted instead if the matches come from a matcher that
            looks at positions: those agree with a geometry more often than chance explains.
    """
    matches = matches._as_tensors()
    tested = matches if neighbours is None else neighbours._as_tensors()
    if tested.image_size1 is None or tested.ratio is None or tested.mutual is None:
        missing = next(name for name in ("image_size1", "ratio", "mutual") if getattr(tested, name) is None)
        expected = "image_size0, image_size1, ratio and mutual"
        raise InputError(f"matches: the overlap test expects {expected}, {missing} is missing")
    order = _distinct_best_first(tested)
    width, height = tested.image_size1
    # A random point lies near a line with at most this probability: a band across the image, over its area.
    chance = min(1.0, 2 * THRESHOLD_PIXELS * math.hypot(width, height) / (width * height))
    subsets = [n for n in SUBSETS if n < len(order)] + [len(order)]
    distinctive = (tested.mutual & (tested.ratio < DISTINCTIVE_RATIO)).cpu().numpy()
    best = Overlap(False, 0, len(order), math.inf)
    # A pruner may fail where the photos do overlap: the most distinctive matches get a try of their own.
    for fitted in (matches[mask], tested[distinctive]):
        found = estimate_fundamental(fitted, "magsac", threshold=THRESHOLD_PIXELS)
        if found is None:
            continue
        points0, points1 = (points.double().cpu() for points in (tested.points0, tested.points1))
        distance = geometry.epipolar_distance(points0, points1, torch.as_tensor(found.F).cpu())
        agrees = (distance < THRESHOLD_PIXELS).numpy()[order]
        log10_nfa = min(log10_false_alarms(n, int(agrees[:n].sum()), chance) for n in subsets)
        log10_nfa += math.log10(2 * len(subsets))
        if log10_nfa < best.log10_nfa:
            best = Overlap(log10_nfa < MAX_LOG10_NFA, int(agrees.sum()), len(order), log10_nfa)
    return best


def measure_parallax(matches: Correspondences, R: np.ndarray | Tensor, noise: float) -> float:
    """Degrees between the rays of a match once the rotation between the cameras is undone, median over the matches.

    Through a long lens, a small turn and a small shift look alike, and a camera that stood still is given some of
    both. So where the best rotation alone brings the rays within the noise, the remaining angle is returned.

    Args:
        matches: calibrated ones that follow the pose.
        R: [3 x 3] rotation of the pose.
        noise: of the rays: the estimator's threshold over the focal length.
    """
    if len(matches) == 0:
        return 0.0
    rays = matches._as_tensors().normalized().double().cpu()
    both = [geometry.homogeneous(part) for part in (rays[:, :2], rays[:, 2:])]
    rays0, rays1 = (part / part.norm(dim=1, keepdim=True) for part in both)
    # Wahba's problem, by its singular value decomposition.
    U, _, Vt = torch.linalg.svd(rays1.T @ rays0)
    U[:, 2] *= torch.linalg.det(U @ Vt).sign()
    rotations = (torch.as_tensor(R).cpu(), U @ Vt)
    about_pose, about_best = (float((rays1 - rays0 @ turn.T).norm(dim=1).median()) for turn in rotations)
    chord = min(about_pose, about_best) if about_best < noise else about_pose
    return math.degrees(2 * math.asin(min(chord / 2, 1.0)))


def log10_false_alarms(tested: int, consistent: int, chance: float) -> float:
    """log10 of (n - 7) C(n, k) C(k, 7) p^(k - 7): tests made, times the chance of each.

    >>> round(log10_false_alarms(400, 60, 0.01))
    -23
    >>> log10_false_alarms(400, 12, 0.01) > 0
    True
    """
    if consistent <= FIT:
        return math.inf
    tests = math.log10(tested - FIT) + _log10_choose(tested, consistent) + _log10_choose(consistent, FIT)
    return tests + (consistent - FIT) * math.log10(chance)


def _log10_choose(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)


def _distinct_best_first(matches: Correspondences) -> np.ndarray:
    """Indices of mutual matches by rising ratio, one for each place: SIFT often puts several keypoints there."""
    assert matches.ratio is not None and matches.mutual is not None
    ratio, mutual = matches.ratio.cpu().numpy(), matches.mutual.cpu().numpy()
    order = np.argsort(ratio, kind="stable")
    order = order[mutual[order]]
    places = torch.cat([matches.points0, matches.points1], dim=1).cpu().numpy()[order].round().astype(np.int64)
    _, first = np.unique(places, axis=0, return_index=True)
    return order[np.sort(first)]
