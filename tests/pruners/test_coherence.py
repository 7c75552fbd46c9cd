import time

import numpy as np
import pytest

import ananet
from ananet import InputError
from tests.conftest import make_problem


def test_few_coherent_matches_are_found_among_many_scattered_ones():
    """The paper's claim: of all nearest neighbours, over 90 % of them wrong, most right ones are found again."""
    problem = make_problem(inliers=300, outliers=3000, seed=1)
    kept = ananet.load("code")(problem.matches).mask
    assert problem.inlier[kept].mean() > 0.9
    assert kept[problem.inlier].mean() > 0.7
    # Many more than the distinctive matches that it learned from.
    seeds = problem.matches.ratio <= 1 / 1.5
    assert (kept & problem.inlier).sum() > 1.1 * (seeds & problem.inlier).sum()


def test_motions_may_jump():
    """Two motions side by side, which a function of position alone would smear at their border."""
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0], [640, 480], (1500, 2))
    motion = np.where(points[:, :1] < 320, [[40.0, 10.0]], [[-60.0, -30.0]])
    wrong = rng.uniform(0, [640, 480, 640, 480], (500, 4))
    p0, p1 = np.r_[points, wrong[:, :2]], np.r_[points + motion, wrong[:, 2:]]
    inlier = np.arange(2000) < 1500
    kept = ananet.load("code")(p0, p1, image_size0=(640, 480), image_size1=(640, 480)).mask
    border = np.r_[np.abs(points[:, 0] - 320) < 20, np.zeros(500, bool)]
    assert inlier[kept].mean() > 0.95 and kept[inlier].mean() > 0.9
    assert kept[border].mean() > 0.5


def test_scattered_matches_alone_are_not_believed():
    rng = np.random.default_rng(0)
    p0, p1 = rng.uniform(0, 480, (2, 1500, 2))
    assert ananet.load("code")(p0, p1, image_size0=(480, 480), image_size1=(480, 480)).mask.mean() < 0.05


def test_it_is_fast_enough():
    many = make_problem(inliers=2500, outliers=2500).matches
    start = time.process_time()
    ananet.load("code")(many)
    assert time.process_time() - start < 10


def test_options_come_with_the_name():
    loaded = ananet.load("code@likelihood=0.8@centroids=50")
    assert (loaded.likelihood, loaded.centroids) == (0.8, 50)
    for wrong, message in (
        ("code@likelihood=1", "likelihood: expected a probability above 0 and below 1, got 1"),
        ("code@width=0", "width: expected a positive number, got 0"),
        ("code@fewest_seeds=0", "fewest_seeds: expected a whole number of at least 1, got 0"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)
