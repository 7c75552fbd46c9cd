"""Keypoints to putative matches: what every matcher has in common, and nearest neighbours by descriptor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from ananet._util.checks import check_whole_number
from ananet._util.devices import stay_on_one_thread_if_forked
from ananet.core.correspondences import Array, Correspondences
from ananet.errors import InputError
from ananet.features.base import Features, as_array

# Rows of the distance matrix that are held at once: 1024 x 8000 floats are 32 MB.
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class NearestNeighbours:
    """For each descriptor of the first set, its nearest in the second.

    Where several neighbours were asked for, all nearest come first, then all second nearest, and so on: S is N times
    their number, and neighbour s belongs to descriptor s modulo N.
    """

    index: np.ndarray
    """[S] int64 into the second set."""
    ratio: np.ndarray
    """[S] float32: distance to the nearest over that to the second nearest, in [0, 1]; 1 for all but the nearest."""
    mutual: np.ndarray
    """[S] bool: whether the match is nearest in both directions."""


class Matcher(ABC):
    """Proposes matches between two images. A subclass implements `pair`, for features that were checked."""

    name: str

    @abstractmethod
    def pair(self, features0: Features, features1: Features) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Which keypoints belong together, [S x 2] int64, and what is known of each pair of them.

        The latter by name, as `Correspondences` takes it: `ratio`, `mutual`, `scores`, [S] each.
        """

    def __call__(
        self, features0: Features, features1: Features, *, K0: Array | None = None, K1: Array | None = None
    ) -> Correspondences:
        """Putative correspondences of two images."""
        for name, features in (("features0", features0), ("features1", features1)):
            if not isinstance(features, Features):
                raise InputError(f"{name}: expected Features, as a detector gives them, got {type(features).__name__}")
        indices, known = self.pair(features0, features1)
        first, second = indices.T

        def both(values0: np.ndarray | None, values1: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
            return (None, None) if values0 is None or values1 is None else (values0[first], values1[second])

        keypoint_sizes0, keypoint_sizes1 = both(features0.sizes, features1.sizes)
        angles0, angles1 = both(features0.angles, features1.angles)
        return Correspondences(
            features0.points[first],
            features1.points[second],
            K0=K0,
            K1=K1,
            image_size0=features0.image_size,
            image_size1=features1.image_size,
            keypoint_sizes0=keypoint_sizes0,
            keypoint_sizes1=keypoint_sizes1,
            angles0=angles0,
            angles1=angles1,
            indices=indices,
            **known,
        )

    def __repr__(self) -> str:
        return f"<matcher {self.name}>"


class Nearest(Matcher):
    """The nearest neighbours of every keypoint of the first image, by descriptor.

    Args:
        neighbours: how many of each. A pruner can only keep what is proposed; it gets more to choose from, and more to
            reject. All nearest come first, then all second nearest, and so on.
    """

    name = "nearest"

    def __init__(self, neighbours: int = 1) -> None:
        self.neighbours = check_whole_number("neighbours", neighbours, 1)

    def pair(self, features0: Features, features1: Features) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        found = nearest_neighbours(features0.descriptors, features1.descriptors, self.neighbours)
        first = np.arange(len(found.index)) % max(1, len(features0))
        return np.stack([first, found.index], axis=1), {"ratio": found.ratio, "mutual": found.mutual}


def match(
    features0: Features,
    features1: Features,
    *,
    K0: Array | None = None,
    K1: Array | None = None,
    neighbours: int = 1,
) -> Correspondences:
    """Putative correspondences of two images: the nearest neighbours of every keypoint of the first.

    Args:
        neighbours: number of nearest neighbours per keypoint.
    """
    return Nearest(neighbours)(features0, features1, K0=K0, K1=K1)


def nearest_neighbours(descriptors0: np.ndarray, descriptors1: np.ndarray, neighbours: int = 1) -> NearestNeighbours:
    """Nearest neighbours, ratio and mutual flag of every descriptor of the first set, in one pass.

    Float descriptors are compared by Euclidean distance, uint8 ones bit by bit (Hamming). Distances come from
    matrix products over blocks of rows, so no N x M matrix exists beyond a block.

    With a single descriptor in the second set there is no second nearest, and the ratio is 1. Where two of the
    first set are equally near to one of the second, the earlier one is the mutual match.

    Args:
        neighbours: number of neighbours per descriptor; fewer if the second set has fewer.
    """
    check_whole_number("neighbours", neighbours, 1)
    stay_on_one_thread_if_forked()
    descriptors0, descriptors1 = as_array("descriptors0", descriptors0), as_array("descriptors1", descriptors1)
    a, b = _as_vectors("descriptors0", descriptors0), _as_vectors("descriptors1", descriptors1)
    if a.shape[1] != b.shape[1] or (descriptors0.dtype == np.uint8) != (descriptors1.dtype == np.uint8):
        raise InputError(
            f"descriptors0 and descriptors1: expected the same kind and width, got {descriptors0.dtype} "
            f"{descriptors0.shape} and {descriptors1.dtype} {descriptors1.shape}"
        )
    count, neighbours = len(a), min(neighbours, len(b))
    if count == 0 or len(b) == 0:
        return NearestNeighbours(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, bool))
    # -|a - b|^2 / 2 = a.b - |a|^2 / 2 - |b|^2 / 2 is largest for the nearest. The squares ride along in the
    # product as two more columns, which spares passes over the block.
    half0, half1 = (0.5 * np.einsum("ij,ij->i", x, x)[:, None] for x in (a, b))
    a = np.concatenate([a, -half0, np.ones_like(half0)], axis=1)
    b = np.concatenate([b, np.ones_like(half1), -half1], axis=1).T.copy()
    index = np.empty((neighbours, count), np.int64)
    # Of one more than was asked for where that is the second nearest, for the ratio.
    best = np.full((max(2, neighbours), count), -np.inf, np.float32)
    best_of_column = np.full(b.shape[1], -np.inf, np.float32)
    block = np.empty((min(ROWS_AT_ONCE, count), b.shape[1]), np.float32)
    for start in range(0, count, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, count))
        similarity = block[: rows.stop - start]
        # By torch: numpy's threads go on spinning for a while, and take a core from the pruner.
        torch.mm(torch.from_numpy(a[rows]), torch.from_numpy(b), out=torch.from_numpy(similarity))
        np.maximum(best_of_column, similarity.max(axis=0), out=best_of_column)
        every = np.arange(rows.stop - start)
        for rank, nearest in enumerate(index):
            nearest[rows] = similarity.argmax(axis=1)
            best[rank, rows] = similarity[every, nearest[rows]]
            similarity[every, nearest[rows]] = -np.inf
        if neighbours == 1:
            best[1, rows] = similarity.max(axis=1)

    mutual = np.zeros(index.shape, bool)
    candidates = np.flatnonzero(best[0] >= best_of_column[index[0]])
    _, first = np.unique(index[0, candidates], return_index=True)
    mutual[0, candidates[first]] = True
    # Rounding can lift a similarity above 0. Without a second neighbour, or with both at distance 0, the ratio is 1.
    nearest, second = np.minimum(best[:2], 0)
    ratio = np.ones(index.shape, np.float32)
    np.divide(nearest, second, out=ratio[0], where=np.isfinite(second) & (second < 0))
    np.sqrt(ratio[0], out=ratio[0])
    return NearestNeighbours(index.reshape(-1), ratio.reshape(-1), mutual.reshape(-1))


def _as_vectors(name: str, descriptors: np.ndarray) -> np.ndarray:
    """Float vectors whose products order descriptors by distance; bits become -1 and 1, exact in float32."""
    if descriptors.ndim != 2:
        raise InputError(f"{name}: expected an array of shape (N, D), got {descriptors.shape}")
    if descriptors.dtype == np.uint8:
        return np.unpackbits(descriptors, axis=1).astype(np.float32) * 2 - 1
    if not np.isfinite(descriptors).all():
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity")
    return np.ascontiguousarray(descriptors, np.float32)
