"""COLMAP databases, read and written through SQLite; COLMAP itself is not needed.

COLMAP puts the centre of the first pixel at (0.5, 0.5) and its keypoint scale is a radius. What is read here follows
OpenCV: (0, 0), and sizes are diameters. Databases of COLMAP 3 and 4 are supported; 4 adds tables for rigs and frames
and a column for the type of descriptors.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ananet.core.cameras import FOCAL_GUESS as ANANET_FOCAL_GUESS
from ananet.core.cameras import MODEL_NAMES, Camera, centred_camera, parse_camera, undistort_points
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.features import Features
from ananet.features.matching import join as join_features

logger = logging.getLogger(__name__)

HALF_PIXEL = 0.5
# COLMAP's pair_id is this times the number of the first image plus that of the second.
PAIR_BASE = 2147483647
# COLMAP's focal length for a photo without EXIF, over its longest side.
COLMAP_FOCAL_GUESS = 1.2
# Image sides of this and more are taken for damage.
MAX_SIDE = 10_000_000
TABLES = ("cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries")
# Our table of pruned pairs, with pruner and digest of the matches. COLMAP ignores tables that it does not know.
MARKS = "ananet_pruned"
# And of doubtful ones.
DOUBTFUL = "ananet_doubtful"
# Seconds to wait for another writer.
LOCK_TIMEOUT = 5.0
NO_PERMISSION = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)
# Types of descriptors. SIFT, the only one of COLMAP 3, is stored as bytes, all others as floats.
UNDEFINED, SIFT = -1, 0
# Size of the cache of views.
BYTES_REMEMBERED = 256 * 2**20


class Pair(NamedTuple):
    """Two images by number, in the order of pair_id: column 0 of the matches belongs to the first."""

    first: int
    second: int

    @classmethod
    def of(cls, number: int) -> Pair:
        """Return the images of a pair_id.

        >>> Pair.of(2147483649)
        Pair(first=1, second=2)
        """
        return cls(*divmod(number, PAIR_BASE))

    @property
    def number(self) -> int:
        return self.first * PAIR_BASE + self.second

    @property
    def reversed(self) -> Pair:
        return Pair(self.second, self.first)

    @property
    def in_order(self) -> Pair:
        """The smaller number first, as COLMAP writes it."""
        return min(self, self.reversed)


@dataclass(frozen=True, eq=False)
class View(Features):
    """An image's keypoints as a pinhole camera would see them.

    Points are NaN where the lens model has no such place, and descriptors are [N x 0] unless they were asked for.
    """

    K: np.ndarray | None = None
    """[3 x 3]; None where the camera is not known."""

    @property
    def some_K(self) -> np.ndarray:
        """The camera matrix, or one that amounts to scaling by the image's size."""
        size = self.image_size
        return self.K if self.K is not None else centred_camera(ANANET_FOCAL_GUESS * max(size), size)

    @property
    def bytes(self) -> int:
        return sum(values.nbytes for values in vars(self).values() if isinstance(values, np.ndarray))


def join(first: View, second: View, indices: np.ndarray, **known: np.ndarray) -> tuple[Correspondences, np.ndarray]:
    """Return the matches between keypoints [N x 2], and an [N] bool mask of those that are used.

    Keypoints without a place in a pinhole camera are left out. `known` are ratio and mutual flag of every match.
    """
    points0, points1 = first.points[indices[:, 0]], second.points[indices[:, 1]]
    usable = np.isfinite(points0).all(axis=1) & np.isfinite(points1).all(axis=1)
    given = {name: values[usable] for name, values in known.items()}
    if first.K is not None or second.K is not None:
        given |= {"K0": first.some_K, "K1": second.some_K}
    return join_features(first, second, indices[usable], **given), usable


