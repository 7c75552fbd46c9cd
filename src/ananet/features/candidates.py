"""Which pairs of a photo collection are worth matching.

The largest keypoints of every photo are compared with those of every other one, in about a hundredth of the time that
it takes to match all pairs in full; the more promising pairs once more with more keypoints. Nearest neighbours count
that are mutual and distinctive, and that turn and grow like most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet._util.workers import worker_threads
from ananet.features.base import Features
from ananet.features.matching import nearest_neighbours

# Keypoints of each photo for all pairs, and for this share of them, the most promising.
FEW, MORE, COMPARED_AGAIN = 300, 1000, 0.25
# Pairs that are worth matching: this share of all, but at least so many per photo, and each photo's best ones.
SHARE, PER_PHOTO, BEST_OF_PHOTO = 0.1, 5, 3
# Directions and sizes (powers of e) that count as alike: two neighbouring cells of these.
TURN_CELLS, SIZE_CELL, SIZE_CELLS = 18, 0.5, 16
# Pairs that a thread gets at once.
PAIRS_TOGETHER = 256


def promising_pairs(photos: Iterable[Features], share: float = SHARE, per_photo: int = PER_PHOTO) -> np.ndarray:
    """[P x 2] numbers of the photos that are worth matching, a < b, the most promising first.

    Args:
        share: of all pairs.
        per_photo: so many pairs for each photo at least: all pairs of small collections.

    >>> photo = Features(np.zeros((0, 2)), np.zeros((0, 128)), (640, 480))
    >>> promising_pairs([photo] * 3).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    described = [largest(photo, MORE) for photo in photos]
    pairs = np.array(list(itertools.combinations(range(len(described)), 2)), np.int64).reshape(-1, 2)
    wanted = min(len(pairs), max(round(share * len(pairs)), per_photo * len(described)))
    if wanted == len(pairs):
        return pairs
    compared_again = max(wanted, round(COMPARED_AGAIN * len(pairs)))
    pairs = _most_agreeing([largest(photo, FEW) for photo in described], pairs, compared_again)
    return _most_agreeing(described, pairs, wanted)


def _most_agreeing(photos: Sequence[Features], pairs: np.ndarray, wanted: int) -> np.ndarray:
    """So many of the pairs, among them the best ones of each photo: those with little texture are not left out."""
    pairs = pairs[np.argsort(-count_agreeing(photos, pairs), kind="stable")]
    seen, best = np.zeros(len(photos), np.int64), np.zeros(len(pairs), bool)
    for place, pair in enumerate(pairs):
        best[place] = (seen[pair] < BEST_OF_PHOTO).any()
        seen[pair] += 1
    return pairs[np.sort(np.argsort(~best, kind="stable")[:wanted])]


def largest(photo: Features, count: int) -> Features:
    """So many keypoints, the largest first: these are seen from far and near. The strongest if sizes are not known."""
    return photo[:count] if photo.sizes is None else photo[np.argsort(-photo.sizes, kind="stable")[:count]]


def count_agreeing(photos: Sequence[Features], pairs: np.ndarray) -> np.ndarray:
    """[P] number of distinctive matches of pairs [P x 2] whose keypoints turn and grow like most."""
    parts = np.array_split(pairs, max(1, len(pairs) // PAIRS_TOGETHER))
    with worker_threads() as workers:
        counts = workers.map(lambda part: [_agreeing(photos[a], photos[b]) for a, b in part], parts)
        return np.array([count for part in counts for count in part], np.int64)


def _agreeing(first: Features, second: Features) -> int:
    found = nearest_neighbours(first.descriptors, second.descriptors)
    matched = np.flatnonzero(found.mutual & (found.ratio < DISTINCTIVE_RATIO))
    partners, cells = found.index[matched], np.zeros((2, len(matched)), np.int64)
    if first.angles is not None and second.angles is not None:
        turns = (second.angles[partners] - first.angles[matched]) / (2 * np.pi) % 1
        cells[0] = turns * TURN_CELLS
    if first.sizes is not None and second.sizes is not None:
        growth = np.log(second.sizes[partners] / first.sizes[matched])
        cells[1] = np.clip(growth / SIZE_CELL + SIZE_CELLS / 2, 0, SIZE_CELLS - 1)
    votes = np.bincount(cells[0] % TURN_CELLS * SIZE_CELLS + cells[1], minlength=TURN_CELLS * SIZE_CELLS)
    votes = votes.reshape(TURN_CELLS, SIZE_CELLS)
    votes = votes + np.roll(votes, 1, axis=0)
    return int((votes[:, 1:] + votes[:, :-1]).max())
