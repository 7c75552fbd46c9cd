"""Which engine runs a network."""

import pytest
import torch

from ananet.inference import PlainEngine, engine_for
from ananet.inference.ananet.folded import FoldedANANet
from tests.inference.test_ananet import trained
from tests.networks.test_base import Line

CPU = torch.device("cpu")


def test_a_network_without_a_fast_road_runs_as_it_is():
    network = Line().train()
    engine = engine_for(network, CPU)
    assert isinstance(engine, PlainEngine)
    assert not network.training
    assert isinstance(engine_for(trained(blocks=1), CPU), FoldedANANet)


@pytest.mark.parametrize("network", [Line(), trained(blocks=1)], ids=["line", "ananet"])
def test_the_plain_engine_makes_its_mask_from_lengths(network):
    engine = PlainEngine(network, CPU)
    matches = torch.rand(3, 8, 4)
    lengths = torch.tensor([8, 3, 0])
    mask = torch.arange(8) < lengths[:, None]
    with torch.no_grad():
        torch.testing.assert_close(engine(matches, lengths), network(matches, mask))
        torch.testing.assert_close(engine(matches, None), network(matches))
        torch.testing.assert_close(engine(matches), network(matches))
    assert engine(matches, lengths)[~mask].abs().sum() == 0
    assert not engine(matches).requires_grad


def test_padding_is_not_seen():
    engine = PlainEngine(trained(blocks=1), CPU)
    matches = torch.rand(1, 8, 4)
    other = matches.clone()
    other[:, 5:] = 77
    torch.testing.assert_close(engine(matches, torch.tensor([5])), engine(other, torch.tensor([5])))
