"""What holds for every estimator: known motions are found, few or odd matches have a defined answer."""

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, estimate_pose
from ananet.core.geometry import rotation_error, sampson_distance, translation_error
from ananet.estimators import ESTIMATORS, estimate_fundamental, load_estimator
from tests.conftest import make_problem

# Those that tell wrong matches from right ones; `eight-point` has a file of its own.
NAMES = ("ransac", "magsac", "poselib")


@pytest.mark.parametrize("estimator", NAMES)
def test_pose_of_a_known_motion(estimator, problem):
    pose = estimate_pose(problem.matches, estimator)
    assert rotation_error(torch.from_numpy(pose.R), problem.R) < 0.5
    assert translation_error(torch.from_numpy(pose.t), problem.t) < 2
    assert pose.t @ problem.t.numpy() > 0, "points must lie in front of both cameras"
    assert np.linalg.norm(pose.t) == pytest.approx(1)
    assert problem.inlier[pose.inliers].mean() > 0.95


@pytest.mark.parametrize("estimator", ["magsac", "poselib"])
def test_scores_can_order_the_samples(estimator, problem):
    scores = problem.inlier + np.random.default_rng(0).random(len(problem.inlier))
    pose = estimate_pose(problem.matches.with_scores(scores), estimator, use_scores=True)
    assert rotation_error(torch.from_numpy(pose.R), problem.R) < 2
    # Inliers come back in the order of the input, not in the order of the scores.
    assert problem.inlier[pose.inliers].mean() > 0.9


@pytest.mark.parametrize("estimator", NAMES)
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 7, 8])
def test_few_matches_have_an_answer_or_none(estimator, n):
    few = make_problem(inliers=30, outliers=0).matches[:n]
    pose = estimate_pose(few, estimator)
    assert pose is None or np.isfinite(pose.R).all()
    F = estimate_fundamental(few, estimator)
    assert F is None or F.shape == (3, 3)
    if n < 5:
        assert pose is None
    if n < 8:
        assert F is None


@pytest.mark.parametrize("estimator", NAMES)
def test_identical_points_do_not_crash(estimator):
    same = np.full((20, 2), 50.0)
    matches = Correspondences(same, same, K0=np.diag([500, 500, 1.0]), K1=np.diag([500, 500, 1.0]))
    pose = estimate_pose(matches, estimator)
    assert pose is None or np.isfinite(pose.R).all()
    estimate_fundamental(matches, estimator)


@pytest.mark.parametrize("estimator", NAMES)
def test_fundamental_matrix_of_pixels(estimator, problem):
    F = estimate_fundamental(problem.matches, estimator)
    m = problem.matches._as_tensors()
    distance = sampson_distance(m.points0, m.points1, torch.from_numpy(F)).numpy()
    assert np.median(distance[problem.inlier]) < 0.5


@pytest.mark.parametrize("estimator", NAMES)
def test_skewed_cameras(estimator):
    clean = make_problem(noise=0.0, outliers=0)
    m = clean.matches._as_tensors()
    skewed = m.K0 + torch.tensor([[0, 150.0, 0], [0, 0, 0], [0, 0, 0]])
    rays = m.normalized()
    p0, p1 = (torch.cat([r, torch.ones(len(m), 1)], dim=1) @ skewed.T for r in (rays[:, :2], rays[:, 2:]))
    pose = estimate_pose(Correspondences(p0[:, :2], p1[:, :2], K0=skewed, K1=skewed), estimator)
    assert all(isinstance(values, torch.Tensor) for values in (pose.R, pose.t, pose.inliers))
    assert rotation_error(pose.R, clean.R) < 0.01


@pytest.mark.parametrize("estimator", NAMES)
def test_a_loaded_estimator_answers_again_and_again(estimator, problem):
    loaded = load_estimator(estimator, threshold=2.0)
    poses = [loaded.pose(problem.matches) for _ in range(2)]
    np.testing.assert_array_equal(poses[0].R, poses[1].R)
    np.testing.assert_array_equal(poses[0].inliers, estimate_pose(problem.matches, estimator, threshold=2).inliers)
    assert loaded.fundamental(problem.matches).dtype == np.float64
    assert loaded.ray_threshold(problem.matches) == pytest.approx(2 / 500)


@pytest.mark.parametrize("estimator", NAMES)
@pytest.mark.parametrize("call", [estimate_pose, estimate_fundamental])
def test_wrong_options_are_named(estimator, call, problem):
    for wrong in (0, -1, np.inf, np.nan, "1px", True, [1]):
        with pytest.raises(InputError, match="threshold: expected a (positive number of pixels|number), got"):
            call(problem.matches, estimator, threshold=wrong)
    for wrong in (0, 1, np.nan, "high", True):
        with pytest.raises(InputError, match="confidence: expected a (probability above 0 and below 1|number)"):
            call(problem.matches, estimator, confidence=wrong)
    with pytest.raises(InputError, match="use_scores: expected true or false, got 'yes'"):
        call(problem.matches, estimator, use_scores="yes")


def test_wrong_arguments_are_named(problem):
    with pytest.raises(InputError, match="expected one of .*poselib, ransac, magsac, eight-point, got 'lmeds'"):
        estimate_pose(problem.matches, "lmeds")
    with pytest.raises(InputError, match="threshold: expected a positive number of pixels, got 0"):
        estimate_pose(problem.matches, threshold=0)
    with pytest.raises(InputError, match="expected K0 and K1"):
        estimate_pose(Correspondences(np.zeros((9, 2)), np.zeros((9, 2))))
    with pytest.raises(
        InputError, match="use_scores: the estimator 'ransac' cannot use scores, expected magsac or poselib"
    ):
        estimate_pose(problem.matches, "ransac", use_scores=True)
    with pytest.raises(InputError, match="expected matches with scores"):
        estimate_pose(problem.matches, "magsac", use_scores=True)


@pytest.mark.parametrize("call", [estimate_pose, estimate_fundamental])
@pytest.mark.parametrize("wrong", [np.zeros((9, 2)), [[1, 2]], None])
def test_only_correspondences_are_taken(call, wrong):
    with pytest.raises(InputError, match=f"matches: expected Correspondences, got {type(wrong).__name__}"):
        call(wrong)


def test_every_estimator_is_tested_here():
    assert {"ransac", "magsac", "poselib"} <= set(ESTIMATORS.names)
