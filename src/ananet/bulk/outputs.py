"""What is written: a Parquet file of each part, with its counts in the footer; and pruned databases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ananet.bulk.inputs import Pair, import_parquet
from ananet.errors import InputError
from ananet.integrations.colmap.database import Pair as ImagePair
from ananet.integrations.colmap.database import copy_database, open_database, transaction
from ananet.io.files import atomic_path

COUNTS = b"ananet"


@dataclass(frozen=True)
class Counts:
    """What became of the pairs of a part, or of all parts."""

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
    """One row per pair, in the order of the input, all or nothing.

    Args:
        with_indices: write which keypoints the matches join.
    """
    parquet = import_parquet()
    import pyarrow as arrow

    masks, scores = zip(*(_full(pair) for pair in pairs), strict=True) if pairs else ((), ())
    poses = [pair.pose for pair in pairs]
    columns = {
        "source": arrow.array([pair.source for pair in pairs], arrow.string()),
        "pair": arrow.array([pair.key for pair in pairs], arrow.string()),
        "name0": arrow.array([pair.name0 for pair in pairs], arrow.string()),
        "name1": arrow.array([pair.name1 for pair in pairs], arrow.string()),
        "mask": _lists(masks, np.bool_),
        "scores": _lists(scores, np.float32),
        "R": arrow.array([None if p is None else p.R.ravel().tolist() for p in poses], arrow.list_(arrow.float64())),
        "t": arrow.array([None if p is None else p.t.tolist() for p in poses], arrow.list_(arrow.float64())),
        "inliers": arrow.array([None if p is None else int(p.inliers.sum()) for p in poses], arrow.int32()),
        "overlap": arrow.array([pair.overlap for pair in pairs], arrow.bool_()),
        "error": arrow.array([pair.error for pair in pairs], arrow.string()),
    }
    if with_indices:
        columns["indices"] = _lists([_indices(pair) for pair in pairs], np.int32)
    counts = Counts(
        len(pairs),
        sum(pair.error is not None for pair in pairs),
        sum(map(len, masks)),
        sum(int(mask.sum()) for mask in masks),
        sum(pose is not None for pose in poses),
    )
    table = arrow.table(columns).replace_schema_metadata({COUNTS: json.dumps(asdict(counts))})
    with atomic_path(path) as temporary:
        parquet.write_table(table, temporary, compression="zstd")
    return counts


def read_counts(path: Path) -> Counts:
    try:
        return Counts(**json.loads(import_parquet().read_schema(path).metadata[COUNTS]))
    except (OSError, ValueError, TypeError, LookupError):
        raise InputError(
            f"{path}: expected a part of this output, got a damaged file; remove it and run again"
        ) from None


def _full(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """[N] mask and scores of all matches of the input: those that the pruner did not see are not kept."""
    if pair.kept is None:
        return np.zeros(0, bool), np.zeros(0, np.float32)
    if pair.usable is None:
        return pair.kept.mask, pair.kept.scores
    mask, scores = np.zeros(len(pair.usable), bool), np.zeros(len(pair.usable), np.float32)
    mask[pair.usable], scores[pair.usable] = pair.kept.mask, pair.kept.scores
    return mask, scores


def _indices(pair: Pair) -> np.ndarray:
    if pair.kept is None or pair.matches is None or pair.matches.indices is None:
        return np.zeros(0, np.int32)
    return pair.matches.indices.numpy().ravel()


def _lists(arrays: Sequence[np.ndarray], kind: type[np.generic]) -> Any:
    """A column of lists, without a Python object for each number."""
    import pyarrow as arrow

    offsets = np.cumsum([0, *map(len, arrays)]).astype(np.int32)
    values = np.concatenate([np.zeros(0, kind), *arrays]).astype(kind)
    return arrow.ListArray.from_arrays(arrow.array(offsets), arrow.array(values))


def write_database(source: Path, target: Path, parts: Sequence[Path], pruner: str, min_matches: int) -> None:
    """A copy of a COLMAP database with what its parts say is kept; pairs that failed stay as they are.

    Args:
        parts: all files with pairs of this database.
        pruner: what `ananet colmap` will know this pruner by, so that it does not prune the pairs again.
        min_matches: a pair that keeps fewer gets none.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_database(source) as original, atomic_path(target) as temporary:
        copy_database(original, temporary)
        with open_database(temporary, name=str(source)) as database, transaction(database, write=True):
            database.start_marking()
            for path in parts:
                table = import_parquet().read_table(path, columns=["pair", "mask", "error"])
                for row in range(table.num_rows):
                    if table["error"][row].as_py() is not None:
                        continue
                    pair = ImagePair.of(int(table["pair"][row].as_py()))
                    mask = table["mask"][row].values.to_numpy(zero_copy_only=False)
                    if mask.sum() < min_matches:
                        mask = np.zeros_like(mask)
                    indices = np.frombuffer(database.read_matches(pair) or b"", np.uint32).reshape(-1, 2)
                    database.write_matches(pair, indices[mask])
                    database.mark(pair, pruner, matched=False)
