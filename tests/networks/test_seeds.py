"""The groups that attention through seeds starts from."""

import pytest
import torch

from ananet.networks.seeds import first_seeds, place_on_curve


def test_the_curve_takes_one_bit_of_every_coordinate_in_turn():
    places = place_on_curve(torch.tensor([[[-2.0, -2, -2, -2], [2, 2, 2, 2], [0, -2, -2, -2], [-2, -2, -2, -1]]]))[0]
    assert places.tolist() == [0, 2**52 - 1, 8 * 2**48, 2**44]
    cells = torch.randint(2**13, (1, 100, 4))
    digits = ["".join(map("".join, zip(*(f"{x:013b}" for x in cell), strict=True))) for cell in cells[0].tolist()]
    expected = [int(bits, 2) for bits in digits]
    assert place_on_curve((cells + 0.5) / 2**11 - 2)[0].tolist() == expected
    assert place_on_curve(torch.tensor([[[9.0, -9, 2, 0]]])).item() >= 0


@pytest.mark.parametrize(("length", "count"), [(100, 7), (64, 64), (65, 64), (5, 64), (1, 4), (0, 4)])
def test_first_groups_are_neighbours_on_the_curve_and_of_equal_size(length, count):
    points = torch.rand(2, length, 4)
    seeds = first_seeds(points, count)
    assert seeds.weights.shape == (2, min(length, count)) and (seeds.weights.sum(1) == length).all()
    if length:
        assert seeds.weights.max() - seeds.weights.min() <= 1
        along = seeds.group.gather(1, place_on_curve(points).argsort(1))
        assert (along.diff(dim=1) >= 0).all()
    for group, weights in zip(*seeds, strict=True):
        assert torch.equal(group.bincount(minlength=len(weights)).float(), weights)


def test_order_padding_and_other_pairs_do_not_matter():
    short, long = torch.rand(1, 20, 4), torch.rand(1, 50, 4)
    for filler in (0.5, torch.nan):
        padded = torch.cat([torch.cat([short, torch.full((1, 30, 4), filler)], dim=1), long])
        together = first_seeds(padded, 12, torch.arange(50) < torch.tensor([[20], [50]]))
        for n, points in enumerate((short, long)):
            alone = first_seeds(points, 12)
            assert torch.equal(together.group[n, : points.shape[1]], alone.group[0])
            assert torch.equal(together.weights[n], alone.weights[0])
    order = torch.randperm(50)
    # Two matches in every place, told apart by side input alone.
    twice = torch.cat([long[:, :25].repeat(1, 2, 1), torch.rand(1, 50, 2)], dim=-1)
    for matches in (long, twice):
        assert torch.equal(first_seeds(matches[:, order], 12).group, first_seeds(matches, 12).group[:, order])


def test_padding_alone_and_equal_points():
    padding = first_seeds(torch.rand(1, 9, 4), 3, torch.zeros(1, 9, dtype=torch.bool))
    assert not padding.weights.any() and (padding.group < 3).all()
    assert first_seeds(torch.ones(1, 9, 4), 3).group.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2]]
