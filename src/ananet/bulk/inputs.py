"""Pairs in files, listed in parts. The same input always gives the same parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError, MissingExtraError
from ananet.estimators import Pose
from ananet.features import Detector, load_detector, match
from ananet.features.stored import read_features, save_features
from ananet.integrations import hloc
from ananet.integrations.colmap.database import Database, join, open_database
from ananet.integrations.colmap.database import Pair as ImagePair
from ananet.io.files import check_file, save_arrays
from ananet.io.hdf5 import open_hdf5
from ananet.io.images import as_photo
from ananet.io.npz import OPTIONAL, REQUIRED, read_matches, read_some
from ananet.io.pairs import holds_pair, pair_of_line
from ananet.pruners import Pruned
from ananet.twoview.cameras import choose_cameras
from ananet.twoview.matcher import PreparedPhoto, find_features

# Photos with features in memory per process, a megabyte each: lists of pairs often repeat a photo in many lines.
CACHED_PHOTOS = 128
SHAPES = {"points0": (-1, 2), "points1": (-1, 2), "K0": (3, 3), "K1": (3, 3), "indices": (-1, 2)}
Item = TypeVar("Item")
Focal = float | Literal["exif"] | None


@dataclass(frozen=True)
class Part:
    """Pairs that are read, pruned and written together."""

    source: str
    """File, relative to the input folder."""
    first: int
    """Start: pair id in a database, byte offset in a list of photos, else number of the pair."""
    count: int


@dataclass(frozen=True, eq=False)
class Pair:
    """One pair of photos on its way through the stages."""

    source: str
    key: str | None = None
    """Identifies the pair in a source with several."""
    name0: str | None = None
    name1: str | None = None
    matches: Correspondences | None = None
    """Input of the pruner; None for a pair that failed."""
    usable: np.ndarray | None = None
    """[N] bool: which of the input's matches these are; None for all."""
    cameras_known: bool = False
    """Whether both cameras are known, so that a pose can be estimated."""
    kept: Pruned | None = None
    pose: Pose | None = None
    overlap: bool | None = None
    """Whether the photos show the same scene; None if image sizes are missing."""
    probability: float | None = None
    """How likely they do."""
    error: str | None = None

    def failed(self, error: Exception) -> Pair:
        """Return the same pair with the error alone."""
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return Pair(self.source, self.key, self.name0, self.name1, error=reason)


def attempt(pair: Pair, step: Callable[[Pair], Pair]) -> Pair:
    """Apply a step to one pair. An exception becomes the pair's error, so that other pairs go on."""
    if pair.error is not None:
        return pair
    try:
        return step(pair)
    except Exception as error:
        return pair.failed(error)


class Source(ABC):
    """Pairs in files of one kind. It is sent to other processes, so it holds no open file."""

    suffix: str
    has_indices = False
    """Whether the output needs keypoint indices, because the input has no matches."""

    def __init__(self, folder: Path, files: Sequence[str], names: Sequence[str] = ()) -> None:
        # Files are relative to the folder. Names are those of all pairs, where parts refer to pairs by number.
        self.folder, self.files, self.names = folder, list(files), names
        # What the output depends on beside the files and the pruner.
        self.settings: dict[str, Any] = {"input": self.suffix}

    def parts(self, size: int) -> Iterator[Part]:
        """Yield all pairs, at most `size` in a part. An unreadable file becomes a part of one pair, which will fail."""
        for name in self.files:
            try:
                yield from self.parts_of(name, size)
            except InputError:
                yield Part(name, 0, 1)

    def read(self, part: Part) -> Iterator[Pair]:
        try:
            yield from self.pairs_of(part)
        except Exception as error:
            yield Pair(part.source).failed(error)

    @abstractmethod
    def parts_of(self, name: str, size: int) -> Iterator[Part]:
        """Yield the parts of one entry of `files`."""

    @abstractmethod
    def pairs_of(self, part: Part) -> Iterator[Pair]:
        """Yield the pairs of a part in order. A bad pair carries its error, a bad file raises."""


