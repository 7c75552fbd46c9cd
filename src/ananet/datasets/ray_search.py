"""Search along the rays of keypoints for the depth at which patches of other photos agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np

from ananet.core.cameras import calibrate
from ananet.datasets.depth import MIN_AGREEING, NOISE_PIXELS, KeypointDepths, View, agreeing, homogeneous, images_of

PHOTOS = 8
COARSE_PATCH, FINE_PATCH = 5, 7
"""Pixels on a side: at half size, where all depths are tried, and at full size, around the best."""
MIN_STEPS, MAX_STEPS = 16, 96
FINE_STEPS = np.arange(-5, 6) / 4
"""In coarse steps."""
# Correlation that counts as agreement, in part or in full.
SOME_CORRELATION, GOOD_CORRELATION = 0.4, 0.65
# A depth is distinct if no other one has more than this share of its score.
MAX_SECOND = 0.8
# In grey levels; flat patches correlate with anything.
MIN_CONTRAST = 2.0
# Points of known depth that a photo needs to show between which depths to search.
MIN_POINTS = 20
KEYPOINTS_AT_ONCE = 512


def search_along_rays(view: View, others: dict[int, View], known: KeypointDepths) -> KeypointDepths:
    """Add depths for keypoints without one.

    Photos are first compared at half size, at all depths. Where one depth is distinct, whichever photo is left out,
    they are compared again at full size around it, and each photo gives a depth of its own.

    Args:
        others: other photos of the scene by their number, best first.
        known: depths from tracks, which show between which depths to search.
    """
    inverse = known.without().inverse
    sought = np.flatnonzero(np.isnan(inverse))
    used = dict([(number, other) for number, other in others.items() if other.picture is not None][:PHOTOS])
    if view.picture is None or len(inverse) - len(sought) < MIN_POINTS or len(used) <= MIN_AGREEING or not len(sought):
        return known
    low, high = np.nanpercentile(inverse, (0.5, 99.5))
    found = agreeing(*_search(view, list(used.values()), sought, max(0.7 * low, 0), 1.4 * max(high, 1e-12)))
    joined = []
    for before, new in zip((known.values, known.deviations), found, strict=True):
        column = np.full((len(inverse), before.shape[1] + len(used)), np.nan, np.float32)
        column[:, : before.shape[1]] = before
        # Too few photos agreed on these.
        column[sought, : before.shape[1]] = np.nan
        column[sought, before.shape[1] :] = new
        joined.append(column)
    values, deviations = joined
    return KeypointDepths(np.concatenate([known.photos, np.array(list(used), np.int64)]), values, deviations)


def _search(
    view: View, others: Sequence[View], sought: np.ndarray, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse depths [S x M] from each other photo, and deviations; NaN where patches do not agree on one depth."""
    half, half_others = _half(view), [_half(other) for other in others]
    steps = np.linspace(
        low, high, int(np.clip(max(_path(half, o, low, high) for o in half_others), MIN_STEPS, MAX_STEPS))
    )
    step = steps[1] - steps[0]
    values, deviations = [], []
    for start in range(0, len(sought), KEYPOINTS_AT_ONCE):
        chosen = sought[start : start + KEYPOINTS_AT_ONCE]
        curves = _correlations(half, half_others, half.points[chosen], np.tile(steps, (len(chosen), 1)), COARSE_PATCH)
        peak, distinct = _peaks(curves)
        around = steps[peak][:, None] + FINE_STEPS * step
        fine = _correlations(view, others, view.points[chosen], around, FINE_PATCH)
        best = fine.argmax(axis=2)
        # At the end of the range, the largest value need not be a maximum.
        inner = (best > 0) & (best < len(FINE_STEPS) - 1)
        good = distinct[:, None] & inner & (fine.max(axis=2) > GOOD_CORRELATION)
        good &= good.sum(axis=1, keepdims=True) > MIN_AGREEING
        slopes = [images_of(view, other, chosen, steps[peak])[1] for other in others]
        pixels = [np.maximum(np.linalg.norm(slope, axis=1), 1e-12) for slope in slopes]
        noise = np.stack([NOISE_PIXELS * o.pixel / p for o, p in zip(others, pixels, strict=True)], axis=1)
        values.append(np.where(good, np.take_along_axis(around, best, axis=1), np.nan))
        deviations.append(np.where(good, np.hypot(noise, step / 4), np.nan))
    return np.concatenate(values).astype(np.float32), np.concatenate(deviations).astype(np.float32)


