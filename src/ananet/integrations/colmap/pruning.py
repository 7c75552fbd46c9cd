"""COLMAP: prunes the matches of a database, makes them from its descriptors, verifies them.

    from ananet.integrations.colmap import match_database, prune_database
    prune_database("database.db")                  # what COLMAP or anyone else matched
    match_database("database.db", verify=True)     # nearest neighbours, pruned, verified: ready for the mapper

Each call is one transaction: a database is as it was, or done. A second call changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from ananet._util.checks import check_whole_number
from ananet._util.defaults import COLMAP_MIN_MATCHES, RECONSTRUCTION_PRUNER
from ananet._util.devices import choose_device
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.selection import one_to_one
from ananet.features import NearestNeighbours, nearest_neighbours
from ananet.integrations.colmap.database import Database, Pair, View, copy_database, join, open_database, transaction
from ananet.integrations.colmap.library import import_pycolmap
from ananet.integrations.colmap.verification import verify_pairs
from ananet.integrations.neighbours import nearest_neighbours as nearest_tensors
from ananet.io.files import atomic_path, check_output, file_sha256
from ananet.io.pairs import read_pairs
from ananet.pruners import Pruner, load
from ananet.pruners.base import Pruned, stream_items
from ananet.pruners.registry import look_up as look_up_pruner

__all__ = ["Summary", "match_database", "prune_database", "verify_database"]

ALL_PAIRS, EXISTING_PAIRS = "all", "existing"


@dataclass
class Summary:
    """What was done to a database."""

    pruner: str
    """Its name and options."""
    used: list[str] = field(default_factory=list)
    """What answered: the pruner itself, or the networks that "auto" took."""
    pairs: int = 0
    """Pairs that were looked at."""
    skipped: int = 0
    """Of these, pairs that had been pruned by the same pruner before, and not changed since."""
    before: int = 0
    """Matches before pruning."""
    after: int = 0
    """Matches after pruning."""
    dropped: int = 0
    """Pairs that had matches and have none now."""
    unseen: int = 0
    """Of the matches removed, those at keypoints that a lens model cannot place in an undistorted photo."""
    geometries_removed: int = 0
    """Two-view geometries of the old matches of changed pairs; the mapper needs new ones."""
    verified: int | None = None
    """Pairs of the database with inliers to a two-view geometry; None if verification was not asked for."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of each step: read, match, prune, write, verify."""

    @property
    def pairs_per_second(self) -> float:
        """Over all steps."""
        return self.pairs / max(sum(self.seconds.values()), 1e-9)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds to the seconds of a step, without those of steps within it."""
        start, others = time.perf_counter(), sum(self.seconds.values())
        try:
            yield
        finally:
            within = sum(self.seconds.values()) - others
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start - within


def prune_database(
    path: str | Path,
    pruner: str | Path | Pruner | None = None,
    *,
    output: str | Path | None = None,
    min_matches: int = COLMAP_MIN_MATCHES,
    verify: bool = False,
    dry_run: bool = False,
    device: str | torch.device = "auto",
    progress: bool = False,
) -> Summary:
    """Prunes the matches of every pair of a COLMAP database.

    Args:
        path: the database.
        pruner: a pruner or what `ananet.load` takes; None for the best network for what is known of the matches, at a
            stricter threshold than elsewhere ("auto@threshold=0.9"), which gives better reconstructions.
        output: where to write a pruned copy; without it the database itself is changed.
        min_matches: pairs that keep fewer lose all their matches, as in COLMAP.
        verify: two-view geometries of pairs without one, by COLMAP's own verification (needs pycolmap).
        dry_run: count, and write nothing; nothing is verified either.
        device: where networks run.
        progress: show a bar.

    Two-view geometries belong to the matches they were made from: those of changed pairs are removed, and COLMAP's
    verifier or matchers make new ones. Pairs that were pruned are noted in a table of the database's own
    (`ananet_pruned`), so that a second call leaves them alone, unless someone has written other matches since.
    """
    job = _Job(pruner, device, min_matches, matching=False, progress=progress)
    return _run(Path(path), output, job, job.stored, verify, dry_run)


def match_database(
    path: str | Path,
    pruner: str | Path | Pruner | None = None,
    *,
    pairs: str | Path | Sequence[tuple[str, str]] = ALL_PAIRS,
    output: str | Path | None = None,
    min_matches: int = COLMAP_MIN_MATCHES,
    verify: bool = False,
    dry_run: bool = False,
    device: str | torch.device = "auto",
    progress: bool = False,
) -> Summary:
    """Matches the images of a COLMAP database by their descriptors, and prunes the matches.

    The putative matches are nearest neighbours with ratio and mutual flag, which the default pruner uses. Only kept
    matches that are mutual are written: COLMAP expects each keypoint at most once per pair.

    Args:
        pairs: "all"; "existing" for pairs that have matches, which are replaced; a text file with two image names per
            line (separated by a tab if names contain blanks); or the names themselves. Pairs with an image that has
            no descriptors are left as they are.

    The other arguments are those of `prune_database`.
    """
    job = _Job(pruner, device, min_matches, matching=True, progress=progress)
    return _run(Path(path), output, job, lambda database: job.matched(database, pairs), verify, dry_run)


def verify_database(path: str | Path) -> int:
    """Two-view geometries of all pairs that have matches and no geometry, by COLMAP's own verification.

    Returns how many pairs of the database have inliers then. It is one transaction too.
    """
    pycolmap = import_pycolmap()
    with open_database(Path(path)) as database, transaction(database, write=True):
        return verify_pairs(pycolmap, database)


class _Putative(NamedTuple):
    """A pair before its matches are pruned."""

    pair: Pair
    indices: np.ndarray
    """[N x 2] keypoints."""
    usable: np.ndarray
    """[N] bool: which of them the pruner gets to see."""
    matches: Correspondences | None
    """Those; None for a pair that was pruned before."""


class _Job:
    """What is done to every pair."""

    def __init__(
        self,
        pruner: str | Path | Pruner | None,
        device: str | torch.device,
        min_matches: int,
        *,
        matching: bool,
        progress: bool,
    ) -> None:
        self.device = choose_device(device)
        pruner = RECONSTRUCTION_PRUNER if pruner is None else pruner
        self.identity = identity_of(pruner)
        self.pruner = pruner if isinstance(pruner, Pruner) else load(pruner, device=self.device)
        self.min_matches = check_whole_number("min_matches", min_matches, 0, 2**31)
        self.matching, self.progress = matching, progress
        self.summary = Summary(pruner.name if isinstance(pruner, Pruner) else str(pruner))

    def stored(self, database: Database) -> tuple[int, Iterator[_Putative]]:
        """How many pairs have matches, and these pairs."""
        return database.count_matched_pairs(), self._stored(database)

    def _stored(self, database: Database) -> Iterator[_Putative]:
        pairs = database.matched_pairs()
        while True:
            with self.summary.timed("read"):
                stored = next(pairs, None)
                if stored is None:
                    return
                putative = self._putative(database, *stored)
            yield putative

    def _putative(self, database: Database, pair: Pair, indices: np.ndarray) -> _Putative:
        if database.is_marked(pair, self.identity, matched=False):
            return _Putative(pair, indices, np.ones(len(indices), bool), None)
        first, second = (database.view(image) for image in pair)
        _check_indices(database, pair, indices, (first, second))
        matches, usable = join(first, second, indices)
        return _Putative(pair, indices, usable, matches)

    def matched(
        self, database: Database, pairs: str | Path | Sequence[tuple[str, str]]
    ) -> tuple[int, Iterator[_Putative]]:
        """How many pairs are to be matched, and these pairs."""
        described = database.images_with_descriptors()
        if not described and database.image_names():
            raise InputError(f"{database.name}: expected descriptors to match, there are none; extract features first")
        if isinstance(pairs, str) and pairs == ALL_PAIRS:
            return len(described) * (len(described) - 1) // 2, self._matched(
                database, (Pair(*two) for two in combinations(described, 2))
            )
        if isinstance(pairs, str) and pairs == EXISTING_PAIRS:
            chosen = [stored.pair for stored in database.matched_pairs()]
        else:
            chosen = _named_pairs(database, pairs)
        known = set(described)
        usable = sorted({pair.in_order for pair in chosen if known.issuperset(pair)})
        return len(usable), self._matched(database, iter(usable))

    def _matched(self, database: Database, pairs: Iterator[Pair]) -> Iterator[_Putative]:
        for pair in pairs:
            with self.summary.timed("read"):
                done = database.is_marked(pair, self.identity, matched=True)
                views = [] if done else [database.view(image, descriptors=True) for image in pair]
                stored = database.read_matches(pair) if done else None
            if done:
                indices = np.frombuffer(stored or b"", np.uint32).reshape(-1, 2)
                yield _Putative(pair, indices, np.ones(len(indices), bool), None)
                continue
            with self.summary.timed("match"):
                putative = self._nearest(pair, *views)
            yield putative

    def _nearest(self, pair: Pair, first: View, second: View) -> _Putative:
        assert first.descriptors is not None and second.descriptors is not None
        found = _neighbours(first.descriptors, second.descriptors, self.device)
        indices = np.stack([np.arange(len(found.index)), found.index], axis=1)
        matches, usable = join(first, second, indices, ratio=found.ratio, mutual=found.mutual)
        return _Putative(pair, indices, usable, matches)

    def work(self, database: Database, total: int, putative: Iterator[_Putative], write: bool) -> None:
        """Prunes pairs as they are read: memory does not grow with the database."""
        if write and total:
            database.start_marking()
        answers = stream_items(self.pruner, putative, lambda pair: pair.matches)
        with tqdm(total=total, desc=self.pruner.name, unit="pair", disable=not self.progress) as bar:
            while True:
                with self.summary.timed("prune"):
                    pair, answer = next(answers, (None, None))
                if pair is None:
                    return
                with self.summary.timed("write"):
                    self._finish(database, pair, self._kept(pair, answer), write)
                bar.update()

    def _kept(self, pair: _Putative, answer: Pruned | None) -> np.ndarray:
        """[N] bool: what stays of a pair's matches; all, where it was pruned before."""
        if pair.matches is None or answer is None:
            return pair.usable
        if answer.pruner not in self.summary.used:
            self.summary.used.append(answer.pruner)
        chosen = torch.as_tensor(answer.mask).cpu()
        if self.matching:
            chosen = one_to_one(pair.matches, chosen, torch.as_tensor(answer.logits).cpu())
        kept = np.zeros(len(pair.indices), bool)
        kept[pair.usable] = chosen.numpy()
        return kept

    def _finish(self, database: Database, putative: _Putative, kept: np.ndarray, write: bool) -> None:
        """Counts, and writes what has changed."""
        count = int(kept.sum())
        if count < self.min_matches:
            count, kept = 0, np.zeros_like(kept)
        self.summary.pairs += 1
        self.summary.skipped += putative.matches is None
        self.summary.before += len(kept)
        self.summary.after += count
        self.summary.dropped += count == 0 < len(kept)
        self.summary.unseen += int((~putative.usable).sum())
        if not write:
            return
        pair = putative.pair
        if self.matching:
            # Others write pairs the other way round, which this one takes the place of.
            database.remove_matches(pair.reversed)
        self.summary.geometries_removed += database.write_matches(pair, putative.indices[kept])
        if putative.matches is not None or count < len(kept):
            database.mark(pair, self.identity, self.matching)


