"""OpenCV's own types in and out: keypoints and `cv2.DMatch`.

OpenCV's angles are in degrees and become radians; its sizes are diameters, as ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ananet.core.correspondences import Array, Correspondences, Size
from ananet.errors import InputError
from ananet.pruners import Pruner, load

# OpenCV's angle for a keypoint without orientation.
NO_ANGLE = -1.0


def prune(
    keypoints0: Sequence[cv2.KeyPoint],
    keypoints1: Sequence[cv2.KeyPoint],
    matches: Sequence[Any],
    image_size0: Size | None = None,
    image_size1: Size | None = None,
    *,
    K0: Array | None = None,
    K1: Array | None = None,
    back: Sequence[Any] | None = None,
    pruner: str | Path | Pruner | None = None,
) -> list[cv2.DMatch]:
    """Return the matches that a pruner keeps, in their order.

    Args:
        keypoints0, keypoints1: of both images; sizes and angles are used if all matched keypoints have them.
        matches: of an OpenCV matcher's `match` or, better, `knnMatch(..., k=2)`, which also gives the ratios.
        image_size0, image_size1: (width, height) of both images; used if there are no camera matrices.
        K0, K1: [3 x 3] camera matrices.
        back: the same matcher's matches from the second image to the first, for the mutual flags.
        pruner: a name that `ananet.load` takes, or a pruner; None for the best one.
    """
    for name, keypoints in (("keypoints0", keypoints0), ("keypoints1", keypoints1)):
        if not isinstance(keypoints, Sequence) or not all(isinstance(each, cv2.KeyPoint) for each in keypoints):
            raise InputError(f"{name}: expected a list of cv2.KeyPoint, got {type(keypoints).__name__}")
    for name, given in (("matches", matches), ("back", [] if back is None else back)):
        if not isinstance(given, Sequence):
            raise InputError(f"{name}: expected a list of cv2.DMatch, got {type(given).__name__}")
    if not isinstance(pruner, Pruner | str | Path | None):
        raise InputError(f"pruner: expected a name or a pruner, got {pruner!r:.80}")
    chosen = [neighbours for neighbours in (_neighbours("matches", match) for match in matches) if neighbours]
    best = [neighbours[0] for neighbours in chosen]
    indices = np.array([(match.queryIdx, match.trainIdx) for match in best], np.int64).reshape(-1, 2)
    count0, count1 = len(keypoints0), len(keypoints1)
    if len(indices) and ((indices < 0).any() or (indices >= [count0, count1]).any()):
        got = " and ".join(map(str, indices.max(axis=0)))
        raise InputError(
            f"matches: expected indices below {count0} and {count1}, got up to {got}; "
            "are the keypoints in the order of the images?"
        )
    first, second = [keypoints0[i] for i in indices[:, 0]], [keypoints1[i] for i in indices[:, 1]]
    known: dict[str, Any] = {"K0": K0, "K1": K1, "image_size0": image_size0, "image_size1": image_size1}
    for name, values0, values1 in (
        ("keypoint_sizes", _sizes(first), _sizes(second)),
        ("angles", _angles(first), _angles(second)),
    ):
        if values0 is not None and values1 is not None:
            known |= {f"{name}0": values0, f"{name}1": values1}
    mutual = None if back is None else _mutual(indices, back)
    correspondences = Correspondences(_points(first), _points(second), ratio=_ratio(chosen), mutual=mutual, **known)
    used = pruner if isinstance(pruner, Pruner) else _loaded(pruner)
    return [match for match, is_kept in zip(best, used(correspondences).mask, strict=True) if is_kept]


@lru_cache(maxsize=4)
def _loaded(name: str | Path | None) -> Pruner:
    """Load weights once for all calls of `prune`."""
    return load(name)


def _neighbours(name: str, match: Any) -> Sequence[cv2.DMatch]:
    """The matches of one keypoint, nearest first, from `match` or `knnMatch`."""
    if isinstance(match, cv2.DMatch):
        return (match,)
    if isinstance(match, Sequence) and all(isinstance(each, cv2.DMatch) for each in match):
        return match
    raise InputError(f"{name}: expected cv2.DMatch or lists of them, got {type(match).__name__}")


def _points(keypoints: Sequence[cv2.KeyPoint]) -> np.ndarray:
    return np.array([keypoint.pt for keypoint in keypoints], np.float64).reshape(-1, 2)


def _sizes(keypoints: Sequence[cv2.KeyPoint]) -> np.ndarray | None:
    """[N] diameters; None if not measured: some are 0, or all are the same, as FAST's."""
    sizes = np.array([keypoint.size for keypoint in keypoints], np.float32)
    return sizes if len(sizes) and sizes.min() > 0 and sizes.min() < sizes.max() else None


def _angles(keypoints: Sequence[cv2.KeyPoint]) -> np.ndarray | None:
    """[N] radians; None if some keypoint has none."""
    angles = np.array([keypoint.angle for keypoint in keypoints], np.float32)
    return None if (angles == NO_ANGLE).any() else np.radians(angles)


def _ratio(chosen: Sequence[Sequence[cv2.DMatch]]) -> np.ndarray | None:
    """[N] distance to the nearest over that to the second nearest; None if no keypoint has a second one."""
    if all(len(neighbours) < 2 for neighbours in chosen):
        return None
    nearest = np.array([neighbours[0].distance for neighbours in chosen], np.float64)
    # A keypoint without a second one, or with two at distance 0, is not distinctive.
    second = np.array([neighbours[1].distance if len(neighbours) > 1 else 0.0 for neighbours in chosen])
    return np.divide(nearest, second, out=np.ones_like(nearest), where=second > 0).clip(0, 1)


def _mutual(indices: np.ndarray, back: Sequence[Any]) -> np.ndarray:
    """[N] bool mask of the matches that are also found backwards."""
    found = {(n[0].trainIdx, n[0].queryIdx) for n in (_neighbours("back", match) for match in back) if n}
    return np.array([tuple(pair) in found for pair in indices.tolist()], bool)
