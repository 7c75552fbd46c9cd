"""Every file that is read, damaged: a value or an InputError, and no output that was not meant."""

from __future__ import annotations

import io
import random
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from hypothesis import strategies as st

import ananet
from ananet.datasets.sources import open_source
from ananet.features import load_detector
from ananet.integrations.colmap import match_database, prune_database
from ananet.integrations.hloc import prune_matches
from ananet.io.images import exif_focal, read_image
from ananet.io.npz import read_matches
from ananet.twoview.cameras import read_camera
from tests.conftest import make_problem
from tests.datasets.formats.test_fuzz import BINARY, FORMATS, HDF5, TEXT, Format
from tests.fuzz.campaign import TARGETS, Case
from tests.integrations.colmap.databases import Writer
from tests.mutations import change_bytes, change_floats, change_words, mutants
from tests.photos import photo

IMAGE = photo(160, 120)
CELLS: tuple[Any, ...] = (None, -1, 0, 2**31, 2**62, 1.5, float("nan"), "x", "", b"", b"\0" * 7, b"\xff" * 16, 10**6)


def change_npz(data: bytes, draw: random.Random) -> bytes:
    """An archive whose checksums are right, though an array in it says something else, or is gone or twice there."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError, ValueError, EOFError):
        return change_bytes(data, draw)
    if not entries:
        return change_bytes(data, draw)
    at = draw.randrange(len(entries) + 1)
    if at == len(entries):
        del entries[draw.randrange(len(entries))]
    else:
        name, content = entries[at]
        changed = draw.choice((change_bytes, change_floats, lambda d, r: change_words(d[:128], r) + d[128:]))
        entries[at] = (draw.choice((name, name, name, "x.npy", "../x.npy", "points0.npy")), changed(content, draw))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return written.getvalue()


def change_database(data: bytes, draw: random.Random) -> bytes:
    """A database that sqlite reads, with a cell, a row, a column or a table that is wrong."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = draw.choice([name for name in tables if not name.startswith("sqlite")])
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
        kind = draw.randrange(8)
        if kind == 0:
            connection.execute(f"DROP TABLE {table}")
        elif kind == 1 and rows:
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (draw.choice(rows),))
        elif kind == 2:
            connection.execute(f"ALTER TABLE {table} RENAME COLUMN {draw.choice(columns)} TO other")
        elif rows:
            place = (draw.choice(CELLS), draw.choice(rows))
            connection.execute(f"UPDATE {table} SET {draw.choice(columns)} = ? WHERE rowid = ?", place)
        connection.commit()
        return connection.serialize()
    except (sqlite3.Error, IndexError, OverflowError, UnicodeError):
        return change_bytes(data, draw)
    finally:
        connection.close()


def write_npz(folder: Path) -> None:
    matches = make_problem(inliers=6, outliers=6).matches
    points0, points1 = matches.numpy_points()
    more = {"K0": matches.K0, "K1": matches.K1, "ratio": matches.ratio, "mutual": matches.mutual}
    np.savez(folder / "m.npz", points0=points0, points1=points1, image_size0=(640, 480), image_size1=(640, 480), **more)


def write_features(folder: Path) -> None:
    found = load_detector("orb", max_keypoints=12).detect(IMAGE)
    arrays = {name: values for name, values in vars(found).items() if values is not None}
    np.savez_compressed(folder / "a.npz", **arrays)


def write_hloc_features(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "features.h5", "w") as file:
        for name in ("a.jpg", "b.jpg"):
            group = file.create_group(name)
            rng = np.random.default_rng(len(name))
            group["keypoints"], group["image_size"] = rng.uniform(0, 120, (30, 2)), np.array([160, 120])
            group["descriptors"], group["scores"] = rng.normal(size=(8, 30)), rng.random(30)


def write_hloc_matches(folder: Path) -> None:
    import h5py

    write_hloc_features(folder)
    with h5py.File(folder / "matches.h5", "w") as file:
        group = file.create_group("a.jpg/b.jpg")
        group["matches0"], group["matching_scores0"] = np.arange(30).astype(np.int16), np.ones(30, np.float16)