def _run(
    path: Path,
    output: str | Path | None,
    job: _Job,
    putative: Callable[[Database], tuple[int, Iterator[_Putative]]],
    verify: bool,
    dry_run: bool,
) -> Summary:
    pycolmap = import_pycolmap() if verify and not dry_run else None

    def change(database: Database) -> None:
        with transaction(database, write=not dry_run):
            job.work(database, *putative(database), write=not dry_run)
            if pycolmap is not None:
                with job.summary.timed("verify"):
                    job.summary.verified = verify_pairs(pycolmap, database)
            if not dry_run:
                with job.summary.timed("write"):
                    database.commit()

    with open_database(path) as database:
        if output is None or dry_run:
            change(database)
            return job.summary
        with atomic_path(_check_output(Path(output), path)) as temporary:
            with job.summary.timed("write"):
                copy_database(database, temporary)
            with open_database(temporary, name=str(path)) as copy:
                change(copy)
    return job.summary


def _check_output(output: Path, path: Path) -> Path:
    target = check_output(output, path)
    # SQLite would take what an open database left beside it for news of ours.
    for suffix in ("-wal", "-journal"):
        if target.with_name(target.name + suffix).exists():
            raise InputError(f"output: {output} is open in another program, or was left by one that was killed")
    return target


def identity_of(pruner: str | Path | Pruner) -> str:
    """What tells pruners apart: names and options, and the weights of networks."""
    if isinstance(pruner, Pruner):
        return pruner.name
    parts = look_up_pruner(str(pruner))
    return "+".join(" ".join([part.name, *(file_sha256(file)[:12] for file in part.files)]) for part in parts)


