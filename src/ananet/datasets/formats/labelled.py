"""Matches with labels and several motions, one pair per folder.

Labelled matches, such as AdelaideRMF: `matches.npz` with the arrays that `ananet prune` takes, and `motion`, [N] whole
numbers: 0 for a wrong match, 1 and up for the motion of a right one.

MULTI (Grid-GTM): two JPEG files, `1key_location.txt` and `2key_location.txt` (a count, then x y), `match_idx.txt` (i j:
row i of the first with row j of the second) and `gt_location.txt` (a count, then x0 y0 x1 y1). There are no cameras, so
points are normalised by image size.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import PairFolders
from ananet.errors import InputError
from ananet.io.files import read_lines
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
