"""What every detector has in common: an image in, keypoints with descriptors out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ananet.checks import check_whole_number
from ananet.defaults import MAX_KEYPOINTS
from ananet.errors import InputError

# More than any photo has, and little enough to be asked for in earnest.
MOST_KEYPOINTS = 10_000_000


@dataclass(frozen=True, eq=False)
class Features:
    """Keypoints of one image, strongest first."""

    points: np.ndarray
    """[N x 2] float32 pixel coordinates."""
    descriptors: np.ndarray
    """[N x D] float32, or [N x bytes] uint8 for binary ones."""
    image_size: tuple[int, int]
    """(width, height) of the image."""
    sizes: np.ndarray | None = None
    """[N] float32 diameters of the keypoints in pixels; None where the detector knows none."""
    angles: np.ndarray | None = None
    """[N] float32 orientations in radians, from the x axis towards the y axis; None where there are none."""
    scores: np.ndarray | None = None
    """[N] float32 strengths on the detector's own scale."""

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, which: np.ndarray | slice) -> Features:
        """The keypoints that a mask, an index array or a slice picks."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "image_size"}
        picked: dict[str, Any] = {name: None if values is None else values[which] for name, values in arrays.items()}
        return replace(self, **picked)


class Detector(ABC):
    """Finds keypoints. A subclass implements `extract`, for images that were checked."""

    name: str
    max_keypoints: int

    def __init__(self, max_keypoints: int = MAX_KEYPOINTS) -> None:
        self.max_keypoints = check_whole_number("max_keypoints", max_keypoints, 1, MOST_KEYPOINTS)

    @abstractmethod
    def extract(self, image: np.ndarray) -> Features:
        """Features of an image, [H x W] or [H x W x 3] (BGR) uint8: at most `max_keypoints`, strongest first."""

    def detect(self, image: np.ndarray) -> Features:
        """Features of one image, [H x W] or [H x W x 3] (BGR) uint8."""
        return self.batch([image])[0]

    def batch(self, images: Sequence[np.ndarray]) -> list[Features]:
        """Features of many images, each of its own size. Detectors that gain by it work on several at once."""
        for image in images:
            check_image(image)
        return [self.extract(image) for image in images]

    def __repr__(self) -> str:
        return f"<detector {self.name}>"


def check_image(image: Any) -> None:
    shape = getattr(image, "shape", ())
    if getattr(image, "dtype", None) != np.uint8 or 0 in shape or not (len(shape) == 2 or shape[2:] == (3,)):
        given = f"{image.dtype} {shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"image: expected a uint8 array of shape (H, W) or (H, W, 3), got {given}")
