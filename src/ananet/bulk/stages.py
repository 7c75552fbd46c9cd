"""Pruning and verification of the pairs of a part. Each stage is loaded once per process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ananet.bulk.cluster import Row
from ananet.bulk.inputs import Pair, attempt
from ananet.estimators import load_estimator
from ananet.pruners import load
from ananet.pruners.base import stream_items
from ananet.twoview.overlap import check_overlap


class Prune:
    """Prune the pairs of a row.

    Args:
        pruner: as `ananet.load` takes it.
        device: "cpu" or "cuda".
    """

    def __init__(self, pruner: str | None, device: str) -> None:
        self.pruner = load(pruner, device=device)

    def __call__(self, row: Row) -> Row:
        return row | {"pairs": self.prune(list(row["pairs"]))}

    def prune(self, pairs: Sequence[Pair]) -> list[Pair]:
        done: list[Pair] = []
        try:
            for pair, kept in stream_items(self.pruner, pairs, lambda pair: pair.matches):
                done.append(replace(pair, kept=kept))
        except Exception:
            # One pair made its batch fail. Prune the rest one by one, so that only that pair fails.
            done += [attempt(pair, self._prune_one) for pair in pairs[len(done) :]]
        return done

    def _prune_one(self, pair: Pair) -> Pair:
        assert pair.matches is not None
        return replace(pair, kept=self.pruner(pair.matches))


class Verify:
    """Check the overlap of pruned pairs, and estimate the poses of those with known cameras.

    Args:
        estimator: as `load_estimator` takes it.
    """

    def __init__(self, estimator: str) -> None:
        self.estimator = load_estimator(estimator)

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [attempt(pair, self._verify) for pair in pairs]

    def _verify(self, pair: Pair) -> Pair:
        matches, kept = pair.matches, pair.kept
        assert matches is not None and kept is not None
        overlap = None
        if matches.image_size1 is not None and matches.ratio is not None and matches.mutual is not None:
            overlap = check_overlap(matches, kept.mask).found
        # Poses of photos without overlap are meaningless, and cost time.
        pose = self.estimator.pose(matches, kept) if pair.cameras_known and overlap is not False else None
        return replace(pair, overlap=overlap, pose=pose)
