"""Cameras: calibration, scaling by image size, quarter turns, lens models.

Pixel coordinates follow OpenCV: the centre of the first pixel is (0, 0). The functions on points take numpy arrays and
torch tensors alike; leading dimensions are batch dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import shown
from ananet.errors import InputError

Values = TypeVar("Values", np.ndarray, Tensor)

# Without intrinsics the authors of ANA-Net divide by 0.7 x the longest side, about the focal length of
# an ordinary lens: it maps the image into [-1, 1] and keeps the scale that calibrated points have.
FOCAL_GUESS = 0.7
# Fields of view of ordinary cameras, in degrees along the longest side. A focal length in millimetres is far outside.
MIN_VIEW, MAX_VIEW = 5.0, 150.0
# In pixels, of a photo in a model of COLMAP: what is larger is damage.
MAX_SIDE = 2**31 - 1
NEWTON_STEPS = 25
# Where the inverse of a lens model leaves more than this (in focal lengths), there is no solution.
MAX_RESIDUAL = 1e-8


def calibrate(points: Values, K: Values) -> Values:
    """[... x N x 2] pixels to the rays `K^-1 p`, their third coordinate 1 left out; K is [... x 3 x 3]."""
    y = (points[..., 1] - K[..., 1, 2, None]) / K[..., 1, 1, None]
    x = (points[..., 0] - K[..., 0, 2, None] - K[..., 0, 1, None] * y) / K[..., 0, 0, None]
    return _stacked(x, y)


def project(rays: Values, K: Values) -> Values:
    """[... x N x 2] rays to pixels: the inverse of `calibrate`.

    >>> K = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    >>> project(calibrate(np.array([[10.0, 20.0]]), K), K)
    array([[10., 20.]])
    """
    x = rays[..., 0] * K[..., 0, 0, None] + rays[..., 1] * K[..., 0, 1, None] + K[..., 0, 2, None]
    y = rays[..., 1] * K[..., 1, 1, None] + K[..., 1, 2, None]
    return _stacked(x, y)


def _stacked(x: Values, y: Values) -> Values:
    return torch.stack([x, y], dim=-1) if isinstance(x, Tensor) else np.stack([x, y], axis=-1)


def scale_by_size(points: Tensor, size: Tensor) -> Tensor:
    """[... x N x 2] pixels to coordinates in [-1, 1] around the centre of images of [... x 2] (width, height)."""
    size = size[..., None, :]
    return (points - size / 2) / (FOCAL_GUESS * size.amax(-1, keepdim=True))


def camera_matrix(fx: float, fy: float, cx: float, cy: float) -> np.ndarray:
    """[3 x 3] float64."""
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], np.float64)


def camera_matrices(parameters: Tensor) -> Tensor:
    """[... x 4] fx, fy, cx, cy to [... x 3 x 3]."""
    fx, fy, cx, cy = parameters.unbind(-1)
    zero, one = torch.zeros_like(fx), torch.ones_like(fx)
    return torch.stack([fx, zero, cx, zero, fy, cy, zero, zero, one], dim=-1).unflatten(-1, (3, 3))


def camera_parameters(K: np.ndarray) -> np.ndarray:
    """[... x 3 x 3] to [... x 4] fx, fy, cx, cy; skew is lost."""
    return K[..., [0, 1, 0, 1], [0, 1, 2, 2]]


def centred_camera(focal: float, size: tuple[float, float]) -> np.ndarray:
    """The camera matrix with its principal point at the centre of an image of (width, height)."""
    return camera_matrix(focal, focal, (size[0] - 1) / 2, (size[1] - 1) / 2)


def implausible(K: Values, size: tuple[float, float]) -> str | None:
    """Why a camera matrix hardly belongs to an image of (width, height), in words; None if it may.

    >>> implausible(centred_camera(35, (4000, 3000)), (4000, 3000))
    'a focal length of 35 pixels means a field of view of 178 degrees'
    """
    focal = float(K[0, 0] + K[1, 1]) / 2
    view = math.degrees(2 * math.atan2(max(size) / 2, focal))
    if not MIN_VIEW <= view <= MAX_VIEW:
        return f"a focal length of {focal:g} pixels means a field of view of {view:.{0 if view > 1 else 2}f} degrees"
    centre = (float(K[0, 2]), float(K[1, 2]))
    if any(abs(at - side / 2) > side / 3 for at, side in zip(centre, size, strict=True)):
        middle = f"({size[0] / 2:g}, {size[1] / 2:g})"
        return f"the principal point ({centre[0]:g}, {centre[1]:g}) is far from the centre of the image, {middle}"
    return None


def mean_focal(K0: Values, K1: Values) -> float:
    """Mean of fx and fy of both cameras, which converts a threshold in pixels to one for rays."""
    return sum(float(K[i, i]) for K in (K0, K1) for i in (0, 1)) / 4


def pixel_scaling(scale_x: float, scale_y: float) -> np.ndarray:
    """[3 x 3] from the pixels of an image to those of the resized one.

    Scaling keeps the image's corner, which lies half a pixel before the first pixel's centre.
    """
    return np.array([[scale_x, 0, (scale_x - 1) / 2], [0, scale_y, (scale_y - 1) / 2], [0, 0, 1]])


def rotate_axes(turns: int) -> np.ndarray:
    """[3 x 3]: camera coordinates of a photo to those of the photo after counter-clockwise quarter turns.

    >>> rotate_axes(1) @ [1, 0, 0]  # what was on the right is now on top, and y points down
    array([ 0., -1.,  0.])
    """
    cosine, sine = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)][turns]
    return np.array([[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]])


def rotate_camera(K: np.ndarray, size: tuple[int, int], turns: int) -> np.ndarray:
    """The camera matrix [3 x 3] of a photo of `size` (width, height) after counter-clockwise quarter turns."""
    width, height = size
    if turns % 2 and K[0, 1] != 0:
        raise InputError(f"K: expected no skew where a photo is to be turned, got {K[0, 1]:g}")
    fx, fy, cx, cy = camera_parameters(K)
    fx, fy, cx, cy = [
        (fx, fy, cx, cy),
        (fy, fx, cy, width - 1 - cx),
        (fx, fy, width - 1 - cx, height - 1 - cy),
        (fy, fx, height - 1 - cy, cx),
    ][turns]
    return np.array([[fx, K[0, 1], cx], [0, fy, cy], [0, 0, 1]])


@dataclass(frozen=True)
class CameraModel:
    """How one of COLMAP's camera models lays out its parameters: focal lengths, principal point, coefficients."""

    number: int
    focals: int
    coefficients: tuple[str, ...] = ()
    """k: radial polynomial; d: its denominator; p: tangential; s: thin prism; omega: field of view."""
    fisheye: bool = False

    @property
    def parameters(self) -> int:
        return self.focals + 2 + len(self.coefficients)


