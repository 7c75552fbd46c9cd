from pathlib import Path

import numpy as np
import pytest
import torch

from ananet.core.cameras import rotate_axes
from ananet.datasets.base import LabelledPair, PosedImage, PosedPair, PosedScene
from ananet.estimators import Pose
from tests.conftest import make_problem


def posed(t: tuple[float, float, float] = (0, 0, 0), name: str = "a") -> PosedImage:
    return PosedImage(Path(name), np.eye(3), np.eye(3), np.array(t, float))


def test_poses_are_relative_and_turn_with_the_photos():
    pair = PosedPair(posed((0, 0, 1)), posed((2, 0, 1)))
    R, t = pair.relative_pose()
    assert R.tolist() == np.eye(3).tolist() and t.tolist() == [2, 0, 0]
    R, t = PosedPair(pair.image0, pair.image1, rotations=(0, 1)).relative_pose()
    np.testing.assert_allclose(R, rotate_axes(1))
    # What was on the right is on top of the turned photo.
    np.testing.assert_allclose(t, [0, -2, 0])


def test_without_a_baseline_there_is_no_epipolar_geometry():
    assert not PosedPair(posed((1, 2, 3)), posed((1, 2, 3 + 1e-7))).has_baseline
    assert PosedPair(posed((1, 2, 3)), posed((1, 2, 3.01))).has_baseline


def test_a_scene_has_its_listed_pairs_or_any_two():
    images = {name: posed(name=name) for name in "cab"}
    assert [pair.name for pair in PosedScene("s", images).all_pairs()] == ["a-b", "a-c", "b-c"]
    listed = [PosedPair(images["c"], images["a"], "c-a")]
    assert PosedScene("s", images, listed).all_pairs() is listed


def test_labels_follow_the_pose_whatever_its_length():
    problem = make_problem(noise=0.0)
    pair = LabelledPair.from_pose("p", problem.matches, problem.R, 7 * problem.t, "s")
    assert torch.equal(pair.inlier, pair.distance < 1e-4)
    assert pair.inlier[torch.from_numpy(problem.inlier)].all() and not pair.inlier.all()
    assert pair.t.norm() == pytest.approx(1) and pair.scene == "s"


def test_pose_errors():
    problem = make_problem()
    pair = LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)
    found = pair.pose_error(Pose(problem.R.numpy(), -problem.t.numpy(), problem.inlier))
    assert found.worse < 0.01 and not found.failed, "the sign of a translation is not known"
    turned = problem.R.numpy() @ rotate_axes(1)
    assert pair.pose_error(Pose(turned, problem.t.numpy(), problem.inlier)).rotation == pytest.approx(90)
    assert pair.pose_error(None).failed and pair.pose_error(None).worse == 180
