"""What every source of training and test data comes down to: posed scenes, or pairs with labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ananet import geometry
from ananet.correspondences import Correspondences

# The paper's label: squared symmetric epipolar distance on calibrated points.
INLIER_DISTANCE = 1e-4


@dataclass(frozen=True, eq=False)
class PosedImage:
    """A photo whose camera is known. Pixel coordinates follow OpenCV: the first pixel's centre is (0, 0)."""

    path: Path
    K: np.ndarray
    """[3 x 3] camera matrix."""
    R: np.ndarray
    """[3 x 3] world-to-camera rotation."""
    t: np.ndarray
    """[3] world-to-camera translation."""
    distortion: tuple[str, tuple[float, ...]] | None = None
    """COLMAP camera model and its coefficients where the lens distorts; None for a pinhole."""
    size: tuple[int, int] | None = None
    """(width, height) that the camera was calibrated for, where known."""


@dataclass(frozen=True, eq=False)
class PosedScene:
    """Photos of one place, and which pairs of them count."""

    name: str
    images: dict[str, PosedImage]
    """By name."""
    pairs: list[tuple[str, str]] | None = None
    """Names of the pairs a protocol prescribes; None where any two may be paired."""


@dataclass(frozen=True, eq=False)
class LabelledPair:
    """Putative matches of one image pair, and the truth about them."""

    name: str
    matches: Correspondences
    inlier: Tensor
    """[N] bool: which matches are right."""
    distance: Tensor | None = None
    """[N] squared symmetric epipolar distance, calibrated; None where the truth is not a single geometry."""
    R: Tensor | None = None
    """[3 x 3] true rotation from the first camera to the second."""
    t: Tensor | None = None
    """[3] true direction of translation, of length 1."""
    scene: str = ""
    paths: tuple[Path, Path] | None = field(default=None)
    """The two photos, where there are any."""

    @classmethod
    def from_pose(
        cls,
        name: str,
        matches: Correspondences,
        R: Tensor,
        t: Tensor,
        scene: str = "",
        paths: tuple[Path, Path] | None = None,
    ) -> LabelledPair:
        """Labels calibrated matches by their distance to the true epipolar geometry."""
        R, t = R.double(), t.double()
        t = t / t.norm()
        rays = matches.normalized().double()
        distance = geometry.symmetric_epipolar_distance_squared(
            rays[:, :2], rays[:, 2:], geometry.essential_from_pose(R, t)
        ).to(torch.float32)
        return cls(name, matches, distance < INLIER_DISTANCE, distance, R, t, scene, paths)


@dataclass(frozen=True, eq=False)
class Batch:
    """B problems of N matches each, all on one device. Padded matches are zeros, and False in every mask."""

    matches: Tensor
    """[B x N x 4] normalised points (x0, y0, x1, y1)."""
    inlier: Tensor
    """[B x N] bool: the label, `distance` below 1e-4."""
    distance: Tensor
    """[B x N] squared symmetric epipolar distance, calibrated."""
    ratio: Tensor
    """[B x N] in [0, 1]."""
    mutual: Tensor
    """[B x N] bool."""
    mask: Tensor
    """[B x N] bool: which matches exist."""
    R: Tensor
    """[B x 3 x 3] rotation from the first camera to the second."""
    t: Tensor
    """[B x 3] direction of translation, of length 1."""