CAMERA_MODELS = {
    "SIMPLE_PINHOLE": CameraModel(0, 1),
    "PINHOLE": CameraModel(1, 2),
    "SIMPLE_RADIAL": CameraModel(2, 1, ("k1",)),
    "RADIAL": CameraModel(3, 1, ("k1", "k2")),
    "OPENCV": CameraModel(4, 2, ("k1", "k2", "p1", "p2")),
    "OPENCV_FISHEYE": CameraModel(5, 2, ("k1", "k2", "k3", "k4"), fisheye=True),
    "FULL_OPENCV": CameraModel(6, 2, ("k1", "k2", "p1", "p2", "k3", "d1", "d2", "d3")),
    "FOV": CameraModel(7, 2, ("omega",)),
    "SIMPLE_RADIAL_FISHEYE": CameraModel(8, 1, ("k1",), fisheye=True),
    "RADIAL_FISHEYE": CameraModel(9, 1, ("k1", "k2"), fisheye=True),
    "THIN_PRISM_FISHEYE": CameraModel(10, 2, ("k1", "k2", "p1", "p2", "k3", "k4", "s1", "s2"), fisheye=True),
    "SIMPLE_FISHEYE": CameraModel(14, 1, fisheye=True),
    "FISHEYE": CameraModel(15, 2, fisheye=True),
}
MODEL_NAMES = {model.number: name for name, model in CAMERA_MODELS.items()}
# COLMAP's panoramas of 360 degrees, by name and by number: no pinhole camera shows them.
PANORAMAS = ("EQUIRECTANGULAR", "number 17")


@dataclass(frozen=True, eq=False)
class Camera:
    """A camera as COLMAP models have it."""

    K: np.ndarray
    size: tuple[int, int]
    distortion: tuple[str, tuple[float, ...]] | None


def parse_camera(model_name: str, size: tuple[int, int], parameters: Iterable[float], where: str) -> Camera:
    """COLMAP's parameters as K and the distortion; `where` names their location in error messages."""
    model = CAMERA_MODELS.get(model_name)
    if model is None:
        advice = "; cut panoramas of 360 degrees into pinhole views first" if model_name in PANORAMAS else ""
        raise InputError(f"{where}: expected a camera model of {', '.join(CAMERA_MODELS)}, got {model_name}{advice}")
    if not all(0 <= side <= MAX_SIDE for side in size):
        raise InputError(f"{where}: expected a width and a height of 0 to {MAX_SIDE:,} pixels, got {shown(size)}")
    values = [float(value) for value in parameters]
    if len(values) != model.parameters or not all(map(math.isfinite, values)):
        raise InputError(f"{where}: expected {model.parameters} finite parameters of {model_name}, got {values}")
    fx, fy = values[0], values[model.focals - 1]
    if fx <= 0 or fy <= 0:
        raise InputError(f"{where}: expected positive focal lengths, got {fx:g} and {fy:g}")
    cx, cy = values[model.focals : model.focals + 2]
    # COLMAP puts the centre of the first pixel at (0.5, 0.5).
    K = camera_matrix(fx, fy, cx - 0.5, cy - 0.5)
    pinhole = not model.fisheye and not model.coefficients
    return Camera(K, size, None if pinhole else (model_name, tuple(values[model.focals + 2 :])))


