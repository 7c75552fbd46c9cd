"""Matches with labels, one pair per folder or file: of several motions, or of planes.

Labelled matches, such as AdelaideRMF: `matches.npz` with the arrays that `ananet prune` takes, and `motion`, [N] whole
numbers: 0 for a wrong match, 1 and up for the motion of a right one.

MULTI (Grid-GTM): two JPEG files, `1key_location.txt` and `2key_location.txt` (a count, then x y), `match_idx.txt` (i j:
row i of the first with row j of the second) and `gt_location.txt` (a count, then x0 y0 x1 y1). There are no cameras, so
points are normalised by image size.

Matches of planes, such as those of the extreme view dataset (EVD) that MAGSAC's repository publishes: text files
`NAME_pts.txt` with a match per line, `x0 y0 x1 y1 ... label`, and photos `NAMEA.png` and `NAMEB.png` beside them. The
matches labelled 1 lie on one plane, but so do many that are labelled 0 (4 to 65 % in EVD). So the ones give the
homography, and what lies within 10 px of it is right.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch

from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import PairFolders, StoredPairs
from ananet.errors import InputError
from ananet.estimators.base import MIN_FOR, Model
from ananet.io.files import read_lines, read_rows
from ananet.io.images import read_image
from ananet.io.npz import read_arrays

FILE = "matches.npz"


class LabelledMatches(PairFolders):
    """The folders with labelled matches in a folder, sorted by name."""

    name = "labelled matches"
    recognised_by = f"folders with {FILE}, which holds points and motions"

    @staticmethod
    def find(path: Path) -> list[Path]:
        return sorted(file.parent for file in path.rglob(FILE))

    def read(self, folder: Path) -> LabelledPair:
        """Read one pair; matches of any motion are inliers."""
        path = folder / FILE
        arrays = read_arrays(path, more=("motion",))
        motion = arrays.pop("motion")
        try:
            matches = Correspondences(**arrays)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if motion.shape != (len(matches),) or not np.issubdtype(motion.dtype, np.integer) or (motion < 0).any():
            expected = f"{len(matches)} whole numbers of at least 0"
            raise InputError(f"{path}: motion: expected {expected}, got {motion.dtype} of shape {motion.shape}")
        return LabelledPair(folder.name, matches, torch.from_numpy(motion > 0), scene=self.title)


# A match is right when both of its keypoints lie this near, in pixels, to those of one true match.
LABEL_RADIUS = 1.0


class MULTICases(PairFolders):
    """The cases of MULTI in a folder, in the order of their numbers."""

    name = "MULTI"
    recognised_by = "folders with match_idx.txt and gt_location.txt"

    @staticmethod
    def find(path: Path) -> list[Path]:
        """Return the folders of cases at any depth, case2 before case10."""

        def numbers(path: Path) -> list[str | int]:
            # Text and numbers alternate, so that equal types are compared.
            return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.as_posix())]

        found = (path.parent for path in path.rglob("match_idx.txt"))
        return sorted((case for case in found if (case / "gt_location.txt").is_file()), key=numbers)

    def read(self, folder: Path) -> LabelledPair:
        return read_case(folder)


# How near, in pixels, matches of a plane lie to its homography. Keypoints of regions are less precise than SIFT's.
PLANE_RADIUS = 10.0
PLANE_SUFFIX = "_pts.txt"
PHOTO_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm")


class PlaneMatches(StoredPairs):
    """The files of matches of planes in a folder, or one of them."""

    name = "matches of planes"
    recognised_by = f"NAME{PLANE_SUFFIX}, or a folder with such files: x0 y0 x1 y1 ... label"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return bool(cls.find(path))

    @staticmethod
    def find(path: Path) -> list[Path]:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [file for file in files if file.name.endswith(PLANE_SUFFIX) and file.is_file()]

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))
        self.files = self.find(self.path)
        if not self.files:
            raise InputError(f"source: expected {self.recognised_by}, {path} holds none")

    @property
    def models(self) -> tuple[Model, ...]:
        return ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> LabelledPair:
        return read_plane_matches(self.files[number])


def read_plane_matches(path: str | Path) -> LabelledPair:
    """Read the matches of a plane and label them anew; without photos, images are as large as their points reach."""
    path = Path(path)
    rows = [line.split() for _, line in read_rows(path)]
    try:
        points = np.array([row[:4] for row in rows], np.float64).reshape(-1, 4)
    except ValueError:
        raise InputError(f"{path}: expected x0 y0 x1 y1 ... label in every line") from None
    if any(len(row) < 5 or row[-1] not in ("0", "1") for row in rows) or not np.isfinite(points).all():
        raise InputError(f"{path}: expected finite x0 y0 x1 y1, and a last column of 0 or 1, in every line")
    points0, points1 = points[:, :2], points[:, 2:]
    H = _homography(points0, points1, np.array([row[-1] == "1" for row in rows], bool), path)
    stem = path.name.removesuffix(PLANE_SUFFIX)
    found = [[path.with_name(f"{stem}{side}{suffix}") for suffix in PHOTO_SUFFIXES] for side in "AB"]
    photos = [next((photo for photo in candidates if photo.is_file()), None) for candidates in found]
    sizes = [
        tuple(own.max(axis=0) + 1) if photo is None else read_image(photo).shape[1::-1]
        for own, photo in zip((points0, points1), photos, strict=True)
    ]
    matches = Correspondences(points0, points1, image_size0=sizes[0], image_size1=sizes[1])
    paths = None if photos[0] is None or photos[1] is None else (photos[0], photos[1])
    scene = path.resolve().parent.name
    pair = LabelledPair.from_homography(stem, matches, torch.from_numpy(H), scene, pixels=PLANE_RADIUS, paths=paths)
    # Fitted to a handful of matches, it is good for labels, not for errors of a pixel.
    return replace(pair, H=None)


def _homography(points0: np.ndarray, points1: np.ndarray, ones: np.ndarray, path: Path) -> np.ndarray:
    """The homography that fits the matches labelled 1 best; all of them must lie near it."""
    if ones.sum() < MIN_FOR["homography"]:
        raise InputError(f"{path}: expected at least {MIN_FOR['homography']} matches with label 1, got {ones.sum()}")
    H: np.ndarray | None = cv2.findHomography(points0[ones], points1[ones], 0)[0]
    if H is None or not np.isfinite(H).all():
        raise InputError(f"{path}: expected matches with label 1 that define a homography, got degenerate ones")
    mapped = cv2.perspectiveTransform(points0[ones][None], H)[0]
    worst = float(np.linalg.norm(mapped - points1[ones], axis=1).max())
    if not worst <= PLANE_RADIUS:
        near = f"within {PLANE_RADIUS:g} px of one homography"
        raise InputError(f"{path}: expected matches of a plane, those with label 1 {near}, got one {worst:.1f} px off")
    return H


def read_case(folder: str | Path) -> LabelledPair:
    """Read one pair, without epipolar distances: there are several motions."""
    folder = Path(folder)
    photos = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    if len(photos) != 2:
        raise InputError(f"folder: expected two JPEG files in {folder}, got {len(photos)}")
    keypoints0 = _read_table(folder / "1key_location.txt", columns=2, counted=True)
    keypoints1 = _read_table(folder / "2key_location.txt", columns=2, counted=True)
    index = _read_table(folder / "match_idx.txt", columns=2, counted=False)
    truth = _read_table(folder / "gt_location.txt", columns=4, counted=True)
    largest = np.array([len(keypoints0), len(keypoints1)]) - 1
    if (index < 0).any() or (index > largest).any() or (index % 1 != 0).any():
        got = f"{index.min()} to {index.max()}"
        raise InputError(f"{folder / 'match_idx.txt'}: expected whole numbers from 0 to {largest.tolist()}, got {got}")
    index = index.astype(np.int64)

    points0, points1 = keypoints0[index[:, 0]], keypoints1[index[:, 1]]
    sizes = [read_image(photo).shape[1::-1] for photo in photos]
    matches = Correspondences(points0, points1, image_size0=sizes[0], image_size1=sizes[1])
    inlier = torch.from_numpy(_near_truth(points0, points1, truth))
    return LabelledPair(folder.name, matches, inlier, scene="multi", paths=(photos[0], photos[1]))


def _near_truth(points0: np.ndarray, points1: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """[N] bool mask of the matches that are near some true match [M x 4]."""

    def near(points: np.ndarray, true_points: np.ndarray) -> np.ndarray:
        offset = points[:, None] - true_points[None]
        return np.einsum("nmk,nmk->nm", offset, offset) <= LABEL_RADIUS**2

    return (near(points0, truth[:, :2]) & near(points1, truth[:, 2:])).any(axis=1)


def _read_table(path: Path, columns: int, counted: bool) -> np.ndarray:
    """Read [N x columns] float64; `counted` files have N in their first line."""
    rows = [line.split() for line in read_lines(path) if line]
    try:
        count = int(rows.pop(0)[0]) if counted else len(rows)
        table = np.array(rows, np.float64).reshape(-1, columns)
    except (ValueError, IndexError):
        first = "a count, then " if counted else ""
        raise InputError(f"{path}: expected {first}{columns} numbers per line") from None
    if len(table) != count or any(len(row) != columns for row in rows):
        raise InputError(f"{path}: expected {count} rows of {columns} numbers, got {len(rows)} lines")
    if not np.isfinite(table).all():
        raise InputError(f"{path}: expected finite numbers, got NaN or infinity")
    return table
