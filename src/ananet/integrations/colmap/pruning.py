"""Match, prune and verify the images of a COLMAP database.

    from ananet.integrations.colmap import match_database, prune_database
    match_database("database.db", verify=True)     # nearest neighbours, pruned and verified: ready for the mapper
    prune_database("database.db")                  # matches from elsewhere

Each call is one transaction. A second call changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from ananet._util.checks import check_share, check_whole_number
from ananet._util.defaults import COLMAP_MIN_MATCHES, MIN_OVERLAP, RECONSTRUCTION_PRUNER
from ananet._util.devices import choose_device
from ananet._util.workers import worker_threads
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import one_to_one
from ananet.features import NearestNeighbours, nearest_neighbours
from ananet.integrations.colmap.database import Database, Pair, View, copy_database, join, open_database, transaction
from ananet.integrations.colmap.geometries import verify_with_poselib
from ananet.integrations.colmap.pairs import ALL_PAIRS, choose_pairs
from ananet.integrations.colmap.parts import Parts
from ananet.integrations.colmap.verification import check_cameras, check_pycolmap, verify_pairs
from ananet.io.files import atomic_path, check_output, file_sha256
from ananet.networks.input import within_view
from ananet.pruners import Pruner, load
from ananet.pruners.base import Pruned, stream_items
from ananet.pruners.learned import LearnedPruner
from ananet.pruners.registry import look_up as look_up_pruner
from ananet.twoview.collection import confirm_pairs, in_words
from ananet.twoview.same_place import judge_pair

# Ways to verify; the first is the default.
METHODS = ("poselib", "colmap")
# Of the matches that are not mutual, and so never stay, the pruner sees only those below this ratio: the others tell
# it little, and are half of all (docs/speed.md).
PROMISING_RATIO = 0.95
# Mutual matches of SIFT below this ratio tell how hard a pair is (docs/speed.md). With so many of them a network needs
# no others to compare with, and sees the promising mutual ones alone; with fewer than the second number it sees only
# these, and the pair is dropped.
CLEAR_RATIO, EASY, HOPELESS = 0.7, 400, 2
# Pairs that show what pruning is worth.
SAMPLED_PAIRS = 8
# Keypoints that a thread gets at once.
MATCHES_TOGETHER = 1024


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
    """Pairs that lost their matches since they hardly show the same place, in this call or before."""
    geometries_removed: int = 0
    """Two-view geometries of changed pairs; the mapper needs new ones."""
    verified: int | None = None
    """Pairs of the database with inliers to a two-view geometry; None without verification."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each step: choose (pairs), read, match, prune, write, compare (pairs with each other), verify; of what
    runs side by side, its share of a thread's time."""

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
    verify: bool | str = False,
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
            at a stricter threshold than elsewhere ("ananet@threshold=0.5"), which gives better reconstructions.
        output: where to write a pruned copy; without it the database itself is changed.
        min_matches: pairs that keep fewer lose all their matches, as in COLMAP.
        min_overlap: pairs that are less likely to show the same place, and those that other pairs contradict, lose all
            their matches (`Summary.doubtful` lists them); 0 keeps all. Pairs pruned before are only compared.
        verify: write two-view geometries of pairs without one: True or "poselib" for PoseLib's, which are estimated on
            all cores in a fraction of the time, "colmap" for COLMAP's own verification (needs pycolmap).
        dry_run: count, but write and verify nothing.
        device: where networks run.
        progress: show a bar.

    Two-view geometries of changed pairs are removed; COLMAP's verifier or matchers make new ones. A table of its own
    (`ananet_pruned`) notes the pairs that were pruned, so that a second call skips them unless their matches were
    changed since.
    """
    job = _Job(pruner, device, min_matches, min_overlap, matching=False, progress=progress)
    return _run(Path(path), output, job, job.stored, check_verify(verify), dry_run)


def preview_pruning(
    path: str | Path, pruner: str | Path | Pruner | None = None, *, device: str | torch.device = "auto"
) -> Summary:
    """Return what `prune_database` would do to some pairs, evenly over the database; nothing is written."""
    job = _Job(pruner, device, 0, 0.0, matching=False, progress=False)
    with open_database(Path(path)) as database:
        job.work(database, *job.sampled(database), write=False)
    return job.summary


def match_database(
    path: str | Path,
    pruner: str | Path | Pruner | None = None,
    *,
    pairs: str | Path | Sequence[tuple[str, str]] = ALL_PAIRS,
    output: str | Path | None = None,
    min_matches: int = COLMAP_MIN_MATCHES,
    min_overlap: float = MIN_OVERLAP,
    verify: bool | str = False,
    in_parts: bool = False,
    dry_run: bool = False,
    device: str | torch.device = "auto",
    progress: bool = False,
) -> Summary:
    """Match the images of a COLMAP database by their descriptors, and prune the matches.

    Putative matches are nearest neighbours with ratio and mutual flag, which the default pruner uses. Kept matches are
    written one to one: COLMAP expects each keypoint at most once per pair.

    Args:
        pairs: "all"; "auto" for the most promising tenth, at least five per image; "existing" for pairs that have
            matches, which are replaced; "sequential" for each image with the next ten by name; a text file with two
            image names per line (`ananet.io.pairs`); or the names themselves.
            Pairs with an image without descriptors are skipped.
        in_parts: commit every few seconds, so that a call that is killed goes on where it stopped.

    The other arguments are those of `prune_database`.
    """
    job = _Job(pruner, device, min_matches, min_overlap, matching=True, progress=progress)
    job.in_parts = in_parts
    return _run(Path(path), output, job, lambda database: job.matched(database, pairs), check_verify(verify), dry_run)


def verify_database(
    path: str | Path, method: str = "poselib", *, in_parts: bool = False, progress: bool = False
) -> int:
    """Verify all pairs that have matches and no two-view geometry, in one transaction.

    Returns the number of pairs of the database that have inliers then.

    Args:
        method: "poselib", or "colmap" for COLMAP's own verification (needs pycolmap).
        in_parts, progress: commit every few seconds, show a bar; PoseLib only.
    """
    method = check_verify(method) or METHODS[0]
    with open_database(Path(path)) as database, transaction(database, write=True):
        if method == "colmap":
            check_cameras(database, database.path)
        return _verify(database, database.path, method, progress, in_parts)


def check_verify(verify: bool | str) -> str | None:
    """The method of verification; None for no verification."""
    if isinstance(verify, bool):
        return METHODS[0] if verify else None
    if verify not in METHODS:
        raise InputError(f"verify: expected {' or '.join(METHODS)}, got {verify!r}")
    if verify == "colmap":
        check_pycolmap()
    return verify


def _verify(database: Database, beside: Path, method: str, progress: bool, in_parts: bool = False) -> int:
    if method == "poselib":
        return verify_with_poselib(database, in_parts, progress)
    return verify_pairs(database, beside)


class _Task(NamedTuple):
    """A pair to match or prune."""

    pair: Pair
    views: tuple[View, View] | None
    """None for a pair that was pruned before."""
    indices: np.ndarray | None = None
    """[N x 2] stored matches; None for a pair to match."""


class _Putative(NamedTuple):
    """A pair before its matches are pruned."""

    task: _Task
    indices: np.ndarray
    """[N x 2] keypoints."""
    usable: np.ndarray
    """[N] bool mask of the matches that the pruner gets."""
    matches: Correspondences | None
    """These; None for a pair that was pruned before."""


class _Doubt(NamedTuple):
    """Why a pair lost its matches; as in `Doubtful`."""

    matches: int
    probability: float | None
    reason: str


class _Outcome(NamedTuple):
    """A pair after pruning."""

    putative: _Putative
    mask: np.ndarray
    """[N] bool mask of the matches that stay."""
    unseen: int = 0
    doubt: _Doubt | None = None
    match_seconds: float = 0.0
    prune_seconds: float = 0.0


class _Job:
    """Reads or makes the matches of pairs, prunes and writes them."""

    in_parts = False
    """As for `match_database`."""

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
        self.kept: dict[Pair, np.ndarray] = {}
        """[N x 2] kept keypoints of the pairs of this call, to compare them with each other."""
        self.summary = Summary(pruner.name if isinstance(pruner, Pruner) else str(pruner))
        self.doubtful: dict[Pair, _Doubt] = {}
        """Of this call and of those before it."""

    def stored(self, database: Database) -> tuple[int, Iterator[_Task]]:
        """Return the number of pairs with matches, and these pairs."""
        return database.count_matched_pairs(), self._timed(self._stored(database))

    def sampled(self, database: Database) -> tuple[int, Iterator[_Task]]:
        """Return about `SAMPLED_PAIRS` of the pairs with matches, evenly over all, and their number."""
        total = database.count_matched_pairs()
        every = max(1, total // SAMPLED_PAIRS)
        return total // every, self._timed(self._stored(database, every))

    def _stored(self, database: Database, every: int = 1) -> Iterator[_Task]:
        for pair, indices in database.matched_pairs(every):
            if self._is_done(database, pair):
                yield _Task(pair, None, indices)
                continue
            views = database.view(pair.first), database.view(pair.second)
            database.check_indices(pair, indices)
            yield _Task(pair, views, indices)

    def matched(self, database: Database, pairs: str | Path | Sequence[tuple[str, str]]) -> tuple[int, Iterator[_Task]]:
        """Return the number of pairs to match, and these pairs."""
        with self.summary.timed("choose"):
            count, chosen = choose_pairs(database, pairs)
        return count, self._timed(self._to_match(database, chosen))

    def _to_match(self, database: Database, pairs: Iterable[Pair]) -> Iterator[_Task]:
        for pair in pairs:
            if self._is_done(database, pair):
                stored = np.frombuffer(database.read_matches(pair) or b"", np.uint32)
                yield _Task(pair, None, stored.reshape(-1, 2))
            else:
                yield _Task(pair, (database.view(pair.first, True), database.view(pair.second, True)))

    def _is_done(self, database: Database, pair: Pair) -> bool:
        """Whether a pair was pruned before, and, if it was doubtful then, still is."""
        doubt = self.doubtful.get(pair)
        if doubt is not None and (doubt.probability or 0.0) >= self.min_overlap:
            return False
        return database.is_marked(pair, self.identity, self.matching)

    def _timed(self, tasks: Iterator[_Task]) -> Iterator[_Task]:
        while True:
            with self.summary.timed("read"):
                task = next(tasks, None)
            if task is None:
                return
            yield task

    def work(self, database: Database, total: int, tasks: Iterator[_Task], write: bool) -> None:
        """Prune pairs as they are read: only kept matches stay in memory, for `drop_contradicted`."""
        if write and total:
            database.start_marking()
        self.doubtful = {pair: _Doubt(*row) for pair, row in database.doubtful_pairs().items()}
        outcomes = self._on_gpu(tasks) if self.device.type == "cuda" else self._on_all_cores(tasks)
        parts = Parts(database, self.in_parts and write)
        with closing(outcomes), tqdm(total=total, desc=self.pruner.name, unit="pair", disable=not self.progress) as bar:
            for outcome in outcomes:
                with self.summary.timed("write"):
                    self._finish(database, outcome, write)
                    parts.end_of_item()
                bar.update()

    def _on_all_cores(self, tasks: Iterator[_Task]) -> Generator[_Outcome]:
        """Several pairs side by side: faster than one on all cores."""
        with worker_threads() as workers:
            for outcomes in workers.map(self._prune, _together(tasks)):
                for outcome in outcomes:
                    for step, seconds in (("match", outcome.match_seconds), ("prune", outcome.prune_seconds)):
                        if step == "prune" or self.matching:
                            self.summary.seconds.setdefault(step, 0.0)
                            self.summary.seconds[step] += seconds / workers.count
                yield from outcomes

    def _prune(self, tasks: Sequence[_Task]) -> list[_Outcome]:
        start = time.perf_counter()
        putative = [self._putative(task) for task in tasks]
        matched = time.perf_counter()
        results = iter(self.pruner.batch([pair.matches for pair in putative if pair.matches is not None]))
        outcomes = [self._outcome(pair, None if pair.matches is None else next(results)) for pair in putative]
        end = time.perf_counter()
        outcomes[0] = outcomes[0]._replace(match_seconds=matched - start, prune_seconds=end - matched)
        return outcomes

    def _on_gpu(self, tasks: Iterator[_Task]) -> Generator[_Outcome]:
        """In large batches; the next pairs are read while they are pruned, and all cores choose what stays."""

        def putative() -> Iterator[_Putative]:
            for task in tasks:
                with self.summary.timed("match" if self.matching else "read"):
                    pair = self._putative(task)
                yield pair

        with worker_threads() as workers:
            results = stream_items(self.pruner, putative(), lambda pair: pair.matches)
            outcomes = workers.map(lambda result: self._outcome(*result), results)
            while True:
                with self.summary.timed("prune"):
                    outcome = next(outcomes, None)
                if outcome is None:
                    return
                yield outcome

    def _putative(self, task: _Task) -> _Putative:
        """The matches of a pair, made or read."""
        if task.views is None:
            assert task.indices is not None
            return _Putative(task, task.indices, np.ones(len(task.indices), bool), None)
        if task.indices is not None:
            matches, usable = join(*task.views, task.indices)
            return _Putative(task, task.indices, usable, matches)
        first, second = task.views
        found = nearest_neighbours(first.descriptors, second.descriptors, device=self.device)
        # Other descriptors have other ratios, and other pruners may keep what is not clear.
        tested = isinstance(self.pruner, LearnedPruner) and first.descriptors.dtype == np.int8
        seen = np.flatnonzero(_worth_showing(found, min(self.min_matches, HOPELESS) if tested else None))
        indices = np.stack([seen, found.index[seen]], axis=1)
        matches, usable = join(first, second, indices, ratio=found.ratio[seen], mutual=found.mutual[seen])
        return _Putative(task, indices, usable, matches)

    def _outcome(self, pair: _Putative, kept: Pruned | None) -> _Outcome:
        """What stays: all, if the pair was pruned before."""
        if pair.matches is None or kept is None:
            return _Outcome(pair, pair.usable)
        unseen = 0
        if isinstance(self.pruner, LearnedPruner):
            # Networks remove what wide lenses show far from the axis.
            seen = within_view(pair.matches, pair.matches._as_tensors().normalized())
            unseen = int((~seen).sum())
        chosen = torch.as_tensor(kept.mask).cpu()
        if self.matching:
            chosen = one_to_one(pair.matches, chosen, torch.as_tensor(kept.logits).cpu())
        mask = np.zeros(len(pair.indices), bool)
        mask[pair.usable] = chosen.numpy()
        doubt = self._doubt(pair, kept, int(mask.sum()))
        return _Outcome(pair, mask & (doubt is None), unseen, doubt)

    def _doubt(self, pair: _Putative, kept: Pruned, count: int) -> _Doubt | None:
        """Why a pair is too unlikely to show the same place; None if it is not."""
        if not self.min_overlap or count < max(self.min_matches, 1) or pair.matches is None or pair.task.views is None:
            return None
        judged = judge_pair(pair.matches, kept, *(view.points for view in pair.task.views))
        if judged.probability >= self.min_overlap:
            return None
        return _Doubt(count, judged.probability, judged.reasons[0])

    def _finish(self, database: Database, outcome: _Outcome, write: bool) -> None:
        """Count, and write what has changed."""
        putative, mask, unseen, doubt, *_ = outcome
        count = int(mask.sum())
        if count < self.min_matches:
            count, mask = 0, np.zeros_like(mask)
        self.summary.pairs += 1
        self.summary.skipped += putative.matches is None
        self.summary.before += len(mask)
        self.summary.after += count
        # Of hopeless pairs the pruner may have seen no match at all.
        new = self.matching and putative.matches is not None
        self.summary.dropped += count == 0 and (new or len(mask) > 0)
        self.summary.unseen += unseen + int((~putative.usable).sum())
        pair = putative.task.pair
        if putative.matches is not None:
            self._note(database, pair, doubt, write)
        if count and self.min_overlap:
            self.kept[pair] = putative.indices[mask].astype(np.int32)
        if not write:
            return
        if self.matching:
            # Other programs may have stored the pair the other way round.
            database.connection.execute("DELETE FROM matches WHERE pair_id = ?", (pair.reversed.number,))
        self.summary.geometries_removed += database.write_matches(pair, putative.indices[mask])
        if putative.matches is not None or count < len(mask):
            database.mark(pair, self.identity, self.matching)

    def drop_contradicted(self, database: Database, write: bool) -> None:
        """Remove the matches of pairs that other pairs of the collection contradict.

        A call that was killed before does it when it is repeated: all pairs with matches are compared each time.
        """
        if not self.min_overlap:
            return
        with self.summary.timed("compare"):
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
                self._note(database, pair, _Doubt(len(kept), None, in_words(found[pair])), write)
                self.summary.after -= len(kept)
                self.summary.dropped += 1
                if write:
                    self.summary.geometries_removed += database.write_matches(pair, kept[:0])
                    database.mark(pair, self.identity, self.matching)
        self._list_doubtful(database)

    def _note(self, database: Database, pair: Pair, doubt: _Doubt | None, write: bool) -> None:
        """Remember whether a pair is doubtful, so that another call knows it without judging it again."""
        before = self.doubtful.pop(pair, None)
        if doubt is not None:
            self.doubtful[pair] = doubt
        if write and doubt != before:
            database.note_doubtful(pair, doubt)

    def _list_doubtful(self, database: Database) -> None:
        names = database.image_names() if self.doubtful else {}
        for pair, doubt in sorted(self.doubtful.items()):
            # Images may have been removed since.
            if all(image in names for image in pair):
                told = Doubtful(names[pair.first], names[pair.second], doubt.matches, doubt.probability, doubt.reason)
                self.summary.doubtful.append(told)


def _worth_showing(found: NearestNeighbours, hopeless: int | None) -> np.ndarray:
    """[N] bool mask of the nearest neighbours that a pruner is shown.

    Args:
        hopeless: a pair with fewer clear matches is dropped anyway; None treats all pairs alike.
    """
    promising = found.ratio < PROMISING_RATIO
    if hopeless is not None:
        clear = found.mutual & (found.ratio < CLEAR_RATIO)
        count = int(clear.sum())
        if count < hopeless:
            return clear
        if count >= EASY:
            return found.mutual & promising
    return found.mutual | promising


def _run(
    path: Path,
    output: str | Path | None,
    job: _Job,
    tasks: Callable[[Database], tuple[int, Iterator[_Task]]],
    verify: str | None,
    dry_run: bool,
) -> Summary:
    if dry_run:
        verify = None

    def change(database: Database) -> None:
        with transaction(database, write=not dry_run):
            if verify == "colmap":
                with job.summary.timed("verify"):
                    check_cameras(database, target)
            job.work(database, *tasks(database), write=not dry_run)
            job.drop_contradicted(database, write=not dry_run)
            if verify is not None:
                with job.summary.timed("verify"):
                    job.summary.verified = _verify(database, target, verify, job.progress)
            if not dry_run:
                with job.summary.timed("write"):
                    database.connection.execute("COMMIT")

    target = path if output is None or dry_run else check_output(output, path)
    with open_database(path) as database:
        if output is None or dry_run:
            change(database)
            return job.summary
        # SQLite would apply the log of the old file to the new one.
        if any(target.with_name(target.name + suffix).exists() for suffix in ("-wal", "-journal")):
            raise InputError(f"output: {output} is open in another program, or was left by one that was killed")
        with atomic_path(target) as temporary:
            with job.summary.timed("write"):
                copy_database(database, temporary, str(output))
            with open_database(temporary, name=str(path)) as copy:
                change(copy)
    return job.summary


def identity_of(pruner: str | Path | Pruner) -> str:
    """Return name, options and hashes of the weights of a pruner."""
    if isinstance(pruner, Pruner):
        return pruner.name
    parts = look_up_pruner(str(pruner))
    return "+".join(part.name + ("" if part.file is None else f" {file_sha256(part.file)[:12]}") for part in parts)


def _together(tasks: Iterable[_Task]) -> Iterator[list[_Task]]:
    """Successive tasks in lists of a few thousand keypoints: small pairs are pruned in batches."""
    some: list[_Task] = []
    count = 0
    for task in tasks:
        some.append(task)
        count += 1 if task.views is None else len(task.views[0] if task.indices is None else task.indices)
        if count >= MATCHES_TOGETHER:
            yield some
            some, count = [], 0
    if some:
        yield some
