"""What is read of a database is what COLMAP means by it."""

import logging
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from ananet.cli.main import main
from ananet.core.cameras import CAMERA_MODELS
from ananet.errors import InputError
from ananet.integrations.colmap import database as colmap_database
from ananet.integrations.colmap import prune_database
from ananet.integrations.colmap.database import Pair, join, open_database
from tests.integrations.colmap.databases import PINHOLE, Writer, stored_matches, write_problem

POINTS = np.random.default_rng(0).uniform([20, 20], [620, 460], (50, 2))
PARAMETERS = {
    "SIMPLE_RADIAL": (600, 320, 240, -0.08),
    "OPENCV": (600, 590, 325, 236, -0.1, 0.02, 1e-3, -2e-3),
    "OPENCV_FISHEYE": (400, 400, 320, 240, 0.02, -0.01, 0.0, 0.0),
    "FOV": (500, 500, 320, 240, 0.6),
}


def view_of(path, *arguments, **options):
    writer = Writer(path)
    image = writer.image(*arguments, **options)
    writer.close()
    with open_database(path) as database:
        return database.view(image, descriptors="descriptors" in options)


def test_pixels_are_opencvs(tmp_path):
    view = view_of(tmp_path / "a.db", POINTS)
    np.testing.assert_allclose(view.points, POINTS, atol=1e-4)
    np.testing.assert_allclose(view.K, [[500, 0, 320], [0, 500, 240], [0, 0, 1]])
    assert view.image_size == (640, 480) and view.sizes is None and view.angles is None


@pytest.mark.parametrize("name", PARAMETERS)
def test_distorted_keypoints_come_as_colmap_undistorts_them(name, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    parameters = PARAMETERS[name]
    view = view_of(tmp_path / "a.db", POINTS, (CAMERA_MODELS[name].number, 640, 480, parameters, 1))
    camera = pycolmap.Camera(model=name, width=640, height=480, params=parameters)
    rays = np.array(camera.cam_from_img((POINTS + 0.5).astype(np.float32).astype(np.float64)))[:, :2]
    fx, fy, cx, cy = view.K[0, 0], view.K[1, 1], view.K[0, 2], view.K[1, 2]
    np.testing.assert_allclose((view.points - [cx, cy]) / [fx, fy], rays, atol=1e-5)
    assert np.abs(view.points - POINTS).max() > 1


def test_keypoints_of_four_and_six_columns_have_size_and_angle(tmp_path):
    angle = 0.3
    four = view_of(tmp_path / "four.db", POINTS, shape=np.tile([2.5, angle], (50, 1)))
    turn = 2.5 * np.array([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)])
    six = view_of(tmp_path / "six.db", POINTS, shape=np.tile(turn, (50, 1)))
    for view in (four, six):
        np.testing.assert_allclose(view.sizes, 5.0, rtol=1e-5)
        np.testing.assert_allclose(view.angles, angle, rtol=1e-5)


def test_shapes_that_are_none_are_not_used(tmp_path):
    view = view_of(tmp_path / "a.db", POINTS, shape=np.zeros((50, 4)))
    assert view.sizes is None and view.angles is None


@pytest.mark.parametrize(
    "camera",
    [
        (99, 640, 480, (1.0, 2.0), 1),
        (1, 640, 480, (500.0,), 1),
        ("text", 640, 480, (500.0, 500.0, 320.0, 240.0), 1),
        (1, 640, 480, (0.0, 0.0, 320.0, 240.0), 1),
        (2, 640, 480, (768.0, 320.0, 240.0, 0.0), 0),
    ],
    ids=["unknown model", "too few parameters", "no number", "no focal length", "COLMAP's guess"],
)
def test_without_a_camera_the_image_size_is_used(camera, tmp_path):
    view = view_of(tmp_path / "a.db", POINTS, camera)
    assert view.K is None and view.image_size == (640, 480)