def undistort_points(points: np.ndarray, K: np.ndarray, distortion: tuple[str, tuple[float, ...]] | None) -> np.ndarray:
    """[N x 2] pixels to where an ideal pinhole camera with the same K would see them.

    Args:
        distortion: COLMAP camera model and its coefficients; None for a pinhole.

    A point becomes NaN where no such place exists: where a fisheye lens looks sideways or backwards, or beyond the
    range in which the lens model can be inverted.

    >>> K = camera_matrix(500, 500, 319.5, 239.5)
    >>> undistort_points(np.array([[319.5, 239.5], [19.5, 239.5]]), K, ("SIMPLE_RADIAL", (-0.1,))).round(2)
    array([[319.5 , 239.5 ],
           [  7.33, 239.5 ]])
    """
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or points.shape[1] != 2:
        raise InputError(f"points: expected shape (N, 2), got {points.shape}")
    if distortion is None:
        return points
    name, values = distortion
    if name not in CAMERA_MODELS:
        raise InputError(f"distortion: expected a model of {', '.join(CAMERA_MODELS)}, got {name}")
    model = CAMERA_MODELS[name]
    if len(values) != len(model.coefficients):
        raise InputError(f"distortion: expected {len(model.coefficients)} coefficients of {name}, got {len(values)}")
    coefficients = dict(zip(model.coefficients, values, strict=True))
    rays = _unbend(calibrate(points, K), coefficients)
    if model.fisheye:
        rays = _lengthen(rays, 1.0, 1.0)
    elif abs(coefficients.get("omega", 0.0)) > 1e-4:  # below, the model is a pinhole to 9 digits
        omega = coefficients["omega"]
        rays = _lengthen(rays, omega, 2 * math.tan(omega / 2))
    return project(rays, K)


def _lengthen(rays: np.ndarray, angle: float, scale: float) -> np.ndarray:
    """[N x 2] rays of length r to length tan(angle r) / scale: from an angle to a place on the image plane."""
    radius = np.linalg.norm(rays, axis=1, keepdims=True)
    bent = angle * radius
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = np.where(radius > 1e-12, np.tan(bent) / (scale * radius), angle / scale)
    return rays * np.where(bent < math.pi / 2, factor, np.nan)


def _bend(rays: np.ndarray, coefficients: dict[str, float]) -> np.ndarray:
    """The polynomial part that all of COLMAP's lens models share, each with some of its terms, [N x 2].

    Fisheye models apply it to rays whose length is the angle to the optical axis.
    """
    x, y = rays.T
    k1, k2, k3, k4, d1, d2, d3, p1, p2, s1, s2 = (
        coefficients.get(name, 0.0) for name in ("k1", "k2", "k3", "k4", "d1", "d2", "d3", "p1", "p2", "s1", "s2")
    )
    square = x * x + y * y
    radial = 1 + square * (k1 + square * (k2 + square * (k3 + square * k4)))
    radial = radial / (1 + square * (d1 + square * (d2 + square * d3)))
    bent_x = x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x) + s1 * square
    bent_y = y * radial + 2 * p2 * x * y + p1 * (square + 2 * y * y) + s2 * square
    return np.stack([bent_x, bent_y], axis=1)


def _unbend(bent: np.ndarray, coefficients: dict[str, float]) -> np.ndarray:
    """The inverse of `_bend` by Newton's method, all points at once; NaN where it does not converge."""
    step = 1e-6
    along_x, along_y = np.array([step, 0]), np.array([0, step])
    rays = bent.copy()
    with np.errstate(all="ignore"):
        for _ in range(NEWTON_STEPS):
            residual = _bend(rays, coefficients) - bent
            by_x = (_bend(rays + along_x, coefficients) - _bend(rays - along_x, coefficients)) / (2 * step)
            by_y = (_bend(rays + along_y, coefficients) - _bend(rays - along_y, coefficients)) / (2 * step)
            determinant = by_x[:, 0] * by_y[:, 1] - by_x[:, 1] * by_y[:, 0]
            move_x = (by_y[:, 1] * residual[:, 0] - by_y[:, 0] * residual[:, 1]) / determinant
            move_y = (by_x[:, 0] * residual[:, 1] - by_x[:, 1] * residual[:, 0]) / determinant
            move = np.stack([move_x, move_y], axis=1)
            rays = rays - move
            if np.nanmax(np.abs(move), initial=0.0) < 1e-14:
                break
        converged = np.abs(_bend(rays, coefficients) - bent).max(axis=1) < MAX_RESIDUAL
    return np.where(converged[:, None], rays, np.nan)
