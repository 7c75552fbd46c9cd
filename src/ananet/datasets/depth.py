"""Depth of keypoints from all photos of a posed scene, and what it says about matches.

A keypoint of known depth predicts where its match must lie in any other photo. That tells a right match from one that
is near the epipolar line by accident. Depth has four sources, each for the keypoints that those before it leave open:

- Tracks: distinctive matches with other photos, triangulated.
- Search: along the ray of a keypoint, the depth at which patches of several other photos agree (`ray_search`).
- Surroundings: the depth of a plane through the nearest keypoints of known depth.
- Range: between infinity and a little nearer than the nearest known depth of the photo.

A depth counts only if several photos agree on it. To label a pair, the depths that either photo gives the other are
left out. Depths are stored as their inverse: with a ray of z = 1 in one camera, the point is at R ray + t / depth in
another one, up to scale, so that points at infinity need no special case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ananet.core.cameras import calibrate, project
from ananet.features import NearestNeighbours, nearest_neighbours

# Distances in pixels are for photos of one megapixel, and scale with the photo's side length.
MEGAPIXEL = 1e6
# A match is right within this distance of the predicted place, and wrong beyond twice as far.
RIGHT_PIXELS = 4.0
# Matches to triangulate: maximum distance to the epipolar line, and standard deviation of a keypoint.
LINE_PIXELS, NOISE_PIXELS = 2.0, 1.0
MAX_RATIO = 0.85
# Depths agree if they differ by less than this many standard deviations.
AGREE_DEVIATIONS = 2.5
# Photos that must agree on a depth, not counting the other photo of a pair.
MIN_AGREEING = 2
# A point is in common view below this angle between its rays (in degrees), and this ratio of its sizes.
MAX_ANGLE, MAX_ZOOM = 60.0, 3.0

# Surroundings: how many of the nearest keypoints of known depth are used, how many are needed, and how far they may be.
NEAREST, MIN_NEAREST, NEAR_PIXELS = 16, 8, 100.0
# Keeps the plane level across a line of keypoints, where its slope is not defined.
RIDGE = 1e-3
# Range: points of known depth that are needed, and how much nearer than these a point may be.
MIN_FOR_RANGE, RANGE_MARGIN = 100, 1.4


@dataclass(frozen=True, eq=False)
class View:
    """A photo with its camera and keypoints."""

    points: np.ndarray
    """[N x 2] keypoints in pixels, free of lens distortion, strongest first."""
    descriptors: np.ndarray
    K: np.ndarray
    R: np.ndarray
    t: np.ndarray
    """World to camera."""
    image_size: tuple[int, int]
    picture: np.ndarray | None = None
    """[H x W] grey, to search along rays; None if its pixels do not follow K, because of lens distortion."""

    def rays(self, which: Any = slice(None)) -> np.ndarray:
        """[S x 3] rays of some keypoints, with z = 1."""
        return homogeneous(calibrate(self.points[which].astype(np.float64), self.K))

    @property
    def pixel(self) -> float:
        """Pixels of this photo that correspond to one pixel of a photo of one megapixel."""
        return float(np.sqrt(self.image_size[0] * self.image_size[1] / MEGAPIXEL))

    @property
    def focal(self) -> float:
        return float(self.K[0, 0] + self.K[1, 1]) / 2

    def pose_of(self, other: View) -> tuple[np.ndarray, np.ndarray]:
        """R and t from this camera to another."""
        R = other.R @ self.R.T
        return R, other.t - R @ self.t


@dataclass(frozen=True, eq=False)
class KeypointDepths:
    """Inverse depths of the N keypoints of a photo, as found with each of M other photos."""

    photos: np.ndarray
    """[M] int64 numbers of the other photos."""
    values: np.ndarray
    """[N x M] float32 inverse depths; NaN where a photo gives none, or does not agree with most."""
    deviations: np.ndarray
    """[N x M] float32 standard deviations."""
    surroundings: Surroundings | None = None

    def without(self, photo: int | None = None, agreeing: int = MIN_AGREEING) -> Depths:
        """Average the depths on which at least `agreeing` photos agree; one photo may be left out."""
        used = self.photos != photo
        values, deviations = self.values[:, used].astype(np.float64), self.deviations[:, used].astype(np.float64)
        there = np.isfinite(values)
        weights = np.where(there, deviations, np.inf) ** -2.0
        known = there.sum(axis=1) >= agreeing
        total = np.where(known, weights.sum(axis=1), np.nan)
        found = Depths((weights * np.where(there, values, 0)).sum(axis=1) / total, total**-0.5)
        return found if self.surroundings is None else self.surroundings.fill(found)


@dataclass(frozen=True, eq=False)
class Depths:
    """Inverse depth of every keypoint of a photo and its standard deviation, [N] each; NaN where unknown."""

    inverse: np.ndarray
    deviation: np.ndarray

    def within_range(self) -> Depths:
        """Give keypoints without depth the range of the photo, up to infinity: a match far outside it is wrong."""
        unknown = np.isnan(self.inverse)
        if (~unknown).sum() < MIN_FOR_RANGE:
            return self
        highest = RANGE_MARGIN * np.nanpercentile(self.inverse, 99.5)
        return Depths(np.where(unknown, highest / 2, self.inverse), np.where(unknown, 0.375 * highest, self.deviation))


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The nearest keypoints of known depth around each of the N keypoints of a photo."""

    nearest: np.ndarray
    """[N x M] int64; the keypoint itself where there are fewer."""
    offsets: np.ndarray
    """[N x M x 2] from the keypoint to them, divided by the maximum distance."""

    def fill(self, depths: Depths) -> Depths:
        """Give keypoints without depth that of a plane through their surroundings.

        The inverse depth of a plane is linear in the image. How far the surroundings lie off it gives the deviation.
        """
        there = np.isfinite(depths.inverse[self.nearest])
        sought = np.flatnonzero(np.isnan(depths.inverse) & (there.sum(axis=1) >= MIN_NEAREST))
        there, around = there[sought], self.nearest[sought]
        values = np.where(there, depths.inverse[around], 0)
        terms = np.concatenate([np.ones((*there.shape, 1)), self.offsets[sought]], axis=2) * there[..., None]
        inverted = np.linalg.inv(terms.transpose(0, 2, 1) @ terms + RIDGE * np.diag([0, 1, 1]))
        plane = inverted @ (terms.transpose(0, 2, 1) @ values[..., None])
        residual = np.abs(values - (terms @ plane)[..., 0]).max(axis=1)
        # Larger where the surroundings lie to one side.
        leverage = np.sqrt(np.maximum(inverted[:, 0, 0] * there.sum(axis=1), 1))
        inverse, deviation = depths.inverse.copy(), depths.deviation.copy()
        inverse[sought] = plane[:, 0, 0]
        deviation[sought] = leverage * (residual + np.nanmedian(depths.deviation[around], axis=1))
        return Depths(inverse, deviation)


