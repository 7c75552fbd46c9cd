"""Prune many pairs on Ray: read, prune, verify and write them part by part.

A part is a fixed slice of the input and becomes one Parquet file, complete or absent. A second call writes the parts
that are missing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ananet._util import defaults
from ananet._util.checks import check_share, check_whole_number
from ananet.bulk.cluster import Engine, Row, open_engine
from ananet.bulk.inputs import Databases, Focal, Part, PhotoPairs, Source, import_parquet, open_source
from ananet.bulk.stages import Counts, Prune, Verify, part_path, read_counts, write_database, write_part
from ananet.errors import InputError
from ananet.estimators import load_estimator
from ananet.features.learned import LearnedDetector
from ananet.integrations.colmap.pruning import identity_of
from ananet.io.files import only_process, read_json, remove_temporaries, write_json
from ananet.pruners import load

# Enough to make the start of a task negligible.
PHOTOS_PER_TASK = 16
MANIFEST, FEATURES, DATABASES = "bulk.json", "features", "databases"


@dataclass(frozen=True)
class Summary:
    """The result of a call, including parts that an earlier call wrote."""

    parts: int
    """Number of files in the output."""
    skipped: int
    """Number of parts that an earlier call wrote."""
    counts: Counts
    """Pairs and matches of all parts."""


def prune_in_bulk(
    input: str | Path,
    output: str | Path,
    *,
    pairs: str | Path | None = None,
    pruner: str | Path | None = None,
    estimator: str = defaults.ESTIMATOR,
    detector: str = defaults.DETECTOR,
    max_keypoints: int | None = None,
    focal: float | None = None,
    use_exif: bool = True,
    databases: bool = False,
    min_matches: int = defaults.COLMAP_MIN_MATCHES,
    min_overlap: float = defaults.MIN_OVERLAP,
    pairs_per_part: int = defaults.PAIRS_PER_PART,
    retry_failed: bool = False,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    progress: bool = False,
) -> Summary:
    """Prune all pairs of an input.

    Args:
        input: a folder of COLMAP databases (.db), of hloc's features and matches (.h5), of matches (.npz, as
            `ananet prune` reads them, or .parquet, one pair per row), or of photos; or a single such file.
        output: a folder for part-*.parquet. On a cluster, all machines must see it and the input at the same paths.
        pairs: for photos, a text file with two names per line.
        pruner: as `ananet.load` takes it; None for the default, which for COLMAP databases is that of `ananet colmap`.
        estimator: estimates the poses of pairs with known cameras.
        detector, max_keypoints, focal, use_exif: for photos. `max_keypoints` is the detector's own choice if None;
            `focal` is in pixels, for all photos.
        databases: also write pruned copies of COLMAP databases to OUTPUT/databases.
        min_matches: in these copies, pairs that keep fewer matches lose all.
        min_overlap: in these copies, pairs that are less likely to show the same place lose all; the column
            `probability` tells it of every pair.
        pairs_per_part: pairs in memory at once, and lost when a process is killed.
        retry_failed: repeat parts with failed pairs.
        workers: processes that prune; None for one per GPU, or per CPU; 0 for a plain loop without Ray.
        address: of a Ray cluster; None for this machine.
        device: "auto" (GPUs if there are any), "cpu" or "cuda".
        progress: show a progress bar.
    """
    check_whole_number("pairs_per_part", pairs_per_part, 1)
    check_whole_number("min_matches", min_matches, 0)
    check_share("min_overlap", min_overlap)
    if workers is not None:
        check_whole_number("workers", workers, 0)
    import_parquet()
    input, output = Path(input).resolve(), Path(output).resolve()
    if output.is_relative_to(input):
        raise InputError(f"output: expected a folder outside of the input {input}, got {output}")
    if pairs is None:
        source = open_source(input)
    else:
        exif: Focal = "exif" if use_exif else None
        source = PhotoPairs(input, Path(pairs), output / FEATURES, detector, max_keypoints, focal or exif)
        source.load_detector("cpu")
    default = defaults.RECONSTRUCTION_PRUNER if isinstance(source, Databases) else defaults.PRUNER
    pruner = str(default if pruner is None else pruner)
    # Report wrong names here rather than from a worker process.
    load(pruner, device="cpu")
    load_estimator(estimator)
    identity = identity_of(pruner)
    if databases and not isinstance(source, Databases):
        raise InputError(f"databases: expected COLMAP databases as the input, got {source.suffix} files")
    parts = list(source.parts(pairs_per_part))
    if pairs is not None and not parts:
        raise InputError(f"pairs: expected two names in each line, got no such line in {pairs}")
    output.mkdir(parents=True, exist_ok=True)
    with only_process(output):
        remove_temporaries(output)
        digest = hashlib.sha256(repr((parts, source.names)).encode()).hexdigest()
        manifest = {"pruner": identity, "estimator": estimator, **source.settings, "parts": len(parts)}
        _check_manifest(output, manifest | {"digest": digest})
        with open_engine(workers, address, device) as engine:
            if isinstance(source, PhotoPairs):
                _detect(engine, source, retry_failed, progress)
            paths = {part_path(output, number): part for number, part in enumerate(parts)}
            done = {path for path in paths if path.is_file() and not (retry_failed and read_counts(path).failed)}
            missing = {path: part for path, part in paths.items() if path not in done}
            _prune(engine, source, missing, pruner, estimator, progress)
            if databases:
                _write_databases(
                    engine, source, paths, output / DATABASES, identity, (min_matches, min_overlap), progress
                )
        # Left by workers that were killed.
        remove_temporaries(output)
    return Summary(len(parts), len(done), sum(map(read_counts, paths), Counts()))


def _prune(
    engine: Engine, source: Source, missing: dict[Path, Part], pruner: str, estimator: str, progress: bool
) -> None:
    def read(row: Row) -> Row:
        return {"path": row["path"], "pairs": list(source.read(Part(row["source"], row["first"], row["count"])))}

    def verify_and_write(row: Row) -> Row:
        verified = Verify(estimator)(list(row["pairs"]))
        return {"done": write_part(Path(row["path"]), verified, source.has_indices).pairs}

    rows = [{"path": str(path), **asdict(part)} for path, part in missing.items()]
    total = sum(part.count for part in missing.values())
    _with_bar(engine.run(rows, read, (Prune, pruner, engine.device), verify_and_write), total, "prune", progress)


def _detect(engine: Engine, source: PhotoPairs, retry_failed: bool, progress: bool) -> None:
    """Write the features of all photos that have none yet."""
    missing = [name for name in source.photos() if not source.is_detected(name, again=retry_failed)]
    rows = [{"names": missing[i : i + PHOTOS_PER_TASK]} for i in range(0, len(missing), PHOTOS_PER_TASK)]
    # OpenCV's detectors run on CPUs, and so need no actor with a GPU.
    if isinstance(source.load_detector("cpu"), LearnedDetector):
        detected = engine.run(rows, None, (_Detect, source, engine.device), None)
    else:
        detected = engine.run(rows, lambda row: _Detect(source, "cpu")(row), None, None)
    _with_bar(detected, len(missing), "detect", progress)


class _Detect:
    def __init__(self, source: PhotoPairs, device: str) -> None:
        self.source, self.detector = source, source.load_detector(device)

    def __call__(self, row: Row) -> Row:
        for name in row["names"]:
            self.source.detect(str(name), self.detector)
        return {"done": len(row["names"])}


def _write_databases(
    engine: Engine,
    source: Source,
    parts: dict[Path, Part],
    output: Path,
    pruner: str,
    least: tuple[int, float],
    progress: bool,
) -> None:
    """Write the pruned copies that are missing or older than their parts."""
    paths = defaultdict(list)
    for path, part in parts.items():
        # Pair ids of COLMAP are positive: 0 stands for an unreadable file.
        if part.first:
            paths[part.source].append(path)

    def write(row: Row) -> Row:
        own = [Path(path) for path in row["parts"]]
        write_database(source.folder / row["name"], output / row["name"], own, pruner, *least)
        return {"done": 1}

    rows = []
    for name, own in paths.items():
        copy, newest = output / name, max(path.stat().st_mtime for path in own)
        if not copy.is_file() or copy.stat().st_mtime < newest:
            rows.append({"name": name, "parts": list(map(str, own))})
    _with_bar(engine.run(rows, write, None, None), len(rows), "databases", progress)


def _with_bar(rows: Iterator[Row], total: int, title: str, progress: bool) -> None:
    with tqdm(total=total, desc=title, disable=not progress) as bar:
        for row in rows:
            bar.update(row["done"])


def _check_manifest(output: Path, manifest: dict[str, Any]) -> None:
    """Raise if the folder has parts of a call with another input or other settings."""
    path = output / MANIFEST
    if not path.is_file():
        write_json(path, manifest, indent=2)
        return
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise InputError(f"{path}: expected the settings of `ananet bulk`, got {type(stored).__name__}")
    changed = sorted(key for key in manifest.keys() | stored.keys() if manifest.get(key) != stored.get(key))
    if changed:
        told = ", ".join(f"{key} {stored.get(key)!r}, now {manifest.get(key)!r}" for key in changed)
        raise InputError(f"output: {output} was begun with other settings or another input ({told})")
