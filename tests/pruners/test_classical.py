import numpy as np
import pytest

import ananet
from ananet import InputError


def test_ratio_test():
    points = np.zeros((4, 2))
    ratio = [0.79, 0.81, 0.5, 0.0]
    assert ananet.load("ratio")(points, points, ratio=ratio).mask.tolist() == [True, False, True, True]
    kept = ananet.load("ratio")(points, points, ratio=ratio, mutual=[1, 1, 0, 1])
    assert kept.mask.tolist() == [True, False, False, True]
    assert kept.indices.tolist() == [3, 0]


def test_missing_side_input_is_named():
    points = np.zeros((4, 2))
    with pytest.raises(InputError, match="needs the ratio of every match"):
        ananet.load("ratio")(points, points)
    with pytest.raises(InputError, match="needs the mutual flag"):
        ananet.load("mutual")(points, points)


def test_mutual_and_all():
    points = np.zeros((3, 2))
    assert ananet.load("mutual")(points, points, mutual=[1, 0, 1]).mask.tolist() == [True, False, True]
    assert ananet.load("all")(points, points).mask.all()


def test_the_ratio_is_a_logit_on_both_sides_of_the_threshold():
    points = np.zeros((3, 2))
    logits = ananet.load("ratio", threshold=0.7)(points, points, ratio=[0.6, 0.7, 0.8]).logits
    assert logits[0] > 0 > logits[2]
    assert logits[1] == pytest.approx(0, abs=1e-6)


def test_wrong_thresholds_are_named():
    for wrong in (0, 1, 2, -0.5):
        with pytest.raises(InputError, match="threshold: expected a ratio between 0 and 1, got"):
            ananet.load("ratio", threshold=wrong)
    for wrong in ("high", None, True, np.nan, [0.5], 10**400):
        with pytest.raises(InputError, match="threshold: expected a number, got"):
            ananet.load("ratio", threshold=wrong)


@pytest.mark.parametrize("name", ["ransac", "magsac"])
def test_robust_pruners_without_calibration(name, problem):
    m = problem.matches
    kept = ananet.load(name, threshold=2.0)(m.points0, m.points1).mask
    assert problem.inlier[kept].mean() > 0.9
    assert kept[problem.inlier].mean() > 0.9


@pytest.mark.parametrize("name", ["ransac", "magsac"])
def test_matches_lie_within_the_threshold_of_one_geometry(name, problem):
    strict, loose = (ananet.load(f"{name}@threshold={pixels}")(problem.matches) for pixels in (0.3, 3.0))
    assert strict.mask.sum() < loose.mask.sum()
    assert problem.inlier[loose.mask].mean() > 0.85


@pytest.mark.parametrize("name", ["ransac", "magsac"])
@pytest.mark.parametrize("n", [1, 4])
def test_without_a_geometry_nothing_is_kept(name, n, problem):
    kept = ananet.load(name)(problem.matches[:n])
    assert not kept.mask.any() and (kept.logits < -9).all()


@pytest.mark.parametrize("name", ["ransac", "magsac"])
def test_wrong_thresholds_of_robust_pruners_are_named(name):
    for wrong in ("1px", None, True, 0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="threshold: expected a (positive number of pixels|number), got"):
            ananet.load(name, threshold=wrong)
    with pytest.raises(InputError, match="threshold: expected a number, got 'high'"):
        ananet.load(f"{name}@threshold=high")
