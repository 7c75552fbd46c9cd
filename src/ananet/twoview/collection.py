"""Which pairs of a photo collection other pairs contradict.

Two sides of a building look alike in every pair by itself. Among many photos there is more to go by. A walk from one
side to the other is made of pairs that share wide parts of their view, so these pairs are believed first. Their matches
are joined to tracks, one point of the scene with its keypoint in each photo, and their relative rotations to the
orientation of each photo. A weaker pair of photos that are connected by then is doubtful if both disagree with it:
hardly any of its matches belongs to one track, and it turns the camera otherwise than the walk did. Tracks alone do
not decide, since a walk that closes a circle comes back to points that are not in its tracks yet. Pairs that connect
photos for the first time are never doubtful, so no photo is lost.

That strong pairs vouch for weak ones is an idea of "Network Principles for SfM" (Wilson & Snavely, ICCV 2013) and
"Distinguishing the Indistinguishable" (Yan et al., CVPR 2017); that rotations around a loop must cancel, of
"Disambiguating Visual Relations Using Loop Constraints" (Zach et al., CVPR 2010).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ananet._util.defaults import ESTIMATOR
from ananet.core.cameras import FOCAL_GUESS, centred_camera
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators import estimate_pose

Photo = TypeVar("Photo", bound=Hashable)

# Cells along each side of a photo; the number of cells with a match says how much of the view two photos share.
GRID = 10
# Pairs with a smaller share of matches within tracks are not confirmed by them, and those with a larger one join
# tracks; and degrees by which a pair may turn the camera otherwise than the pairs before it, since errors add up along
# these. Of 27 combinations on five training scenes with all pairs known, the one that drops the fewest right pairs
# among those that drop nearly the most wrong ones; they differ little (docs/same-place.md).
MIN_CONFIRMED, MIN_CONFIRMED_TO_JOIN, MAX_TURN = 0.2, 0.5, 45.0
# Rotations need few matches and no last digit.
ROTATION_MATCHES, ROTATION_SAMPLES = 100, 300
# Fewer matches say nothing.
MIN_MATCHES = 15


@dataclass(frozen=True)
class Confirmation:
    """What the other pairs of a collection say of a pair."""

    confirmed: float
    """Share of the matches that belong to one track by stronger pairs; 1 for pairs that connect photos first."""
    turn: float | None
    """Degrees between the pair's own rotation and that of stronger pairs, where tracks do not confirm it."""
    doubtful: bool


@dataclass(frozen=True, eq=False)
class _Tracks:
    """Keypoints of all photos, joined."""

    parent: np.ndarray
    """Of each keypoint, another one of its track; itself for the root."""
    keypoints: dict[int, dict[int, int]]
    """By the root of a track: keypoint by photo. Tracks of one keypoint are left out."""

    def roots(self, keypoints: np.ndarray) -> np.ndarray:
        """[N] root of the track of each keypoint."""
        while True:
            up = self.parent[keypoints]
            if np.array_equal(up, keypoints):
                return up
            # Halves the way for later calls.
            self.parent[keypoints] = self.parent[up]
            keypoints = up

    def join(self, first: int, second: int, photos: tuple[int, int]) -> None:
        """Join the tracks of two keypoints, unless one photo would then show the point twice."""
        roots = self.roots(np.array([first, second])).tolist()
        if roots[0] == roots[1]:
            return
        own = [self.keypoints.get(root, {photo: root}) for root, photo in zip(roots, photos, strict=True)]
        if own[0].keys() & own[1].keys():
            return
        self.keypoints.pop(roots[1], None)
        self.keypoints[roots[0]] = own[0] | own[1]
        self.parent[roots[1]] = roots[0]


