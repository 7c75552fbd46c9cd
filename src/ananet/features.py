"""Images to keypoints with descriptors, and descriptors to nearest-neighbour matches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ananet.correspondences import Array, Correspondences
from ananet.errors import InputError

DETECTORS = ("sift", "orb")
# Rows of the distance matrix that are held at once: 1024 x 8000 floats are 32 MB.
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Features:
    """Keypoints of one image."""

    points: np.ndarray
    """[N x 2] float32 pixel coordinates, strongest first."""
    descriptors: np.ndarray
    """[N x D] float32, or [N x bytes] uint8 for binary ones."""
    size: tuple[int, int]
    """(width, height) of the image."""

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, eq=False)
class NearestNeighbours:
    """For each descriptor of the first set, its nearest in the second."""

    index: np.ndarray
    """[N] int64 into the second set."""
    ratio: np.ndarray
    """[N] float32: distance to the nearest over that to the second nearest, in [0, 1]."""
    mutual: np.ndarray
    """[N] bool: whether the match is nearest in both directions."""


def read_image(path: str | Path, upright: bool = True) -> np.ndarray:
    """[H x W x 3] uint8 BGR, turned upright as its EXIF orientation says, like every viewer shows it.

    Camera matrices must belong to the upright image, unless `upright` is False, which gives the pixels as stored.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected an image file, got a directory")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    data = np.frombuffer(path.read_bytes(), np.uint8)
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(data, flags) if data.size else None
    if image is None:
        raise InputError(f"{path}: not an image that OpenCV can read")
    return image


def detect(image: np.ndarray, detector: str = "sift", max_keypoints: int = 2000) -> Features:
    """Keypoints and descriptors of an image.

    Args:
        image: [H x W] or [H x W x 3] (BGR) uint8.
        detector: "sift" as in the paper (contrast threshold 1e-5, unit-length descriptors) or "orb".
        max_keypoints: the strongest so many are kept.
    """
    shape = getattr(image, "shape", ())
    if getattr(image, "dtype", None) != np.uint8 or 0 in shape or not (len(shape) == 2 or shape[2:] == (3,)):
        given = f"{image.dtype} {shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"image: expected a uint8 array of shape (H, W) or (H, W, 3), got {given}")
    if not isinstance(max_keypoints, int) or max_keypoints < 1:
        raise InputError(f"max_keypoints: expected a whole number of at least 1, got {max_keypoints!r}")
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
    size = (grey.shape[1], grey.shape[0])
    extractor = _create_detector(detector, max_keypoints)
    no_descriptors = np.zeros((0, extractor.descriptorSize()), np.float32 if detector == "sift" else np.uint8)
    empty = Features(np.zeros((0, 2), np.float32), no_descriptors, size)
    if min(size) < 2:
        return empty  # OpenCV fails on a single row of pixels
    keypoints, descriptors = extractor.detectAndCompute(grey, None)
    if not keypoints:
        return empty
    # OpenCV may return more than it was asked for: a keypoint with two orientations counts once there.
    response = np.array([keypoint.response for keypoint in keypoints])
    strongest = np.argsort(-response, kind="stable")[:max_keypoints]
    points = cv2.KeyPoint.convert(keypoints)[strongest]
    descriptors = descriptors[strongest]
    if descriptors.dtype != np.uint8:
        descriptors = descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
    return Features(points, descriptors, size)


def _create_detector(detector: str, max_keypoints: int) -> Any:
    if detector == "sift":
        return cv2.SIFT_create(nfeatures=max_keypoints, contrastThreshold=1e-5)
    if detector == "orb":
        return cv2.ORB_create(nfeatures=max_keypoints, fastThreshold=0)
    raise InputError(f"detector: expected one of {', '.join(DETECTORS)}, got {detector!r}")


