"""What happens to the pairs of a part, one stage after another. Each stage is loaded once in a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ananet.bulk.inputs import Pair, attempt
from ananet.core.correspondences import Correspondences
from ananet.estimators import load_estimator
from ananet.pruners import Pruned, Pruner, load
from ananet.twoview.overlap import check_overlap

# Matches that are pruned at once: what fills a GPU, and on a CPU what stays in its cache.
AT_ONCE_ON_GPU, AT_ONCE_ON_CPU = 262_144, 8192


class Prune:
    """Prunes pairs together, many at once.

    Args:
        pruner: what `ananet.load` takes.
        device: where it runs, "cpu" or "cuda".
    """

    def __init__(self, pruner: str | None, device: str) -> None:
        self.pruner = load(pruner, device=device)
        self.at_once = AT_ONCE_ON_CPU if device == "cpu" else AT_ONCE_ON_GPU

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [pair for group in groups(pairs, self.at_once) for pair in self._prune(group)]

    def _prune(self, pairs: list[Pair]) -> list[Pair]:
        shown = [pair for pair in pairs if pair.matches is not None]
        try:
            answers = dict(zip(map(id, shown), prune_all(self.pruner, [_matches(pair) for pair in shown]), strict=True))
        except Exception:
            # One of them is to blame. Alone, it fails by itself.
            return [attempt(pair, self._prune_alone) for pair in pairs]
        return [replace(pair, kept=answers[id(pair)]) if id(pair) in answers else pair for pair in pairs]

    def _prune_alone(self, pair: Pair) -> Pair:
        (kept,) = prune_all(self.pruner, [_matches(pair)])
        return replace(pair, kept=kept)


def prune_all(pruner: Pruner, matches: Sequence[Correspondences]) -> list[Pruned]:
    """The one place where a pruner is called."""
    return pruner.batch(matches)


class Verify:
    """Finds the poses of pruned pairs where both cameras are known, and says whether the photos overlap.

    Args:
        estimator: what `load_estimator` takes.
    """

    def __init__(self, estimator: str) -> None:
        self.estimator = load_estimator(estimator)

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [attempt(pair, self._verify) for pair in pairs]

    def _verify(self, pair: Pair) -> Pair:
        matches, kept = _matches(pair), pair.kept
        assert kept is not None
        overlap = None
        if matches.image_size1 is not None and matches.ratio is not None and matches.mutual is not None:
            overlap = check_overlap(matches, kept.mask).found
        # As `match_photos` has it: photos of different things have no pose.
        pose = self.estimator.pose(matches, kept) if pair.cameras_known and overlap is not False else None
        return replace(pair, overlap=overlap, pose=pose)


def groups(pairs: Sequence[Pair], limit: int) -> Iterator[list[Pair]]:
    """Pairs one after another, about so many matches at a time."""
    group: list[Pair] = []
    count = 0
    for pair in pairs:
        group.append(pair)
        count += 1 + (0 if pair.matches is None else len(pair.matches))
        if count >= limit:
            yield group
            group, count = [], 0
    if group:
        yield group


def _matches(pair: Pair) -> Correspondences:
    assert pair.matches is not None
    return pair.matches
