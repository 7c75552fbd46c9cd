"""What two photos gave, as an answer for a browser or another language."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ananet.core import geometry
from ananet.core.conflicts import penalize_conflicts
from ananet.estimators import estimate_fundamental
from ananet.pruners import Pruned
from ananet.twoview import Cameras, PhotoMatches
from ananet.twoview.motions import group_motions
from ananet.web.uploads import Photo

# Digits behind the point: a ten-thousandth of a pixel, and a millionth of a score.
PIXEL_DIGITS, SCORE_DIGITS = 4, 6
# Of a direction of length 1, what is worth a word.
WORTH_A_WORD = 0.35


def pruned_answer(kept: Pruned, decision: float) -> dict[str, Any]:
    return {
        "pruner": kept.pruner,
        "threshold": score_of(decision),
        "mask": kept.mask.tolist(),
        "scores": kept.scores.tolist(),
    }


def score_of(logit: float) -> float:
    """The score at which a pruner decides."""
    return 1 / (1 + math.exp(-logit))


def matched_answer(
    found: PhotoMatches, photos: tuple[Photo, Photo], cameras: Cameras, decision: float, *, with_motions: bool = True
) -> dict[str, Any]:
    """Everything about two photos, in pixels of the photos that were sent."""
    matches, kept, overlap = found.matches, found.kept, found.overlap
    points = [
        _moved(part, np.linalg.inv(photo.scaling)) for part, photo in zip(matches.numpy_points(), photos, strict=True)
    ]
    sizes = [
        None if part is None else part.numpy() / photo.scaling[0, 0]
        for part, photo in zip((matches.keypoint_sizes0, matches.keypoint_sizes1), photos, strict=True)
    ]
    motions = group_motions(matches, kept) if with_motions and overlap.found else None
    assert matches.ratio is not None and matches.mutual is not None and matches.indices is not None
    return {
        "photos": [
            {"name": photo.name, "width": photo.size[0], "height": photo.size[1], "keypoints": len(features)}
            for photo, features in zip(photos, (found.features0, found.features1), strict=True)
        ],
        "detector": found.detector,
        "pruner": found.pruner,
        "threshold": score_of(decision),
        "kept": int(kept.mask.sum()),
        "points0": _rounded(points[0], PIXEL_DIGITS),
        "points1": _rounded(points[1], PIXEL_DIGITS),
        "mask": kept.mask.tolist(),
        "scores": _rounded(kept.scores, SCORE_DIGITS),
        "ratio": _rounded(matches.ratio.numpy(), SCORE_DIGITS),
        "mutual": matches.mutual.tolist(),
        "keypoint_sizes0": _rounded(sizes[0], PIXEL_DIGITS),
        "keypoint_sizes1": _rounded(sizes[1], PIXEL_DIGITS),
        "indices": matches.indices.tolist(),
        "conflicting": conflicting(found).tolist(),
        "overlap": {
            "found": overlap.found,
            "consistent": overlap.consistent,
            "tested": overlap.tested,
            "log10_false_alarms": overlap.log10_nfa if math.isfinite(overlap.log10_nfa) else None,
            "in_words": overlap_in_words(found),
        },
        "cameras": {
            "source": cameras.source,
            "K0": None if cameras.K0 is None else cameras.K0.tolist(),
            "K1": None if cameras.K1 is None else cameras.K1.tolist(),
        },
        "pose": None
        if found.pose is None
        else {
            "R": found.pose.R.tolist(),
            "t": found.pose.t.tolist(),
            "inliers": int(found.pose.inliers.sum()),
            "parallax_degrees": found.parallax,
            "rotation_only": found.rotation_only,
            "estimator": found.estimator,
        },
        "pose_in_words": pose_in_words(found, cameras),
        "fundamental": fundamental(found, photos),
        "motions": None if motions is None else {**motions.to_dict(), "labels": motions.labels.tolist()},
        "milliseconds": {step: round(taken, 1) for step, taken in found.milliseconds.items()},
    }


def conflicting(found: PhotoMatches) -> np.ndarray:
    """[N] bool: matches that share a point with a better one and lie apart from it in the other photo."""
    logits = torch.as_tensor(found.kept.logits)[None]
    # Whose logit would be lowered; those of the best never are.
    lowered = penalize_conflicts(logits, found.matches.normalized().float()[None], math.e)
    return (lowered < logits)[0].numpy()


def fundamental(found: PhotoMatches, photos: tuple[Photo, Photo]) -> list[list[float]] | None:
    """[3 x 3] F with p1^T F p0 = 0 in pixels of the photos that were sent: of the pose, else of the kept matches."""
    matches = found.matches
    if not found.overlap.found:
        return None
    F: torch.Tensor | None
    if found.pose is not None and matches.K0 is not None and matches.K1 is not None:
        E = geometry.essential_from_pose(torch.from_numpy(found.pose.R), torch.from_numpy(found.pose.t))
        F = geometry.fundamental_from_essential(E, matches.K0.double(), matches.K1.double())
    else:
        F = estimate_fundamental(matches[found.kept.mask])
    if F is None:
        return None
    sent = photos[1].scaling.T @ F.numpy() @ photos[0].scaling
    return (sent / np.linalg.norm(sent)).tolist()


def overlap_in_words(found: PhotoMatches) -> str:
    overlap = found.overlap
    agree = f"{overlap.consistent} of {overlap.tested} mutual matches agree on a common geometry"
    if overlap.found:
        return f"The photos show the same scene: {agree}."
    return f"The photos do not seem to show the same scene: {agree}, no more than chance would give."


def pose_in_words(found: PhotoMatches, cameras: Cameras) -> str:
    """How the camera moved between the photos; without cameras, what would be needed."""
    if not found.overlap.found:
        return "No pose: the photos have to show the same scene."
    if cameras.source is None:
        return "No pose: the focal length is not known. Enter it to get the pose."
    if found.pose is None:
        return "No pose was found."
    R, t = found.pose.R, found.pose.t
    angle = math.degrees(math.acos(min(1.0, max(-1.0, (float(np.trace(R)) - 1) / 2))))
    turned = f"The camera turned by {angle:.1f} degrees"
    if found.rotation_only:
        return f"{turned} and hardly moved, so only the rotation can be trusted."
    # Of the first camera: x to the right, y down, z forward.
    centre = -R.T @ t
    words = [
        (positive if value > 0 else negative)
        for value, positive, negative in zip(
            centre, ("right", "down", "forward"), ("left", "up", "backward"), strict=True
        )
        if abs(value) >= WORTH_A_WORD
    ]
    return f"{turned} and moved {' and '.join(words)}. {int(found.pose.inliers.sum())} matches agree with this."


def _moved(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return points * np.diag(matrix)[:2] + matrix[:2, 2]


def _rounded(values: np.ndarray | None, digits: int) -> list[Any] | None:
    return None if values is None else np.asarray(values, np.float64).round(digits).tolist()