def _peaks(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best step [S] of correlations [S x M x D], and whether it is distinct whichever photo is left out."""
    scores = np.maximum(curves - SOME_CORRELATION, 0)
    total = scores.sum(axis=1)
    peak = total.argmax(axis=1)
    near = np.abs(np.arange(total.shape[1]) - peak[:, None]) <= 2
    distinct = np.ones(len(peak), bool)
    for part in (total, *(total - scores[:, photo] for photo in range(scores.shape[1]))):
        best, second = np.where(near, part, 0).max(axis=1), np.where(near, 0, part).max(axis=1)
        distinct &= (best > 0) & (second < MAX_SECOND * best)
    return peak, distinct


def _correlations(
    view: View, others: Sequence[View], points: np.ndarray, inverse: np.ndarray, patch: int
) -> np.ndarray:
    """[S x M x D] correlation of patches around points with those of other photos, at inverse depths [S x D].

    Patches are treated as planes that face the camera of `view`. Where nothing can be compared, the correlation is 0.
    """
    assert view.picture is not None
    side = np.arange(patch, dtype=np.float32) - patch // 2
    across, down = (axis.ravel() for axis in np.meshgrid(side, side))
    x, y = points.astype(np.float32).T[..., None]
    own = _sample(view.picture, x + across, y + down)
    own -= own.mean(axis=1, keepdims=True)
    contrast = np.linalg.norm(own, axis=1, keepdims=True) / patch
    own /= np.maximum(contrast * patch, 1e-6)
    result = np.zeros((len(points), len(others), inverse.shape[1]), np.float32)
    # The patch's centre and axes, [3 x S], which give its affine map to another photo.
    corners = points.astype(np.float64) + np.array([[[0, 0]], [[1, 0]], [[0, 1]]])
    rays = homogeneous(calibrate(corners, view.K))
    for number, other in enumerate(others):
        assert other.picture is not None
        R, t = view.pose_of(other)
        X, Y, Z = np.moveaxis(rays @ (other.K @ R).T, -1, 0)[..., None] + inverse * (other.K @ t)[:, None, None, None]
        front = (Z > 0).all(axis=0)
        Z = np.where(front, Z, 1)
        x, y = (X / Z).astype(np.float32), (Y / Z).astype(np.float32)
        # [S x D x patch^2] places in the other photo.
        places = (v[0, ..., None] + (v[1] - v[0])[..., None] * across + (v[2] - v[0])[..., None] * down for v in (x, y))
        values = _sample(other.picture, *places)
        margin, (height, width) = patch / 2, other.picture.shape
        inside = (x[0] > margin) & (x[0] < width - 1 - margin) & (y[0] > margin) & (y[0] < height - 1 - margin)
        variance = np.einsum("sdp,sdp->sd", values, values) / patch**2 - values.mean(axis=-1) ** 2
        other_contrast = np.sqrt(np.maximum(variance, 0))
        correlation = np.einsum("sdp,sp->sd", values, own) / np.maximum(other_contrast * patch, 1e-6)
        usable = front & inside & (other_contrast > MIN_CONTRAST) & (contrast > MIN_CONTRAST)
        result[:, number] = np.where(usable, correlation, 0)
    return result


def _sample(picture: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Bilinear samples at places [S x ...]."""
    places = x.reshape(len(x), -1), y.reshape(len(y), -1)
    values = cv2.remap(picture, *places, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return values.reshape(x.shape).astype(np.float32)


def _half(view: View) -> View:
    """The view at half size."""
    assert view.picture is not None
    picture = cv2.pyrDown(view.picture)
    # pyrDown keeps the centre of the first pixel.
    K = np.diag([0.5, 0.5, 1.0]) @ view.K
    size = (picture.shape[1], picture.shape[0])
    return replace(view, points=view.points / 2, K=K, image_size=size, picture=picture)


def _path(view: View, other: View, low: float, high: float) -> float:
    """Pixels by which the photo's centre moves in another photo between two inverse depths."""
    centre = replace(view, points=np.array([view.image_size, view.image_size]) / 2)
    start, end = images_of(centre, other, slice(None), np.array([low, high]))[0]
    return float(np.nan_to_num(np.linalg.norm(end - start)))
