"""Many fits at once are what one fit after the other is."""

import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.twoview.motions.fits import Rows, fit_fundamental, refit, squared_sampson
from tests.twoview.motions.test_grouping import body, turn


@pytest.fixture
def points():
    random = np.random.default_rng(1)
    found = body(random, 60, (0, 0, 5), turn(12, (0, 1, 0)), (0.3, 0.1, 0), size=1.2, noise=0.5)
    return tuple((part - part.mean(axis=0)) / 500 for part in found)


def cost(F, points, weights):
    """Of f^T M f where Hartley's coordinates make all directions alike."""
    p0, p1 = (torch.from_numpy(part) for part in points)
    weights = torch.from_numpy(weights / weights.sum())
    n0, T0 = geometry.hartley_normalize(p0, weights)
    n1, T1 = geometry.hartley_normalize(p1, weights)
    F = torch.linalg.inv(T1).mT @ torch.from_numpy(F) @ torch.linalg.inv(T0)
    F = F / torch.linalg.matrix_norm(F)
    return float((weights * ((n1 @ F) * n0).sum(-1) ** 2).sum()), F


def test_distances_are_those_of_geometry(points):
    rows = Rows.of(*points)
    F = np.random.default_rng(0).standard_normal((4, 3, 3))
    squared, _ = squared_sampson(rows, F)
    expected = geometry.sampson_distance(*(torch.from_numpy(part) for part in points), torch.from_numpy(F))
    np.testing.assert_allclose(squared, expected.numpy() ** 2, rtol=1e-9)


def test_fits_are_of_rank_two_and_near_the_eight_point_answer(points):
    rows = Rows.of(*points)
    weights = np.random.default_rng(0).uniform(0.1, 1, (5, 60))
    fits = fit_fundamental(rows, weights)
    for F, row in zip(fits, weights, strict=True):
        assert np.linalg.norm(F) == pytest.approx(1)
        assert abs(np.linalg.det(F)) < 1e-12
        free = geometry.weighted_eight_point(*(torch.from_numpy(part) for part in points), torch.from_numpy(row))
        least, normalized = cost(free.numpy(), points, row)
        U, values, Vt = torch.linalg.svd(normalized)
        p0, p1 = (torch.from_numpy(part) for part in points)
        share = torch.from_numpy(row / row.sum())
        T0, T1 = geometry.hartley_normalize(p0, share)[1], geometry.hartley_normalize(p1, share)[1]
        zeroed = T1.mT @ (U[:, :2] * values[:2] @ Vt[:2]) @ T0
        # Between the minimum without the constraint and what zeroing a singular value costs.
        assert least <= cost(F, points, row)[0] * (1 + 1e-9)
        assert cost(F, points, row)[0] <= cost(zeroed.numpy(), points, row)[0] * (1 + 1e-9)


def test_exact_matches_give_the_exact_matrix():
    random = np.random.default_rng(2)
    points = body(random, 40, (0, 0, 5), turn(12, (0, 1, 0)), (0.3, 0.1, 0), noise=0.0)
    rows = Rows.of(*(part / 500 for part in points))
    assert squared_sampson(rows, fit_fundamental(rows, np.ones((1, 40))))[0].max() < 1e-12


def test_together_or_one_by_one(points):
    rows = Rows.of(*points)
    weights = np.random.default_rng(0).uniform(0.1, 1, (3, 60))
    together = refit(rows, fit_fundamental(rows, weights), weights, 1e-3, 3)
    for F, row in zip(together, weights, strict=True):
        alone = refit(rows, fit_fundamental(rows, row[None]), row[None], 1e-3, 3)[0]
        np.testing.assert_allclose(np.abs(F), np.abs(alone), atol=1e-8)


def test_refits_come_nearer(points):
    rows = Rows.of(*points)
    weights = np.ones((1, 60))
    first = fit_fundamental(rows, weights)
    better = refit(rows, first, weights, 1e-3, 4)
    before, after = (np.log1p(squared_sampson(rows, F)[0] / 2e-6).sum() for F in (first, better))
    assert after <= before + 1e-6


def test_degenerate_weights_give_numbers(points):
    rows = Rows.of(*points)
    assert np.isfinite(fit_fundamental(rows, np.zeros((1, 60)))).all()
    one = Rows.of(np.ones((9, 2)), np.ones((9, 2)))
    assert np.isfinite(fit_fundamental(one, np.ones((1, 9)))).all()
