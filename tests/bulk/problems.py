"""Small inputs with known content."""

from pathlib import Path

import numpy as np

from tests.conftest import make_problem
from tests.integrations.colmap.databases import Writer


def write_npz(folder: Path, count: int, inliers: int = 60, outliers: int = 40) -> Path:
    """A pair in each of so many files, some of them in a folder of their own."""
    for number in range(count):
        matches = make_problem(inliers, outliers, seed=number).matches
        path = folder / f"scene-{number % 2}" / f"{number:03d}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        points0, points1 = matches.numpy_points()
        np.savez(
            path,
            points0=points0,
            points1=points1,
            K0=matches.K0,
            K1=matches.K1,
            image_size0=matches.image_size0,
            image_size1=matches.image_size1,
            ratio=matches.ratio,
            mutual=matches.mutual,
        )
    return folder


def write_database(path: Path, pairs: int, bad: int | None = None) -> Path:
    """A COLMAP database, each pair with images of its own; the matches of pair `bad` join keypoints it has not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer(path)
    for number in range(pairs):
        points = make_problem(60, 40, seed=number).matches.numpy_points()
        images = [writer.image(each) for each in points]
        indices = np.stack([np.arange(100)] * 2, axis=1) + (1000 if number == bad else 0)
        writer.matches(*images, indices)
    writer.close()
    return path


def read_rows(folder: Path) -> list[dict]:
    """All rows of all parts."""
    import pyarrow.parquet as parquet

    return [row for path in sorted(folder.glob("part-*.parquet")) for row in parquet.read_table(path).to_pylist()]
