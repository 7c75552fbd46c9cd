"""The whole road in one function: two photos to kept matches, a verdict on their overlap, and a pose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ananet.correspondences import Array, Correspondences
from ananet.defaults import DETECTOR, ESTIMATOR
from ananet.errors import InputError
from ananet.estimators import Estimator, Pose, load_estimator
from ananet.features import Detector, Features, load_detector, match
from ananet.images import read_image
from ananet.overlap import Overlap, check_overlap
from ananet.pruners import Pruned, Pruner, load
from ananet.stopwatch import Stopwatch


@dataclass(frozen=True, eq=False)
class PhotoMatches:
    """What became of two photos."""

    features0: Features
    features1: Features
    matches: Correspondences
    """All putative matches; their `indices` point into the features."""
    kept: Pruned
    """The pruner's answer: mask, scores and logits, one of each per match."""
    overlap: Overlap
    """Whether the photos show the same thing at all."""
    pose: Pose | None
    """From the kept matches; None without cameras, without overlap, or where the estimator has no answer."""
    detector: str
    pruner: str
    estimator: str
    milliseconds: dict[str, float]
    """Of each step."""


def match_photos(
    image0: np.ndarray | str | Path,
    image1: np.ndarray | str | Path,
    *,
    detector: str | Detector = DETECTOR,
    pruner: str | Path | Pruner | None = None,
    estimator: str | Estimator = ESTIMATOR,
    K0: Array | None = None,
    K1: Array | None = None,
    device: str | torch.device = "auto",
    names: tuple[str, str] | None = None,
) -> PhotoMatches:
    """Match two photos, prune the matches, and estimate the pose if cameras are given.

    Args:
        image0, image1: [H x W] or [H x W x 3] (BGR) uint8, or files; those are turned upright as EXIF says.
        detector, pruner, estimator: names with options, as `load_detector`, `load` and `load_estimator` take them, or
            what these return; load them once where many pairs are matched.
        K0, K1: [3 x 3] camera matrices of the upright photos. Without them there is no pose.
        device: of what is loaded by name.
        names: of the photos in error messages; their paths unless given.
    """
    detector = load_detector(detector, device=device) if isinstance(detector, str) else detector
    pruner = pruner if isinstance(pruner, Pruner) else load(pruner, device=device)
    estimator = load_estimator(estimator) if isinstance(estimator, str) else estimator
    watch = Stopwatch()
    features = []
    for number, image in enumerate((image0, image1)):
        name = names[number] if names else str(image) if isinstance(image, str | Path) else f"image{number}"
        found = detector.detect(read_image(image) if isinstance(image, str | Path) else image)
        if len(found) == 0:
            width, height = found.image_size
            raise InputError(f"{name}: no keypoints found in this image of {width} x {height} pixels")
        features.append(found)
    features0, features1 = features
    watch.lap("detect")
    matches = match(features0, features1, K0=K0, K1=K1)
    watch.lap("match")
    kept = pruner(matches)
    watch.lap("prune")
    overlap = check_overlap(matches, kept.mask)
    watch.lap("verify")
    pose = None
    if overlap.found and matches.calibrated:
        pose = estimator.pose(matches[kept.mask])
        watch.lap("pose")
    return PhotoMatches(
        features0,
        features1,
        matches,
        kept,
        overlap,
        pose,
        detector.name,
        pruner.name,
        estimator.name,
        watch.milliseconds,
    )