def homogeneous(points: np.ndarray) -> np.ndarray:
    return np.concatenate([points, np.ones_like(points[..., :1])], axis=-1)


Tracks = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Keypoints [S], their inverse depths and deviations, from one other photo."""


def tracks_of(first: View, second: View, found: NearestNeighbours | None = None) -> tuple[Tracks, Tracks]:
    """Triangulate the distinctive matches of two photos that fit their poses, for the keypoints of each.

    `found` are the nearest neighbours, if they are known already.
    """
    none = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    if len(first.points) == 0 or len(second.points) < 2:
        return none, none
    found = found or nearest_neighbours(first.descriptors, second.descriptors)
    good = np.flatnonzero(found.mutual & (found.ratio < MAX_RATIO))
    index = np.stack([good, found.index[good]], axis=1)
    inverse0, deviation0 = triangulate(first, second, index)
    inverse1, deviation1 = triangulate(second, first, index[:, ::-1])
    fits = np.isfinite(inverse0) & np.isfinite(inverse1)
    of_first, of_second = index[fits].T
    return (of_first, inverse0[fits], deviation0[fits]), (of_second, inverse1[fits], deviation1[fits])


def triangulate(
    first: View, second: View, index: np.ndarray, line_pixels: float = LINE_PIXELS
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse depths in the first photo of matches [S x 2], and deviations; NaN off the line or behind a camera."""
    R, t = first.pose_of(second)
    turned = first.rays(index[:, 0]) @ R.T
    seen = calibrate(second.points[index[:, 1]].astype(np.float64), second.K)
    # The image of turned + inverse t is `seen`: two equations, linear in the inverse depth.
    constant, slope = turned[:, :2] - seen * turned[:, 2:], t[:2] - seen * t[2]
    length = np.maximum(np.linalg.norm(slope, axis=1), 1e-12)
    inverse = -(constant * slope).sum(axis=1) / length**2
    z = turned[:, 2] + inverse * t[2]
    z = np.where(z > 0, z, np.nan)
    off_line = np.linalg.norm(constant + inverse[:, None] * slope, axis=1) / z * second.focal
    deviation = NOISE_PIXELS * second.pixel / second.focal * z / length
    # Noise may give a point at infinity a negative depth.
    good = (off_line < line_pixels * second.pixel) & (inverse > -2 * deviation)
    return np.where(good, inverse, np.nan), np.where(good, deviation, np.nan)


def fits_poses(first: View, second: View, index: np.ndarray, line_pixels: float = LINE_PIXELS) -> np.ndarray:
    """[S] whether matches [S x 2] fit the poses of two photos: near the line, and before both cameras."""
    ways = (first, second, index), (second, first, index[:, ::-1])
    depths = [triangulate(*way, line_pixels)[0] for way in ways]
    return np.logical_and(*map(np.isfinite, depths))


def join_tracks(keypoints: int, found: dict[int, Tracks]) -> KeypointDepths:
    """Join the tracks of one photo with several others."""
    values, deviations = (np.full((keypoints, len(found)), np.nan, np.float32) for _ in range(2))
    for column, (which, inverse, deviation) in enumerate(found.values()):
        values[which, column], deviations[which, column] = inverse, deviation
    return KeypointDepths(np.array(list(found), np.int64), *agreeing(values, deviations))


