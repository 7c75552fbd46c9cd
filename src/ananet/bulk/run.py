"""Pairs by the million, on Ray: read, prune, verify, write, part by part.

    from ananet.bulk import prune_in_bulk
    prune_in_bulk("databases/", "pruned/")                            # .db, .h5, .npz or .parquet files
    prune_in_bulk("photos/", "pruned/", pairs="pairs.txt")            # detect and match first

A part is a fixed slice of the input and becomes one Parquet file, which is there as a whole or not at all. So a second
call does what is missing, and nothing is written twice.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ananet._util.checks import check_whole_number
from ananet._util.defaults import (
    COLMAP_MIN_MATCHES,
    DETECTOR,
    ESTIMATOR,
    MAX_KEYPOINTS,
    PRUNER,
    RECONSTRUCTION_PRUNER,
)
from ananet.bulk.cluster import Engine, Row, open_engine
from ananet.bulk.inputs import Databases, Part, PhotoPairs, Source, import_parquet, open_source
from ananet.bulk.outputs import Counts, part_path, read_counts, write_database, write_part
from ananet.bulk.stages import Prune, Verify
from ananet.errors import InputError
from ananet.estimators import load_estimator
from ananet.features.learned import LearnedDetector
from ananet.integrations.colmap.pruning import identity_of
from ananet.io.files import only_process, read_json, remove_temporaries, write_json
from ananet.pruners import load

__all__ = ["Summary", "prune_in_bulk"]

PAIRS_PER_PART = 512
# Photos of one task: enough that starting it costs little.
PHOTOS_PER_TASK = 16
MANIFEST, FEATURES, DATABASES = "bulk.json", "features", "databases"


@dataclass(frozen=True)
class Summary:
    """The result of a call, including parts that were done before it."""

    parts: int
    """Files of the output."""
    skipped: int
    """Of these, parts that were there already; their pairs are counted below too."""
    counts: Counts
    """Of pairs and matches."""


def prune_in_bulk(
    input: str | Path,
    output: str | Path,
    *,
    pairs: str | Path | None = None,
    pruner: str | Path | None = None,
    estimator: str = ESTIMATOR,
    detector: str = DETECTOR,
    max_keypoints: int = MAX_KEYPOINTS,
    focal: float | None = None,
    use_exif: bool = True,
    databases: bool = False,
    min_matches: int = COLMAP_MIN_MATCHES,
    pairs_per_part: int = PAIRS_PER_PART,
    retry_failed: bool = False,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    progress: bool = False,
) -> Summary:
    """Prunes all pairs of an input.

    Args:
        input: a folder of COLMAP databases (.db), of hloc's features and matches (.h5), of matches (.npz, as
            `ananet prune` reads them, or .parquet, a pair in each row); a single such file; or a folder of photos.
        output: a folder for part-*.parquet. On a cluster, all machines must see it and the input at the same paths.
        pairs: for photos, a text file with two names per line.
        pruner: what `ananet.load` takes; None for the best one, for COLMAP databases that of `ananet colmap`.
        estimator: for the poses of pairs with known cameras.
        detector, max_keypoints, focal, use_exif: for photos. `focal` holds for all of them, in pixels.
        databases: also write pruned copies of COLMAP databases, to OUTPUT/databases.
        min_matches: pairs of such a copy that keep fewer lose all their matches.
        pairs_per_part: pairs in memory at once, which are lost when a process is killed.
        retry_failed: repeat parts with failed pairs.
        workers: actors that prune; None for one on each GPU, or on each CPU; 0 for a plain loop without Ray.
        address: of a Ray cluster; None for this machine.
        device: "auto" (GPUs if there are some), "cpu" or "cuda".
        progress: show a bar.
    """
    check_whole_number("pairs_per_part", pairs_per_part, 1)
    check_whole_number("min_matches", min_matches, 0)
    if workers is not None:
        check_whole_number("workers", workers, 0)
    import_parquet()
    input, output = Path(input).resolve(), Path(output).resolve()
    if output.is_relative_to(input):
        raise InputError(f"output: expected a folder outside of the input {input}, got {output}")
    if pairs is None:
        source = open_source(input)
    else:
        source = PhotoPairs(input, Path(pairs), output / FEATURES, detector, max_keypoints, focal, use_exif)
        source.load_detector("cpu")
    if pruner is None:
        pruner = RECONSTRUCTION_PRUNER if isinstance(source, Databases) else PRUNER
    pruner = str(pruner)
    # What is wrong with them is told here, and not by a process elsewhere.
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
        _check_manifest(output, {"pruner": identity, "estimator": estimator, **_settings(source)}, parts)
        with open_engine(workers, address, device) as engine:
            if isinstance(source, PhotoPairs):
                _detect(engine, source, retry_failed, progress)
            skipped = _prune(engine, source, parts, output, pruner, estimator, retry_failed, progress)
            if databases:
                _write_databases(engine, source, parts, output, identity, min_matches, progress)
        # Of processes that were killed on the way.
        remove_temporaries(output)
    counts = sum((read_counts(part_path(output, number)) for number in range(len(parts))), Counts())
    return Summary(len(parts), skipped, counts)


def _prune(
    engine: Engine,
    source: Source,
    parts: list[Part],
    output: Path,
    pruner: str,
    estimator: str,
    retry_failed: bool,
    progress: bool,
) -> int:
    """Writes the parts that are missing; returns how many were there."""

    def is_done(number: int) -> bool:
        path = part_path(output, number)
        return path.is_file() and not (retry_failed and read_counts(path).failed)

    def read(row: Row) -> Row:
        part = Part(row["source"], row["first"], row["count"], tuple(map(str, row["names"])))
        return {"number": row["number"], "pairs": list(source.read(part))}

    def verify_and_write(row: Row) -> Row:
        verified = Verify(estimator)(list(row["pairs"]))
        return {"done": write_part(part_path(output, row["number"]), verified, source.has_indices).pairs}

    missing = [number for number in range(len(parts)) if not is_done(number)]
    rows = [{"number": number, **asdict(parts[number])} for number in missing]
    total = sum(parts[number].count for number in missing)
    _with_bar(engine.run(rows, read, (_PruneRows, pruner, engine.device), verify_and_write), total, "prune", progress)
    return len(parts) - len(missing)


class _PruneRows:
    def __init__(self, pruner: str, device: str) -> None:
        self.prune = Prune(pruner, device)

    def __call__(self, row: Row) -> Row:
        return {"number": row["number"], "pairs": self.prune(list(row["pairs"]))}


def _detect(engine: Engine, source: PhotoPairs, retry_failed: bool, progress: bool) -> None:
    """The features of all photos, each once."""
    missing = [name for name in source.photos() if not source.is_detected(name, again=retry_failed)]
    rows = [{"names": missing[i : i + PHOTOS_PER_TASK]} for i in range(0, len(missing), PHOTOS_PER_TASK)]
    # OpenCV's detectors run on CPUs whatever the device, and so need none of the actors that hold GPUs.
    learned = isinstance(source.load_detector("cpu"), LearnedDetector)

    def detect(row: Row) -> Row:
        return row if learned else _Detect(source, "cpu")(row)

    heavy = (_Detect, source, engine.device) if learned else None
    _with_bar(engine.run(rows, detect, heavy, _same), len(missing), "detect", progress)


class _Detect:
    def __init__(self, source: PhotoPairs, device: str) -> None:
        self.source, self.detector = source, source.load_detector(device)

    def __call__(self, row: Row) -> Row:
        for name in row["names"]:
            self.source.detect(str(name), self.detector)
        return {"done": len(row["names"])}


def _same(row: Row) -> Row:
    return row


def _write_databases(
    engine: Engine, source: Source, parts: list[Part], output: Path, identity: str, min_matches: int, progress: bool
) -> None:
    """Pruned copies of databases that are not there, or older than what they are made of."""
    numbers = defaultdict(list)
    for number, part in enumerate(parts):
        numbers[part.source].append(number)

    def write(row: Row) -> Row:
        paths = [part_path(output, number) for number in row["numbers"]]
        write_database(source.folder / row["name"], output / DATABASES / row["name"], paths, identity, min_matches)
        return {"done": 1}

    rows = []
    for name, own in numbers.items():
        copy, newest = output / DATABASES / name, max(part_path(output, number).stat().st_mtime for number in own)
        # No pair of a database has the number 0.
        unreadable = parts[own[0]].first == 0
        if not unreadable and not (copy.is_file() and copy.stat().st_mtime >= newest):
            rows.append({"name": name, "numbers": own})
    _with_bar(engine.run(rows, write, None, _same), len(rows), "databases", progress)


def _with_bar(rows: Iterator[Row], total: int, words: str, progress: bool) -> None:
    with tqdm(total=total, desc=words, disable=not progress) as bar:
        for row in rows:
            bar.update(row["done"])


def _settings(source: Source) -> dict[str, Any]:
    """What the answers depend on beside the pruner."""
    if not isinstance(source, PhotoPairs):
        return {"input": source.suffix}
    return {
        "input": source.suffix,
        "detector": source.detector,
        "max_keypoints": source.max_keypoints,
        "focal": source.focal,
        "exif": source.use_exif,
    }


def _check_manifest(output: Path, settings: dict[str, Any], parts: list[Part]) -> None:
    """Parts of two different calls in one folder would be nobody's answer."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode())
    manifest = settings | {"parts": len(parts), "digest": digest.hexdigest()}
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