class Databases(Source):
    """COLMAP databases."""

    suffix = ".db"

    def parts_of(self, name: str, size: int) -> Iterator[Part]:
        with open_database(self.folder / name) as database:
            numbers = self._numbers(database)
        for some in _slices(numbers, size):
            yield Part(name, some[0], len(some))

    def pairs_of(self, part: Part) -> Iterator[Pair]:
        with open_database(self.folder / part.source) as database:

            def joined(pair: Pair) -> Pair:
                images = ImagePair.of(int(pair.key or 0))
                query = "SELECT name FROM images WHERE image_id = ?"
                name0, name1 = (next(database.connection.execute(query, (image,)), (None,))[0] for image in images)
                first, second = (database.view(image) for image in images)
                indices = np.frombuffer(database.read_matches(images) or b"", np.uint32).reshape(-1, 2)
                matches, usable = join(first, second, indices)
                known = first.K is not None and second.K is not None
                return Pair(pair.source, pair.key, name0, name1, matches, usable, known)

            for number in self._numbers(database, part.first, part.count):
                yield attempt(Pair(part.source, str(number)), joined)

    @staticmethod
    def _numbers(database: Database, first: int = 0, count: int = -1) -> list[int]:
        query = "SELECT pair_id FROM matches WHERE rows > 0 AND pair_id >= ? ORDER BY pair_id LIMIT ?"
        return [number for (number,) in database.connection.execute(query, (first, count))]


class HlocFiles(Source):
    """hloc's matches with their features: all .h5 files of a folder."""

    suffix = ".h5"

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.groups = {}
        for name in files:
            with open_hdf5(folder / name) as file:
                self.groups[name] = sorted(hloc.groups_with(file, "matches0"))
        matched = [name for name in files if self.groups[name]]
        super().__init__(folder, matched, [group for name in matched for group in self.groups[name]])
        self.features = tuple(folder / name for name in files if not self.groups[name])
        if not self.features or not matched:
            raise InputError(f"{folder}: expected hloc's features and matches, got {', '.join(files)}")

    def parts_of(self, name: str, size: int) -> Iterator[Part]:
        return _numbered_parts(name, len(self.groups[name]), size)

    def pairs_of(self, part: Part) -> Iterator[Pair]:
        images = _hloc_images(self.features)
        with open_hdf5(self.folder / part.source) as file:

            def joined(pair: Pair) -> Pair:
                stored = images.pair(file[pair.key])
                matches = images.correspondences(stored, descriptors=False)
                return replace(pair, name0=stored.name0, name1=stored.name1, matches=matches)

            for group in self.groups[part.source][part.first : part.first + part.count]:
                yield attempt(Pair(part.source, group), joined)


@lru_cache(maxsize=1)
def _hloc_images(paths: tuple[Path, ...]) -> hloc.Images:
    """Open the features once per process: listing a million photos takes a minute."""
    return hloc.Images({path: open_hdf5(path) for path in paths})


class MatchFiles(Source):
    """Matches in .npz files, one pair per file. They are sliced as one list, so that a part has many files."""

    suffix = ".npz"

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        super().__init__(folder, [""], files)

    def parts_of(self, name: str, size: int) -> Iterator[Part]:
        return _numbered_parts(name, len(self.names), size)

    def pairs_of(self, part: Part) -> Iterator[Pair]:
        def read(pair: Pair) -> Pair:
            matches = read_matches(self.folder / pair.source)
            return replace(pair, matches=matches, cameras_known=matches.calibrated)

        for name in self.names[part.first : part.first + part.count]:
            yield attempt(Pair(name), read)