def _neighbours(descriptors0: np.ndarray, descriptors1: np.ndarray, device: torch.device) -> NearestNeighbours:
    """On a GPU if that is where networks run."""
    if device.type == "cpu":
        return nearest_neighbours(descriptors0, descriptors1)
    found = nearest_tensors(*(torch.from_numpy(each).to(device) for each in (descriptors0, descriptors1)))
    return NearestNeighbours(*(each.cpu().numpy() for each in (found.index, found.ratio, found.mutual)))


def _check_indices(database: Database, pair: Pair, indices: np.ndarray, views: Sequence[View]) -> None:
    for image, column, view in zip(pair, indices.T, views, strict=True):
        if column.max(initial=0) >= len(view.points):
            raise InputError(
                f"{database.name}: matches of images {pair.first} and {pair.second}: expected keypoints below "
                f"{len(view.points)} of image {image}, got {column.max()}"
            )


def _named_pairs(database: Database, pairs: str | Path | Sequence[tuple[str, str]]) -> list[Pair]:
    """Pairs of images by name, from a file or as they are."""
    images = {name: image for image, name in database.image_names().items()}
    named = read_pairs(pairs) if isinstance(pairs, str | Path) else (("pairs", tuple(two)) for two in pairs)
    found = []
    for where, names in named:
        if len(names) != 2 or not images.keys() >= set(names) or len(set(names)) != 2:
            raise InputError(f"{where}: expected the names of two images of {database.name}, got {' '.join(names)!r}")
        found.append(Pair(images[names[0]], images[names[1]]))
    return found