class Database:
    """An open COLMAP database; `open_database` makes it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, name: str) -> None:
        self.path, self.connection = path, connection
        self.name = name
        """Shown in messages."""
        # Least-recently-used cache.
        self._views: OrderedDict[tuple[int, bool], View] = OrderedDict()
        self._view_bytes = 0
        self._unknown_cameras: set[int] = set()

    def image_names(self) -> dict[int, str]:
        return dict(self.connection.execute("SELECT image_id, name FROM images ORDER BY image_id"))

    def images_with_descriptors(self) -> list[int]:
        rows = self.connection.execute("SELECT image_id FROM descriptors WHERE rows > 0 ORDER BY image_id")
        return [image for (image,) in rows]

    def count_matched_pairs(self) -> int:
        return int(self.connection.execute("SELECT count(*) FROM matches WHERE rows > 0").fetchone()[0])

    def matched_pairs(self, every: int = 1) -> Iterator[tuple[Pair, np.ndarray]]:
        """Yield every n-th pair with its matches, [N x 2] uint32, one at a time; the caller may change them."""
        last, some = -1, f"pair_id > ? AND rows > 0 ORDER BY pair_id LIMIT 1 OFFSET {every - 1}"
        query = f"SELECT pair_id, rows, cols, data FROM matches WHERE {some}"
        while row := self.connection.execute(query, (last,)).fetchone():
            last, *stored = row
            yield Pair.of(last), self._array(f"matches of pair {last}", np.uint32, stored, (2,))

    def check_indices(self, pair: Pair, indices: np.ndarray) -> bool:
        """Return True; raise if matches [N x 2] are between keypoints that the images of the pair do not have."""
        for image, column in zip(pair, indices.T, strict=True):
            row = self.connection.execute("SELECT rows FROM keypoints WHERE image_id = ?", (image,)).fetchone()
            count = row[0] if row and isinstance(row[0], int) else 0
            if len(column) and column.max() >= count:
                expected = f"expected keypoints below {count} of image {image}, got {column.max()}"
                raise InputError(f"{self.name}: matches of images {pair.first} and {pair.second}: {expected}")
        return True

    def read_matches(self, pair: Pair) -> bytes | None:
        """Return the stored bytes of a pair's matches; None for a pair without a row."""
        row = self.connection.execute("SELECT data FROM matches WHERE pair_id = ?", (pair.number,)).fetchone()
        return None if row is None else row[0] or b""

    def write_matches(self, pair: Pair, indices: np.ndarray) -> bool:
        """Replace the matches of a pair. If they change, remove its two-view geometry; return whether there was one."""
        data = np.ascontiguousarray(indices, np.uint32).tobytes()
        if self.read_matches(pair) == data:
            return False
        # As in COLMAP, a row without matches says that the pair was tried.
        self.connection.execute(
            "INSERT OR REPLACE INTO matches (pair_id, rows, cols, data) VALUES (?, ?, 2, ?)",
            (pair.number, len(indices), data or None),
        )
        removed = self.connection.execute(
            "DELETE FROM two_view_geometries WHERE pair_id IN (?, ?)", (pair.number, pair.reversed.number)
        )
        return removed.rowcount > 0

    def has_foreign_matches(self) -> bool:
        """Return whether some pair has matches that `match_database` did not write."""
        own = f"SELECT pair_id FROM {MARKS} WHERE matched" if self._has_table(MARKS) else ""
        query = f"SELECT EXISTS (SELECT 1 FROM matches WHERE rows > 0 AND pair_id NOT IN ({own}))"
        return bool(self.connection.execute(query).fetchone()[0])

    def start_marking(self) -> None:
        self.connection.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (pair_id INTEGER PRIMARY KEY NOT NULL, pruner TEXT NOT NULL, "
            "matched INTEGER NOT NULL, digest BLOB NOT NULL)"
        )
        self.connection.execute(
            f"CREATE TABLE IF NOT EXISTS {DOUBTFUL} (pair_id INTEGER PRIMARY KEY NOT NULL, matches INTEGER NOT NULL, "
            "probability REAL, reason TEXT NOT NULL)"
        )

    def is_marked(self, pair: Pair, pruner: str, matched: bool) -> bool:
        """Return whether matches are still as this pruner left them and, if `matched`, were made by us."""
        mark = self._mark(pair) if self._has_table(MARKS) else None
        if mark is None or mark[0] != pruner or mark[1] < matched:
            return False
        return mark[2] == _digest(self.read_matches(pair))

    def mark(self, pair: Pair, pruner: str, matched: bool) -> None:
        """Note that this pruner is done with a pair."""
        mark = (pruner, int(matched), _digest(self.read_matches(pair)))
        # Writing the same row again would change the file.
        if self._mark(pair) != mark:
            self.connection.execute(f"INSERT OR REPLACE INTO {MARKS} VALUES (?, ?, ?, ?)", (pair.number, *mark))

    def doubtful_pairs(self) -> dict[Pair, tuple[int, float | None, str]]:
        """Matches, probability and reason of pairs that lost their matches since they hardly show the same place."""
        if not self._has_table(DOUBTFUL):
            return {}
        rows = self.connection.execute(f"SELECT pair_id, matches, probability, reason FROM {DOUBTFUL}")
        return {Pair.of(number): (matches, probability, reason) for number, matches, probability, reason in rows}

    def note_doubtful(self, pair: Pair, doubt: tuple[int, float | None, str] | None) -> None:
        """Note why a pair is doubtful; None if it is not."""
        if doubt is None:
            self.connection.execute(f"DELETE FROM {DOUBTFUL} WHERE pair_id = ?", (pair.number,))
        else:
            self.connection.execute(f"INSERT OR REPLACE INTO {DOUBTFUL} VALUES (?, ?, ?, ?)", (pair.number, *doubt))

    def _mark(self, pair: Pair) -> Any:
        query = f"SELECT pruner, matched, digest FROM {MARKS} WHERE pair_id = ?"
        return self.connection.execute(query, (pair.number,)).fetchone()

    def view(self, image: int, descriptors: bool = False) -> View:
        """Return an image's keypoints, camera and, if asked for, descriptors."""
        key = (image, descriptors)
        if key not in self._views:
            self._views[key] = self._read_view(image, descriptors)
            self._view_bytes += self._views[key].bytes
        self._views.move_to_end(key)
        while self._view_bytes > BYTES_REMEMBERED and len(self._views) > 1:
            self._view_bytes -= self._views.popitem(last=False)[1].bytes
        return self._views[key]

    def _read_view(self, image: int, descriptors: bool) -> View:
        query = "SELECT rows, cols, data FROM keypoints WHERE image_id = ?"
        stored = self.connection.execute(query, (image,)).fetchone()
        if stored is None:
            raise InputError(f"{self.name}: expected keypoints of image {image}, which is matched; there are none")
        keypoints = self._array(f"keypoints of image {image}", np.float32, stored, (2, 4, 6))
        points = keypoints[:, :2].astype(np.float64) - HALF_PIXEL
        camera, size = self._camera(image)
        size = size or _extent(points)
        if camera is not None:
            points = undistort_points(points, camera.K, camera.distortion)
        sizes, angles = _shapes(keypoints)
        described = self._descriptors(image, len(points)) if descriptors else np.zeros((len(points), 0), np.float32)
        return View(points, described, size, sizes, angles, K=None if camera is None else camera.K)

    def _camera(self, image: int) -> tuple[Camera | None, tuple[int, int] | None]:
        """The camera and the size of an image; None where the database does not know them."""
        columns = "camera_id, model, width, height, params, prior_focal_length"
        query = f"SELECT {columns} FROM cameras JOIN images USING (camera_id) WHERE image_id = ?"
        row = self.connection.execute(query, (image,)).fetchone()
        if row is None:
            return None, None
        identity, number, width, height, params, focal_is_known = row
        known = all(isinstance(side, int) and 0 < side < MAX_SIDE for side in (width, height))
        size = (width, height) if known else None
        try:
            parameters, model = np.frombuffer(params or b"", np.float64), MODEL_NAMES.get(number, f"number {number}")
            camera = parse_camera(model, (width, height), parameters, f"camera {identity}")
        except (ValueError, TypeError) as error:
            if identity not in self._unknown_cameras:
                logger.warning("%s: without a usable camera, points are normalised by image size: %s", self.name, error)
            self._unknown_cameras.add(identity)
            return None, size
        # COLMAP's guess is no better than ours, which networks were trained with.
        focals = {camera.K[0, 0], camera.K[1, 1]}
        guessed = size is not None and not focal_is_known and focals == {COLMAP_FOCAL_GUESS * max(size)}
        return (None if guessed else camera), size

    def _descriptors(self, image: int, count: int) -> np.ndarray:
        typed = any(row[1] == "type" for row in self.connection.execute("PRAGMA table_info(descriptors)"))
        query = f"SELECT {'type' if typed else UNDEFINED}, rows, cols, data FROM descriptors WHERE image_id = ?"
        kind, rows, width, data = self.connection.execute(query, (image,)).fetchone() or (SIFT, 0, 0, b"")
        where = f"descriptors of image {image}"
        stored = self._array(where, np.uint8, (rows, width, data), (width,))
        if rows != count:
            raise InputError(f"{self.name}: {where}: expected one of each of {count} keypoints, got {rows}")
        if kind in (UNDEFINED, SIFT):
            # As int8, which is matched fastest; COLMAP's bytes all have about the same length.
            return (stored ^ np.uint8(0x80)).view(np.int8)
        if width % 4:
            raise InputError(f"{self.name}: {where}: expected floats, got rows of {width} bytes")
        values = np.nan_to_num(stored.view(np.float32))
        return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)

    def _array(self, where: str, kind: type[np.generic], stored: Sequence[Any], widths: Sequence[int]) -> np.ndarray:
        """Return [rows x columns] from a table's rows, columns and data."""
        rows, columns, data = stored
        # SQLite lets a column hold anything.
        if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(data, bytes | None)):
            raise InputError(f"{self.name}: {where}: expected sizes and a blob, got {rows!r:.40}, {columns!r:.40}")
        if columns not in widths and rows:
            expected = " or ".join(map(str, widths))
            raise InputError(f"{self.name}: {where}: expected {expected} columns, got {columns}")
        data = data or b""
        if len(data) != rows * columns * np.dtype(kind).itemsize:
            raise InputError(f"{self.name}: {where}: expected {rows} x {columns} numbers, got {len(data)} bytes")
        return np.frombuffer(data, kind).reshape(rows, columns)

    def _has_table(self, name: str) -> bool:
        query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self.connection.execute(query, (name,)).fetchone()[0])

    def check(self) -> None:
        """Raise unless this is a COLMAP database."""
        missing = [name for name in TABLES if not self._has_table(name)]
        if missing:
            raise InputError(f"{self.name}: expected a COLMAP database, it has no table {', '.join(missing)}")


