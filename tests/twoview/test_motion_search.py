"""Many fits at once; descriptions of matches, and the search for the shortest."""

import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.twoview.motion_search import (
    NEIGHBOURS,
    PRICE_OF_FOLLOWERS,
    SMOOTHNESS,
    SMOOTHNESS_OF_NONE,
    Rows,
    Search,
    fit_fundamental,
    k_means,
    nearest,
    refit,
    squared_sampson,
)
from tests.twoview.test_motions import body, scene, turn


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
    rows = Rows(*points)
    F = np.random.default_rng(0).standard_normal((4, 3, 3))
    squared, _ = squared_sampson(rows, F)
    expected = geometry.sampson_distance(*(torch.from_numpy(part) for part in points), torch.from_numpy(F))
    np.testing.assert_allclose(squared, expected.numpy() ** 2, rtol=1e-9)


def test_fits_are_of_rank_two_and_near_the_eight_point_answer(points):
    rows = Rows(*points)
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
    rows = Rows(*(part / 500 for part in points))
    assert squared_sampson(rows, fit_fundamental(rows, np.ones((1, 40))))[0].max() < 1e-12


def test_together_or_one_by_one(points):
    rows = Rows(*points)
    weights = np.random.default_rng(0).uniform(0.1, 1, (3, 60))
    together = refit(rows, fit_fundamental(rows, weights), weights, 1e-3, 3)
    for F, row in zip(together, weights, strict=True):
        alone = refit(rows, fit_fundamental(rows, row[None]), row[None], 1e-3, 3)[0]
        np.testing.assert_allclose(np.abs(F), np.abs(alone), atol=1e-8)


def test_refits_come_nearer(points):
    rows = Rows(*points)
    weights = np.ones((1, 60))
    first = fit_fundamental(rows, weights)
    better = refit(rows, first, weights, 1e-3, 4)
    before, after = (np.log1p(squared_sampson(rows, F)[0] / 2e-6).sum() for F in (first, better))
    assert after <= before + 1e-6


def test_degenerate_weights_give_numbers(points):
    rows = Rows(*points)
    assert np.isfinite(fit_fundamental(rows, np.zeros((1, 60)))).all()
    one = Rows(np.ones((9, 2)), np.ones((9, 2)))
    assert np.isfinite(fit_fundamental(one, np.ones((1, 9)))).all()


@pytest.fixture
def search():
    random = np.random.default_rng(3)
    points0, points1, _ = scene(
        body(random, 60, (-0.8, 0, 5), turn(12, (0, 1, 0)), (0.3, 0, 0)),
        body(random, 50, (0.9, 0.3, 5), turn(-20, (1, 0, 0)), (0, 0.3, 0.2)),
    )
    return Search(Rows((points0 - 300) / 600, (points1 - 300) / 600), np.full(110, 0.9))


def test_energy_is_what_its_definition_says(search):
    costs = np.random.default_rng(0).uniform(0, 5, (110, 3))
    labels = np.random.default_rng(1).integers(0, 3, 110)
    expected = 2 * search.price + PRICE_OF_FOLLOWERS * min((labels == 0).sum(), (labels == 1).sum())
    for number in range(110):
        expected += costs[number, labels[number]]
        for other in search.neighbours[:, number]:
            if labels[other] != labels[number]:
                none = 2 in (labels[other], labels[number])
                expected += (SMOOTHNESS_OF_NONE if none else SMOOTHNESS) / NEIGHBOURS
    assert search.energy(costs, labels) == pytest.approx(expected)


def test_the_answer_is_shorter_than_one_motion_and_than_the_start(search):
    state = search.run(np.random.default_rng(0))
    assert sorted(state.sizes) == [50, 60]
    assert state.energy < search.one_motion(np.random.default_rng(0)).energy
    assert state.energy < search.clusters(np.random.default_rng(0)).energy


def test_nothing_to_gain_is_a_bound(search):
    one, best = search.one_motion(np.random.default_rng(0)), search.run(np.random.default_rng(0))
    assert search.most_to_gain(one) - search.price >= one.energy - best.energy


def test_nearest_are_the_nearest():
    places = np.random.default_rng(0).uniform(0, 1, (50, 4)).astype(np.float32)
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distance, np.inf)
    expected = np.sort(distance, axis=1)[:, :8]
    found = nearest(places, 8)
    np.testing.assert_allclose(np.sort(distance[np.arange(50), found], axis=0).T, expected, rtol=1e-4)


@pytest.mark.parametrize(("count", "expected"), [(1, (0, 1)), (4, (3, 4))])
def test_few_places_have_few_neighbours(count, expected):
    assert nearest(np.zeros((count, 4)), 8).shape == expected


def test_clusters_of_distant_blobs():
    random = np.random.default_rng(0)
    blobs = np.repeat(np.eye(4) * 50, 10, axis=0) + random.standard_normal((40, 4))
    labels = k_means(blobs, 4, random).reshape(4, 10)
    assert (labels == labels[:, :1]).all() and len(set(labels[:, 0])) == 4
    assert k_means(np.zeros((9, 4)), 3, random).shape == (9,)