def test_a_camera_that_is_not_understood_is_told_once(tmp_path, caplog):
    writer = Writer(tmp_path / "a.db")
    image = writer.image(POINTS, (99, 640, 480, (1.0, 2.0), 1))
    writer.insert("images (name, camera_id)", ("other.jpg", 1))
    writer.array("keypoints", 2, POINTS.astype(np.float32))
    writer.close()
    with caplog.at_level(logging.WARNING), open_database(tmp_path / "a.db") as database:
        database.view(image), database.view(2)
    assert len(caplog.records) == 1 and "without a usable camera" in caplog.text


def test_a_focal_length_that_was_given_counts_though_it_equals_the_guess(tmp_path):
    assert view_of(tmp_path / "a.db", POINTS, (2, 640, 480, (768.0, 320.0, 240.0, 0.0), 1)).K is not None


def test_without_any_camera_the_keypoints_tell_the_size(tmp_path):
    view = view_of(tmp_path / "a.db", POINTS, None)
    assert view.K is None
    assert view.image_size == tuple(np.ceil(POINTS.max(axis=0) + 0.5))


def test_a_pair_with_one_known_camera_is_calibrated(tmp_path):
    writer = Writer(tmp_path / "a.db")
    for camera in (PINHOLE, None):
        writer.image(POINTS, camera)
    writer.close()
    with open_database(tmp_path / "a.db") as database:
        matches, usable = join(database.view(1), database.view(2), np.zeros((3, 2), np.uint32))
    assert matches.calibrated and usable.all()
    assert float(matches.K1[0, 0]) == pytest.approx(0.7 * max(matches.image_size1))


def test_matches_that_no_pinhole_camera_sees_are_left_out(tmp_path):
    # At this focal length the corners of the photo are seen at more than 90 degrees.
    fisheye = (5, 640, 480, (200.0, 200.0, 320.0, 240.0, 0.0, 0.0, 0.0, 0.0), 1)
    view = view_of(tmp_path / "a.db", np.array([[320.0, 240.0], [0.0, 0.0]]), fisheye)
    assert np.isfinite(view.points).all(axis=1).tolist() == [True, False]
    matches, usable = join(view, view, np.array([[0, 0], [1, 1], [0, 1]]))
    assert len(matches) == 1 and usable.tolist() == [True, False, False]


def test_bytes_of_sift_keep_their_distances(tmp_path):
    stored = np.random.default_rng(0).integers(0, 256, (50, 128), np.uint8)
    view = view_of(tmp_path / "a.db", POINTS, descriptors=stored)
    assert view.descriptors.dtype == np.int8
    np.testing.assert_array_equal(view.descriptors.astype(int) + 128, stored)


def test_descriptors_of_other_kinds_are_floats(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    values = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    with pycolmap.Database.open(tmp_path / "a.db") as database:
        camera = pycolmap.Camera(model="PINHOLE", width=640, height=480, params=[500, 500, 320, 240])
        camera_id = database.write_camera(camera)
        image = database.write_image(pycolmap.Image(name="a.jpg", camera_id=camera_id))
        database.write_keypoints(image, POINTS.astype(np.float32))
        kind = pycolmap.FeatureExtractorType.ALIKED_N32
        floats = pycolmap.FeatureDescriptorsFloat(data=values, type=kind)
        database.write_descriptors(image, pycolmap.FeatureDescriptors.from_float(floats))
    with open_database(tmp_path / "a.db") as database:
        view = database.view(image, descriptors=True)
    np.testing.assert_allclose(view.descriptors, values / np.linalg.norm(values, axis=1, keepdims=True), atol=1e-6)


def test_pairs_are_numbered_as_in_colmap():
    pycolmap = pytest.importorskip("pycolmap")
    for pair in (Pair(1, 2), Pair(7, 3), Pair(2147483000, 5)):
        number = pycolmap.image_pair_to_pair_id(*pair)
        assert pair.in_order.number == number
        assert Pair.of(number) == pair.in_order == Pair(*pycolmap.pair_id_to_image_pair(number))
        assert Pair.of(pair.number) == pair


def test_views_in_memory_are_few(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "a.db")
    for _ in range(10):
        writer.image(POINTS)
    writer.close()
    with open_database(tmp_path / "a.db") as database:
        monkeypatch.setattr(colmap_database, "BYTES_REMEMBERED", 3 * database.view(1).bytes)
        for image in range(1, 11):
            database.view(image)
        assert list(database._views) == [(image, False) for image in (8, 9, 10)]
        assert database._view_bytes == 3 * database.view(10).bytes


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE keypoints SET cols = 5", "expected 2 or 4 or 6 columns, got 5"),
        ("UPDATE keypoints SET rows = 7", "expected 7 x 2 numbers, got 400 bytes"),
        ("UPDATE keypoints SET data = NULL", "expected 50 x 2 numbers, got 0 bytes"),
        ("UPDATE keypoints SET data = 'text'", "expected sizes and a blob, got 50, 2"),
        ("UPDATE keypoints SET rows = 'many'", "expected sizes and a blob, got 'many', 2"),
        ("DELETE FROM keypoints", "expected keypoints of image 1"),
    ],
)
def test_damaged_rows_are_named(statement, message, tmp_path):
    writer = Writer(tmp_path / "a.db")
    writer.image(POINTS)
    writer.connection.execute(statement)
    writer.close()
    with pytest.raises(InputError, match=message), open_database(tmp_path / "a.db") as database:
        database.view(1)


