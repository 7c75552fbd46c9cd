"""Two-view geometries by PoseLib beside COLMAP's own."""

import sqlite3

import cv2
import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.integrations.colmap import prune_database, verify_database
from ananet.integrations.colmap.database import View, open_database, transaction
from ananet.integrations.colmap.geometries import (
    CALIBRATED,
    DEGENERATE,
    PLANAR_OR_PANORAMIC,
    UNCALIBRATED,
    WATERMARK,
    estimate_geometry,
    verify_with_poselib,
)
from tests.integrations.colmap.databases import Writer, geometries, stored_matches, synthesize, write_problem

K = np.array([[500.0, 0, 319.5], [0, 500, 239.5], [0, 0, 1]])
TURN = cv2.Rodrigues(np.array([0.02, 0.15, -0.03]))[0]
SHIFT = np.array([1.0, 0.1, 0.2]) / np.linalg.norm([1.0, 0.1, 0.2])


def pictured(points, K=K):
    pixels = points @ K.T
    return pixels[:, :2] / pixels[:, 2:]


def views(points0, points1, K0=K, K1=K):
    none = np.zeros((len(points0), 0), np.float32)
    return View(points0, none, (640, 480), K=K0), View(points1, none, (640, 480), K=K1)


def scene(kind, count=400, wrong=100, K1=K, seed=0):
    """Points of two views, noisy; the last `wrong` ones are random. And the mask of the right ones."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([-2, -1.5, 4], [2, 1.5, 4 if kind == "plane" else 9], (count, 3))
    shift = 0 * SHIFT if kind == "turn" else SHIFT
    points0, points1 = pictured(points), pictured(points @ TURN.T + shift, K1)
    points0, points1 = (each + rng.normal(scale=0.3, size=each.shape) for each in (points0, points1))
    points1[count - wrong :] = rng.uniform([0, 0], [640, 480], (wrong, 2))
    return points0, points1, np.arange(count) < count - wrong


def matched(count):
    return np.stack([np.arange(count), np.arange(count)], axis=1)


@pytest.mark.parametrize(
    ("kind", "known", "config"),
    [
        ("depth", True, CALIBRATED),
        ("depth", False, UNCALIBRATED),
        ("plane", True, PLANAR_OR_PANORAMIC),
        ("turn", True, PLANAR_OR_PANORAMIC),
        ("turn", False, PLANAR_OR_PANORAMIC),
    ],
)
def test_the_kind_of_geometry(kind, known, config):
    points0, points1, right = scene(kind)
    found = estimate_geometry(*views(points0, points1, K1=K if known else None), matched(400))
    assert found.config == config
    assert found.inliers[right].mean() > 0.97 and found.inliers[~right].mean() < 0.15
    assert (found.E is None) == (found.quaternion is None) == (not known)
    if kind == "depth" and known:
        R, t = torch.from_numpy(TURN), torch.from_numpy(SHIFT)
        w, x, y, z = found.quaternion
        axis = np.array([x, y, z]) / np.linalg.norm([x, y, z])
        turn = cv2.Rodrigues(2 * np.arccos(w) * axis)[0]
        assert geometry.rotation_error(torch.from_numpy(turn), R) < 0.5
        assert geometry.translation_error(torch.from_numpy(found.translation), t) < 2
        F = geometry.fundamental_from_essential(found.E, *(torch.from_numpy(K),) * 2)
        distance = geometry.sampson_distance(torch.from_numpy(points0), torch.from_numpy(points1), F).numpy()
        np.testing.assert_array_equal(distance < 4, found.inliers)
        torch.testing.assert_close(F, found.F)
    if kind != "depth":
        mapped = geometry.map_points(torch.from_numpy(points0), found.H).numpy()
        assert np.median(np.linalg.norm(mapped - points1, axis=1)[right]) < 1


def test_a_wrong_focal_length_is_found_out():
    far = np.array([[1500.0, 0, 319.5], [0, 1500, 239.5], [0, 0, 1]])
    points0, points1, right = scene("depth", K1=far)
    found = estimate_geometry(*views(points0, points1, K1=K), matched(400))
    assert found.config == UNCALIBRATED and found.inliers[right].mean() > 0.97


def test_few_or_random_matches_have_none():
    rng = np.random.default_rng(0)
    points0, points1 = rng.uniform([0, 0], [640, 480], (2, 60, 2))
    for count in (0, 1, 14, 60):
        found = estimate_geometry(*views(points0, points1), matched(count))
        assert found.inliers.sum() in (0, *range(15, 40)) and found.inliers.shape == (count,)
        assert count == 60 or (found.config == DEGENERATE and found.E is None)


def test_points_without_a_place_are_no_inliers():
    points0, points1, _ = scene("depth", wrong=0)
    points0[::5] = np.nan
    found = estimate_geometry(*views(points0, points1), matched(400))
    assert found.config == CALIBRATED and not found.inliers[::5].any() and found.inliers.sum() > 300


def test_watermarks():
    rng = np.random.default_rng(0)
    mark = rng.uniform([560, 440], [635, 475], (100, 2))
    points0, points1 = np.concatenate([mark, rng.uniform([100, 100], [500, 400], (2, 20, 2))[0]]), None
    points1 = np.concatenate([mark + np.array([0, 1]), rng.uniform([100, 100], [500, 400], (20, 2))])
    assert estimate_geometry(*views(points0, points1), matched(120)).config == WATERMARK


def verify(path):
    with open_database(path) as database, transaction(database, write=True):
        return verify_with_poselib(database)


@pytest.mark.parametrize("swap", [False, True])
def test_old_databases_and_reversed_pairs_are_verified(swap, problem, tmp_path):
    number = write_problem(tmp_path / "a.db", problem, swap=swap, geometry=False)
    assert verify(tmp_path / "a.db") == 1
    found = geometries(tmp_path / "a.db")
    # Under the number that COLMAP looks for.
    assert (
        list(found) == [2147483649] and found[2147483649] > 250 and list(stored_matches(tmp_path / "a.db")) == [number]
    )
    with sqlite3.connect(tmp_path / "a.db") as connection:
        data = connection.execute("SELECT data FROM two_view_geometries").fetchone()[0]
    connection.close()
    inliers = np.frombuffer(data, np.uint32).reshape(-1, 2)
    assert problem.inlier[inliers[:, 0]].mean() > 0.95


def test_columns_that_a_database_lacks_are_left_out(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem, geometry=False)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("ALTER TABLE two_view_geometries DROP COLUMN qvec")
        connection.execute("ALTER TABLE two_view_geometries DROP COLUMN tvec")
    connection.close()
    assert verify(tmp_path / "a.db") == 1


def test_pairs_without_inliers_are_noted(tmp_path):
    writer = Writer(tmp_path / "a.db")
    points = np.random.default_rng(0).uniform(0, 400, (20, 2))
    writer.matches(writer.image(points), writer.image(points), matched(10))
    writer.close()
    assert verify(tmp_path / "a.db") == 0 and geometries(tmp_path / "a.db") == {2147483649: 0}
    content = (tmp_path / "a.db").read_bytes()
    assert verify(tmp_path / "a.db") == 0 and (tmp_path / "a.db").read_bytes() == content


def test_the_same_as_colmap(tmp_path):
    """Configurations, inliers and matrices of a synthetic scene."""
    pycolmap = pytest.importorskip("pycolmap")
    found = {}
    for method in ("poselib", "colmap"):
        path = synthesize(tmp_path / f"{method}.db")
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE cameras SET prior_focal_length = 1")
        connection.close()
        prune_database(path, "ananet@threshold=0.1", min_overlap=0, device="cpu")
        assert verify_database(path, method) == 6
        with pycolmap.Database.open(path) as database:
            numbers, those = database.read_two_view_geometries()
            found[method] = dict(zip(numbers, those, strict=True))
    assert found["poselib"].keys() == found["colmap"].keys()
    for number, ours in found["poselib"].items():
        theirs = found["colmap"][number]
        assert int(ours.config) == int(theirs.config) == CALIBRATED
        both = {*map(tuple, ours.inlier_matches)} & {*map(tuple, theirs.inlier_matches)}
        assert len(both) > 0.97 * max(len(ours.inlier_matches), len(theirs.inlier_matches))
        for name in ("E", "F"):
            a, b = (getattr(each, name) / np.linalg.norm(getattr(each, name)) for each in (ours, theirs))
            assert min(np.abs(a - b).max(), np.abs(a + b).max()) < 0.02
        pose = ours.cam2_from_cam1
        cross = np.cross(np.eye(3), pose.translation) @ pose.rotation.matrix()
        assert min(np.abs(cross - ours.E).max(), np.abs(cross + ours.E).max()) < 1e-6


def test_the_same_geometries_every_time(tmp_path):
    pytest.importorskip("pycolmap")
    found = []
    for name in ("a.db", "b.db"):
        path = synthesize(tmp_path / name)
        prune_database(path, "all", min_overlap=0, verify=True, device="cpu")
        with sqlite3.connect(path) as connection:
            found.append(connection.execute("SELECT * FROM two_view_geometries").fetchall())
        connection.close()
    assert found[0] == found[1] and len(found[0]) == 6
