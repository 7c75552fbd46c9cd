"""Match, prune and verify the images of a COLMAP database.

    from ananet.integrations.colmap import match_database, prune_database
    match_database("database.db", verify=True)     # nearest neighbours, pruned and verified: ready for the mapper
    prune_database("database.db")                  # matches from elsewhere

Each call is one transaction. A second call changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from ananet._util.checks import check_share, check_whole_number
from ananet._util.defaults import COLMAP_MIN_MATCHES, MIN_OVERLAP, RECONSTRUCTION_PRUNER
from ananet._util.devices import choose_device
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import one_to_one
from ananet.features import nearest_neighbours
from ananet.integrations.colmap.database import Database, Pair, copy_database, join, open_database, transaction
from ananet.integrations.colmap.verification import import_pycolmap, verify_pairs
from ananet.io.files import atomic_path, check_output, file_sha256
from ananet.io.pairs import read_pairs
from ananet.networks.input import within_view
from ananet.pruners import Pruner, load
from ananet.pruners.auto import Auto
from ananet.pruners.base import Pruned, stream_items
from ananet.pruners.learned import LearnedPruner
from ananet.pruners.registry import look_up as look_up_pruner
from ananet.twoview.collection import confirm_pairs, in_words
from ananet.twoview.same_place import judge_pair

ALL_PAIRS, EXISTING_PAIRS = "all", "existing"


class Doubtful(NamedTuple):
    """A pair that hardly shows the same place."""

    name0: str
    name1: str
    matches: int
    """That the pruner kept."""
    probability: float | None
    """That it shows the same place, by itself; None for a pair that other pairs of the collection contradict."""
    reason: str


@dataclass
class Summary:
    """What was done to a database."""

    pruner: str
    """Its name and options."""
    used: list[str] = field(default_factory=list)
    """The pruner itself, or the networks that "auto" chose."""
    pairs: int = 0
    """Pairs processed."""
    skipped: int = 0
    """Of these, pairs that the same pruner had pruned before and that were not changed since."""
    before: int = 0
    """Matches before pruning."""
    after: int = 0
    """Matches after pruning."""
    dropped: int = 0
    """Pairs that lost all their matches."""
    unseen: int = 0
    """Matches removed because a keypoint has no undistorted place, or lies where networks do not look (63 degrees)."""
    doubtful: list[Doubtful] = field(default_factory=list)
    """Pairs that lost their matches since they hardly show the same place."""
    geometries_removed: int = 0
    """Two-view geometries of changed pairs; the mapper needs new ones."""
    verified: int | None = None
    """Pairs of the database with inliers to a two-view geometry; None without verification."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each step: read, match, prune, judge, write, verify."""

    @property
    def pairs_per_second(self) -> float:
        """Over all steps."""
        return self.pairs / max(sum(self.seconds.values()), 1e-9)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add to the time of a step, without that of steps within it."""
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
    min_overlap: float = MIN_OVERLAP,
    verify: bool = False,
    dry_run: bool = False,
    device: str | torch.device = "auto",
    progress: bool = False,
) -> Summary:
    """Prune the matches of every pair of a COLMAP database.

    COLMAP's own matches passed a ratio test and a cross check: little is left to prune, and `match_database` gives
    better reconstructions.

    Args:
        path: the database.
        pruner: a pruner or a name that `ananet.load` takes; None for the best network for what is known of the matches,
            at a stricter threshold than elsewhere ("auto@threshold=0.9"), which gives better reconstructions.
        output: where to write a pruned copy; without it the database itself is changed.
        min_matches: pairs that keep fewer lose all their matches, as in COLMAP.
        min_overlap: pairs that are less likely to show the same place lose all their matches (`Summary.doubtful` lists
            them); 0 keeps all.
        verify: write two-view geometries of pairs without one by COLMAP's own verification (needs pycolmap).
        dry_run: count, but write and verify nothing.
        device: where networks run.
        progress: show a bar.

    Two-view geometries of changed pairs are removed; COLMAP's verifier or matchers make new ones. A table of its own
    (`ananet_pruned`) notes the pairs that were pruned, so that a second call skips them unless their matches were
    changed since.
    """
    job = _Job(pruner, device, min_matches, min_overlap, matching=False, progress=progress)
    return _run(Path(path), output, job, job.stored, verify, dry_run)


def match_database(
    path: str | Path,
    pruner: str | Path | Pruner | None = None,
    *,
    pairs: str | Path | Sequence[tuple[str, str]] = ALL_PAIRS,
    output: str | Path | None = None,
    min_matches: int = COLMAP_MIN_MATCHES,
    min_overlap: float = MIN_OVERLAP,
    verify: bool = False,
    dry_run: bool = False,
    device: str | torch.device = "auto",
    progress: bool = False,
) -> Summary:
    """Match the images of a COLMAP database by their descriptors, and prune the matches.

    Putative matches are nearest neighbours with ratio and mutual flag, which the default pruner uses. Kept matches are
    written one to one: COLMAP expects each keypoint at most once per pair.

    Args:
        pairs: "all"; "existing" for pairs that have matches, which are replaced; a text file with two image names per
            line (`ananet.io.pairs`); or the names themselves. Pairs with an image without descriptors are skipped.

    The other arguments are those of `prune_database`.
    """
    job = _Job(pruner, device, min_matches, min_overlap, matching=True, progress=progress)
    return _run(Path(path), output, job, lambda database: job.matched(database, pairs), verify, dry_run)


def verify_database(path: str | Path) -> int:
    """Verify all pairs that have matches and no two-view geometry by COLMAP's own verification, in one transaction.

    Returns the number of pairs of the database that have inliers then.
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
    """[N] bool mask of the matches that the pruner gets."""
    matches: Correspondences | None
    """These; None for a pair that was pruned before."""

    @classmethod
    def done(cls, pair: Pair, indices: np.ndarray) -> _Putative:
        return cls(pair, indices, np.ones(len(indices), bool), None)