def refusal(path) -> str:
    with pytest.raises(InputError) as refused, open_database(path):
        pass
    return str(refused.value)


def test_what_is_no_database_is_refused(tmp_path):
    for name, content in (("text.db", b"not a database at all" * 100), ("empty.db", b"")):
        (tmp_path / name).write_bytes(content)
    sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE images (a); CREATE TABLE notes (a)")
    assert refusal(tmp_path / "text.db").endswith("text.db: not a readable COLMAP database (file is not a database)")
    assert "empty.db: expected a COLMAP database, it has no table cameras, images" in refusal(tmp_path / "empty.db")
    assert "no table cameras, keypoints, descriptors" in refusal(tmp_path / "other.db")
    assert refusal(tmp_path).endswith("got a folder")
    assert refusal(tmp_path / "none.db").endswith("no such file")
    assert not (tmp_path / "none.db").exists()


@contextmanager
def read_only(folder):
    """In the block, this process may not write to the folder and the files in it."""
    is_root = os.geteuid() == 0
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if is_root:
        # Permissions do not bind root.
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def folders():
    """Makes folders outside of pytest's, which only their owner may enter."""
    with ExitStack() as stack:
        yield lambda: Path(stack.enter_context(tempfile.TemporaryDirectory()))


def log_ahead(path) -> sqlite3.Connection:
    """Write with a write-ahead log, as COLMAP does."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_databases_in_read_only_folders_can_be_read(problem, folders, tmp_path, capsys):
    path = folders() / "a.db"
    write_problem(path, problem)
    log_ahead(path).close()
    output = folders() / "b.db"
    output.parent.chmod(0o777)
    with read_only(path.parent):
        assert prune_database(path, "all", dry_run=True).pairs == 1
        assert prune_database(path, "all", output=output).pairs == 1
        assert main(["colmap", str(path), "--prune", "--pruner", "lpm", "--dry-run"]) == 0
        with pytest.raises(InputError, match=r"a\.db: no permission to write to this database or its folder"):
            prune_database(path, "all")
    assert capsys.readouterr().out.endswith("nothing written\n")
    assert len(stored_matches(output)) == 1 and list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_changes_that_only_the_log_has_are_not_overlooked(problem, folders, tmp_path):
    path, copies = tmp_path / "a.db", folders()
    write_problem(path, problem)
    with closing(log_ahead(path)) as connection:
        connection.execute("DELETE FROM matches")
        connection.commit()
        for name in ("a.db", "a.db-wal"):
            shutil.copy(tmp_path / name, copies)
    message = r"a\.db-wal has changes that are not in the database; copy both"
    with read_only(copies), pytest.raises(InputError, match=message):
        prune_database(copies / "a.db", "all", dry_run=True)
