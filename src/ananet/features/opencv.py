"""OpenCV's SIFT and ORB."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import cv2
import numpy as np

from ananet._util.checks import check_positive, check_whole_number
from ananet._util.defaults import LONGEST_SIDE
from ananet.features.base import Features, ImageDetector, keypoints_for_size
from ananet.io.images import to_grey

# SIFT needs about 180 bytes per pixel. Images above this size are processed one at a time, to save memory.
LARGE_IMAGE = 4_000_000
_large_image = threading.Lock()


class OpenCVDetector(ImageDetector):
    """Base class. OpenCV's detector is made for each image, since it is not thread-safe."""

    # OpenCV releases the GIL, and uses a second core only part of the time.
    threads = 2

    @abstractmethod
    def create(self, max_keypoints: int) -> Any:
        """OpenCV's detector."""

    def describe(self, descriptors: np.ndarray) -> np.ndarray:
        """Descriptors as they are compared, from OpenCV's."""
        return descriptors

    def extract(self, image: np.ndarray) -> Features:
        grey = to_grey(image)
        size = (grey.shape[1], grey.shape[0])
        most = keypoints_for_size(size) if self.max_keypoints is None else self.max_keypoints
        extractor = self.create(most)
        # OpenCV fails on a single row of pixels.
        with _large_image if grey.size > LARGE_IMAGE else nullcontext():
            keypoints, descriptors = extractor.detectAndCompute(grey, None) if min(grey.shape) > 1 else ((), None)
        if not keypoints or descriptors is None:
            kind = np.float32 if extractor.descriptorType() == cv2.CV_32F else np.uint8
            points, none = np.zeros((0, 2), np.float32), np.zeros(0, np.float32)
            return Features(points, np.zeros((0, extractor.descriptorSize()), kind), size, none, none, none)
        # OpenCV may return more, since it counts a keypoint with two orientations once.
        shapes = np.array([(each.size, each.angle, each.response) for each in keypoints], np.float32)
        sizes, angles, response = shapes.T
        strongest = np.argsort(-response, kind="stable")[:most]
        return Features(
            cv2.KeyPoint.convert(keypoints)[strongest],
            self.describe(descriptors[strongest]),
            size,
            sizes[strongest],
            np.radians(angles[strongest]),
            response[strongest],
        )


class SIFT(OpenCVDetector):
    """OpenCV's SIFT with descriptors of unit length.

    Args:
        contrast_threshold: a low one finds keypoints in flat parts.
        root: compare histograms by Hellinger's distance instead of the Euclidean one (RootSIFT, Arandjelovic and
            Zisserman 2012); the paper does not.
    """

    name = "sift"

    def __init__(
        self,
        max_keypoints: int | None = None,
        contrast_threshold: float = 1e-5,
        longest_side: int | None = LONGEST_SIDE,
        root: bool = True,
    ) -> None:
        super().__init__(max_keypoints, longest_side)
        self.contrast_threshold = check_positive("contrast_threshold", contrast_threshold)
        self.root = root

    def create(self, max_keypoints: int) -> Any:
        return cv2.SIFT_create(nfeatures=max_keypoints, contrastThreshold=self.contrast_threshold)

    def describe(self, descriptors: np.ndarray) -> np.ndarray:
        norm = np.linalg.norm(descriptors, ord=1 if self.root else 2, axis=1, keepdims=True)
        unit = descriptors / np.maximum(norm, 1e-12)
        # The square root of numbers that sum to 1 has unit length.
        return np.sqrt(unit) if self.root else unit


class ORB(OpenCVDetector):
    """OpenCV's ORB: binary descriptors, fast on a CPU; a `fast_threshold` of 0 is for all corners."""

    name = "orb"

    def __init__(
        self, max_keypoints: int | None = None, fast_threshold: int = 0, longest_side: int | None = LONGEST_SIDE
    ) -> None:
        super().__init__(max_keypoints, longest_side)
        self.fast_threshold = check_whole_number("fast_threshold", fast_threshold, 0, 255)

    def create(self, max_keypoints: int) -> Any:
        return cv2.ORB_create(nfeatures=max_keypoints, fastThreshold=self.fast_threshold)
