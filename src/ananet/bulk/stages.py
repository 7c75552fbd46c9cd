"""Prune, verify and write the pairs of a part. Each stage is loaded once per process.

Parts are Parquet files with their counts in the footer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ananet.bulk.cluster import Row
from ananet.bulk.inputs import Pair, attempt, import_parquet
from ananet.errors import InputError
from ananet.estimators import load_estimator
from ananet.integrations.colmap.database import Pair as ImagePair
from ananet.integrations.colmap.database import copy_database, open_database, transaction
from ananet.io.files import atomic_path
from ananet.pruners import load
from ananet.pruners.base import stream_items
from ananet.twoview.overlap import MIN_PROBABILITY
from ananet.twoview.same_place import pair_probability

COUNTS = b"ananet"


class Prune:
    """Prune the pairs of a row."""

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
    """Check the overlap of pruned pairs, and estimate the poses of those with known cameras."""

    def __init__(self, estimator: str) -> None:
        self.estimator = load_estimator(estimator)

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [attempt(pair, self._verify) for pair in pairs]

    def _verify(self, pair: Pair) -> Pair:
        matches, kept = pair.matches, pair.kept
        assert matches is not None and kept is not None
        overlap = probability = None
        if matches.image_size0 is not None and matches.image_size1 is not None:
            probability = pair_probability(matches, kept)
            overlap = probability >= MIN_PROBABILITY
        # Poses of photos without overlap are meaningless, and cost time.
        pose = self.estimator.pose(matches, kept) if pair.cameras_known and overlap is not False else None
        return replace(pair, overlap=overlap, probability=probability, pose=pose)


@dataclass(frozen=True)
class Counts:
    """Numbers of pairs and matches of a part, or of all parts."""

    pairs: int = 0
    failed: int = 0
    matches: int = 0
    kept: int = 0
    poses: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part.

    >>> part_path(Path("out"), 7).name
    'part-0000007.parquet'
    """
    return folder / f"part-{number:07d}.parquet"


def write_part(path: Path, pairs: Sequence[Pair], with_indices: bool) -> Counts:
    """Write one row per pair, in the order of the input; if `with_indices`, with keypoint indices."""
    parquet = import_parquet()
    import pyarrow as arrow

    kinds = {
        **dict.fromkeys(("source", "pair", "name0", "name1"), arrow.string()),
        "mask": arrow.list_(arrow.bool_()),
        "scores": arrow.list_(arrow.float32()),
        **dict.fromkeys(("R", "t"), arrow.list_(arrow.float64())),
        "inliers": arrow.int32(),
        "overlap": arrow.bool_(),
        "probability": arrow.float32(),
        "error": arrow.string(),
    }
    if with_indices:
        kinds["indices"] = arrow.list_(arrow.int32())
    rows = [_row(pair) for pair in pairs]
    masks = [row["mask"] for row in rows]
    failed, poses = sum(pair.error is not None for pair in pairs), sum(pair.pose is not None for pair in pairs)
    counts = Counts(len(rows), failed, sum(map(len, masks)), sum(int(mask.sum()) for mask in masks), poses)
    schema = arrow.schema(list(kinds.items()), metadata={COUNTS: json.dumps(asdict(counts))})
    with atomic_path(path) as temporary:
        parquet.write_table(arrow.Table.from_pylist(rows, schema), temporary, compression="zstd")
    return counts


def _row(pair: Pair) -> dict[str, Any]:
    kept, pose, indices = pair.kept, pair.pose, None
    mask, scores = np.zeros(0, bool), np.zeros(0, np.float32)
    if kept is not None:
        usable = np.ones(len(kept.mask), bool) if pair.usable is None else pair.usable
        # Matches that the pruner did not see are not kept.
        mask, scores = np.zeros(len(usable), bool), np.zeros(len(usable), np.float32)
        mask[usable], scores[usable] = kept.mask, kept.scores
        indices = None if pair.matches is None else pair.matches.indices
    row: dict[str, Any] = {"source": pair.source, "pair": pair.key, "name0": pair.name0, "name1": pair.name1}
    row |= {"mask": mask, "scores": scores, "overlap": pair.overlap}
    row |= {"probability": pair.probability, "error": pair.error}
    row |= dict.fromkeys(("R", "t", "inliers"))
    if pose is not None:
        row |= {"R": pose.R.ravel(), "t": pose.t, "inliers": int(pose.inliers.sum())}
    return row | {"indices": np.zeros(0, np.int32) if indices is None else np.asarray(indices).ravel()}


def read_counts(path: Path) -> Counts:
    try:
        return Counts(**json.loads(import_parquet().read_schema(path).metadata[COUNTS]))
    except (OSError, ValueError, TypeError, LookupError):
        told = "expected a part of this output, got a damaged file; remove it and run again"
        raise InputError(f"{path}: {told}") from None


def write_database(
    source: Path, target: Path, parts: Sequence[Path], pruner: str, min_matches: int, min_overlap: float
) -> None:
    """Write a copy of a COLMAP database with the kept matches. Failed pairs stay unchanged.

    Args:
        parts: all files with pairs of this database.
        pruner: its identity, so that `ananet colmap` does not prune the pairs again.
        min_matches: pairs that keep fewer matches lose all.
        min_overlap: pairs that are less likely to show the same place lose all.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_database(source) as original, atomic_path(target) as temporary:
        copy_database(original, temporary, str(target))
        with open_database(temporary, name=str(source)) as database, transaction(database, write=True):
            database.start_marking()
            for path in parts:
                table = import_parquet().read_table(path, columns=["pair", "mask", "probability", "error"])
                for row in range(table.num_rows):
                    if table["error"][row].as_py() is not None:
                        continue
                    pair = ImagePair.of(int(table["pair"][row].as_py()))
                    mask = table["mask"][row].values.to_numpy(zero_copy_only=False)
                    indices = np.frombuffer(database.read_matches(pair) or b"", np.uint32).reshape(-1, 2)
                    probability = table["probability"][row].as_py()
                    doubtful = probability is not None and probability < min_overlap
                    stays = mask.sum() >= min_matches and not doubtful
                    database.write_matches(pair, indices[mask] if stays else indices[:0])
                    if not doubtful:
                        database.mark(pair, pruner, matched=False)
