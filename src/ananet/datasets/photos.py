"""From photos with known cameras to features, for training pairs and evaluation alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ananet.core.cameras import calibrate, rotate_camera, undistort_points
from ananet.datasets.base import PosedImage
from ananet.errors import InputError
from ananet.features import Detector, Features
from ananet.features.stored import StoredFeatures
from ananet.io.images import read_image, resize


@dataclass(frozen=True, eq=False)
class PhotoFeatures:
    """Features of a photo, free of lens distortion, and the camera that saw them."""

    features: Features
    K: np.ndarray
    """[3 x 3] of the photo as the features have it: upright, at its size."""

    def rays(self) -> np.ndarray:
        """[N x 2] float64 calibrated points."""
        return calibrate(self.features.points.astype(np.float64), self.K)

    def strongest(self, share: float) -> PhotoFeatures:
        """The first so many keypoints, at least one."""
        count = max(1, round(share * len(self.features)))
        return self if share == 1 else PhotoFeatures(self.features[:count], self.K)


def photo_features(
    image: PosedImage,
    detector: Detector,
    *,
    turns: int = 0,
    scale: float = 1.0,
    longest_side: int | None = None,
    original_pixels: bool = False,
) -> PhotoFeatures:
    """Features of a photo that is turned, scaled and freed from distortion.

    Args:
        turns: quarter turns counter-clockwise.
        scale: of the photo before keypoints are detected.
        longest_side: where given, the scale that makes this the longest side.
        original_pixels: whether points count in the pixels of the unscaled photo, and K is its camera.
    """
    if turns and image.distortion is not None:
        raise InputError(f"pair: expected an undistorted photo where it is to be turned, got {image.distortion}")
    if turns and isinstance(detector, StoredFeatures):
        raise InputError(f"{image.path}: stored features are those of the upright photo, and the pair wants it turned")
    pixels = read_posed_image(image)
    size = (pixels.shape[1], pixels.shape[0])
    K = rotate_camera(image.K, size, turns)
    pixels = np.ascontiguousarray(np.rot90(pixels, turns))
    if longest_side is not None:
        scale = longest_side / max(size)
    if scale == 1:
        features = detector.detect_file(image.path, pixels)
    else:
        resized, to_resized = resize(pixels, scale)
        features = detector.detect_file(image.path, resized, (pixels.shape[1], pixels.shape[0]))
        if original_pixels:
            factor = to_resized[[0, 1], [0, 1]]
            features = replace(
                features,
                points=((features.points - to_resized[:2, 2]) / factor).astype(np.float32),
                sizes=None if features.sizes is None else (features.sizes / factor.mean()).astype(np.float32),
                image_size=(pixels.shape[1], pixels.shape[0]),
            )
        else:
            K = to_resized @ K
    points = undistort_points(features.points, K, image.distortion).astype(np.float32)
    # At the edge of an extreme lens a pinhole camera sees nothing.
    seen = np.flatnonzero(np.isfinite(points).all(axis=1))
    return PhotoFeatures(replace(features, points=points)[seen], K)


def read_posed_image(image: PosedImage) -> np.ndarray:
    """The photo in the orientation that its camera was calibrated for: as viewers show it, or as it is stored."""
    sizes = []
    for upright in (True, False):
        picture = read_image(image.path, upright)
        sizes.append((picture.shape[1], picture.shape[0]))
        if image.size in (None, sizes[-1]):
            return picture
    raise InputError(f"{image.path}: its camera is for {image.size} pixels, the photo has {sizes[0]}")
