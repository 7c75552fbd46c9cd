"""Lists of image pairs with known pose, as evaluation protocols publish them.

- SuperGlue (ScanNet, YFCC): a line is `name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16)`, matrices row by row;
- glue-factory: the same without rotations, the pose as 16 numbers of a 4 x 4 matrix or as 12 of R, then t;
- MegaDepth-1500: `views.txt` (`name R(9) t(3) MODEL width height parameters`, COLMAP cameras) and `pairs.txt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ananet import geometry
from ananet.datasets.base import LabelledPair, PosedImage
from ananet.datasets.colmap import parse_camera, undistort_points
from ananet.datasets.photos import read_posed_image, resize
from ananet.errors import InputError
from ananet.features import Features, detect, match


@dataclass(frozen=True, eq=False)
class PosedPair:
    """Two photos with known cameras; poses are relative to any common frame."""

    image0: PosedImage
    image1: PosedImage
    rotations: tuple[int, int] = (0, 0)
    """Quarter turns counter-clockwise that bring the photos upright. Cameras and poses belong to the photos as they
    are stored; `label_pair` turns them along."""

    @property
    def name(self) -> str:
        return f"{self.image0.path.name} {self.image1.path.name}"

    def relative_pose(self) -> tuple[Tensor, Tensor]:
        """R [3 x 3] and t [3] from the first camera to the second, with the photos upright."""
        poses = [
            torch.from_numpy(array)
            for image, turns in zip((self.image0, self.image1), self.rotations, strict=True)
            for array in (rotate_axes(turns) @ image.R, rotate_axes(turns) @ image.t)
        ]
        return geometry.relative_pose(*poses)


def read_pair_list(path: str | Path, image_folder: str | Path) -> list[PosedPair]:
    """The pairs of a SuperGlue or glue-factory list; which of the two a line is, its length tells.

    Image names are looked up in `image_folder` when the photos are read, not before.
    """
    return [_parse_pair(fields, Path(image_folder), where) for where, fields in _rows(Path(path))]


def _parse_pair(fields: list[str], image_folder: Path, where: str) -> PosedPair:
    rotated = len(fields) == 38
    if len(fields) not in (32, 36, 38):
        raise InputError(f"{where}: expected 38 columns (SuperGlue), 36 or 32 (glue-factory), got {len(fields)}")
    rotations = _numbers(fields[2:4], where) if rotated else np.zeros(2)
    if not np.isin(rotations, range(4)).all():
        raise InputError(f"{where}: expected rotations of 0 to 3 quarter turns, got {fields[2:4]}")
    numbers = _numbers(fields[4 if rotated else 2 :], where)
    K0, K1, pose = numbers[:9].reshape(3, 3), numbers[9:18].reshape(3, 3), numbers[18:]
    if len(pose) == 16:
        R, t = pose.reshape(4, 4)[:3, :3], pose.reshape(4, 4)[:3, 3]
    else:
        R, t = pose[:9].reshape(3, 3), pose[9:]
    _check_rotation(R, where)
    return PosedPair(
        PosedImage(image_folder / fields[0], K0, np.eye(3), np.zeros(3)),
        PosedImage(image_folder / fields[1], K1, R, t),
        (int(rotations[0]), int(rotations[1])),
    )


def read_megadepth(folder: str | Path) -> list[PosedPair]:
    """The pairs of a folder laid out as MegaDepth-1500: `images/`, `views.txt`, `pairs.txt`."""
    folder = Path(folder)
    views = {fields[0]: _parse_view(fields, folder / "images", where) for where, fields in _rows(folder / "views.txt")}
    pairs = []
    for where, names in _rows(folder / "pairs.txt"):
        if len(names) < 2 or not set(names[:2]) <= set(views):
            raise InputError(f"{where}: expected two names of views.txt, got {' '.join(names)!r}")
        pairs.append(PosedPair(views[names[0]], views[names[1]]))
    return pairs


def _parse_view(fields: list[str], image_folder: Path, where: str) -> PosedImage:
    if len(fields) < 16:
        raise InputError(f"{where}: expected name, R (9), t (3), model, width, height, parameters; got {fields}")
    pose = _numbers(fields[1:13], where)
    R, t = pose[:9].reshape(3, 3), pose[9:]
    _check_rotation(R, where)
    width, height, *parameters = _numbers(fields[14:], where)
    camera = parse_camera(fields[13], (int(width), int(height)), parameters, where)
    return PosedImage(image_folder / fields[0], camera.K, R, t, camera.distortion)


def label_pair(
    pair: PosedPair, detector: str = "sift", max_keypoints: int = 2000, longest_side: int | None = None
) -> LabelledPair:
    """Detects and matches features in the two photos and labels the matches by the pose.

    Args:
        pair: which photos.
        detector, max_keypoints: as in `features.detect`.
        longest_side: photos are scaled to it first, as protocols ask (YFCC: 1600); None leaves them as they are.
    """
    features0, K0 = upright_features(pair.image0, pair.rotations[0], detector, max_keypoints, longest_side)
    features1, K1 = upright_features(pair.image1, pair.rotations[1], detector, max_keypoints, longest_side)
    R, t = pair.relative_pose()
    matches = match(features0, features1, K0=K0, K1=K1)
    return LabelledPair.from_pose(pair.name, matches, R, t, paths=(pair.image0.path, pair.image1.path))


def upright_features(
    image: PosedImage, turns: int, detector: str, max_keypoints: int, longest_side: int | None
) -> tuple[Features, np.ndarray]:
    """Features of a photo that is turned, scaled and freed from distortion, and the camera matrix that they have."""
    if turns and image.distortion is not None:
        raise InputError(f"pair: expected an undistorted photo where it is to be turned, got {image.distortion}")
    pixels = read_posed_image(image)
    size = (pixels.shape[1], pixels.shape[0])
    K = rotate_camera(image.K, size, turns)
    pixels = np.ascontiguousarray(np.rot90(pixels, turns))
    if longest_side is not None:
        pixels, to_resized = resize(pixels, longest_side / max(size))
        K = to_resized @ K
    features = detect(pixels, detector, max_keypoints)
    points = undistort_points(features.points, replace(image, K=K)).astype(np.float32)
    seen = np.isfinite(points).all(axis=1)
    return Features(points[seen], features.descriptors[: len(points)][seen], features.size), K


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
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    fx, fy, cx, cy = [
        (fx, fy, cx, cy),
        (fy, fx, cy, width - 1 - cx),
        (fx, fy, width - 1 - cx, height - 1 - cy),
        (fy, fx, height - 1 - cy, cx),
    ][turns]
    return np.array([[fx, K[0, 1], cx], [0, fy, cy], [0, 0, 1]])


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Where each line stands, and its fields."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            yield f"{path}, line {number}", line.split()


def _numbers(fields: list[str], where: str) -> np.ndarray:
    try:
        numbers = np.array(fields, np.float64)
    except ValueError:
        raise InputError(f"{where}: expected numbers, got {' '.join(fields)!r}") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"{where}: expected finite numbers, got {' '.join(fields)!r}")
    return numbers


def _check_rotation(R: np.ndarray, where: str) -> None:
    if not np.allclose(R @ R.T, np.eye(3), atol=1e-3) or np.linalg.det(R) < 0:
        raise InputError(f"{where}: expected a rotation, got {R.tolist()}")
