import pytest
import torch

from ananet import InputError
from ananet.networks import ACNe, ACNeSettings
from ananet.networks.acne import AttentiveNorm, attention_weights
from tests.networks import by_hand, checks


def test_parameter_count_of_the_paper():
    assert checks.parameters(ACNe()) == 409_522


@pytest.mark.parametrize("check", checks.OF_EVERY_NETWORK)
@pytest.mark.parametrize("side", [(), ("mutual",)])
def test_it_is_a_network(check, side):
    check(checks.made("acne", blocks=2, width=64, side=side))


def test_it_learns():
    checks.check_learns(ACNe(ACNeSettings(blocks=4)))


def test_weights_are_the_product_of_both_attentions():
    a, b = checks.points(2, 9), checks.points(2, 9) + 1
    product = a.exp() * b.sigmoid()
    torch.testing.assert_close(attention_weights(a, b, None), product / product.sum(1, keepdim=True))
    mask = torch.arange(9) < torch.tensor([[4], [9]])
    product = product * mask
    torch.testing.assert_close(attention_weights(a, b, mask), product / product.sum(1, keepdim=True))


def test_norm_is_attentive_context_norm_then_group_norm():
    torch.manual_seed(0)
    norm = AttentiveNorm(64).double()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = 3 * checks.points(2, 30, 64) + 1
    a, b = norm.attention(x).unbind(-1)
    weights = attention_weights(a, b, None)[..., None]
    mean = (weights * x).sum(1, keepdim=True)
    attended = (x - mean) / ((weights * (x - mean).square()).sum(1, keepdim=True) + 1e-3).sqrt()
    expected = torch.nn.functional.group_norm(attended.mT, 32, norm.weight, norm.bias, 1e-5).mT
    found, logits = norm(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(logits, b)


def test_every_norm_and_the_solution_are_supervised():
    net = checks.made("acne", blocks=3, width=32)
    matches, mask = checks.points(2, 12, 4), torch.arange(12) < torch.tensor([[5], [12]])
    found = net.supervision(matches, mask)
    assert len(found.stages) == 1 and len(found.layers) == 6 and len(found.weights) == 1
    torch.testing.assert_close(found.stages[0], net(matches, mask))
    torch.testing.assert_close(found.weights[0].sum(1), torch.ones(2, dtype=torch.float64))
    assert found.weights[0][0, 5:].abs().sum() == 0
    sum(layer.sum() for layer in (*found.stages, *found.layers, *found.weights)).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@torch.no_grad()
def test_answers_are_those_computed_by_hand():
    net, matches = checks.made("acne", blocks=2, width=64), checks.points(2, 20, 4)
    torch.testing.assert_close(net(matches), by_hand.answer(by_hand.acne, net, matches))


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="width: expected a multiple of 32, got 48"):
        ACNeSettings(width=48)
