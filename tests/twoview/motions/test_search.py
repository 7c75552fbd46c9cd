"""Descriptions of matches and the search for the shortest."""

import numpy as np
import pytest

from ananet.twoview.motions.search import (
    NEIGHBOURS,
    PRICE_OF_FOLLOWERS,
    SMOOTHNESS,
    SMOOTHNESS_OF_NONE,
    Search,
    k_means,
    nearest,
)
from tests.twoview.motions.test_grouping import body, scene, turn


@pytest.fixture
def search():
    random = np.random.default_rng(3)
    points0, points1, _ = scene(
        body(random, 60, (-0.8, 0, 5), turn(12, (0, 1, 0)), (0.3, 0, 0)),
        body(random, 50, (0.9, 0.3, 5), turn(-20, (1, 0, 0)), (0, 0.3, 0.2)),
    )
    return Search.of((points0 - 300) / 600, (points1 - 300) / 600, np.full(110, 0.9))


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
