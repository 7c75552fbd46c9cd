from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from ananet.integrations.colmap.pictures import PANEL, draw_model, view_axes

AROUND = [cv2.Rodrigues(np.array([0.0, angle, 0.0]))[0] for angle in np.linspace(0, 2 * np.pi, 8, endpoint=False)]


def model(rotations, centres, points):
    pycolmap = pytest.importorskip("pycolmap")
    poses = [pycolmap.Rigid3d(pycolmap.Rotation3d(R), -R @ c) for R, c in zip(rotations, centres, strict=True)]
    images = {n: SimpleNamespace(has_pose=True, cam_from_world=lambda pose=pose: pose) for n, pose in enumerate(poses)}
    images[99] = SimpleNamespace(has_pose=False)
    colour = np.array([250, 10, 10], np.uint8)
    return SimpleNamespace(
        images=images, points3D={n: SimpleNamespace(xyz=point, color=colour) for n, point in enumerate(points)}
    )


def test_axes_of_cameras_that_look_one_way():
    # COLMAP's y points down and z ahead: to the right, away, up.
    expected = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]])
    np.testing.assert_allclose(view_axes(np.stack([np.eye(3)] * 3), np.zeros((3, 3))), expected, atol=1e-9)
    turn = cv2.Rodrigues(np.array([0.3, -0.8, 0.2]))[0]
    np.testing.assert_allclose(view_axes(np.stack([turn] * 3), np.zeros((3, 3))), expected @ turn, atol=1e-9)


def test_axes_of_cameras_around_an_object():
    centres = np.array([-5 * R.T @ [0, 0, 1] for R in AROUND])
    axes = view_axes(np.stack(AROUND), centres)
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(axes[2], [0, -1, 0], atol=1e-9)
    assert np.linalg.det(axes) > 0


def test_points_and_cameras_are_in_the_picture():
    points = np.random.default_rng(0).uniform([-0.5, -3, -0.5], [0.5, 0, 0.5], (300, 3))
    points[0] = [1e6, 0, 0]
    centres = np.array([-5 * R.T @ [0, 0, 1] for R in AROUND])
    picture = draw_model(model(AROUND, centres, points), "8 of 9 photos")
    assert picture.shape == (PANEL[1] + 36, 2 * PANEL[0] + 8, 3)
    above, front = picture[: PANEL[1], : PANEL[0]], picture[: PANEL[1], -PANEL[0] :]
    red, orange = (lambda part: (part == [10, 10, 250]).all(-1)), (lambda part: (part == [0, 150, 255]).all(-1))
    # The tower is in the middle of the ring of cameras, and taller than wide from the front.
    rows, columns = np.nonzero(orange(above))
    assert np.ptp(rows) > 0.7 * PANEL[1] and np.ptp(columns) > 0.7 * PANEL[0]
    rows, columns = np.nonzero(red(above))
    assert len(rows) > 200 and abs(rows.mean() - PANEL[1] / 2) < 40 and np.ptp(rows) < 0.4 * PANEL[1]
    rows, columns = np.nonzero(red(front))
    assert np.ptp(rows) > 1.2 * np.ptp(columns)


def test_a_model_without_points():
    assert draw_model(model([np.eye(3)] * 2, np.array([[0.0, 0, 0], [1, 0, 0]]), []), "").shape[2] == 3
