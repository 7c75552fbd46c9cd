"""Which matches the first block attends to."""

import torch

from ananet.networks.input import network_input
from ananet.networks.seeds import NEIGHBOURS, crowding, first_scores, place_on_curve
from tests.conftest import make_problem


def test_the_curve_takes_one_bit_of_every_coordinate_in_turn():
    places = place_on_curve(torch.tensor([[[-2.0, -2, -2, -2], [2, 2, 2, 2], [0, -2, -2, -2], [-2, -2, -2, -1]]]))[0]
    assert places.tolist() == [0, 2**52 - 1, 8 * 2**48, 2**44]
    assert place_on_curve(torch.tensor([[[9.0, -9, 2, 0]]])).isfinite().all()


def test_crowding_is_the_mean_over_the_neighbours_on_a_closed_curve():
    points = torch.rand(1, 30, 4) - 0.5
    order = place_on_curve(points)[0].argsort().tolist()
    found = crowding(points)[0]
    for place, index in enumerate(order):
        around = [order[(place + step) % 30] for step in range(-NEIGHBOURS, NEIGHBOURS + 1) if step]
        squared = (points[0, around] - points[0, index]).square().sum(-1)
        torch.testing.assert_close(found[index], (1 / (1 + squared / 1e-3)).mean())


def test_right_matches_crowd_together():
    problem = make_problem(inliers=500, outliers=1500)
    matches = network_input(problem.matches, ())[None]
    best = first_scores(matches, ())[0].argsort(descending=True)[:256]
    assert problem.inlier[best].mean() > 1.5 * problem.inlier.mean()


def test_order_padding_and_other_pairs_do_not_matter():
    short, long = torch.rand(1, 20, 4), torch.rand(1, 50, 4)
    for filler in (0.5, torch.nan):
        padded = torch.cat([torch.cat([short, torch.full((1, 30, 4), filler)], dim=1), long])
        found = crowding(padded, torch.arange(50) < torch.tensor([[20], [50]]))
        torch.testing.assert_close(found[:1, :20], crowding(short))
        torch.testing.assert_close(found[1:], crowding(long))
    order = torch.randperm(50)
    torch.testing.assert_close(crowding(long[:, order]), crowding(long)[:, order])


def test_side_input_is_added_where_it_is_known():
    matches = torch.rand(2, 30, 8)
    expected = crowding(matches[..., :4]) + matches[..., 4] + matches[..., 7]
    torch.testing.assert_close(first_scores(matches, ("ratio", "size", "mutual")), expected)
    unknown = torch.cat([matches[..., :4], torch.zeros(2, 30, 2)], dim=-1)
    torch.testing.assert_close(first_scores(unknown, ("mutual", "ratio")), crowding(matches[..., :4]))


def test_hardly_any_match():
    for n in (0, 1, 2, 7):
        assert crowding(torch.ones(2, n, 4)).tolist() == [[1.0] * n] * 2
        assert crowding(torch.rand(2, n, 4), torch.zeros(2, n, dtype=torch.bool)).shape == (2, n)
