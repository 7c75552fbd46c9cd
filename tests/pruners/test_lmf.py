import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.networks.graphs import laplacian_basis_exact, nearest_matches
from tests.conftest import make_problem


def swirl(points: np.ndarray) -> np.ndarray:
    """A smooth motion that no single homography or epipolar geometry makes."""
    x, y = points.T
    return points + np.c_[60 + 25 * np.sin(y / 120), -40 + 25 * np.cos(x / 150)]


def test_a_smooth_motion_is_told_from_scattered_matches():
    """The paper's claim: right matches follow a smooth motion field, whatever its shape."""
    rng = np.random.default_rng(0)
    right = rng.uniform([0, 0], [640, 480], (1200, 2))
    wrong = rng.uniform(0, [640, 480, 640, 480], (800, 4))
    p0 = np.r_[right, wrong[:, :2]]
    p1 = np.r_[swirl(right) + rng.normal(0, 0.5, right.shape), wrong[:, 2:]]
    inlier = np.arange(2000) < 1200
    kept = ananet.load("lmf")(p0, p1, image_size0=(640, 480), image_size1=(640, 480)).mask
    assert inlier[kept].mean() > 0.93 and kept[inlier].mean() > 0.9
    magsac = ananet.load("magsac")(p0, p1, image_size0=(640, 480), image_size1=(640, 480)).mask
    assert magsac[inlier].mean() < 0.7


def test_residuals_are_those_of_the_closed_form():
    problem = make_problem(inliers=200, outliers=100)
    points = problem.matches._as_tensors().normalized().double()[None]
    exact = laplacian_basis_exact(nearest_matches(points, 8), 32, 0.1, 0.05)
    motion = points[..., 2:] - points[..., :2]
    scaled = (exact.vectors.mT @ motion) / (1 + 30 * exact.values[..., None])
    residual = (exact.vectors @ scaled - motion).norm(dim=-1)[0]
    logits = torch.from_numpy(ananet.load("lmf")(problem.matches).logits)
    expected = (0.05 / residual).log().clamp(-10, 10).float()
    assert (logits - expected).abs().median() < 0.02


def test_it_does_without_cameras_and_sizes():
    problem = make_problem(inliers=600, outliers=300)
    p0, p1 = problem.matches.numpy_points()
    kept = ananet.load("lmf", eta=10)(p0, p1).mask
    assert problem.inlier[kept].mean() > 0.9 and kept[problem.inlier].mean() > 0.8


def test_options_come_with_the_name():
    loaded = ananet.load("lmf@threshold=0.1@eta=30@neighbours=6")
    assert (loaded.threshold, loaded.eta, loaded.neighbours) == (0.1, 30.0, 6)
    for wrong, message in (
        ("lmf@threshold=0", "threshold: expected a positive number, got 0"),
        ("lmf@neighbours=0", "neighbours: expected a whole number from 1 to 100, got 0"),
        ("lmf@floor=2", "floor: expected a number from 0 to 1, got 2"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)
