import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, estimate_pose
from ananet.core.geometry import rotation_error
from ananet.estimators import load_estimator
from tests.conftest import make_problem


def test_options_reach_poselib():
    given = load_estimator("poselib", threshold=2, confidence=0.9, max_iterations=77, loss="cauchy", loss_scale=0.25)
    assert given.sampling == {
        "max_epipolar_error": 2.0,
        "max_iterations": 77,
        "progressive_sampling": False,
        "success_prob": 0.9,
    }
    assert given.refinement == {"loss_type": "CAUCHY", "loss_scale": 0.25}
    plain = load_estimator("poselib")
    assert "success_prob" not in plain.sampling and plain.sampling["max_epipolar_error"] == 0.75
    assert plain.refinement == {"loss_type": "CAUCHY", "loss_scale": 0.25} and plain.match_selection == "one-to-one"
    assert load_estimator("poselib@loss=huber@loss_scale=none").refinement == {"loss_type": "HUBER"}
    assert load_estimator("poselib@loss=none").refinement == {}


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
