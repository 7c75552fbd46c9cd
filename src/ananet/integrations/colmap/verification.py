"""COLMAP's own verification of matches, as part of a transaction."""

from __future__ import annotations

import glob
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ananet.errors import MissingExtraError
from ananet.integrations.colmap.database import MARKS, Database, Pair


def verify_pairs(pycolmap: Any, database: Database) -> int:
    """Write two-view geometries of pairs that have matches and no geometry; return the number of pairs with inliers.

    Call it within a write transaction. COLMAP cannot join that, and so works on a small copy beside the database.
    """
    folder = database.path.resolve().parent
    prefix = f".{database.path.stem}-verification-"
    # We hold the write lock, so leftovers come from a killed run.
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as work:
        copy = Path(work) / "copy.db"
        if _copy_unverified(database, copy):
            options = pycolmap.TwoViewGeometryOptions()
            options.ransac.random_seed = 0
            with quiet(pycolmap):
                pycolmap.geometric_verification(copy, two_view_geometry_options=options)
            _take_geometries(database, copy)
    verified = database.connection.execute("SELECT count(*) FROM two_view_geometries WHERE rows > 0")
    return int(verified.fetchone()[0])


def _copy_unverified(database: Database, target: Path) -> int:
    """Copy all but descriptors and verified pairs to a new database; return the number of pairs."""
    numbers = database.connection.execute("SELECT pair_id FROM two_view_geometries")
    verified = {Pair.of(number).in_order for (number,) in numbers}
    # COLMAP does not find pairs that are stored the other way round.
    rows = (
        (pair.in_order.number, len(indices), 2, (indices if pair == pair.in_order else indices[:, ::-1]).tobytes())
        for pair, indices in database.matched_pairs()
        if pair.in_order not in verified
    )
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")
        copy.execute("BEGIN")
        _copy_tables(database.connection, copy, without=("descriptors", "matches", "two_view_geometries", MARKS))
        count = copy.executemany("INSERT OR IGNORE INTO matches (pair_id, rows, cols, data) VALUES (?, ?, ?, ?)", rows)
        copy.execute("COMMIT")
        return count.rowcount


def _copy_tables(source: sqlite3.Connection, target: sqlite3.Connection, without: Sequence[str]) -> None:
    """Copy all tables, those in `without` empty."""
    version = source.execute("PRAGMA user_version").fetchone()[0]
    target.execute(f"PRAGMA user_version = {version}")
    made = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql IS NOT NULL"
    for kind, name, statement in source.execute(f"{made} AND name NOT LIKE 'sqlite_%' ORDER BY type DESC").fetchall():
        target.execute(statement)
        if kind == "table" and name not in without:
            rows = source.execute(f'SELECT * FROM "{name}"')
            target.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(rows.description))})', rows)


def _take_geometries(database: Database, source: Path) -> None:
    """Copy two-view geometries from a copy of the database."""
    # COLMAP updates an old database when it opens it: the copy may have more columns.
    own = [row[1] for row in database.connection.execute("PRAGMA table_info(two_view_geometries)")]
    columns, places = ", ".join(own), ", ".join("?" * len(own))
    with closing(sqlite3.connect(source)) as copy:
        rows = copy.execute(f"SELECT {columns} FROM two_view_geometries")
        query = f"INSERT OR REPLACE INTO two_view_geometries ({columns}) VALUES ({places})"
        database.connection.executemany(query, rows)


def import_pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError:
        raise MissingExtraError("pycolmap", "colmap") from None
    return pycolmap


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """Log only COLMAP's errors: its messages on stderr break progress bars."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.Level.ERROR.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before