def agreeing(values: np.ndarray, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep, in each row of depths and deviations [N x M], the largest group that agrees with one of its members."""
    if values.shape[1] == 0:
        return values, deviations
    apart = np.abs(values[:, :, None] - values[:, None, :])
    agree = apart < AGREE_DEVIATIONS * np.hypot(deviations[:, :, None], deviations[:, None, :])
    # Among groups of equal size, that of the most precise member.
    rank = np.nan_to_num(deviations) / np.maximum(np.nansum(deviations, axis=1, keepdims=True), 1e-30)
    best = (agree.sum(axis=2) - rank).argmax(axis=1)
    group = np.take_along_axis(agree, best[:, None, None], axis=1)[:, 0]
    return np.where(group, values, np.nan), np.where(group, deviations, np.nan)


def with_surroundings(depths: KeypointDepths, view: View) -> KeypointDepths:
    """Add the nearest keypoints of known depth around each keypoint."""
    known = np.flatnonzero(np.isfinite(depths.without().inverse))
    if len(known) <= NEAREST:
        return depths
    points, radius = view.points.astype(np.float64), NEAR_PIXELS * view.pixel
    # |a - b|^2 by a matrix product, which takes a fraction of the time.
    squared = (points**2).sum(axis=1)[:, None] + (points[known] ** 2).sum(axis=1) - 2 * points @ points[known].T
    order = np.argpartition(squared, NEAREST, axis=1)[:, :NEAREST]
    near = np.take_along_axis(squared, order, axis=1) < radius**2
    nearest = np.where(near, known[order], np.arange(len(points))[:, None])
    return replace(depths, surroundings=Surroundings(nearest, (points[nearest] - points[:, None]) / radius))


def images_of(first: View, second: View, which: Any, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project keypoints of the first photo at inverse depths [S] into the second.

    Return pixels [S x 2] and their derivatives by inverse depth [S x 2]; NaN behind the second camera.
    """
    R, t = first.pose_of(second)
    seen = first.rays(which) @ R.T + inverse[:, None] * t
    z = np.where(seen[:, 2:] > 0, seen[:, 2:], np.nan)
    image = seen[:, :2] / z
    return project(image, second.K), (t[:2] - image * t[2]) / z * second.K[[0, 1], [0, 1]]


def label_matches(
    first: View, second: View, index: np.ndarray, depths0: Depths, depths1: Depths
) -> tuple[np.ndarray, np.ndarray]:
    """Label matches [S x 2] by the places that their keypoints predict for each other.

    Args:
        depths0, depths1: of the keypoints of each photo, without those that the other one gives.

    Returns:
        Which matches are known to be right or wrong, and which are right, [S] bool each.
    """
    right0, wrong0 = _judge(first, second, index, depths0)
    right1, wrong1 = _judge(second, first, index[:, ::-1], depths1)
    right, wrong = right0 | right1, wrong0 | wrong1
    # Where the two contradict each other, nothing is known.
    return right ^ wrong, right & ~wrong


def _judge(first: View, second: View, index: np.ndarray, depths: Depths) -> tuple[np.ndarray, np.ndarray]:
    """Which matches lie where the keypoint of the first photo predicts, and which lie elsewhere."""
    inverse = depths.inverse[index[:, 0]]
    place, slope = images_of(first, second, index[:, 0], inverse)
    error = np.linalg.norm(place - second.points[index[:, 1]], axis=1)
    spread = np.linalg.norm(slope, axis=1) * depths.deviation[index[:, 0]]
    limit = RIGHT_PIXELS * second.pixel
    behind = np.isfinite(inverse) & np.isnan(error)
    return (error < limit) & (spread < limit), behind | (error > 2 * limit + 2 * spread)


def common_view(
    first: View, second: View, depths: Depths, max_angle: float = MAX_ANGLE, max_zoom: float = MAX_ZOOM
) -> tuple[float, float]:
    """Share of the first photo's points of known depth that the second could show too, and their median angle.

    A point is in common view if it is inside the second photo, and seen there at a similar angle and size. The angle
    is between its rays, in degrees. NaN if no depth is known; the angle is 0 if no point is in common view.
    """
    which = np.flatnonzero(np.isfinite(depths.inverse))
    if len(which) == 0:
        return np.nan, 0.0
    inverse = depths.inverse[which]
    place, _ = images_of(first, second, which, inverse)
    R, t = first.pose_of(second)
    turned = first.rays(which) @ R.T
    seen = turned + inverse[:, None] * t
    cosine = (turned * seen).sum(axis=1) / np.linalg.norm(turned, axis=1) / np.linalg.norm(seen, axis=1)
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    zoom = np.abs(np.log(second.focal / first.focal / np.maximum(seen[:, 2], 1e-12)))
    inside = ((place > -0.5) & (place < np.array(second.image_size) - 0.5)).all(axis=1)
    common = inside & (angle < max_angle) & (zoom < np.log(max_zoom))
    return float(common.mean()), float(np.median(angle[common])) if common.any() else 0.0
