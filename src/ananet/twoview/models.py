"""Which geometry two photos have: epipolar, or the homography of a plane or of a camera that only turned.

Epipolar geometry holds for every rigid scene, but says of a point only on which line it lies in the other photo. A
homography says where, for planes and rotations only; there, many epipolar geometries fit equally well. Torr's
criterion (Geometric motion segmentation and model selection, 1998) finds out which one the matches have:

    GRIC = sum_i min(r_i^2 / sigma^2, c (4 - d)) + d N log 4 + k log 4N,    lower is better

r_i is the distance of match i to the model, in pixels of both photos together. d is how many numbers of a match
(x0, y0, x1, y1) the model leaves free, 3 for epipolar geometry and 2 for a homography, so that matches which fit both
are cheaper under the homography. k is the number of parameters. sigma is what counts as noise: a multiple of what the
matches of these photos have about their epipolar lines, since a sharp photo shows depth that is lost in a blurred one.
c (4 - d) is what a match costs that does not fit at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ananet._util.checks import like, shown
from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators import Estimator, Fundamental, Homography, Pose
from ananet.estimators.base import Model, PruningResult

ModelOption = Literal["auto", "essential", "fundamental", "homography"]
MODELS: tuple[ModelOption, ...] = ("auto", "essential", "fundamental", "homography")
# sigma over the standard deviation about the epipolar lines, its bounds in pixels, and c: chosen on training scenes
# and on warped training photos (docs/geometry.md). Torr has c = 2, which turns a scene with a large plane into a plane.
NOISE, MIN_NOISE, MAX_NOISE, MAX_SQUARED = 4.0, 0.1, 3.0, 10.0
NEEDS_CAMERAS = "model: essential needs K0 and K1 or a focal length, which may be auto, got none"
# Parameters of each model, and how many numbers of a match it leaves free.
PARAMETERS: dict[Model, int] = {"essential": 5, "fundamental": 7, "homography": 8}
FREE: dict[Model, int] = {"essential": 3, "fundamental": 3, "homography": 2}


@dataclass(frozen=True, eq=False)
class Models:
    """The models that were estimated, and which of them the matches have."""

    model: Model | None = None
    """The chosen one; None if none was found."""
    pose: Pose | None = None
    fundamental: Fundamental | None = None
    homography: Homography | None = None
    criterion: dict[Model, float] = field(default_factory=dict)
    """GRIC of the models that were compared, lower is better; empty if one was named."""


def check_model(model: object) -> ModelOption:
    for name in MODELS:
        if model == name:
            return name
    raise InputError(f"model: expected one of {', '.join(MODELS)}, got {shown(model)}{like(str(model), MODELS)}")


def find_models(
    matches: Correspondences, kept: PruningResult, estimator: Estimator, model: ModelOption = "auto"
) -> Models:
    """Estimate the named model; or epipolar geometry (a pose if the cameras are known) and a homography, and choose."""
    if check_model(model) == "essential" and not matches.calibrated:
        raise InputError(NEEDS_CAMERAS)
    epipolar: Model = "essential" if matches.calibrated else "fundamental"
    wanted: tuple[Model, ...] = (epipolar, "homography") if model == "auto" else (model,)
    pose = estimator.pose(matches, kept) if "essential" in wanted else None
    fundamental = estimator.fundamental(matches, kept) if "fundamental" in wanted else None
    homography = estimator.homography(matches, kept) if "homography" in wanted else None
    found = {"essential": pose, "fundamental": fundamental, "homography": homography}
    there: list[Model] = [name for name in wanted if found[name] is not None]
    if len(there) < 2:
        return Models(there[0] if there else None, pose, fundamental, homography)
    used = matches[estimator.taken(matches, kept, "homography")]._as_tensors()
    points = used.points0.double().cpu(), used.points1.double().cpu()
    assert homography is not None
    F = epipolar_matrix(used, pose, fundamental)
    assert F is not None
    about_lines = geometry.sampson_distance(*points, F)
    about_points = geometry.homography_distance(*points, torch.as_tensor(homography.H).cpu())
    noise = min(max(NOISE * deviation(about_lines, PARAMETERS[epipolar]), MIN_NOISE), MAX_NOISE)
    criterion: dict[Model, float] = {
        epipolar: gric(about_lines, epipolar, noise),
        "homography": gric(about_points, "homography", noise),
    }
    chosen: Model = "homography" if criterion["homography"] < criterion[epipolar] else epipolar
    return Models(chosen, pose, fundamental, homography, criterion)


def deviation(distance: Tensor, parameters: int) -> float:
    """Standard deviation of the distances of most matches to a model, which was fitted to them (Rousseeuw 1987)."""
    spare = max(len(distance) - parameters, 1)
    return 1.4826 * (1 + 5 / spare) * float(distance.median()) if len(distance) else 0.0


def gric(distance: Tensor, model: Model, noise: float) -> float:
    """The criterion of a model, from the distances of all matches to it and their noise in pixels.

    >>> fits = torch.full((100,), 0.5)
    >>> gric(fits, "homography", noise=1) < gric(fits, "fundamental", noise=1)
    True
    """
    free, count = FREE[model], len(distance)
    misfit = float((distance / noise).square().clamp(max=MAX_SQUARED * (4 - free)).sum())
    return misfit + free * count * math.log(4) + PARAMETERS[model] * math.log(4 * max(count, 1))


def epipolar_matrix(matches: Correspondences, pose: Pose | None, fundamental: Fundamental | None) -> Tensor | None:
    """[3 x 3] F of norm 1 with p1^T F p0 = 0 in pixels, of a pose or as it was estimated; None without both."""
    if pose is not None:
        tensors = matches._as_tensors()
        assert tensors.K0 is not None and tensors.K1 is not None
        E = geometry.essential_from_pose(*(torch.as_tensor(part).double().cpu() for part in (pose.R, pose.t)))
        F = geometry.fundamental_from_essential(E, tensors.K0.double().cpu(), tensors.K1.double().cpu())
        return F / torch.linalg.matrix_norm(F)
    return None if fundamental is None else torch.as_tensor(fundamental.F).cpu()
