"""Small COLMAP databases with known content."""

import sqlite3
from pathlib import Path

import numpy as np

from ananet.integrations.colmap.database import HALF_PIXEL, PAIR_BASE

# As COLMAP 3 made them.
OLD_SCHEMA = """
CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, model INTEGER NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, prior_focal_length INTEGER NOT NULL);
CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL UNIQUE,
    camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL, prior_qy REAL, prior_qz REAL, prior_tx REAL,
    prior_ty REAL, prior_tz REAL, CONSTRAINT image_id_check CHECK(image_id >= 0 and image_id < 2147483647),
    FOREIGN KEY(camera_id) REFERENCES cameras(camera_id));
CREATE UNIQUE INDEX index_name ON images(name);
CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, cols INTEGER NOT NULL,
    data BLOB, FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);
CREATE TABLE descriptors (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, cols INTEGER NOT NULL,
    data BLOB, FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);
CREATE TABLE matches (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB);
CREATE TABLE two_view_geometries (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,
    cols INTEGER NOT NULL, data BLOB, config INTEGER NOT NULL, F BLOB, E BLOB, H BLOB, qvec BLOB, tvec BLOB);
PRAGMA user_version = 3900;
"""
PINHOLE = (1, 640, 480, (500.0, 500.0, 320.5, 240.5), 1)


class Writer:
    """A database of COLMAP 3, row by row."""

    def __init__(self, path: Path, schema: str = OLD_SCHEMA) -> None:
        self.connection = sqlite3.connect(path)
        self.connection.executescript(schema)

    def image(self, points, camera=PINHOLE, shape=None, descriptors=None) -> int:
        """`points` as OpenCV has them; `shape` is what follows x and y."""
        camera_id = 0
        if camera is not None:
            model, width, height, parameters, known = camera
            camera_id = self.insert(
                "cameras (model, width, height, params, prior_focal_length)",
                (model, width, height, np.array(parameters, np.float64).tobytes(), known),
            )
        (count,) = self.connection.execute("SELECT count(*) FROM images").fetchone()
        image = self.insert("images (name, camera_id)", (f"photo {count}.jpg", camera_id))
        keypoints = np.asarray(points, np.float64) + HALF_PIXEL
        if shape is not None:
            keypoints = np.hstack([keypoints, shape])
        self.array("keypoints", image, keypoints.astype(np.float32))
        if descriptors is not None:
            self.array("descriptors", image, descriptors)
        return image

    def matches(self, first: int, second: int, indices) -> int:
        """In this order, be it COLMAP's or not."""
        number = first * PAIR_BASE + second
        self.array("matches", number, np.asarray(indices, np.uint32))
        return number

    def geometry(self, number: int, indices) -> None:
        data = np.asarray(indices, np.uint32)
        self.insert(
            "two_view_geometries (pair_id, rows, cols, data, config)", (number, len(data), 2, data.tobytes(), 3)
        )

    def array(self, table: str, key: int, values: np.ndarray) -> None:
        name = "pair_id" if table == "matches" else "image_id"
        self.insert(f"{table} ({name}, rows, cols, data)", (key, *values.shape, values.tobytes()))

    def insert(self, table: str, values: tuple) -> int:
        marks = ", ".join("?" * len(values))
        return self.connection.execute(f"INSERT INTO {table} VALUES ({marks})", values).lastrowid

    def close(self) -> None:
        self.connection.commit()
        self.connection.close()


def write_problem(path: Path, problem, camera=PINHOLE, shape=None, swap: bool = False, geometry: bool = True) -> int:
    """Two images and the matches of a problem; with `swap` stored the way round that COLMAP would not choose."""
    writer = Writer(path)
    points = problem.matches.numpy_points()
    count = len(points[0])
    rows = None if shape is None else np.tile(np.asarray(shape, float), (count, 1))
    # The second image comes first in the database, so that a swapped pair has its larger number first.
    numbers = [writer.image(p, camera, rows) for p in (points[::-1] if swap else points)]
    first, second = numbers[::-1] if swap else numbers
    indices = np.stack([np.arange(count), np.arange(count)], axis=1)
    number = writer.matches(first, second, indices)
    if geometry:
        writer.geometry(number, indices[:20])
    writer.close()
    return number


def stored_matches(path: Path) -> dict[int, np.ndarray]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT pair_id, rows, cols, data FROM matches ORDER BY pair_id").fetchall()
    connection.close()
    return {
        number: np.frombuffer(data or b"", np.uint32).reshape(count, columns) for number, count, columns, data in rows
    }


def geometries(path: Path) -> dict[int, int]:
    """Inliers of every pair that has a two-view geometry."""
    with sqlite3.connect(path) as connection:
        found = dict(connection.execute("SELECT pair_id, rows FROM two_view_geometries ORDER BY pair_id").fetchall())
    connection.close()
    return found


def synthesize(path: Path, **options) -> Path:
    """COLMAP's own synthetic database."""
    import pycolmap

    given = {"num_rigs": 1, "num_frames_per_rig": 4, "num_points3D": 150, "inlier_match_ratio": 0.5} | options
    pycolmap.set_random_seed(0)
    with pycolmap.Database.open(path) as database:
        pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions(**given), database)
    return path
