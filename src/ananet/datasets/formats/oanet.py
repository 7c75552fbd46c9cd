"""YFCC100M and SUN3D as OANet prepares them: HDF5 dumps of matches, and the raw scenes they are made from.

A dump has a group for each quantity, and in it a float32 dataset for each pair, named by its number:

    xs (1, N, 4) calibrated points       ys (N, 1) squared symmetric epipolar distance, not a label
    Rs (3, 3), ts (3, 1) true pose       ratios (N,), mutuals (N,)
    f1s, f2s (1, 2) focal lengths        cx1s, cy1s, cx2s, cy2s (1,) principal points

The dumps of all descriptors (sift-2000, superpoint-1024) and of all splits share this layout.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ananet._util.defaults import INLIER_DISTANCE
from ananet.core.cameras import camera_matrix, project
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair, PosedImage, PosedPair, PosedScene
from ananet.datasets.sources import SceneFolders, StoredPairs
from ananet.errors import InputError
from ananet.io.files import read_lines
from ananet.io.hdf5 import hdf5_errors, import_h5py, open_hdf5, read_dataset

GROUPS = ("xs", "ys", "Rs", "ts", "ratios", "mutuals", "cx1s", "cy1s", "cx2s", "cy2s", "f1s", "f2s")

# Pairs of a raw scene have more than so many 3D points in common.
MIN_COMMON_POINTS = 50
# Limit for the arrays of one pair or camera.
MAX_NUMBERS = 2**24
# OANet's own seed, for the same order of pairs.
PAIR_SEED = 1234


class OANetDump(StoredPairs):
    """The pairs of a dump, read one at a time; points are in pixels, for estimators with thresholds in pixels.

    It can be sent to worker processes: each opens the file for itself.
    """

    name = "OANet dump"
    recognised_by = "an .h5 or .hdf5 file"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_file() and path.suffix in (".h5", ".hdf5")

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))
        self._file: Any = None
        with hdf5_errors(self.path):
            file = self._open()
            missing = [group for group in GROUPS if file.get(group, getclass=True) is not import_h5py().Group]
            if missing:
                expected = f"the groups {', '.join(GROUPS)} in {path}"
                raise InputError(f"path: expected {expected}, missing {', '.join(missing)}")
            self._length = len(file["xs"])

    def _open(self) -> Any:
        if self._file is None:
            self._file = open_hdf5(self.path)
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> LabelledPair:
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self)}")
        values = {group: _numbers(self.path, self._open(), f"{group}/{number}") for group in GROUPS}
        count = values["xs"].size // 4
        expected = {"xs": 4 * count, "ys": count, "ratios": count, "mutuals": count, "Rs": 9, "ts": 3}
        expected |= {"f1s": 2, "f2s": 2, "cx1s": 1, "cy1s": 1, "cx2s": 1, "cy2s": 1}
        for group, size in expected.items():
            if values[group].size != size:
                raise InputError(f"{self.path}, {group}/{number}: expected {size} numbers, got {values[group].size}")
        if not (np.isfinite(values["Rs"]).all() and np.isfinite(values["ts"]).all()):
            raise InputError(f"{self.path}: expected a finite pose of pair {number}, got NaN or infinity")
        K0, K1 = (camera_matrix(*values[f"f{n}s"], *values[f"cx{n}s"], *values[f"cy{n}s"]) for n in (1, 2))
        rays = values["xs"].reshape(count, 4)
        # Two equal descriptors in the second image make 0 / 0, the worst ratio.
        ratio, mutual = np.nan_to_num(values["ratios"], nan=1.0).clip(0, 1), values["mutuals"] > 0.5
        points = project(rays[:, :2], K0), project(rays[:, 2:], K1)
        matches = Correspondences(*points, K0=K0, K1=K1, ratio=ratio, mutual=mutual)
        distance = torch.from_numpy(values["ys"]).float()
        R, t = torch.from_numpy(values["Rs"].reshape(3, 3)), torch.from_numpy(values["ts"])
        return LabelledPair(str(number), matches, distance < INLIER_DISTANCE, distance, R, t)


def _numbers(path: Path, file: Any, name: str) -> np.ndarray:
    """Return a dataset as a flat float64 array."""
    return read_dataset(path, file, name, MAX_NUMBERS).astype(np.float64).reshape(-1)


def read_raw_scene(folder: str | Path) -> PosedScene:
    """Read a scene before matching: `images.txt`, `calibration.txt` and `visibility.txt`, each a list of files.

    Pairs that have more than 50 points in common, in both directions and in OANet's order. OANet trains on the first
    10,000 pairs of a scene and validates on 100; its test pairs are in the dump.
    """
    folder = Path(folder)
    names, cameras, visible = (_read_list(folder / f"{name}.txt") for name in ("images", "calibration", "visibility"))
    if not len(names) == len(cameras) == len(visible):
        got = f"{len(names)}, {len(cameras)} and {len(visible)}"
        raise InputError(f"folder: expected as many images as calibrations and visibilities in {folder}, got {got}")
    images = {name: _read_camera(folder / camera, folder / name) for name, camera in zip(names, cameras, strict=True)}
    common = [_read_counts(folder / name) for name in visible]
    for name, counts in zip(visible, common, strict=True):
        if len(counts) != len(names):
            raise InputError(f"{folder / name}: expected {len(names)} numbers, got {len(counts)}")
    pairs = [(i, j) for i, j in product(range(len(names)), repeat=2) if i != j and common[i][j] > MIN_COMMON_POINTS]
    order = np.random.RandomState(PAIR_SEED).permutation(len(pairs))
    chosen = [(names[pairs[k][0]], names[pairs[k][1]]) for k in order]
    listed = [PosedPair(images[a], images[b], f"{a}-{b}") for a, b in chosen]
    return PosedScene(folder.resolve().name, images, listed)


class OANetRawScenes(SceneFolders):
    """A raw scene of OANet's (`images.txt`, `calibration.txt`, `visibility.txt`), or a folder of them."""

    name = "OANet raw scenes"
    recognised_by = "images.txt, calibration.txt and visibility.txt, in a folder or in the folders within"
    marker = "visibility.txt"
    read = staticmethod(read_raw_scene)


def _read_camera(path: Path, image: Path) -> PosedImage:
    """Read K, with the principal point as an offset from the image centre, R, T and imsize (w, h)."""
    with open_hdf5(path) as file:
        K, R, T, size = (_numbers(path, file, name) for name in ("K", "R", "T", "imsize"))
    if [len(K), len(R), len(T), len(size)] != [9, 9, 3, 2] or not np.isfinite(np.r_[K, R, T, size]).all():
        raise InputError(f"{path}: expected finite K (3, 3), R (3, 3), T (3,), imsize (2,), got {K}, {R}, {T}, {size}")
    if K[0] <= 0 or K[4] <= 0 or size.min() <= 0:
        found = f"K {K.tolist()}, imsize {size.tolist()}"
        raise InputError(f"{path}: expected positive focal lengths and sizes, got {found}")
    K, R, (width, height) = K.reshape(3, 3), R.reshape(3, 3), size
    offset = np.array([[0, 0, (width - 1) / 2], [0, 0, (height - 1) / 2], [0, 0, 0]])
    return PosedImage(image, K + offset, R, T)


def _read_list(path: Path) -> list[str]:
    return [line for line in read_lines(path) if line]


def _read_counts(path: Path) -> np.ndarray:
    """Numbers of points in common with every image, separated by spaces or lines."""
    words = " ".join(_read_list(path)).split()
    try:
        return np.array(words, np.float64)
    except ValueError as error:
        raise InputError(f"{path}: expected numbers ({error})") from None
