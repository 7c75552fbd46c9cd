import pytest
import torch

from ananet import InputError
from ananet.networks import CNe, CNeSettings
from tests.networks import by_hand, checks


def test_parameter_count_of_the_paper():
    assert checks.parameters(CNe()) == 397_057


@pytest.mark.parametrize("check", checks.OF_EVERY_NETWORK)
@pytest.mark.parametrize("side", [(), ("ratio",)])
def test_it_is_a_network(check, side):
    check(checks.made("cne", blocks=3, width=32, side=side))


def test_it_learns():
    checks.check_learns(CNe(CNeSettings(blocks=4)))


def test_weights_start_small():
    block = CNe().blocks[0]
    weight, bias = block.linears[0].weight, block.linears[0].bias
    assert bias.abs().sum() == 0
    assert weight.abs().max() <= 4 / 128 and abs(weight.std().item() * 128 - 2 * 0.88) < 0.05


def test_the_whole_is_what_the_paper_says():
    """Layer by layer in training, with PyTorch's own instance and batch norms."""
    torch.manual_seed(0)
    net = CNe(CNeSettings(blocks=2, width=16)).double().train()
    matches = checks.points(3, 20, 4)
    x = net.encoder(matches)
    for block in net.blocks:
        inner = x
        for linear in block.linears:
            normed = torch.nn.functional.instance_norm(linear(inner).mT, eps=1e-3)
            inner = torch.nn.functional.batch_norm(normed, None, None, training=True, eps=1e-3).mT.relu()
        x = x + inner
    torch.testing.assert_close(net(matches), net.head(x)[..., 0])


@torch.no_grad()
def test_answers_are_those_computed_by_hand():
    net, matches = checks.made("cne", blocks=3, width=16), checks.points(2, 20, 4)
    torch.testing.assert_close(net(matches), by_hand.answer(by_hand.cne, net, matches))


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="blocks: expected a whole number from 1 to 100, got 0"):
        CNeSettings(blocks=0)
