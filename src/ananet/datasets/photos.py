"""Features of photos with known cameras or homographies, for training pairs and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ananet.core.cameras import calibrate, rotate_camera, undistort_points
from ananet.datasets.base import PosedImage
from ananet.errors import InputError
from ananet.features import Detector, Features, load_detector
from ananet.features.opencv import OpenCVDetector
from ananet.io.images import read_image, resize


@dataclass(frozen=True, eq=False)
class PhotoFeatures:
    """Undistorted features of a photo, and its camera."""

    features: Features
    K: np.ndarray
    """[3 x 3] camera matrix of the photo as turned and scaled; without a camera, what maps the photo's own pixels to
    those of the features."""

    def rays(self) -> np.ndarray:
        """[N x 2] float64 calibrated points."""
        return calibrate(self.features.points.astype(np.float64), self.K)

    def strongest(self, share: float) -> PhotoFeatures:
        """Return this share of the keypoints, the first ones, at least one."""
        count = max(1, round(share * len(self.features)))
        return self if share == 1 else PhotoFeatures(self.features[:count], self.K)


def load_photo_detector(name: str, max_keypoints: int | None, device: str = "auto") -> Detector:
    """Load a detector for `photo_features`, which scales photos itself.

    OpenCV's detectors then scale no further; networks do, as they need gigabytes for large photos.
    """
    detector = load_detector(name, device=device, max_keypoints=max_keypoints)
    if isinstance(detector, OpenCVDetector) and "longest_side" not in name:
        detector.longest_side = None
    return detector


def photo_features(
    image: PosedImage,
    detector: Detector,
    *,
    turns: int = 0,
    scale: float = 1.0,
    longest_side: int | None = None,
    original_pixels: bool = False,
    pixels: np.ndarray | None = None,
) -> PhotoFeatures:
    """Return the features of a photo that is turned, scaled and undistorted.

    Args:
        turns: quarter turns counter-clockwise.
        scale: of the photo for detection.
        longest_side: if given, the scale that makes this the longest side.
        original_pixels: return points and K in pixels of the unscaled photo.
        pixels: what `read_posed_image` gives, if the photo is read already.
    """
    if turns and image.distortion is not None:
        raise InputError(f"pair: expected an undistorted photo where it is to be turned, got {image.distortion}")
    if turns and detector.needs_path:
        raise InputError(f"{image.path}: expected an upright photo for stored features, the pair needs it turned")
    pixels = read_posed_image(image) if pixels is None else pixels
    K = rotate_camera(image.K, (pixels.shape[1], pixels.shape[0]), turns)
    pixels = np.ascontiguousarray(np.rot90(pixels, turns))
    features, to_scaled = scaled_features(pixels, image.path, detector, scale=scale, longest_side=longest_side)
    if original_pixels:
        features = _unscaled(features, to_scaled, (pixels.shape[1], pixels.shape[0]))
    else:
        K = to_scaled @ K
    points = undistort_points(features.points, K, image.distortion).astype(np.float32)
    # Points at the edge of an extreme lens have no place in a pinhole camera.
    seen = np.flatnonzero(np.isfinite(points).all(axis=1))
    return PhotoFeatures(replace(features, points=points)[seen], K)


def scaled_features(
    pixels: np.ndarray, path: Path, detector: Detector, *, scale: float = 1.0, longest_side: int | None = None
) -> tuple[Features, np.ndarray]:
    """The features of a photo scaled for detection, and the [3 x 3] map from its pixels to theirs.

    Args:
        path: the photo's file, for detectors that look features up.
        scale: of the photo.
        longest_side: if given, the scale that makes this the longest side.
    """
    size = (pixels.shape[1], pixels.shape[0])
    if longest_side is not None:
        scale = longest_side / max(size)
    if scale == 1:
        return detector.detect(pixels, path), np.eye(3)
    resized, to_resized = resize(pixels, scale)
    return detector.detect(resized, path, size), to_resized


def _unscaled(features: Features, to_scaled: np.ndarray, size: tuple[int, int]) -> Features:
    """The same keypoints in pixels of the photo before it was scaled."""
    factor = to_scaled[[0, 1], [0, 1]]
    points = ((features.points - to_scaled[:2, 2]) / factor).astype(np.float32)
    sizes = None if features.sizes is None else (features.sizes / factor.mean()).astype(np.float32)
    return replace(features, points=points, sizes=sizes, image_size=size)


def read_posed_image(image: PosedImage) -> np.ndarray:
    """Read a photo in the orientation that its camera was calibrated for: as viewers show it, or as stored."""
    sizes = []
    for upright in (True, False):
        picture = read_image(image.path, upright)
        sizes.append((picture.shape[1], picture.shape[0]))
        if image.size in (None, sizes[-1]):
            return picture
    raise InputError(f"{image.path}: its camera is for {image.size} pixels, the photo has {sizes[0]}")
