"""The focal length of two photos from their matches."""

import math

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, Pruned
from ananet.estimators import find_focal, load_estimator

SIZE = (1000, 750)


def scene(focal: float, n: int = 300, noise: float = 0.2) -> Correspondences:
    """Matches of two cameras that look at the same points, the second from the right and turned in two directions."""
    rng = np.random.default_rng(0)
    X = rng.uniform([-2, -1.5, 3], [2, 1.5, 7], (n, 3))
    up, side = math.radians(12), math.radians(20)
    Rx = np.array([[1, 0, 0], [0, math.cos(up), -math.sin(up)], [0, math.sin(up), math.cos(up)]])
    Ry = np.array([[math.cos(side), 0, math.sin(side)], [0, 1, 0], [-math.sin(side), 0, math.cos(side)]])
    # The optical axes do not meet: then the focal length would not be determined.
    Y = X @ (Ry @ Rx).T + np.array([-1.2, 0.9, 0.8])
    points = [focal * Z[:, :2] / Z[:, 2:] + (np.array(SIZE) - 1) / 2 + rng.normal(0, noise, (n, 2)) for Z in (X, Y)]
    return Correspondences(*points, image_size0=SIZE, image_size1=SIZE)


@pytest.mark.parametrize("focal", [700, 1100, 2000])
def test_the_focal_length_is_found(focal):
    found = find_focal(scene(focal), load_estimator())
    assert found is not None and abs(math.log(found * 1000 / focal)) < 0.2


@pytest.mark.parametrize("n", [0, 1, 4])
def test_too_few_matches_have_none(n):
    assert find_focal(scene(900, n=n), load_estimator()) is None


def test_identical_points_do_not_crash():
    same = np.full((20, 2), 50.0)
    found = find_focal(Correspondences(same, same, image_size0=SIZE, image_size1=SIZE), load_estimator())
    assert found is None or 0.5 <= found <= 3


def test_only_kept_matches_count():
    matches = scene(1100)
    points1 = matches.points1.copy()
    points1[200:] = points1[200:][::-1]
    mask = np.arange(300) < 200
    kept = Pruned(mask, mask.astype(np.float32), np.where(mask, 3.0, -3.0).astype(np.float32))
    found = find_focal(matches.replace(points1=torch.from_numpy(points1)), load_estimator(), kept)
    assert found is not None and abs(math.log(found / 1.1)) < 0.2


def test_wrong_arguments_are_named():
    with pytest.raises(InputError, match="matches: expected Correspondences, got list"):
        find_focal([], load_estimator())
    with pytest.raises(InputError, match="a focal length needs image_size0 and image_size1, got none"):
        find_focal(Correspondences([[0, 0]], [[0, 0]]), load_estimator())
