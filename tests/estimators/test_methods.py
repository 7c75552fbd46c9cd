"""What holds for one estimator."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, estimate_pose
from ananet.core.geometry import rotation_error, sampson_distance, translation_error
from ananet.estimators import estimate_fundamental, load_estimator
from ananet.estimators.methods import RANSAC, _matrices
from ananet.networks.base import inlier_weights
from tests.conftest import make_problem


def test_options_reach_poselib():
    given = load_estimator("poselib", threshold=2, confidence=0.9, max_iterations=77, loss="huber", loss_scale=0.125)
    sampling = {"max_iterations": 77, "progressive_sampling": False, "success_prob": 0.9}
    refinement = {"loss_type": "HUBER", "loss_scale": 0.125}
    for model in ("essential", "fundamental"):
        assert given.options(model) == ({"max_epipolar_error": 2.0, **sampling}, refinement)
    assert given.options("homography") == ({"max_reproj_error": 2.0, **sampling}, refinement)


def test_defaults_of_poselib_depend_on_the_model():
    plain = load_estimator("poselib")
    sampling, refinement = plain.options("essential")
    assert "success_prob" not in sampling and sampling["max_epipolar_error"] == 0.75
    assert refinement == {"loss_type": "CAUCHY", "loss_scale": 0.25}
    assert plain.settings("essential").match_selection == "one-to-one"
    assert plain.settings("homography").threshold > plain.settings("essential").threshold
    assert load_estimator("poselib@loss=huber").settings("essential").loss_scale == 0.25


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": "square"}, "loss: expected one of trivial, truncated, huber, cauchy, got 'square'"),
        ({"loss_scale": 0}, "loss_scale: expected a positive number of pixels, got 0"),
        ({"loss_scale": "wide"}, "loss_scale: expected a number, got 'wide'"),
        ({"max_iterations": 0}, "max_iterations: expected a whole number of at least 1, got 0"),
        ({"max_iterations": 1.5}, "max_iterations: expected a whole number, got 1.5"),
    ],
)
def test_wrong_options_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        load_estimator("poselib", **wrong)


@pytest.mark.parametrize("loss", ["trivial", "truncated", "huber", "cauchy"])
def test_every_loss_finds_the_motion(loss):
    clean = make_problem(outliers=0)
    pose = estimate_pose(clean.matches, "poselib", loss=loss)
    assert rotation_error(torch.from_numpy(pose.R), clean.R) < 0.5


def test_a_principal_point_beyond_all_image_sizes():
    clean = make_problem(noise=0.0, outliers=0)
    far = 2.0**33
    K = clean.matches.K0.astype(float) + np.array([[0, 0, far], [0, 0, far], [0, 0, 0]])
    points = [points + far for points in clean.matches.numpy_points()]
    pose = estimate_pose(Correspondences(*points, K0=K, K1=K), "poselib")
    assert rotation_error(torch.from_numpy(pose.R), clean.R) < 0.1


def test_stacks_and_nothing_are_guarded():
    found = [None, np.zeros((0, 3)), np.r_[np.eye(3), 2 * np.eye(3)], np.full((3, 3), np.nan), np.zeros((3, 3))]
    assert [len(_matrices(lambda given: (given, None), matrices)) for matrices in found] == [0, 0, 2, 0, 0]


@pytest.mark.parametrize("name", ["ransac", "magsac"])
def test_the_default_confidence_is_poselibs(name):
    assert load_estimator(name).confidence == RANSAC.default_confidence == 0.99999
    assert load_estimator(name, confidence=0.9).confidence == 0.9


def test_magsac_draws_the_best_first_if_it_may():
    import cv2

    assert load_estimator("magsac")._options(1.0).sampler == cv2.SAMPLING_UNIFORM
    assert load_estimator("magsac", use_scores=True)._options(1.0).sampler == cv2.SAMPLING_PROSAC


def test_clean_matches_give_their_motion():
    clean = make_problem(noise=0.0, outliers=0)
    pose = estimate_pose(clean.matches, "eight-point")
    assert rotation_error(torch.from_numpy(pose.R), clean.R) < 0.01
    assert translation_error(torch.from_numpy(pose.t), clean.t) < 0.01
    assert pose.t @ clean.t.numpy() > 0
    assert pose.inliers.all()


def test_scores_weigh_matches(problem):
    logits = torch.where(torch.as_tensor(problem.inlier), 4.0, -4.0)
    weighed = estimate_pose(problem.matches.with_scores(logits.sigmoid()), "eight-point")
    assert rotation_error(torch.from_numpy(weighed.R), problem.R) < 0.5
    blind = estimate_pose(problem.matches, "eight-point")
    assert rotation_error(torch.from_numpy(blind.R), problem.R) > 2
    # A pruner's answer has scores of its own.
    answer = SimpleNamespace(mask=np.ones(len(logits), bool), logits=logits.numpy())
    given = estimate_pose(problem.matches, "eight-point", kept=answer)
    np.testing.assert_allclose(given.R, weighed.R, atol=1e-6)


def test_weights_are_the_papers():
    from ananet.estimators.methods import _weights

    logits = torch.linspace(-6, 6, 25, dtype=torch.float64)
    matches = Correspondences(torch.rand(25, 2), torch.rand(25, 2), scores=logits.sigmoid())
    torch.testing.assert_close(_weights(matches), inlier_weights(logits), atol=1e-6, rtol=1e-5)


def test_fundamental_matrix_has_rank_two():
    clean = make_problem(outliers=0).matches.to("cpu")
    F = estimate_fundamental(clean, "eight-point").F
    assert torch.linalg.svdvals(F)[2] < 1e-12
    assert sampson_distance(clean.points0.double(), clean.points1.double(), F).median() < 0.5


@pytest.mark.parametrize("n", [0, 1, 5, 7, 8])
def test_few_matches_have_an_answer_or_none(n):
    few = make_problem(inliers=30, outliers=0).matches[:n]
    pose, F = estimate_pose(few, "eight-point"), estimate_fundamental(few, "eight-point")
    assert (pose is None) == (F is None) == (n < 8)
    unlikely = few.with_scores(np.full(n, 0.3))
    assert estimate_pose(unlikely, "eight-point") is None


def test_identical_points_do_not_crash():
    same = np.full((20, 2), 50.0)
    matches = Correspondences(same, same, K0=np.diag([500, 500, 1.0]), K1=np.diag([500, 500, 1.0]))
    assert np.isfinite(estimate_pose(matches, "eight-point").R).all()


def test_scores_must_be_probabilities(problem):
    matches = problem.matches.with_scores(np.full(len(problem.inlier), 7.0))
    with pytest.raises(InputError, match="matches.scores: eight-point expects probabilities from 0 to 1, got 7 to 7"):
        estimate_pose(matches, "eight-point")
