"""Parquet files of parts, with their counts in the footer, and pruned databases."""

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
    """Write one row per pair, in the order of the input.

    Args:
        with_indices: write keypoint indices.
    """
    parquet = import_parquet()
    import pyarrow as arrow

    kinds = {
        **dict.fromkeys(("source", "pair", "name0", "name1"), arrow.string()),
        "mask": arrow.list_(arrow.bool_()),
        "scores": arrow.list_(arrow.float32()),
        **dict.fromkeys(("R", "t"), arrow.list_(arrow.float64())),
        "inliers": arrow.int32(),
        "overlap": arrow.bool_(),
        "error": arrow.string(),
    }
    if with_indices:
        kinds["indices"] = arrow.list_(arrow.int32())
    rows = [_row(pair) for pair in pairs]
    counts = Counts(
        len(rows),
        sum(row["error"] is not None for row in rows),
        sum(len(row["mask"]) for row in rows),
        sum(int(row["mask"].sum()) for row in rows),
        sum(row["R"] is not None for row in rows),
    )
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
    return {
        "source": pair.source,
        "pair": pair.key,
        "name0": pair.name0,
        "name1": pair.name1,
        "mask": mask,
        "scores": scores,
        "R": None if pose is None else pose.R.ravel(),
        "t": None if pose is None else pose.t,
        "inliers": None if pose is None else int(pose.inliers.sum()),
        "overlap": pair.overlap,
        "error": pair.error,
        "indices": np.zeros(0, np.int32) if indices is None else np.asarray(indices).ravel(),
    }


def read_counts(path: Path) -> Counts:
    try:
        return Counts(**json.loads(import_parquet().read_schema(path).metadata[COUNTS]))
    except (OSError, ValueError, TypeError, LookupError):
        raise InputError(
            f"{path}: expected a part of this output, got a damaged file; remove it and run again"
        ) from None


def write_database(source: Path, target: Path, parts: Sequence[Path], pruner: str, min_matches: int) -> None:
    """Write a copy of a COLMAP database with the kept matches. Failed pairs stay unchanged.

    Args:
        parts: all files with pairs of this database.
        pruner: identity of the pruner, so that `ananet colmap` does not prune the pairs again.
        min_matches: pairs that keep fewer lose all.
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
