"""SuperPoint's own parts."""

import pytest
import torch

from ananet.features import load_detector
from ananet.features.superpoint import NOTICE, SuperPointNetwork, sample, strongest_around
from tests.features.learned_detectors import random_detector


def test_the_published_architecture():
    network = SuperPointNetwork()
    assert sum(p.numel() for p in network.parameters()) == 1_300_865
    probability, descriptors = network(torch.rand(2, 1, 40, 64))
    assert probability.shape == (2, 40, 64) and descriptors.shape == (2, 256, 5, 8)
    # A cell's 64 probabilities and that of no keypoint come to 1.
    cells = probability.unflatten(2, (8, 8)).unflatten(1, (5, 8)).sum(dim=(2, 4))
    assert ((cells > 0) & (cells < 1)).all()


def test_pixels_of_a_cell_come_row_by_row():
    network = SuperPointNetwork()
    with torch.no_grad():
        network.convPb.weight.zero_()
        network.convPb.bias.zero_()
        network.convPb.bias[8 * 2 + 5] = 9.0
        probability, _ = network(torch.rand(1, 1, 16, 16))
    assert probability[0].flatten().topk(4).indices.sort().values.tolist() == [
        16 * y + x for y in (2, 10) for x in (5, 13)
    ]


def test_the_strongest_around():
    values = torch.zeros(1, 7, 20)
    values[0, 3, [3, 5, 8, 12]] = torch.tensor([0.9, 0.8, 0.7, 0.75])
    # 0.8 is near 0.9; once it is out of the way, so is what it stood before.
    kept = strongest_around(values, 4)
    assert kept[0, 3].nonzero()[:, 0].tolist() == [3, 12]
    assert strongest_around(values, 1).equal(values)
    ridge = torch.zeros(1, 5, 12)
    ridge[0, 2] = torch.linspace(0.1, 0.9, 12)
    assert strongest_around(ridge, 2)[0, 2].nonzero()[:, 0].tolist() == [5, 8, 11]


def test_descriptors_between_cells():
    cells = torch.nn.functional.normalize(torch.rand(1, 256, 6, 9), dim=1)
    at_first = sample(cells, torch.tensor([[3.5, 3.5]]))
    torch.testing.assert_close(at_first[0], cells[0, :, 0, 0])


def test_the_licence_is_told(tmp_path, caplog):
    from ananet.features.learned import tell_once

    tell_once.cache_clear()
    assert random_detector("superpoint", tmp_path).licence == "non-commercial research only"
    random_detector("superpoint", tmp_path)
    assert [record.message for record in caplog.records] == [NOTICE]


def test_wrong_options_are_told():
    with pytest.raises(ValueError, match="threshold: expected a number from 0 to 1"):
        load_detector("superpoint@threshold=2")
    with pytest.raises(ValueError, match="radius: expected a whole number of at least 0"):
        load_detector("superpoint@radius=-1")
