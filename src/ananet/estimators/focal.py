"""The focal length of two photos from their matches alone.

Epipolar geometry of square pixels says what focal length both cameras have, but only roughly: a long lens far away and
a wide one nearby look alike. So the likeliest of several focal lengths is taken, and what photos usually have counts
as evidence.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ananet.core import geometry
from ananet.core.cameras import centred_camera
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import Estimator, PruningResult, checked_matches

# Focal lengths over the longest side, from a field of view of 90 degrees to one of 19.
CANDIDATES = np.geomspace(0.5, 3.0, 13)
# What photos usually have: log-normal around the first, with the second as standard deviation.
USUAL, SPREAD = 1.1, 0.35
# Scale of the distances to the epipolar geometry in pixels, and the distance beyond which all are equally wrong.
SCALE, MAX_DISTANCE = 0.5, 2.0


def find_focal(matches: Correspondences, estimator: Estimator, kept: PruningResult | None = None) -> float | None:
    """Focal length of both photos over their longest side, for square pixels and centred cameras; None if none fits.

    Of several focal lengths it takes the one whose pose has the largest posterior: distances to the epipolar geometry
    have heavy tails (Cauchy, cut off), and the logarithm of the focal length is normal. Turning on the spot and planes
    say little of the focal length, so there it is about the usual one.

    Args:
        matches: with image sizes; camera matrices are not used.
        estimator: finds a pose for each focal length.
        kept: a pruner's result on these matches.
    """
    matches = checked_matches(matches)
    sizes = matches.image_size0, matches.image_size1
    if sizes[0] is None or sizes[1] is None:
        raise InputError("matches: a focal length needs image_size0 and image_size1, got none")
    used = torch.ones(len(matches), dtype=torch.bool) if kept is None else estimator.taken(matches, kept)
    points0, points1 = (points.double().cpu()[used] for points in (matches.points0, matches.points1))
    best: tuple[float, float] | None = None
    for ratio in CANDIDATES:
        K0, K1 = (torch.from_numpy(centred_camera(float(ratio) * max(size), size)) for size in sizes if size)
        pose = estimator.pose(matches.replace(K0=K0.to(matches.points0), K1=K1.to(matches.points0)), kept)
        if pose is None:
            continue
        E = geometry.essential_from_pose(*(torch.as_tensor(part).cpu() for part in (pose.R, pose.t)))
        distance = geometry.sampson_distance(points0, points1, geometry.fundamental_from_essential(E, K0, K1))
        cost = float((distance.clamp(max=MAX_DISTANCE) / SCALE).square().log1p().sum())
        cost += 0.5 * (math.log(ratio / USUAL) / SPREAD) ** 2
        if best is None or cost < best[0]:
            best = cost, float(ratio)
    return None if best is None else best[1]
