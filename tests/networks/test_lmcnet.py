import pytest
import torch

from ananet import InputError
from ananet.networks import LMCNet, LMCNetSettings
from ananet.networks.graphs import nearest_matches, subspace_basis, with_itself
from ananet.networks.lmcnet import CoherenceLayer, LocalLayer
from tests.networks import by_hand, checks

SMALL = {"blocks": 2, "width": 32, "clusters": 16}


def test_parameter_count_of_the_authors():
    assert checks.parameters(LMCNet()) == 925_513


@pytest.mark.parametrize("check", checks.OF_EVERY_NETWORK)
@pytest.mark.parametrize("basis", ["eigenvectors", "subspace"])
def test_it_is_a_network(check, basis):
    check(checks.made("lmcnet", **SMALL, basis=basis))


@torch.no_grad()
def test_answers_are_those_computed_by_hand():
    net, matches = checks.made("lmcnet", **SMALL), checks.points(2, 60, 4)
    torch.testing.assert_close(net(matches), by_hand.answer(by_hand.lmcnet, net, matches), atol=1e-6, rtol=1e-6)


def test_it_learns():
    checks.check_learns(LMCNet(LMCNetSettings(blocks=2)))


@torch.no_grad()
def test_a_local_layer_looks_at_the_nearest_alone():
    layer = LocalLayer(6, 4).double().eval()
    x, matches = checks.points(1, 20, 6), checks.points(1, 20, 4)
    near = with_itself(nearest_matches(matches, 5))
    before = layer(x, near)
    far = torch.cdist(matches, matches)[0, 0].argmax()
    x[:, far] += 1
    assert torch.equal(layer(x, near)[:, 0], before[:, 0])
    nearest = near.numbers[0, 0, 1]
    x[:, nearest] += 1
    assert not torch.equal(layer(x, near)[:, 0], before[:, 0])


@torch.no_grad()
def test_a_coherence_layer_sees_nothing_in_constant_features():
    """What is smooth leaves no residual, and what differs at one place does there."""
    layer = CoherenceLayer(3, 10.0).double().eval()
    net = checks.made("lmcnet", **SMALL)
    found = []
    layer.first.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    matches = checks.points(1, 200, 4)
    near = nearest_matches(matches, 8)
    basis = subspace_basis(matches, near, net.settings.vectors, 0.1, 0.05)
    constant = torch.ones(1, 200, 3, dtype=torch.float64)
    layer(constant, basis)
    assert found[-1].abs().max() < 1e-6
    constant[0, 17] += 5
    layer(constant, basis)
    assert found[-1][0, :, 0].abs().argmax() == 17


def test_smoothness_is_learned_by_every_coherence_layer():
    net = checks.made("lmcnet", **SMALL)
    net(checks.points(2, 60, 4)).sum().backward()
    etas = [layer.eta for block in net.blocks for layer in block.coherence]
    assert len(etas) == 4 and all(eta.item() == 10 and eta.grad is not None and eta.grad != 0 for eta in etas)


def test_wrong_settings_are_named():
    for wrong, message in (
        ({"neighbours": 0}, "neighbours: expected a whole number from 1 to 100, got 0"),
        ({"eta": -1.0}, "eta: expected at least 0, got -1.0"),
        ({"floor": 2.0}, "floor: expected a number from 0 to 1, got 2.0"),
    ):
        with pytest.raises(InputError, match=message):
            LMCNetSettings(**wrong)
