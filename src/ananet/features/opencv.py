"""OpenCV's SIFT and ORB."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import cv2
import numpy as np

from ananet._util.checks import check_positive, check_whole_number
from ananet._util.defaults import LONGEST_SIDE, MAX_KEYPOINTS
from ananet.features.base import Features, ImageDetector

# SIFT needs about 180 bytes per pixel. Images above this size are processed one at a time, to save memory.
LARGE_IMAGE = 4_000_000
_large_image = threading.Lock()


class OpenCVDetector(ImageDetector):
    """Base class. OpenCV's detector is made for each image, since it is not thread-safe."""

    # OpenCV releases the GIL, and uses a second core only part of the time.
    threads = 2

    @abstractmethod
    def create(self) -> Any:
        """OpenCV's detector."""

    def extract(self, image: np.ndarray) -> Features:
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
        size = (grey.shape[1], grey.shape[0])
        extractor = self.create()
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
        strongest = np.argsort(-response, kind="stable")[: self.max_keypoints]
        descriptors = descriptors[strongest]
        if descriptors.dtype != np.uint8:
            descriptors = descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
        return Features(
            cv2.KeyPoint.convert(keypoints)[strongest],
            descriptors,
            size,
            sizes[strongest],
            np.radians(angles[strongest]),
            response[strongest],
        )


class SIFT(OpenCVDetector):
    """OpenCV's SIFT with unit-length descriptors; a low `contrast_threshold` finds keypoints in flat parts."""

    name = "sift"

    def __init__(
        self,
        max_keypoints: int = MAX_KEYPOINTS,
        contrast_threshold: float = 1e-5,
        longest_side: int | None = LONGEST_SIDE,
    ) -> None:
        super().__init__(max_keypoints, longest_side)
        self.contrast_threshold = check_positive("contrast_threshold", contrast_threshold)

    def create(self) -> Any:
        return cv2.SIFT_create(nfeatures=self.max_keypoints, contrastThreshold=self.contrast_threshold)


class ORB(OpenCVDetector):
    """OpenCV's ORB: binary descriptors, fast on a CPU; a `fast_threshold` of 0 is for all corners."""

    name = "orb"

    def __init__(
        self, max_keypoints: int = MAX_KEYPOINTS, fast_threshold: int = 0, longest_side: int | None = LONGEST_SIDE
    ) -> None:
        super().__init__(max_keypoints, longest_side)
        self.fast_threshold = check_whole_number("fast_threshold", fast_threshold, 0, 255)

    def create(self) -> Any:
        return cv2.ORB_create(nfeatures=self.max_keypoints, fastThreshold=self.fast_threshold)
