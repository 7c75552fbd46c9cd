"""COLMAP's verification as part of a transaction."""

import sqlite3
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from ananet.errors import InputError, MissingExtraError
from ananet.integrations.colmap import prune_database, pruning, verification, verify_database
from ananet.integrations.colmap.database import open_database, transaction
from ananet.integrations.colmap.verification import check_pycolmap, import_pycolmap, quiet, verify_pairs
from tests.integrations.colmap.databases import geometries, stored_matches, synthesize, write_problem

pycolmap = pytest.importorskip("pycolmap")


def verify(path):
    with open_database(path) as database, transaction(database, write=True):
        return verify_pairs(database, path)


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
    left = tmp_path / ".a.db-verification-abcd1234"
    left.mkdir()
    (left / "copy.db").write_bytes(b"half of it")
    write_problem(tmp_path / "a.db", problem, geometry=False)
    verify(tmp_path / "a.db")
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


# Contents at which COLMAP's threads throw, which ends the process. The host has to live, so these run in this one.
BAD_CAMERAS = {
    "no parameters": (1, 640, 480, (), 1),
    "too few parameters": (1, 640, 480, (500.0,), 1),
    "unknown model": (99, 640, 480, (500.0, 500.0, 320.0, 240.0), 1),
    "model is no number": ("text", 640, 480, (500.0, 500.0, 320.0, 240.0), 1),
}


@pytest.mark.parametrize("camera", BAD_CAMERAS.values(), ids=BAD_CAMERAS)
@pytest.mark.parametrize("output", [None, "b.db"])
def test_bad_cameras_are_named_before_the_work(camera, output, problem, tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    write_problem(path, problem, camera=camera)
    content = path.read_bytes()
    monkeypatch.setattr(pruning._Job, "work", lambda *_, **__: pytest.fail("worked for nothing"))
    with pytest.raises(InputError, match=r"a\.db: expected a camera .* got camera 1 \(image 1, photo 0\.jpg\): "):
        prune_database(path, "lpm", verify="colmap", output=output and tmp_path / output, device="cpu")
    assert path.read_bytes() == content and [file.name for file in tmp_path.iterdir()] == ["a.db"]


BAD_CONTENTS = {
    "UPDATE keypoints SET cols = 3 WHERE image_id = 1": "keypoints .*; those of image 1, photo 0.jpg, are not: ",
    "UPDATE keypoints SET data = x'00' WHERE image_id = 1": "keypoints as COLMAP stores them",
    "DELETE FROM keypoints WHERE image_id = 1": "expected keypoints below 0 of image 1, got 499",
    "UPDATE matches SET rows = 1, data = x'ffffff0000000000'": "below 500 of image 1, got 16777215",
    "DELETE FROM images WHERE image_id = 1": "COLMAP's verification failed",
    "UPDATE images SET camera_id = 7 WHERE image_id = 2": "camera of image 2, photo 1.jpg; there is no camera 7",
    "INSERT INTO cameras VALUES (77, 99, 640, 480, x'', 0)": "got camera 77 \\(of no image\\): ",
}


@pytest.mark.parametrize("change", BAD_CONTENTS)
def test_what_colmap_would_abort_at_is_an_error(change, problem, tmp_path):
    path = tmp_path / "a.db"
    write_problem(path, problem, geometry=False)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    content = path.read_bytes()
    with pytest.raises(InputError, match=BAD_CONTENTS[change]):
        verify_database(path, "colmap")
    assert path.read_bytes() == content and [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_poselib_names_matches_of_keypoints_that_are_not_there(problem, tmp_path):
    path = tmp_path / "a.db"
    write_problem(path, problem, geometry=False)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE matches SET rows = 1, data = x'ffffff0000000000'")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(InputError, match="below 500 of image 1, got 16777215"):
        verify_database(path, "poselib")
    assert path.read_bytes() == content


def test_databases_that_differ_by_their_suffix_do_not_share_a_folder(tmp_path):
    names = ("x", "x.db", "x.sqlite", "x.db-verification-abcd1234.db")
    with ExitStack() as stack:
        folders = [stack.enter_context(verification._working_folder(tmp_path / name)) for name in names]
        # The same output from two databases.
        folders.append(stack.enter_context(verification._working_folder(tmp_path / "x.db")))
        assert len(set(folders)) == 5 and all(folder.is_dir() for folder in folders)
    assert not list(tmp_path.iterdir())


def test_two_suffixes_at_the_same_time(problem, tmp_path, monkeypatch):
    paths = [tmp_path / "x.db", tmp_path / "x.sqlite"]
    for path in paths:
        write_problem(path, problem, geometry=False)
    run = verification._run_colmap

    def run_both(database, copy):
        if database.path == paths[0]:
            verify(paths[1])
        run(database, copy)

    monkeypatch.setattr(verification, "_run_colmap", run_both)
    assert verify(paths[0]) == 1
    assert all(len(geometries(path)) == 1 for path in paths) and len(list(tmp_path.iterdir())) == 2


UNRELATED = '''
CREATE TABLE notes (a INTEGER, b INTEGER GENERATED ALWAYS AS (a * 2) VIRTUAL, c INTEGER AS (a + 1) STORED);
INSERT INTO notes (a) VALUES (1);
CREATE VIRTUAL TABLE words USING fts5(body);
INSERT INTO words VALUES ('a text');
CREATE TABLE "it's a ""quote""" (a);
INSERT INTO "it's a ""quote""" VALUES (7);
CREATE INDEX "an ""index""" ON images (name COLLATE NOCASE);
ALTER TABLE keypoints ADD COLUMN more INTEGER AS (rows * 2) VIRTUAL;
'''


def test_unrelated_tables_stay_as_they_are(problem, tmp_path):
    path = tmp_path / "a.db"
    write_problem(path, problem, geometry=False)
    with sqlite3.connect(path) as connection:
        connection.executescript(UNRELATED)
    tables = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
    assert verify_database(path) == 1
    assert connection.execute("SELECT name, sql FROM sqlite_master").fetchall() == tables
    assert connection.execute("SELECT * FROM notes, words").fetchall() == [(1, 2, 2, "a text")]
    connection.close()


def test_without_pycolmap_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtraError, match="pip install pycolmap .*extra 'colmap'"):
        import_pycolmap()
    with pytest.raises(MissingExtraError, match="pip install pycolmap .*extra 'colmap'"):
        check_pycolmap()


def test_colmap_is_as_loud_afterwards_as_before():
    pycolmap = pytest.importorskip("pycolmap")
    before = pycolmap.logging.minloglevel
    with pytest.raises(RuntimeError), quiet(pycolmap):
        assert pycolmap.logging.minloglevel == pycolmap.logging.Level.ERROR.value
        raise RuntimeError
    assert pycolmap.logging.minloglevel == before