def nearest_neighbours(descriptors0: np.ndarray, descriptors1: np.ndarray) -> NearestNeighbours:
    """Nearest neighbour, ratio and mutual flag of every descriptor of the first set, in one pass.

    Float descriptors are compared by Euclidean distance, uint8 ones bit by bit (Hamming). Distances come from
    matrix products over blocks of rows, so no N x M matrix exists beyond a block.

    With a single descriptor in the second set there is no second nearest, and the ratio is 1. Where two of the
    first set are equally near to one of the second, the earlier one is the mutual match.
    """
    a, b = _as_vectors("descriptors0", descriptors0), _as_vectors("descriptors1", descriptors1)
    if a.shape[1] != b.shape[1] or (descriptors0.dtype == np.uint8) != (descriptors1.dtype == np.uint8):
        raise InputError(
            f"descriptors0 and descriptors1: expected the same kind and width, got {descriptors0.dtype} "
            f"{descriptors0.shape} and {descriptors1.dtype} {descriptors1.shape}"
        )
    count = len(a)
    if count == 0 or len(b) == 0:
        return NearestNeighbours(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, bool))
    # -|a - b|^2 / 2 = a.b - |a|^2 / 2 - |b|^2 / 2 is largest for the nearest. The squares ride along in the
    # product as two more columns, which spares passes over the block.
    half0, half1 = (0.5 * np.einsum("ij,ij->i", x, x)[:, None] for x in (a, b))
    a = np.concatenate([a, -half0, np.ones_like(half0)], axis=1)
    b = np.concatenate([b, np.ones_like(half1), -half1], axis=1).T.copy()
    index = np.empty(count, np.int64)
    best, second = np.empty(count, np.float32), np.full(count, -np.inf, np.float32)
    best_of_column = np.full(b.shape[1], -np.inf, np.float32)
    block = np.empty((min(ROWS_AT_ONCE, count), b.shape[1]), np.float32)
    for start in range(0, count, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, count))
        similarity = block[: rows.stop - start]
        np.matmul(a[rows], b, out=similarity)
        np.maximum(best_of_column, similarity.max(axis=0), out=best_of_column)
        index[rows] = similarity.argmax(axis=1)
        every = np.arange(rows.stop - start)
        best[rows] = similarity[every, index[rows]]
        similarity[every, index[rows]] = -np.inf
        second[rows] = similarity.max(axis=1)

    mutual = np.zeros(count, bool)
    candidates = np.flatnonzero(best >= best_of_column[index])
    _, first = np.unique(index[candidates], return_index=True)
    mutual[candidates[first]] = True
    # Rounding can lift a similarity above 0. Without a second neighbour, or with both at distance 0, the ratio is 1.
    best, second = np.minimum(best, 0), np.minimum(second, 0)
    ratio = np.ones(count, np.float32)
    np.sqrt(np.divide(best, second, out=ratio, where=np.isfinite(second) & (second < 0)), out=ratio)
    return NearestNeighbours(index, ratio, mutual)


def _as_vectors(name: str, descriptors: np.ndarray) -> np.ndarray:
    """Float vectors whose products order descriptors by distance; bits become -1 and 1, exact in float32."""
    if not isinstance(descriptors, np.ndarray) or descriptors.ndim != 2:
        raise InputError(f"{name}: expected an array of shape (N, D), got {getattr(descriptors, 'shape', descriptors)}")
    if descriptors.dtype == np.uint8:
        return np.unpackbits(descriptors, axis=1).astype(np.float32) * 2 - 1
    if not np.isfinite(descriptors).all():
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity")
    return np.ascontiguousarray(descriptors, np.float32)


def match(
    features0: Features, features1: Features, *, K0: Array | None = None, K1: Array | None = None
) -> Correspondences:
    """Putative correspondences of two images: the nearest neighbour of every keypoint of the first."""
    found = nearest_neighbours(features0.descriptors, features1.descriptors)
    return Correspondences(
        features0.points[: len(found.index)],
        features1.points[found.index],
        K0=K0,
        K1=K1,
        size0=features0.size,
        size1=features1.size,
        ratio=found.ratio,
        mutual=found.mutual,
    )
