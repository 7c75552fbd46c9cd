"""COLMAP's verification as part of a transaction."""

import sqlite3
import sys

import numpy as np
import pytest

from ananet.errors import MissingExtraError
from ananet.integrations.colmap import prune_database
from ananet.integrations.colmap.database import open_database, transaction
from ananet.integrations.colmap.verification import import_pycolmap, quiet, verify_pairs
from tests.integrations.colmap.databases import geometries, stored_matches, synthesize, write_problem

pycolmap = pytest.importorskip("pycolmap")


def verify(path):
    with open_database(path) as database, transaction(database, write=True):
        return verify_pairs(pycolmap, database)


@pytest.mark.parametrize("swap", [False, True])
def test_old_databases_and_reversed_pairs_are_verified(swap, problem, tmp_path):
    path = tmp_path / "a.db"
    number = write_problem(path, problem, swap=swap, geometry=False)
    with sqlite3.connect(path) as connection:
        schema = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    assert verify(path) == 1
    # Under the number that COLMAP looks for.
    found = geometries(path)
    assert list(found) == [2147483649] and found[2147483649] > 250
    assert list(stored_matches(path)) == [number]
    inliers = np.frombuffer(
        connection.execute("SELECT data FROM two_view_geometries").fetchone()[0], np.uint32
    ).reshape(-1, 2)
    assert problem.inlier[inliers[:, 0]].mean() > 0.95
    # COLMAP's newer tables were for its own eyes.
    assert connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == schema
    connection.close()
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_the_newest_colmap_opens_an_old_database_that_was_pruned(problem, tmp_path):
    path = tmp_path / "a.db"
    write_problem(path, problem)
    summary = prune_database(path, verify=True, device="cpu")
    with pycolmap.Database.open(path) as database:
        assert len(database.read_matches(1, 2)) == summary.after
        assert database.num_verified_image_pairs() == summary.verified == 1


def test_verified_pairs_are_left_alone(tmp_path):
    path = synthesize(tmp_path / "a.db")
    content = path.read_bytes()
    assert verify(path) == 6
    assert path.read_bytes() == content


def test_the_same_geometries_every_time(tmp_path):
    found = []
    for name in ("a.db", "b.db"):
        path = synthesize(tmp_path / name)
        prune_database(path, verify=True, device="cpu")
        with sqlite3.connect(path) as connection:
            found.append(connection.execute("SELECT pair_id, data, F, E FROM two_view_geometries").fetchall())
        connection.close()
    assert found[0] == found[1]


def test_what_a_killed_run_left_is_removed(problem, tmp_path):
    (tmp_path / ".a-verification-old").mkdir()
    (tmp_path / ".a-verification-old" / "copy.db").write_bytes(b"half of it")
    write_problem(tmp_path / "a.db", problem, geometry=False)
    verify(tmp_path / "a.db")
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_without_pycolmap_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtraError, match="pip install pycolmap .*extra 'colmap'"):
        import_pycolmap()


def test_colmap_is_as_loud_afterwards_as_before():
    pycolmap = pytest.importorskip("pycolmap")
    before = pycolmap.logging.minloglevel
    with pytest.raises(RuntimeError), quiet(pycolmap):
        assert pycolmap.logging.minloglevel == pycolmap.logging.Level.ERROR.value
        raise RuntimeError
    assert pycolmap.logging.minloglevel == before
