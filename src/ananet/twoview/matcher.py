"""The whole pipeline in one function: two photos to kept matches, an overlap test and a pose."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from ananet._util.defaults import DETECTOR, ESTIMATOR
from ananet._util.stopwatch import Stopwatch
from ananet.core.cameras import implausible
from ananet.core.correspondences import Array, Correspondences
from ananet.errors import InputError
from ananet.estimators import Estimator, Pose, load_estimator
from ananet.features import Detector, Features, Matcher, load_detector, load_matcher, match
from ananet.io.images import read_image
from ananet.pruners import Pruned, Pruner, load
from ananet.twoview.overlap import Overlap, check_overlap, measure_parallax
from ananet.twoview.refinement import Refined
from ananet.twoview.refinement import refine as refine_matches

# Degrees. Below, the direction of the movement is a matter of noise.
MIN_PARALLAX = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class PhotoMatches:
    """Matches of two photos, which of them are kept, and the pose."""

    features0: Features
    """Keypoints of the first photo."""
    features1: Features
    """Keypoints of the second photo."""
    matches: Correspondences
    """All putative matches; their `indices` point into the features."""
    kept: Pruned
    """The pruner's answer: mask, scores and logits of all matches."""
    overlap: Overlap
    """Whether the photos show the same scene."""
    pose: Pose | None
    """Estimated from the kept matches; its `inliers` are among them. None without cameras, without overlap, or if the
    estimator has no answer."""
    detector: str
    """Its name."""
    pruner: str
    """Name of the pruner; of `auto`, the network that it chose."""
    estimator: str
    """Its name."""
    milliseconds: dict[str, float]
    """Of each step."""
    parallax: float | None = None
    """Degrees, median over the pose's inliers: how much the camera's movement shows. None without a pose."""
    refined: Refined | None = None
    """Result of the refinement, for kept matches only; `matches` has the moved points. None without refinement or
    without overlap."""

    def __repr__(self) -> str:
        pose = "no pose" if self.pose is None else f"pose with {int(self.pose.inliers.sum())} inliers"
        overlap = "" if self.overlap.found else ", no overlap"
        camera = "" if self.camera_doubt is None else ", camera doubtful"
        kept = f"{int(self.kept.mask.sum())} of {len(self.matches)} kept by {self.pruner}"
        return f"PhotoMatches({kept}{overlap}, {pose}{camera})"

    @property
    def camera_doubt(self) -> str | None:
        """Why one of the camera matrices hardly belongs to its photo, in words; None if both may."""
        for K, features in ((self.matches.K0, self.features0), (self.matches.K1, self.features1)):
            doubt = None if K is None else implausible(K, features.image_size)
            if doubt is not None:
                return doubt
        return None

    @property
    def rotation_only(self) -> bool:
        """Whether the camera hardly moved, so that only the pose's rotation can be trusted."""
        return self.parallax is not None and self.parallax < MIN_PARALLAX