@contextmanager
def open_database(path: Path, name: str | None = None) -> Iterator[Database]:
    """Open an existing database; errors of SQLite become `InputError` with `name`, or the path.

    Where nothing can be written, it can be read all the same.
    """
    if not path.is_file():
        reason = "expected a COLMAP database, got a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {reason}")
    name = str(path) if name is None else name
    with _clear_errors(name), closing(_connect(path.resolve(), name)) as connection:
        database = Database(path, connection, name)
        database.check()
        yield database


def _connect(path: Path, name: str) -> sqlite3.Connection:
    address = path.as_uri()
    connection = sqlite3.connect(f"{address}?mode=rw", uri=True, timeout=LOCK_TIMEOUT, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error as error:
        connection.close()
        if _kind_of(error) not in NO_PERMISSION:
            raise
    else:
        return connection
    # Databases with a write-ahead log, which COLMAP's are, need files beside them even to be read. Without them what is
    # in the log is not seen.
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        expected = f"expected a folder with write permission, since {log.name} has changes that are not in the database"
        raise InputError(f"{name}: {expected}; copy both to one")
    return sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True, isolation_level=None)


@contextmanager
def transaction(database: Database, write: bool) -> Iterator[None]:
    """Commit what is written in the block at its end, or nothing if it raises."""
    database.connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
    except BaseException:
        # After some of its own errors SQLite has rolled back already.
        if database.connection.in_transaction:
            database.connection.execute("ROLLBACK")
        raise
    if database.connection.in_transaction:
        database.connection.execute("COMMIT" if write else "ROLLBACK")


