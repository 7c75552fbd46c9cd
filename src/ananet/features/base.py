"""Features of an image, and the base classes of detectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_whole_number, is_number
from ananet._util.defaults import LONGEST_SIDE, MAX_KEYPOINTS
from ananet.errors import InputError

# More keypoints than any photo has.
KEYPOINT_LIMIT = 10_000_000
# The smallest longest side that a detector works on.
MIN_SIDE = 32
PER_KEYPOINT = ("points", "descriptors", "sizes", "angles", "scores")


@dataclass(frozen=True, eq=False)
class Features:
    """Keypoints of one image, strongest first. Tensors are accepted too, and become arrays."""

    points: np.ndarray
    """[N x 2] float32 pixel coordinates; the centre of the first pixel is (0, 0)."""
    descriptors: np.ndarray
    """[N x D] real numbers, or [N x bytes] uint8 for binary ones."""
    image_size: tuple[int, int]
    """(width, height) of the image."""
    sizes: np.ndarray | None = None
    """[N] float32 diameters of the keypoints in pixels; None if unknown."""
    angles: np.ndarray | None = None
    """[N] float32 orientations in radians, from the x axis towards the y axis; None if unknown."""
    scores: np.ndarray | None = None
    """[N] float32 strengths on the detector's own scale."""

    def __post_init__(self) -> None:
        for name in PER_KEYPOINT:
            values = getattr(self, name)
            if values is not None or name in ("points", "descriptors"):
                array = as_array(name, values)
                object.__setattr__(self, name, array if name == "descriptors" else array.astype("f4", copy=False))
        object.__setattr__(self, "image_size", check_image_size(self.image_size))
        count = len(self.points)
        if self.descriptors.ndim != 2 or len(self.descriptors) != count:
            raise InputError(f"descriptors: expected shape ({count}, D), got {self.descriptors.shape}")
        for name in ("points", "sizes", "angles", "scores"):
            values, shape = getattr(self, name), (count, 2) if name == "points" else (count,)
            if values is not None and values.shape != shape:
                raise InputError(f"{name}: expected shape {shape}, got {values.shape}")

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, which: np.ndarray | slice) -> Features:
        """The keypoints that a mask, an index array or a slice picks."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in PER_KEYPOINT}
        picked: dict[str, Any] = {name: None if values is None else values[which] for name, values in arrays.items()}
        return replace(self, **picked)

    def in_pixels_of(self, size: tuple[int, int]) -> Features:
        """The same keypoints in pixels of the image at another (width, height)."""
        if size == self.image_size:
            return self
        factor = np.array(size) / self.image_size
        # Scaling keeps the image's corner, half a pixel before the first pixel's centre.
        points = ((self.points + 0.5) * factor - 0.5).astype(np.float32)
        sizes = None if self.sizes is None else (self.sizes * factor.mean()).astype(np.float32)
        return replace(self, points=points, sizes=sizes, image_size=size)


class Detector(ABC):
    """Gives the keypoints of images. Most detectors are `ImageDetector`s.

    Args:
        max_keypoints: number of keypoints to keep, the strongest ones; None leaves it to the detector.
        longest_side: larger images are scaled down to this first; None for never. Points are those of the image.
    """

    name: str
    max_keypoints: int | None
    longest_side: int | None = LONGEST_SIDE
    needs_path: bool = False
    """Whether features are looked up by file name, not found in pixels."""
    threads: int = 1
    """How many photos to work on at a time, each in its own thread."""

    def __init__(self, max_keypoints: int | None = None, longest_side: int | None = LONGEST_SIDE) -> None:
        if max_keypoints is not None:
            max_keypoints = check_whole_number("max_keypoints", max_keypoints, 1, KEYPOINT_LIMIT)
        self.max_keypoints = max_keypoints
        self.longest_side = None if longest_side is None else check_whole_number("longest_side", longest_side, MIN_SIDE)

    @abstractmethod
    def detect(self, image: np.ndarray, path: Path | None = None, size: tuple[int, int] | None = None) -> Features:
        """Return the features of one image, [H x W] or [H x W x 3] (BGR) uint8.

        Args:
            path: the photo's file. Detectors that look features up by name (`needs_path`) raise `InputError` without.
            size: (width, height) of the photo in the file, if the image is the photo at another size.
        """

    def batch(self, images: Sequence[np.ndarray]) -> list[Features]:
        """Return the features of many images, each of its own size."""
        return [self.detect(image) for image in images]

    def __repr__(self) -> str:
        return f"<detector {self.name}>"


class ImageDetector(Detector):
    """Finds keypoints in pixels. A subclass implements `extract`."""

    @abstractmethod
    def extract(self, image: np.ndarray) -> Features:
        """Return the features of an image that was checked and scaled, strongest first.

        At most `max_keypoints`; if that is None, as many as the detector chooses.
        """

    def detect(self, image: np.ndarray, path: Path | None = None, size: tuple[int, int] | None = None) -> Features:
        from ananet.io.images import reduce  # networks alone need no OpenCV

        check_image(image)
        return self.extract(reduce(image, self.longest_side)).in_pixels_of((image.shape[1], image.shape[0]))


def keypoints_for_size(size: tuple[int, int]) -> int:
    """How many keypoints to keep of an image of this (width, height), where the user does not say.

    It grows with the sides of the image (docs/keypoints.md says what was measured).

    >>> [keypoints_for_size(size) for size in ((4000, 3000), (1024, 768), (640, 480))]
    [8000, 7094, 4434]
    """
    megapixels = size[0] * size[1] / 1e6
    return max(1, round(MAX_KEYPOINTS * min(1.0, math.sqrt(megapixels))))


def as_array(name: str, values: Any) -> np.ndarray:
    """An array or a tensor, on any device, as an array of real numbers."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_quantized or values.device.type == "meta":
            raise InputError(f"{name}: expected an array or a plain tensor, got a sparse, quantised or meta one")
        values = values.detach().cpu()
        # numpy knows no bfloat16.
        values = (values.float() if values.dtype.is_floating_point else values).numpy()
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise InputError(f"{name}: expected an array or a tensor, got {type(values).__name__}")
    if values.dtype.kind not in "fiu":
        raise InputError(f"{name}: expected real numbers, got {values.dtype}")
    return values


def check_image_size(size: Any) -> tuple[int, int]:
    """(width, height) as whole numbers."""
    values = size.tolist() if isinstance(size, np.ndarray) else size
    pair = isinstance(values, list | tuple) and len(values) == 2
    if not pair or not all(is_number(value) and 1 <= value < 2**31 for value in values):
        raise InputError(f"image_size: expected (width, height) in pixels, got {size!r}")
    return int(values[0]), int(values[1])


def check_image(image: Any) -> None:
    shape = getattr(image, "shape", ())
    if getattr(image, "dtype", None) != np.uint8 or 0 in shape or not (len(shape) == 2 or shape[2:] == (3,)):
        given = f"{image.dtype} {shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"image: expected a uint8 array of shape (H, W) or (H, W, 3), got {given}")
