"""Matches with labelled motions, such as AdelaideRMF.

Each pair is a folder with `matches.npz`: the arrays that `ananet prune` takes, and `motion`, [N] whole numbers: 0 for a
wrong match, 1 and up for the motion of a right one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import StoredPairs
from ananet.errors import InputError
from ananet.io.npz import read_arrays

FILE = "matches.npz"


class LabelledMatches(StoredPairs):
    """The folders with labelled matches in a folder, at any depth, sorted by name."""

    name = "labelled matches"
    recognised_by = f"folders with {FILE}, which holds points and motions"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_dir() and bool(find_pairs(path))

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))
        self.pairs = find_pairs(self.path)
        if not self.pairs:
            raise InputError(f"source: expected {self.recognised_by}, {path} holds none")

    @property
    def has_poses(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> LabelledPair:
        return read_pair(self.pairs[number], self.title)


def find_pairs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob(FILE))


def read_pair(folder: Path, scene: str) -> LabelledPair:
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
    return LabelledPair(folder.name, matches, torch.from_numpy(motion > 0), scene=scene)