def read_features(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        found = load_detector("stored", path=folder / name).detect(IMAGE, folder / "a.jpg")
        assert len(found) == len(found.descriptors) and found.image_size == (160, 120)

    return read


def prune_hloc(folder: Path) -> None:
    output = folder / "out.h5"
    try:
        pruner = ananet.load("gms", device="cpu")
        prune_matches(folder / "features.h5", folder / "matches.h5", output, pruner=pruner, descriptors=True)
        assert output.is_file()
    except BaseException:
        assert not output.exists(), "an output of a run that failed"
        raise
    finally:
        output.unlink(missing_ok=True)


def write_database(folder: Path) -> None:
    points = make_problem(inliers=20, outliers=10).matches.numpy_points()
    writer = Writer(folder / "a.db")
    rng = np.random.default_rng(0)
    first, second = (writer.image(each, descriptors=rng.integers(0, 256, (30, 128), np.uint8)) for each in points)
    number = writer.matches(first, second, np.stack([np.arange(30)] * 2, axis=1))
    writer.geometry(number, np.stack([np.arange(9)] * 2, axis=1))
    writer.close()


def read_database(folder: Path) -> None:
    path = folder / "a.db"
    before = path.read_bytes()
    pruner = ananet.load("gms", device="cpu")
    for call in (prune_database, match_database):
        try:
            call(path, pruner, output=folder / "out.db", device="cpu")
        except BaseException:
            assert not (folder / "out.db").exists(), "an output of a run that failed"
            raise
        finally:
            (folder / "out.db").unlink(missing_ok=True)
            assert path.read_bytes() == before, "a changed input"


def write_photos(folder: Path) -> None:
    small = cv2.resize(IMAGE, (24, 16))
    for suffix in ("jpg", "png", "tiff", "webp", "bmp", "ppm"):
        assert cv2.imwrite(str(folder / f"a.{suffix}"), small)


def read_photos(folder: Path) -> None:
    for path in folder.glob("a.*"):
        exif_focal(path)
        image = read_image(path)
        assert image.ndim == 3 and image.dtype == np.uint8


def read_labelled(folder: Path) -> None:
    source: Any = open_source(folder / "pair")
    for number in range(len(source)):
        pair = source[number]
        assert len(pair.inlier) == len(pair.matches)


def write_labelled(folder: Path) -> None:
    (folder / "pair").mkdir()
    points = make_problem(inliers=6, outliers=6).matches.numpy_points()
    np.savez(folder / "pair" / "matches.npz", points0=points[0], points1=points[1], motion=np.arange(12) % 3)


NPZ = (change_bytes, change_npz, change_npz)
FORMATS = FORMATS | {
    "matches .npz": Format(write_npz, ("m.npz",), NPZ, lambda folder: read_matches(folder / "m.npz")),
    "labelled matches": Format(write_labelled, ("pair/matches.npz",), NPZ, read_labelled),
    "features .npz": Format(write_features, ("a.npz",), NPZ, read_features("")),
    "features .h5": Format(write_hloc_features, ("features.h5",), HDF5, read_features("features.h5")),
    "hloc": Format(write_hloc_matches, ("features.h5", "matches.h5"), HDF5, prune_hloc),
    "COLMAP database": Format(
        write_database, ("a.db",), (change_database, change_database, change_bytes, change_floats), read_database
    ),
    "photos": Format(
        write_photos,
        tuple(f"a.{suffix}" for suffix in ("jpg", "png", "tiff", "webp", "bmp", "ppm")),
        BINARY,
        read_photos,
    ),
    "camera matrix": Format(
        lambda folder: (folder / "K.txt").write_text("500 0 320\n0 500 240\n0 0 1\n"),
        ("K.txt",),
        TEXT,
        lambda folder: read_camera("--k0", str(folder / "K.txt")),
    ),
}


def prepare(kind: Format) -> Callable[[Path], Case]:
    def prepared(folder: Path) -> Case:
        kind.write(folder)
        kind.read(folder)
        good = {name: (folder / name).read_bytes() for name in kind.files}
        there = sorted(folder.rglob("*"))

        def case(data: st.DataObject) -> None:
            name = data.draw(st.sampled_from(kind.files))
            (mutant,) = mutants(good[name], 1, data.draw(st.integers(0, 2**40)), *kind.mutations)
            path = folder / name
            # A new file, since a reader may have mapped the old one.
            path.unlink()
            path.write_bytes(mutant)
            try:
                kind.read(folder)
            finally:
                path.unlink()
                path.write_bytes(good[name])
                assert sorted(folder.rglob("*")) == there, "a file that was left behind"

        return case

    return prepared


TARGETS.update({name: prepare(kind) for name, kind in FORMATS.items()})