class Tables(Source):
    """Matches in Parquet files, one pair per row: columns are lists of numbers, named like arrays of an .npz file."""

    suffix = ".parquet"

    def parts_of(self, name: str, size: int) -> Iterator[Part]:
        return _numbered_parts(name, _open_table(self.folder / name).metadata.num_rows, size)

    def pairs_of(self, part: Part) -> Iterator[Pair]:
        file = _open_table(self.folder / part.source)
        # Read only the row groups with these rows.
        starts = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))])
        needed = np.flatnonzero((starts[1:] > part.first) & (starts[:-1] < part.first + part.count))
        columns = [name for name in file.schema_arrow.names if name in (*REQUIRED, *OPTIONAL, "name0", "name1")]
        rows = file.read_row_groups(needed.tolist(), columns=columns)
        rows = rows.slice(part.first - int(starts[needed[0]]), part.count)

        def read(pair: Pair) -> Pair:
            row = {name: rows[name][int(pair.key or 0) - part.first] for name in rows.column_names}
            names = {name: row.pop(name).as_py() for name in ("name0", "name1") if name in row}
            arrays = {name: _as_array(name, value) for name, value in row.items() if value.is_valid}
            missing = [name for name in REQUIRED if name not in arrays]
            if missing:
                raise InputError(f"row {pair.key}: expected {' and '.join(REQUIRED)}, got no {', '.join(missing)}")
            matches = Correspondences(**arrays)
            return replace(pair, **names, matches=matches, cameras_known=matches.calibrated)

        for number in range(part.first, part.first + part.count):
            yield attempt(Pair(part.source, str(number)), read)


def import_parquet() -> ModuleType:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "bulk") from None
    return parquet


def _open_table(path: Path) -> Any:
    parquet = import_parquet()
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


def _as_array(name: str, value: Any) -> np.ndarray:
    """Return the named array from a list of numbers, flat or nested."""
    values: Any = getattr(value, "values", None)
    while hasattr(values, "flatten") and values.type.num_fields:
        values = values.flatten()
    array = None if values is None else values.to_numpy(zero_copy_only=False)
    if array is None or array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected a list of numbers, got {value.type}")
    shape = SHAPES.get(name, (-1,))
    try:
        return array.reshape(shape)
    except ValueError:
        rows = " x ".join("N" if length < 0 else str(length) for length in shape)
        raise InputError(f"{name}: expected {rows} numbers, got {array.size}") from None


