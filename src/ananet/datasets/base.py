"""Photos with cameras, labelled pairs and batches: what all data sources provide."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ananet._util.defaults import INLIER_DISTANCE
from ananet.core import geometry
from ananet.core.cameras import rotate_axes
from ananet.core.correspondences import Correspondences
from ananet.core.metrics import PoseError
from ananet.estimators.base import Pose

# Without a baseline there is no epipolar geometry to label matches by, as in OANet.
MIN_BASELINE = 1e-5


@dataclass(frozen=True, eq=False)
class PosedImage:
    """A photo with known camera. As in OpenCV, the centre of the first pixel is (0, 0)."""

    path: Path
    K: np.ndarray
    """[3 x 3] camera matrix."""
    R: np.ndarray
    """[3 x 3] world-to-camera rotation."""
    t: np.ndarray
    """[3] world-to-camera translation."""
    distortion: tuple[str, tuple[float, ...]] | None = None
    """COLMAP camera model and its distortion coefficients; None for a pinhole."""
    size: tuple[int, int] | None = None
    """(width, height) that the camera was calibrated for, if known."""


@dataclass(frozen=True, eq=False)
class PosedPair:
    """Two photos with known cameras; poses are relative to any common frame."""

    image0: PosedImage
    image1: PosedImage
    name: str = ""
    rotations: tuple[int, int] = (0, 0)
    """Quarter turns counter-clockwise that bring the photos upright. Cameras and poses are those of the stored photos;
    `relative_pose` and `photo_features` apply the turns."""

    def relative_pose(self) -> tuple[Tensor, Tensor]:
        """R [3 x 3] and t [3] from the first camera to the second, with the photos upright; t has any length."""
        poses = [
            torch.from_numpy(np.asarray(array, np.float64))
            for image, turns in zip((self.image0, self.image1), self.rotations, strict=True)
            for array in (rotate_axes(turns) @ image.R, rotate_axes(turns) @ image.t)
        ]
        return geometry.relative_pose(*poses)

    @property
    def has_baseline(self) -> bool:
        """Whether there is an epipolar geometry to label matches by."""
        return bool(self.relative_pose()[1].norm() > MIN_BASELINE)


@dataclass(frozen=True, eq=False)
class PosedScene:
    """Photos of one scene, and which pairs of them are used."""

    name: str
    images: dict[str, PosedImage]
    """By name."""
    pairs: list[PosedPair] | None = None
    """The pairs of a protocol; None if any two photos may be paired."""
    missing: tuple[str, ...] = ()
    """Names of images of the model that have no photo."""

    def all_pairs(self) -> list[PosedPair]:
        """The prescribed pairs, or any two photos."""
        if self.pairs is not None:
            return self.pairs
        names = itertools.combinations(sorted(self.images), 2)
        return [PosedPair(self.images[a], self.images[b], f"{a}-{b}") for a, b in names]


@dataclass(frozen=True, eq=False)
class LabelledPair:
    """Putative matches of one image pair with their labels."""

    name: str
    matches: Correspondences
    inlier: Tensor
    """[N] bool: which matches are right."""
    distance: Tensor | None = None
    """[N] squared symmetric epipolar distance, calibrated; None if there is no single geometry."""
    R: Tensor | None = None
    """[3 x 3] true rotation from the first camera to the second."""
    t: Tensor | None = None
    """[3] true direction of translation, of length 1."""
    scene: str = ""
    paths: tuple[Path, Path] | None = None
    """The two photos, if any."""

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
        """Label calibrated matches by their distance to the true epipolar geometry."""
        R, t = R.double(), t.double()
        t = t / t.norm()
        rays = matches._as_tensors().normalized().double()
        distance = geometry.symmetric_epipolar_distance_squared(
            rays[:, :2], rays[:, 2:], geometry.essential_from_pose(R, t)
        ).to(torch.float32)
        return cls(name, matches, distance < INLIER_DISTANCE, distance, R, t, scene, paths)

    def pose_error(self, pose: Pose | None) -> PoseError:
        """Return the error of an estimated pose."""
        assert self.R is not None and self.t is not None
        if pose is None:
            return PoseError.of_failure()
        return PoseError(
            geometry.rotation_error(torch.as_tensor(pose.R).cpu(), self.R.double()).item(),
            geometry.translation_error(torch.as_tensor(pose.t).cpu(), self.t.double()).item(),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """B problems of N matches each, all on one device. Padded matches are zeros, and False in every mask."""

    matches: Tensor
    """[B x N x 4] normalised points (x0, y0, x1, y1)."""
    inlier: Tensor
    """[B x N] bool: the label, `distance` below a limit."""
    distance: Tensor
    """[B x N] squared symmetric epipolar distance, calibrated."""
    ratio: Tensor
    """[B x N] in [0, 1]."""
    mutual: Tensor
    """[B x N] bool."""
    sizes: Tensor
    """[B x N x 2] keypoint sizes, normalised as the points are; NaN if unknown."""
    angles: Tensor
    """[B x N x 2] keypoint orientations in radians; NaN if unknown."""
    mask: Tensor
    """[B x N] bool: which matches exist."""
    R: Tensor
    """[B x 3 x 3] rotation from the first camera to the second."""
    t: Tensor
    """[B x 3] direction of translation, of length 1."""
    E: Tensor
    """[B x 3 x 3] the true geometry of `matches` as they are normalised, p1^T E p0 = 0: [t]x R where they are rays."""