def confirm_pairs(
    keypoints: Mapping[Photo, np.ndarray],
    sizes: Mapping[Photo, tuple[float, float]],
    matches: Mapping[tuple[Photo, Photo], np.ndarray],
    cameras: Mapping[Photo, np.ndarray] | None = None,
) -> dict[tuple[Photo, Photo], Confirmation]:
    """Compare each pair of a collection with the stronger ones.

    Args:
        keypoints: [M x 2] of each photo, in pixels.
        sizes: (width, height) of each photo.
        matches: [N x 2] kept keypoints of each pair, one to one. Pairs with fewer than 15 are never doubtful.
        cameras: [3 x 3] camera matrix of each photo; guessed from its size if None.
    """
    number = {photo: n for n, photo in enumerate(keypoints)}
    for pair, kept in matches.items():
        for photo, column in zip(pair, kept.reshape(-1, 2).T, strict=True):
            count, last = len(keypoints.get(photo, ())), column.max(initial=-1)
            if photo not in number or last >= count:
                raise InputError(
                    f"matches: expected keypoints below {count} of photo {photo!r}, got {last} in {pair!r}"
                )
    cells = {photo: _cells(keypoints[photo], sizes[photo]) for photo in keypoints}
    strength = {
        pair: (min(len(np.unique(cells[photo][column])) for photo, column in zip(pair, kept.T, strict=True)), len(kept))
        for pair, kept in matches.items()
        if len(kept) >= MIN_MATCHES
    }
    if cameras is None:
        cameras = {photo: centred_camera(FOCAL_GUESS * max(size), size) for photo, size in sizes.items()}
    start = np.cumsum([0, *map(len, keypoints.values())])
    tracks, walks = _Tracks(np.arange(start[-1]), {}), _Walks(len(number))
    found = {pair: Confirmation(0.0, None, False) for pair in matches}
    for pair in sorted(strength, key=lambda pair: strength[pair], reverse=True):
        photos = number[pair[0]], number[pair[1]]
        ends = matches[pair].astype(np.int64) + start[list(photos)]
        same = tracks.roots(ends[:, 0]) == tracks.roots(ends[:, 1])
        first = not walks.connected(photos)
        confirmed, turn, believed = 1.0 if first else float(same.mean()), None, True
        if first or confirmed < MIN_CONFIRMED:
            R = _rotation(pair, keypoints, cameras, matches[pair])
            turn = None if first or R is None else walks.turn(photos, R)
            believed = first or (turn is not None and turn <= MAX_TURN)
            if first:
                walks.connect(photos, R)
        found[pair] = Confirmation(confirmed, turn, not believed)
        if believed and not MIN_CONFIRMED <= confirmed < MIN_CONFIRMED_TO_JOIN:
            for a, b in ends[~same].tolist():
                tracks.join(a, b, photos)
    return found


class _Walks:
    """Orientations of photos that pairs connect."""

    def __init__(self, count: int) -> None:
        self.group = np.arange(count)
        self.R = np.tile(np.eye(3), (count, 1, 1))

    def connected(self, photos: tuple[int, int]) -> bool:
        return bool(self.group[photos[0]] == self.group[photos[1]])

    def turn(self, photos: tuple[int, int], R: np.ndarray) -> float:
        """Degrees between the rotation from the first photo to the second by the walks, and this one."""
        between = self.R[photos[1]] @ self.R[photos[0]].T @ R.T
        return math.degrees(math.acos(min(1.0, max(-1.0, (float(np.trace(between)) - 1) / 2))))

    def connect(self, photos: tuple[int, int], R: np.ndarray | None) -> None:
        """Turn the photos of the second group to fit those of the first; as they are if the rotation is unknown."""
        own = self.group == self.group[photos[1]]
        if R is not None:
            self.R[own] = self.R[own] @ self.R[photos[1]].T @ R @ self.R[photos[0]]
        self.group[own] = self.group[photos[0]]


def _rotation(
    pair: tuple[Photo, Photo],
    keypoints: Mapping[Photo, np.ndarray],
    cameras: Mapping[Photo, np.ndarray],
    kept: np.ndarray,
) -> np.ndarray | None:
    """[3 x 3] rotation from the first photo of a pair to the second."""
    some = kept[:: 1 + (len(kept) - 1) // ROTATION_MATCHES]
    points = (np.asarray(keypoints[photo])[column] for photo, column in zip(pair, some.T, strict=True))
    matches = Correspondences(*points, K0=cameras[pair[0]], K1=cameras[pair[1]])
    pose = estimate_pose(matches, ESTIMATOR, confidence=0.99, max_iterations=ROTATION_SAMPLES)
    return None if pose is None else np.asarray(pose.R)


def in_words(confirmation: Confirmation) -> str:
    """Why a pair is doubtful."""
    words = f"stronger pairs confirm {confirmation.confirmed:.0%} of its matches"
    return words if confirmation.turn is None else f"{words}, its rotation is {confirmation.turn:.0f} degrees off"


def _cells(points: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """[M] number of the grid cell of each keypoint; 0 for those without a place in a pinhole camera."""
    place = np.clip(np.nan_to_num(np.asarray(points) / size * GRID), 0, GRID - 1).astype(np.int64)
    cells: np.ndarray = place[:, 1] * GRID + place[:, 0]
    return cells