def match_photos(
    image0: np.ndarray | str | Path | Features,
    image1: np.ndarray | str | Path | Features,
    *,
    detector: str | Detector = DETECTOR,
    matcher: str | Matcher = "nearest",
    pruner: str | Path | Pruner | None = None,
    estimator: str | Estimator = ESTIMATOR,
    K0: Array | None = None,
    K1: Array | None = None,
    device: str | torch.device = "auto",
    names: tuple[str, str] | None = None,
    refine: bool = False,
    photos: tuple[np.ndarray, np.ndarray] | None = None,
    neighbours: int = 1,
) -> PhotoMatches:
    """Match two photos, prune the matches, and estimate the pose if cameras are given.

    Args:
        image0, image1: [H x W] or [H x W x 3] (BGR) uint8, or files, whose EXIF orientation is applied. Or their
            `Features`, by the same detector, if a photo is part of many pairs.
        detector, matcher, pruner, estimator: names with options, as `load_detector`, `load_matcher`, `load` and
            `load_estimator` take them, or what these return; to match many pairs, load them once.
        K0, K1: [3 x 3] camera matrices of the upright photos. Without them there is no pose.
        device: for what is loaded by name.
        names: of the photos in error messages; their paths by default.
        refine: subpixel refinement, which moves the second points of kept matches to where both photos agree best.
            Points become more precise; a pose hardly changes.
        photos: the photos as arrays, for refinement if `image0` and `image1` are `Features`.
        neighbours: how many nearest neighbours of a keypoint are its putative matches, if `matcher` is a name.
    """
    detector = load_detector(detector, device=device) if isinstance(detector, str) else detector
    pruner = pruner if isinstance(pruner, Pruner) else load(pruner, device=device)
    estimator = load_estimator(estimator) if isinstance(estimator, str) else estimator
    if isinstance(matcher, str):
        matcher = load_matcher(matcher, detector=detector.name, device=device, neighbours=neighbours)
    watch = Stopwatch()
    images = (image0, image1)
    called = names or [str(x) if isinstance(x, str | Path) else f"image{n}" for n, x in enumerate(images)]
    (read0, features0), (read1, features1) = _both(
        detector.threads, lambda n: _read_and_detect(detector, images[n], called[n])
    )
    pixels = photos or [image for image in (read0, read1) if not isinstance(image, Features)]
    if refine and len(pixels) < 2:
        raise InputError("refine: needs the photos, expected image0 and image1 or photos, got Features")
    watch.lap("detect")
    matches = matcher(features0, features1, K0=K0, K1=K1)
    watch.lap("match")
    kept = pruner(matches)
    watch.lap("prune")
    nearest = match(features0, features1) if matches.mutual is None else None
    overlap = check_overlap(matches, kept.mask, nearest)
    watch.lap("verify")
    refined = None
    if refine and overlap.found:
        refined = refine_matches(pixels[0], pixels[1], matches[kept.mask], device=device)
        points1 = matches.points1.clone()
        points1[torch.as_tensor(kept.mask)] = refined.matches.points1
        matches = matches.replace(points1=points1)
        watch.lap("refine")
    pose, parallax = None, None
    if overlap.found and matches.calibrated:
        pose = estimator.pose(matches, kept)
        if pose is not None:
            parallax = measure_parallax(matches[pose.inliers], pose.R, estimator.ray_threshold(matches))
        watch.lap("pose")
    return PhotoMatches(
        features0,
        features1,
        matches,
        kept,
        overlap,
        pose,
        detector.name,
        kept.pruner,
        estimator.name,
        watch.milliseconds,
        parallax,
        refined,
    )


def _both(threads: int, function: Callable[[int], tuple[Any, Features]]) -> list[tuple[Any, Features]]:
    """function(0) and function(1), side by side if there is more than one thread."""
    if threads == 1:
        return [function(0), function(1)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, (0, 1)))


def _read_and_detect(
    detector: Detector, image: np.ndarray | str | Path | Features, name: str
) -> tuple[np.ndarray | Features, Features]:
    if not isinstance(image, str | Path):
        return image, find_features(detector, image, name)
    read = read_image(image)
    return read, find_features(detector, read, name, Path(image))


def find_features(detector: Detector, image: np.ndarray | Features, name: str, path: Path | None = None) -> Features:
    """The keypoints of one photo, at least one; `name` is the photo's in error messages, `path` that of its file."""
    if isinstance(image, Features):
        found = image
    else:
        try:
            found = detector.detect(image) if path is None else detector.detect_file(path, image)
        except (cv2.error, MemoryError, torch.OutOfMemoryError) as error:
            # Too many pixels for OpenCV, or for the memory of the machine or of its GPU.
            height, width = image.shape[:2]
            reason = getattr(error, "err", "") or str(error) or "out of memory"
            raise InputError(
                f"{name}: expected a photo that the detector can work on, got {width} x {height} pixels ({reason})"
            ) from None
    if len(found) == 0:
        width, height = found.image_size
        raise InputError(f"{name}: no keypoints found in this image of {width} x {height} pixels")
    return found
