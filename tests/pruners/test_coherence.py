import time

import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.networks.graphs import eigenvector_basis, nearest_matches
from ananet.pruners import coherence
from tests.conftest import make_problem


def test_gms_keeps_company_through_rotation_and_scale():
    rng = np.random.default_rng(0)
    points = rng.uniform(200, 600, (1500, 2))
    turned = (points - 400) @ np.array([[0, 1], [-1, 0]]) * 0.5 + 400
    wrong = rng.uniform(0, 800, (500, 2))
    p0, p1 = np.r_[points, rng.uniform(0, 800, (500, 2))], np.r_[turned, wrong]
    size = {"image_size0": (800, 800), "image_size1": (800, 800)}
    kept = ananet.load("gms")(p0, p1, **size).mask
    assert kept[:1500].mean() > 0.8
    assert kept[1500:].mean() < 0.1
    assert ananet.load("gms", rotation=False, scale=False)(p0, p1, **size).mask.sum() < 0.2 * kept.sum()


def test_gms_agrees_with_a_literal_evaluation():
    """One grid, no rotation, no scale: votes and neighbours counted cell by cell."""
    matches = make_problem(inliers=900, outliers=300).matches
    p0, p1 = (p / np.array([640, 480]) * 20 for p in matches.numpy_points())
    expected = np.zeros(len(p0), bool)
    for sx, sy in coherence.SHIFTS:
        a = [(int(np.floor(x + sx)), int(np.floor(y + sy))) for x, y in p0]
        b = [(int(np.floor(x)), int(np.floor(y))) for x, y in p1]
        a, b = ([c if 0 <= c[0] < 20 and 0 <= c[1] < 20 else None for c in cells] for cells in (a, b))
        votes: dict = {}
        for ca, cb in zip(a, b, strict=True):
            if ca and cb:
                votes.setdefault(ca, {}).setdefault(cb, 0)
                votes[ca][cb] += 1
        winner = {ca: max(sorted(v, key=lambda c: (c[1], c[0])), key=v.get) for ca, v in votes.items()}
        for i, (ca, cb) in enumerate(zip(a, b, strict=True)):
            if not ca or not cb or winner[ca] != cb:
                continue
            support = crowd = cells = 0
            for dx in (-1, 0, 1):
                for dy in (-1, 0, 1):
                    na, nb = (ca[0] + dx, ca[1] + dy), (cb[0] + dx, cb[1] + dy)
                    if all(0 <= v < 20 for v in (*na, *nb)):
                        support += votes.get(na, {}).get(nb, 0)
                        crowd += sum(votes.get(na, {}).values())
                        cells += 1
            expected[i] |= support >= 6 * np.sqrt(crowd / cells)
    np.testing.assert_array_equal(ananet.load("gms", rotation=False, scale=False)(matches).mask, expected)


