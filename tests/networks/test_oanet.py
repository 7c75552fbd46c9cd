import pytest
import torch

from ananet import InputError
from ananet.core import geometry
from ananet.networks import OANet, OANetSettings, inlier_weights
from ananet.networks.oanet import MAX_RESIDUAL
from tests.conftest import make_problem
from tests.networks import by_hand, checks

SMALL = {"width": 32, "clusters": 20, "depth": 2}


def test_parameter_count_of_the_paper():
    assert checks.parameters(OANet()) == 2_472_538
    narrow = checks.parameters(OANet(OANetSettings(bottleneck=64)))
    # Of every order-aware block's 500 x 500 mix, two of 500 x 64 with their biases and one more batch norm.
    assert narrow == 2_472_538 - 6 * (500 * 500 + 500 - 2 * 500 * 64 - 500 - 64 - 2 * 64)


@pytest.mark.parametrize("check", checks.OF_EVERY_NETWORK)
@pytest.mark.parametrize(
    "settings", [{}, {"bottleneck": 6, "side": ("ratio",)}, {"stages": 1}, {"eight_point": "careful"}]
)
def test_it_is_a_network(check, settings):
    check(checks.made("oanet", **SMALL, **settings))


def test_it_learns():
    checks.check_learns(OANet(OANetSettings(clusters=50)))


@torch.no_grad()
@pytest.mark.parametrize("bottleneck", [None, 6])
def test_answers_are_those_computed_by_hand(bottleneck):
    net = checks.made("oanet", **SMALL, bottleneck=bottleneck)
    matches = make_problem(noise=0.5).matches._as_tensors().normalized()[None]
    torch.testing.assert_close(net(matches), by_hand.answer(by_hand.oanet, net, matches), atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_the_careful_second_stage_sees_what_the_first_found():
    net = checks.made("oanet", **SMALL, eight_point="careful")
    matches = make_problem(noise=0.5).matches._as_tensors().normalized()[None]
    first, second = net.stages(matches)
    assert len(net.supervision(matches).weights) == 2
    weights = inlier_weights(first)
    assert (weights > 0).sum() > 8
    E = geometry.weighted_eight_point(matches[..., :2], matches[..., 2:], weights)
    residual = geometry.symmetric_epipolar_distance_squared(matches[..., :2], matches[..., 2:], E)
    seen = torch.stack([residual.clamp(max=MAX_RESIDUAL), weights], dim=-1)
    torch.testing.assert_close(second, net.parts[1](torch.cat([matches, seen], dim=-1)))


def test_no_slope_goes_from_the_second_stage_to_the_first():
    net = checks.made("oanet", **SMALL)
    net.stages(checks.points(1, 30, 4))[-1].sum().backward()
    assert all(parameter.grad is None for parameter in net.parts[0].parameters())


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="bottleneck: expected a whole number from 1 to 4096, got 0"):
        OANetSettings(bottleneck=0)
