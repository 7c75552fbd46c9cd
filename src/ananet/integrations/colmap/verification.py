"""COLMAP's own verification of matches, as part of a transaction."""

from __future__ import annotations

import glob
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ananet.errors import InputError, MissingExtraError
from ananet.integrations.colmap.database import TABLES, Database, Pair
from ananet.io.files import only_process

# COLMAP 4 adds these. Others are none of its business.
COLMAP_TABLES = (*TABLES, "pose_priors", "rigs", "rig_sensors", "frames", "frame_data")


def check_cameras(database: Database, beside: Path) -> None:
    """Raise unless COLMAP can read all cameras, before the work starts. Call it within a write transaction."""
    with _working_folder(beside) as work:
        _copy_tables(database, work / "cameras.db", ("cameras", "images"))
        _run_colmap(database, work / "cameras.db")


def verify_pairs(database: Database, beside: Path) -> int:
    """Write two-view geometries of pairs that have matches and no geometry; return the number of pairs with inliers.

    Call it within a write transaction. COLMAP cannot join that, and so works on a small copy `beside` a file.
    """
    with _working_folder(beside) as work:
        copy = work / "copy.db"
        if _copy_unverified(database, copy):
            _run_colmap(database, copy)
            _take_geometries(database, copy)
    verified = database.connection.execute("SELECT count(*) FROM two_view_geometries WHERE rows > 0")
    return int(verified.fetchone()[0])


@contextmanager
def _working_folder(beside: Path) -> Iterator[Path]:
    """Yield a folder that is removed at the end; those that killed runs left are removed before."""
    beside = beside.resolve()
    # The whole name: databases may differ by their suffix alone.
    prefix = f".{beside.name}-verification-"
    for left in beside.parent.glob(f"{glob.escape(prefix)}????????"):
        with suppress(InputError):
            # Whoever works there holds the lock.
            with only_process(left):
                pass
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=beside.parent) as work, only_process(Path(work)):
        yield Path(work)


def _run_colmap(database: Database, copy: Path) -> None:
    """Let COLMAP check and verify a copy, in a process of its own."""
    program = [sys.executable, "-P", "-X", "utf8", str(Path(__file__).with_name("verify_copy.py")), str(copy)]
    with copy.with_name("stderr.txt").open("w+b") as errors:
        # It ends when its stdin does.
        pipe = subprocess.PIPE
        with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=errors) as process:
            try:
                said = process.stdout.read().decode(errors="replace") if process.stdout else ""
            except BaseException:
                process.kill()
                process.wait()
                raise
        errors.seek(0)
        failed = errors.read().decode(errors="replace")
    if process.returncode:
        fault = said.strip() or f"COLMAP's verification failed ({_reason(process.returncode, failed)})"
        raise InputError(f"{database.name}: {fault}")


def _reason(code: int, stderr: str) -> str:
    """Why a process ended, in one line."""
    lines = stderr.strip().splitlines() or [f"exit code {code}"]
    thrown = [line for line in lines if line.lstrip().startswith("what():")]
    signals = [one.name for one in signal.Signals if one == -code]
    return (thrown or signals or lines[-1:])[0].strip()


def _copy_unverified(database: Database, target: Path) -> int:
    """Copy all but descriptors and verified pairs to a new database; return the number of pairs."""
    numbers = database.connection.execute("SELECT pair_id FROM two_view_geometries")
    verified = {Pair.of(number).in_order for (number,) in numbers}
    # COLMAP does not find pairs that are stored the other way round.
    rows = (
        (pair.in_order.number, len(indices), 2, (indices if pair == pair.in_order else indices[:, ::-1]).tobytes())
        for pair, indices in database.matched_pairs()
        if pair.in_order not in verified and database.check_indices(pair, indices)
    )
    without = ("descriptors", "matches", "two_view_geometries")
    _copy_tables(database, target, [name for name in COLMAP_TABLES if name not in without])
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")
        copy.execute("BEGIN")
        count = copy.executemany("INSERT OR IGNORE INTO matches (pair_id, rows, cols, data) VALUES (?, ?, ?, ?)", rows)
        copy.execute("COMMIT")
        return count.rowcount


def _copy_tables(database: Database, target: Path, filled: Sequence[str]) -> None:
    """Make a database with COLMAP's tables, those of `filled` with their rows.

    Other tables and indices are none of COLMAP's business, and SQLite may not be able to copy them.
    """
    source = database.connection
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")
        copy.execute("BEGIN")
        copy.execute(f"PRAGMA user_version = {source.execute('PRAGMA user_version').fetchone()[0]}")
        for name, made in source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
            if name not in COLMAP_TABLES:
                continue
            copy.execute(made)
            if name in filled:
                # Without generated columns.
                columns = [row[1] for row in source.execute(f"PRAGMA table_info({name})")]
                listed, places = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
                rows = source.execute(f"SELECT {listed} FROM {name}")
                copy.executemany(f"INSERT INTO {name} ({listed}) VALUES ({places})", rows)
        copy.execute("COMMIT")


def _take_geometries(database: Database, source: Path) -> None:
    """Copy two-view geometries from a copy of the database."""
    # COLMAP updates an old database when it opens it: the copy may have more columns.
    own = [row[1] for row in database.connection.execute("PRAGMA table_info(two_view_geometries)")]
    columns, places = ", ".join(own), ", ".join("?" * len(own))
    with closing(sqlite3.connect(source)) as copy:
        rows = copy.execute(f"SELECT {columns} FROM two_view_geometries")
        query = f"INSERT OR REPLACE INTO two_view_geometries ({columns}) VALUES ({places})"
        database.connection.executemany(query, rows)


def check_pycolmap() -> None:
    """Raise unless pycolmap is installed. Importing it would catch signals and print its own stack traces."""
    if find_spec("pycolmap") is None:
        raise MissingExtraError("pycolmap", "colmap")


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