def test_options_of_gms_come_with_the_name(problem):
    still = ananet.load("gms@rotation=false@scale=false")
    assert (len(still.rotations), len(still.scales)) == (1, 1)
    assert (len(ananet.load("gms").rotations), len(ananet.load("gms").scales)) == (8, 5)
    by_value = ananet.load("gms", rotation=False, scale=False)
    assert still.name == by_value.name == "gms@rotation=false@scale=false"
    np.testing.assert_array_equal(still(problem.matches).logits, by_value(problem.matches).logits)
    for wrong, message in (
        ("gms@rotation=maybe", "rotation: expected true or false, got 'maybe'"),
        ("gms@rotation=0", "rotation: expected true or false, got '0'"),
        ("gms@threshold=high", "threshold: expected a number, got 'high'"),
        ("gms@threshold=0", "threshold: expected a positive number, got 0"),
        ("gms@threshold=nan", "threshold: expected a number, got 'nan'"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)
    for wrong in ("high", None, True, [6], 0, -1, np.inf, np.nan):
        with pytest.raises(InputError, match="threshold: expected a (positive )?number, got"):
            ananet.load("gms", threshold=wrong)


def test_lpm_agrees_with_a_literal_evaluation():
    problem = make_problem(inliers=60, outliers=40)
    lpm = ananet.load("lpm", neighbours=(4,))
    p0, p1 = problem.matches.numpy_points()
    motion = p1 - p0

    def costs(candidates):
        result = np.zeros(len(p0))
        for i in range(len(p0)):
            others = [j for j in candidates if j != i]
            near0 = sorted(others, key=lambda j: np.linalg.norm(p0[j] - p0[i]))[:4]
            near1 = sorted(others, key=lambda j: np.linalg.norm(p1[j] - p1[i]))[:4]
            good = 0
            for j in set(near0) & set(near1):
                a, b = np.linalg.norm(motion[i]), np.linalg.norm(motion[j])
                good += min(a, b) / max(a, b) * (motion[i] @ motion[j]) / (a * b) >= 0.2
            result[i] = 1 - good / 4
        return result

    likely = np.flatnonzero(costs(range(len(p0))) < 0.8)
    expected = costs(likely) < 0.5
    np.testing.assert_array_equal(lpm(problem.matches).mask, expected)


def test_lpm_is_fast_enough():
    many = make_problem(inliers=2500, outliers=2500).matches
    lpm = ananet.load("lpm")
    start = time.process_time()
    lpm(many)
    assert time.process_time() - start < 10


def test_lpm_does_not_depend_on_the_origin(problem):
    p0, p1 = (p.astype(np.float32).round() for p in problem.matches.numpy_points())
    lpm = ananet.load("lpm")
    np.testing.assert_array_equal(lpm(p0, p1).mask, lpm(p0 + 8192, p1 + 8192).mask)


def test_options_of_lpm_come_with_the_name(problem):
    one = ananet.load("lpm@neighbours=4")
    assert one.neighbours == (4,) and one.name == "lpm@neighbours=4"
    two = ananet.load("lpm@neighbours=4/6@limits=0.7/0.4")
    assert two.neighbours == (4, 6) and two.limits == (0.7, 0.4)
    assert two.name == "lpm@neighbours=4/6@limits=0.7/0.4"
    assert ananet.load("lpm@neighbours=4,6").neighbours == (4, 6)
    same = ananet.load("lpm", neighbours=[4, 6], limits=(0.7, 0.4))
    assert same.name == two.name
    np.testing.assert_array_equal(same(problem.matches).logits, two(problem.matches).logits)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"neighbours": ()}, r"neighbours: expected sizes of at least 1, got \(\)"),
        ({"neighbours": (0, 4)}, "neighbours: expected sizes of at least 1"),
        ({"neighbours": 4}, "neighbours: expected a list of whole numbers, got 4"),
        ({"neighbours": ("a",)}, "neighbours: expected a whole number, got 'a'"),
        ({"limits": (0.5,)}, "limits: expected 2 numbers, got"),
        ({"limits": (0, 2)}, r"limits: expected two numbers in \(0, 1\]"),
        ({"agreement": "much"}, "agreement: expected a number, got 'much'"),
    ],
)
def test_wrong_options_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        ananet.load("lpm", **wrong)


def test_wrong_options_in_the_name_are_named():
    for wrong, message in (
        ("lpm@neighbours=4/many", "neighbours: expected a whole number, got 'many'"),
        ("lpm@neighbours=4/", "neighbours: expected a whole number, got ''"),
        ("lpm@limits=0.5", "limits: expected 2 numbers, got '0.5'"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)


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
    exact = eigenvector_basis(points, nearest_matches(points, 8), 32, 0.1, 0.05)
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


def test_options_of_lmf_come_with_the_name():
    loaded = ananet.load("lmf@threshold=0.1@eta=30@neighbours=6")
    assert (loaded.threshold, loaded.eta, loaded.neighbours) == (0.1, 30.0, 6)
    for wrong, message in (
        ("lmf@threshold=0", "threshold: expected a positive number, got 0"),
        ("lmf@neighbours=0", "neighbours: expected a whole number from 1 to 100, got 0"),
        ("lmf@floor=2", "floor: expected a number from 0 to 1, got 2"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)


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


def test_code_is_fast_enough():
    many = make_problem(inliers=2500, outliers=2500).matches
    start = time.process_time()
    ananet.load("code")(many)
    assert time.process_time() - start < 10


def test_options_of_code_come_with_the_name():
    loaded = ananet.load("code@likelihood=0.8@centroids=50")
    assert (loaded.likelihood, loaded.centroids) == (0.8, 50)
    for wrong, message in (
        ("code@likelihood=1", "likelihood: expected a probability above 0 and below 1, got 1"),
        ("code@width=0", "width: expected a positive number, got 0"),
        ("code@min_seeds=0", "min_seeds: expected a whole number of at least 1, got 0"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)
