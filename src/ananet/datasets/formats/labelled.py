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
from ananet.datasets.sources import PairFolders
from ananet.errors import InputError
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