def copy_database(source: Database, target: Path, name: str) -> None:
    """Copy to `target`, an empty file, without a write-ahead log: a rename would leave its files behind.

    `name` is shown in messages.
    """
    # Within a read transaction, since otherwise SQLite would wait for a writer forever.
    with transaction(source, write=False):
        source.check()
        with _clear_errors(name), closing(sqlite3.connect(target, isolation_level=None)) as copy:
            source.connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")


@contextmanager
def _clear_errors(name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{name}: not a readable COLMAP database (names are not UTF-8)") from None
    except sqlite3.Error as error:
        code = _kind_of(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise InputError(f"{name}: another program is writing to this database; close it, or wait") from None
        if code in NO_PERMISSION:
            raise InputError(f"{name}: no permission to write to this database or its folder") from None
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise OSError(f"could not write {name}: {error}") from None
        raise InputError(f"{name}: not a readable COLMAP database ({error})") from None


def _kind_of(error: sqlite3.Error) -> int:
    # The lower byte of the code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _digest(data: bytes | None) -> bytes:
    return hashlib.blake2b(data or b"", digest_size=16).digest()


def _extent(points: np.ndarray) -> tuple[int, int]:
    """The smallest (width, height) that contains all keypoints."""
    seen = points[np.isfinite(points).all(axis=1)]
    width, height = np.ceil(seen.max(axis=0, initial=1.0) + HALF_PIXEL)
    return int(width), int(height)


def _shapes(keypoints: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Diameters and orientations (radians) of keypoints with 4 columns (scale, angle) or 6 (affine shape), or None."""
    if keypoints.shape[1] == 2:
        return None, None
    if keypoints.shape[1] == 4:
        scales, angles = keypoints[:, 2], keypoints[:, 3]
    else:
        # [a11 a12; a21 a22] is a rotation times the scales along both axes, and a shear.
        a11, a12, a21, a22 = keypoints[:, 2:].T
        scales, angles = (np.hypot(a11, a21) + np.hypot(a12, a22)) / 2, np.arctan2(a21, a11)
    # COLMAP's scale is a radius, OpenCV's size a diameter.
    sizes = 2 * scales
    usable = np.isfinite(sizes) & (sizes > 0) & np.isfinite(angles)
    return (sizes, angles) if usable.all() else (None, None)
