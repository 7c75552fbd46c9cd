import pytest
import torch

from ananet import InputError
from ananet.networks import DeMatch, DeMatchSettings
from tests.networks import by_hand, checks

SMALL = {"blocks": 3, "width": 32, "tokens": 7}


def test_parameter_count_of_the_paper():
    assert checks.parameters(DeMatch()) == 5_858_949


@pytest.mark.parametrize("check", checks.OF_EVERY_NETWORK)
def test_it_is_a_network(check):
    check(checks.made("dematch", **SMALL))


def test_it_learns():
    torch.manual_seed(0)
    checks.check_learns(DeMatch(DeMatchSettings(blocks=2)), steps=40)


@torch.no_grad()
def test_answers_are_those_computed_by_hand():
    net, matches = checks.made("dematch", **SMALL), checks.points(2, 60, 4)
    torch.testing.assert_close(net(matches), by_hand.answer(by_hand.dematch, net, matches))


@torch.no_grad()
def test_later_blocks_gather_from_likely_matches_only():
    net, matches = checks.made("dematch", **SMALL), checks.points(1, 60, 4)
    first, second, _ = net.stages(matches)
    assert (first > 0).any() and (first < 0).any()
    net.blocks[0].predictor.last.bias += 100
    assert not torch.allclose(net.stages(matches)[1], second), "now all of them count"
    net.blocks[0].predictor.last.bias -= 200
    assert net.stages(matches)[1].isfinite().all(), "and with none likely, all count alike"


def test_wrong_settings_are_named():
    for wrong, message in (
        ({"tokens": 0}, "tokens: expected a whole number from 1 to 4096, got 0"),
        ({"width": 30}, r"width: expected a multiple of heads \(4\), got 30"),
        ({"side": ("ratio",)}, "side: expected none, as DeMatch reads motions alone, got ratio"),
    ):
        with pytest.raises(InputError, match=message):
            DeMatchSettings(**wrong)