class PhotoPairs(Source):
    """Photos of a folder, and a text file with two of their names per line.

    Args:
        features: the folder to which `detect` writes features, one file per photo.
        focal: of all photos, in pixels; "exif" for that of each photo, None for none.
    """

    suffix = ".txt"
    has_indices = True

    def __init__(
        self,
        folder: Path,
        listed: Path,
        features: Path,
        detector: str,
        max_keypoints: int | None,
        focal: Focal = "exif",
    ) -> None:
        check_file(listed)
        if not folder.is_dir():
            raise InputError(f"input: expected a folder of photos, got {folder}")
        super().__init__(folder, [listed.name])
        self.listed, self.features = listed.resolve(), features
        self.detector, self.max_keypoints, self.focal = detector, max_keypoints, focal
        self.settings |= {"detector": detector, "max_keypoints": max_keypoints, "focal": focal}

    def parts_of(self, name: str, size: int) -> Iterator[Part]:
        for some in _slices(self._lines(), size):
            yield Part(name, some[0][0], len(some))

    def pairs_of(self, part: Part) -> Iterator[Pair]:
        for _, line in islice(self._lines(part.first), part.count):
            yield attempt(Pair(part.source), partial(self._read_line, line))

    def photos(self) -> list[str]:
        """Return the names of all listed photos, each once."""
        found: dict[str, None] = {}
        for _, line in self._lines():
            with suppress(InputError):
                found |= dict.fromkeys(_two_names(line))
        return list(found)

    def load_detector(self, device: str) -> Detector:
        return load_detector(self.detector, device=device, max_keypoints=self.max_keypoints)

    def detect(self, name: str, detector: Detector) -> None:
        """Write the features of a photo, or the error."""
        path = self._features_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            photo = as_photo(self.folder / name, longest_side=detector.longest_side)
            found = find_features(detector, photo.pixels, name, self.folder / name, photo.size)
            focal = {} if photo.exif_focal is None else {"focal": np.array(photo.exif_focal)}
            size = np.array(found.image_size)
            save_features(path, found.in_pixels_of(photo.size), detected_size=size, **focal)
        except Exception as error:
            reason = str(Pair(name).failed(error).error).encode()
            save_arrays(path, {"error": np.frombuffer(reason, np.uint8)}, compressed=False)

    def is_detected(self, name: str, again: bool) -> bool:
        """Whether the features of a photo are there; with `again`, an error does not count."""
        path = self._features_of(name)
        return path.is_file() and not (again and read_some(path, ("error",)))

    def _features_of(self, name: str) -> Path:
        return self.features / f"{name}.npz"

    def _lines(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (byte offset, line) of the lines that list a pair, from an offset on."""
        with self.listed.open("rb") as file:
            file.seek(first)
            for line in file:
                if holds_pair(line):
                    yield first, line
                first += len(line)

    def _read_line(self, line: bytes, pair: Pair) -> Pair:
        name0, name1 = _two_names(line)
        return attempt(replace(pair, name0=name0, name1=name1), self._match)

    def _match(self, pair: Pair) -> Pair:
        first, second = (_read_photo(self._features_of(str(name))) for name in (pair.name0, pair.name1))
        focal0, focal1 = (p.exif_focal if self.focal == "exif" else self.focal for p in (first, second))
        cameras = choose_cameras(first.size, second.size, exif_focal0=focal0, exif_focal1=focal1)
        # As in `PhotoMatcher`, thresholds are in pixels of the scaled photos.
        K0, K1 = (None if K is None else photo.scaling @ K for K, photo in ((cameras.K0, first), (cameras.K1, second)))
        matches = match(first.features, second.features, K0=K0, K1=K1)
        return replace(pair, matches=matches, cameras_known=matches.calibrated)


@lru_cache(maxsize=CACHED_PHOTOS)
def _read_photo(path: Path) -> PreparedPhoto:
    """Return what `PhotoPairs.detect` wrote."""
    error = read_some(path, ("error",)).get("error")
    if error is not None:
        raise InputError(error.tobytes().decode())
    features, more = read_features(path, ("detected_size", "focal"))
    width, height = more["detected_size"].tolist()
    focal = float(more["focal"]) if "focal" in more else None
    return PreparedPhoto(path.stem, features.in_pixels_of((width, height)), features.image_size, exif_focal=focal)


def _two_names(line: bytes) -> tuple[str, str]:
    names = pair_of_line(line)
    for name in names:
        # Feature files are named after photos, and must stay in their folder.
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise InputError(f"expected a photo in the folder of the input, got {name!r}")
    return names


def _slices(values: Iterable[Item], size: int) -> Iterator[list[Item]]:
    values = iter(values)
    while some := list(islice(values, size)):
        yield some


def _numbered_parts(source: str, count: int, size: int) -> Iterator[Part]:
    return (Part(source, first, min(size, count - first)) for first in range(0, count, size))


SOURCES = (Databases, HlocFiles, MatchFiles, Tables)


def open_source(path: Path) -> Source:
    """Open a file, or all files of one kind in a folder and its subfolders."""
    if not path.exists():
        raise InputError(f"input: {path}: no such file or folder")
    folder = path if path.is_dir() else path.parent
    names = [path] if path.is_file() else sorted(file for file in path.rglob("*") if not file.name.startswith("."))
    found = {source: files for source in SOURCES if (files := [one for one in names if one.suffix == source.suffix])}
    if len(found) != 1:
        kinds = " or ".join(source.suffix for source in SOURCES)
        got = " and ".join(source.suffix for source in found) or "none of them"
        raise InputError(f"input: expected files of one kind ({kinds}) in {path}, or --pairs for photos; got {got}")
    ((source, files),) = found.items()
    return source(folder, [file.relative_to(folder).as_posix() for file in files])
