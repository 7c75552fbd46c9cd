import numpy as np
import pytest

import ananet
from ananet import InputError


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
def test_wrong_thresholds_are_named(name):
    for wrong in ("1px", None, True, 0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="threshold: expected a (positive number of pixels|number), got"):
            ananet.load(name, threshold=wrong)
    with pytest.raises(InputError, match="threshold: expected a number, got 'high'"):
        ananet.load(f"{name}@threshold=high")