class _Job:
    """Reads or makes the matches of pairs, prunes and writes them."""

    def __init__(
        self,
        pruner: str | Path | Pruner | None,
        device: str | torch.device,
        min_matches: int,
        min_overlap: float,
        matching: bool,
        progress: bool,
    ) -> None:
        self.device = choose_device(device)
        pruner = RECONSTRUCTION_PRUNER if pruner is None else pruner
        self.identity = identity_of(pruner)
        self.pruner = pruner if isinstance(pruner, Pruner) else load(pruner, device=self.device)
        self.min_matches = check_whole_number("min_matches", min_matches, 0, 2**31)
        check_share("min_overlap", min_overlap)
        self.min_overlap = min_overlap
        self.matching, self.progress = matching, progress
        self.names: dict[int, str] = {}
        self.kept: dict[Pair, np.ndarray] = {}
        """[N x 2] kept keypoints of the pairs of this call, to compare them with each other."""
        self.summary = Summary(pruner.name if isinstance(pruner, Pruner) else str(pruner))

    def stored(self, database: Database) -> tuple[int, Iterator[_Putative]]:
        """Return the number of pairs with matches, and these pairs."""
        return database.count_matched_pairs(), self._stored(database)

    def _stored(self, database: Database) -> Iterator[_Putative]:
        pairs = database.matched_pairs()
        while True:
            with self.summary.timed("read"):
                stored = next(pairs, None)
                if stored is None:
                    return
                putative = self._read(database, *stored)
            yield putative

    def _read(self, database: Database, pair: Pair, indices: np.ndarray) -> _Putative:
        if database.is_marked(pair, self.identity, matched=False):
            return _Putative.done(pair, indices)
        views = database.view(pair.first), database.view(pair.second)
        for image, column, view in zip(pair, indices.T, views, strict=True):
            if column.max(initial=0) >= len(view):
                expected = f"expected keypoints below {len(view)} of image {image}, got {column.max()}"
                raise InputError(f"{database.name}: matches of images {pair.first} and {pair.second}: {expected}")
        matches, usable = join(*views, indices)
        return _Putative(pair, indices, usable, matches)

    def matched(
        self, database: Database, pairs: str | Path | Sequence[tuple[str, str]]
    ) -> tuple[int, Iterator[_Putative]]:
        """Return the number of pairs to match, and these pairs with their matches."""
        described = database.images_with_descriptors()
        if not described and database.image_names():
            raise InputError(f"{database.name}: no descriptors in the database: extract features first")
        if isinstance(pairs, str) and pairs == ALL_PAIRS:
            every = (Pair(*two) for two in combinations(described, 2))
            return len(described) * (len(described) - 1) // 2, self._match(database, every)
        if isinstance(pairs, str) and pairs == EXISTING_PAIRS:
            chosen = [pair for pair, _ in database.matched_pairs()]
        else:
            chosen = _named_pairs(database, pairs)
        usable = sorted({pair.in_order for pair in chosen if set(described).issuperset(pair)})
        return len(usable), self._match(database, usable)

    def _match(self, database: Database, pairs: Iterable[Pair]) -> Iterator[_Putative]:
        for pair in pairs:
            with self.summary.timed("read"):
                done = database.is_marked(pair, self.identity, matched=True)
                if not done:
                    first, second = (database.view(image, descriptors=True) for image in pair)
            if done:
                stored = np.frombuffer(database.read_matches(pair) or b"", np.uint32)
                yield _Putative.done(pair, stored.reshape(-1, 2))
                continue
            with self.summary.timed("match"):
                found = nearest_neighbours(first.descriptors, second.descriptors, device=self.device)
                indices = np.stack([np.arange(len(found.index)), found.index], axis=1)
                matches, usable = join(first, second, indices, ratio=found.ratio, mutual=found.mutual)
            yield _Putative(pair, indices, usable, matches)

    def work(self, database: Database, total: int, putative: Iterator[_Putative], write: bool) -> None:
        """Prune pairs as they are read: memory does not grow with the database."""
        if write and total:
            database.start_marking()
        results = stream_items(self.pruner, putative, lambda pair: pair.matches)
        with tqdm(total=total, desc=self.pruner.name, unit="pair", disable=not self.progress) as bar:
            while True:
                with self.summary.timed("prune"):
                    pair, kept = next(results, (None, None))
                if pair is None:
                    return
                mask, doubtful = self._mask(pair, kept), False
                if pair.matches is not None and kept is not None and mask.sum() >= self.min_matches:
                    with self.summary.timed("judge"):
                        doubtful = self._is_doubtful(database, pair, kept, int(mask.sum()))
                with self.summary.timed("write"):
                    self._finish(database, pair, mask & (not doubtful), write, doubtful)
                bar.update()

    def _is_doubtful(self, database: Database, putative: _Putative, kept: Pruned, count: int) -> bool:
        """Whether a pair is too unlikely to show the same place; note it if so."""
        if putative.matches is None or putative.matches.image_size0 is None or not self.min_overlap:
            return False
        views = [database.view(image) for image in putative.pair]
        judged = judge_pair(putative.matches, kept, *(view.points for view in views))
        if judged.probability >= self.min_overlap:
            return False
        self._note_doubtful(database, putative.pair, count, judged.probability, judged.reasons[0])
        return True

    def _note_doubtful(
        self, database: Database, pair: Pair, count: int, probability: float | None, reason: str
    ) -> None:
        self.names = self.names or database.image_names()
        first, second = (self.names[image] for image in pair)
        self.summary.doubtful.append(Doubtful(first, second, count, probability, reason))

    def _mask(self, pair: _Putative, kept: Pruned | None) -> np.ndarray:
        """[N] bool mask of the matches that stay: all, if the pair was pruned before."""
        if pair.matches is None or kept is None:
            return pair.usable
        if kept.pruner not in self.summary.used:
            self.summary.used.append(kept.pruner)
        if isinstance(self.pruner, LearnedPruner | Auto):
            # Networks remove what wide lenses show far from the axis.
            seen = within_view(pair.matches, pair.matches._as_tensors().normalized())
            self.summary.unseen += int((~seen).sum())
        chosen = torch.as_tensor(kept.mask).cpu()
        if self.matching:
            chosen = one_to_one(pair.matches, chosen, torch.as_tensor(kept.logits).cpu())
        mask = np.zeros(len(pair.indices), bool)
        mask[pair.usable] = chosen.numpy()
        return mask

    def _finish(
        self, database: Database, putative: _Putative, mask: np.ndarray, write: bool, doubtful: bool = False
    ) -> None:
        """Count, and write what has changed. Doubtful pairs have no mark, so that another call judges them again."""
        count = int(mask.sum())
        if count < self.min_matches:
            count, mask = 0, np.zeros_like(mask)
        self.summary.pairs += 1
        self.summary.skipped += putative.matches is None
        self.summary.before += len(mask)
        self.summary.after += count
        self.summary.dropped += count == 0 < len(mask)
        self.summary.unseen += int((~putative.usable).sum())
        if count and self.min_overlap:
            self.kept[putative.pair] = putative.indices[mask].astype(np.int64)
        if not write:
            return
        pair = putative.pair
        if self.matching:
            # Other programs may have stored the pair the other way round.
            database.connection.execute("DELETE FROM matches WHERE pair_id = ?", (pair.reversed.number,))
        self.summary.geometries_removed += database.write_matches(pair, putative.indices[mask])
        if (putative.matches is not None or count < len(mask)) and not doubtful:
            database.mark(pair, self.identity, self.matching)

    def drop_contradicted(self, database: Database, write: bool) -> None:
        """Remove the matches of pairs that other pairs of the collection contradict."""
        with self.summary.timed("judge"):
            images = dict.fromkeys(image for pair in self.kept for image in pair)
            views = {image: database.view(image) for image in images}
            points = {image: view.points for image, view in views.items()}
            sizes = {image: view.image_size for image, view in views.items()}
            cameras = {image: view.some_K for image, view in views.items()}
            found = confirm_pairs(points, sizes, {(a, b): kept for (a, b), kept in self.kept.items()}, cameras)
        with self.summary.timed("write"):
            for pair, kept in self.kept.items():
                if not found[pair].doubtful:
                    continue
                self._note_doubtful(database, pair, len(kept), None, in_words(found[pair]))
                self.summary.after -= len(kept)
                self.summary.dropped += 1
                if write:
                    self.summary.geometries_removed += database.write_matches(pair, kept[:0])
                    database.unmark(pair)


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
            if job.min_overlap:
                job.drop_contradicted(database, write=not dry_run)
            if pycolmap is not None:
                with job.summary.timed("verify"):
                    job.summary.verified = verify_pairs(pycolmap, database)
            if not dry_run:
                with job.summary.timed("write"):
                    database.connection.execute("COMMIT")

    with open_database(path) as database:
        if output is None or dry_run:
            change(database)
            return job.summary
        target = check_output(output, path)
        # SQLite would apply the log of the old file to the new one.
        if any(target.with_name(target.name + suffix).exists() for suffix in ("-wal", "-journal")):
            raise InputError(f"output: {output} is open in another program, or was left by one that was killed")
        with atomic_path(target) as temporary:
            with job.summary.timed("write"):
                copy_database(database, temporary)
            with open_database(temporary, name=str(path)) as copy:
                change(copy)
    return job.summary


def identity_of(pruner: str | Path | Pruner) -> str:
    """Return name, options and hashes of the weights of a pruner."""
    if isinstance(pruner, Pruner):
        return pruner.name
    parts = look_up_pruner(str(pruner))
    return "+".join(" ".join([part.name, *(file_sha256(file)[:12] for file in part.files)]) for part in parts)


def _named_pairs(database: Database, pairs: str | Path | Sequence[tuple[str, str]]) -> list[Pair]:
    """Pairs of images by name, listed in a file or given."""
    images = {name: image for image, name in database.image_names().items()}
    named = read_pairs(pairs) if isinstance(pairs, str | Path) else (("pairs", tuple(two)) for two in pairs)
    found = []
    for where, names in named:
        if len(names) != 2 or not images.keys() >= set(names) or len(set(names)) != 2:
            raise InputError(f"{where}: expected the names of two images of {database.name}, got {' '.join(names)!r}")
        found.append(Pair(images[names[0]], images[names[1]]))
    return found
