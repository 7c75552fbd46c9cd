"""Grid-based motion statistics (Bian et al., CVPR 2017): neighbours of a right match move the same way.

Both images are cut into cells. Each cell of the first image votes for the cell of the second where most of
its matches go; the vote stands if enough matches of the eight neighbouring cells go along. Neighbours are
compared under eight rotations and the second grid at five scales; the combination that keeps most wins. Four
grids, shifted by half a cell, make up for matches at cell borders.

Written on arrays, without loops over cells; agrees match for match with OpenCV's contributed matchGMS.
"""

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_positive
from ananet.core.correspondences import Correspondences
from ananet.pruners.base import MAX_LOGIT, Pruner, logits_of_possible

CELLS = 20
# Without image sizes, points this many times the extent of most of them away do not stretch the grid.
MAX_REACH = 5.0
SCALES = (1.0, 1 / 2, 1 / np.sqrt(2), np.sqrt(2), 2.0)
SHIFTS = ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5))
# The eight neighbours of a cell, clockwise from the top left, and the cell itself last.
RING = ((-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0))
# Which neighbour faces which when the second image is turned by 0, 45, ... 315 degrees.
ROTATIONS = [[*np.roll(np.arange(8), -turn).tolist(), 8] for turn in range(8)]


class GMS(Pruner):
    """Keeps matches whose neighbourhood moves with them.

    Args:
        rotation, scale: whether images may be turned or scaled against each other.
        threshold: how many neighbours must agree; higher keeps fewer matches.

    Without image sizes the extent of the points stands in for them.
    """

    name = "gms"

    def __init__(self, rotation: bool = True, scale: bool = True, threshold: float = 6.0) -> None:
        self.threshold = check_positive("threshold", threshold)
        self.scales = SCALES if scale else SCALES[:1]
        self.rotations = ROTATIONS if rotation else ROTATIONS[:1]

    def logits(self, matches: Correspondences) -> Tensor:
        return logits_of_possible(matches, self._logits)

    def _logits(self, matches: Correspondences) -> Tensor:
        points0, points1 = matches.numpy_points()
        unit0 = _to_unit_square(points0, matches.image_size0)
        unit1 = _to_unit_square(points1, matches.image_size1)
        best = np.full(len(points0), 0.0)
        most_kept = -1
        for scale in self.scales:
            for support in self._support(unit0, unit1, round(CELLS * scale)):
                kept = int((support >= 1).sum())
                if kept > most_kept:
                    best, most_kept = support, kept
        # A vote stands at `support >= 1`; the smallest step above keeps it on the positive side of 0.
        logits = np.log(np.maximum(best, np.exp(-MAX_LOGIT))) + np.where(best >= 1, 1e-6, 0.0)
        return torch.from_numpy(np.minimum(logits, MAX_LOGIT))

    def _support(self, unit0: np.ndarray, unit1: np.ndarray, cells1: int) -> np.ndarray:
        """[rotations x N] support of each match over what it needs; 0 where its cell voted otherwise."""
        best = np.zeros((len(self.rotations), len(unit0)))
        cell1 = _cell_index(unit1, cells1, (0.0, 0.0))
        neighbours0, neighbours1 = _neighbours(CELLS), _neighbours(cells1)
        for shift in SHIFTS:
            cell0 = _cell_index(unit0, CELLS, shift)
            inside = (cell0 >= 0) & (cell1 >= 0)
            flat = cell0[inside] * cells1**2 + cell1[inside]
            votes = np.bincount(flat, minlength=CELLS**2 * cells1**2).reshape(CELLS**2, cells1**2)
            population = votes.sum(axis=1)
            winner = votes.argmax(axis=1)
            for index, rotation in enumerate(self.rotations):
                from0, to1 = neighbours0, neighbours1[winner][:, rotation]
                present = (from0 >= 0) & (to1 >= 0)
                support = (votes[from0, to1] * present).sum(axis=1)
                crowd = (population[from0] * present).sum(axis=1) / present.sum(axis=1)
                needed = self.threshold * np.sqrt(crowd)
                strength = np.divide(support, needed, out=np.zeros(len(needed)), where=needed > 0)
                agrees = inside & (winner[cell0] == cell1) & (population[cell0] > 0)
                best[index] = np.maximum(best[index], np.where(agrees, strength[cell0], 0.0))
        return best


def _to_unit_square(points: np.ndarray, size: tuple[float, float] | None) -> np.ndarray:
    """Points over the image size, in OpenCV's single precision: whole pixels often fall on cell borders."""
    if size is not None:
        return (points / np.array(size)).astype(np.float32)
    low, high = _extent(points)
    # One pixel more than the extent, so that the largest coordinate falls inside the last cell.
    return ((points - low) / (high - low + 1)).astype(np.float32)


def _extent(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest coordinates, but for a few far from all others, which would leave these a single cell."""
    low = np.percentile(points, 10, axis=0, method="higher")
    high = np.percentile(points, 90, axis=0, method="lower")
    reach = MAX_REACH * np.maximum(high - low, 0) + 1
    near = ((points >= low - reach) & (points <= high + reach)).all(axis=1)
    usual = points[near] if near.any() else points
    return usual.min(axis=0), usual.max(axis=0)


def _cell_index(unit: np.ndarray, cells: int, shift: tuple[float, float]) -> np.ndarray:
    """Index of the cell of each point in a grid moved by a part of a cell; -1 outside."""
    cell = np.floor(unit * np.float32(cells) + np.array(shift, np.float32)).astype(np.int64)
    inside = ((cell >= 0) & (cell < cells)).all(axis=1)
    return np.where(inside, cell[:, 0] + cell[:, 1] * cells, -1)


def _neighbours(cells: int) -> np.ndarray:
    """[cells^2 x 9] indices of the ring around each cell and of the cell itself; -1 beyond the border."""
    y, x = np.divmod(np.arange(cells**2), cells)
    columns = []
    for dx, dy in (*RING, (0, 0)):
        inside = (x + dx >= 0) & (x + dx < cells) & (y + dy >= 0) & (y + dy < cells)
        columns.append(np.where(inside, x + dx + (y + dy) * cells, -1))
    return np.stack(columns, axis=1)
