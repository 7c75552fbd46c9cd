"""What every network has in common."""

import pytest
import torch

from ananet import InputError
from ananet.networks import (
    NETWORKS,
    ACNe,
    ANANet,
    ANANetSettings,
    CNe,
    LMCNet,
    NetworkSettings,
    OANet,
    inlier_weights,
    make_network,
)
from ananet.networks.base import Network, rescale_linear
from tests.networks.networks import network


class Line(Network):
    """The least that a network is."""

    name = "line"

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        super().__init__(settings)
        self.head = torch.nn.Linear(self.settings.channels, 1)

    def forward(self, matches, mask=None):
        logits = self.head(matches)[..., 0]
        return logits if mask is None else logits.masked_fill(~mask, 0.0)

    def rescale_logits(self, scale, shift):
        rescale_linear(self.head, scale, shift)


def test_weights_lie_in_zero_to_below_one():
    w = inlier_weights(torch.tensor([-5.0, 0.0, 0.5, 100.0]))
    assert w[0] == 0 and w[1] == 0
    assert w[2] == torch.tanh(torch.tensor(0.5))
    assert 0.999 < w[3] < 1


@torch.no_grad()
def test_a_small_network_has_all_it_needs():
    line, matches = Line(), torch.randn(2, 5, 4)
    before = line(matches)
    torch.testing.assert_close(line.stages(matches), [before])
    line.rescale_logits(2.0, 0.5)
    torch.testing.assert_close(line(matches), 2 * before + 0.5)
    assert line.block_features(matches) == [] and line.block_views(matches) == []
    other = Line()
    other.start_from(line)
    assert torch.equal(other.head.weight, line.head.weight)
    assert line.description() == {"name": "ananet", "side": (), "parameters": 5}


def test_weights_of_another_network_are_refused():
    with pytest.raises(InputError, match="it holds the network 'line', the run wants 'ananet'"):
        ANANet().start_from(Line())
    with pytest.raises(InputError, match="it has side = .*, the run wants side = "):
        Line(NetworkSettings(side=("ratio",))).start_from(Line())


def test_settings_say_which_network():
    assert "ananet" in NETWORKS.names
    settings = NetworkSettings.from_dict({"name": "ananet", "blocks": 2, "side": ["ratio"]})
    assert settings == ANANetSettings(blocks=2, side=("ratio",))
    assert NetworkSettings.from_dict({}) == ANANetSettings()
    assert NetworkSettings.from_dict(settings.to_dict()) == settings
    assert isinstance(make_network(settings), ANANet)


@pytest.mark.parametrize(
    ("side", "channels"),
    [((), 4), (("ratio", "mutual"), 6), (("size",), 6), (("angle", "ratio", "size", "mutual"), 10)],
)
def test_side_input_adds_channels(side, channels):
    assert ANANetSettings(side=side).channels == channels
    made = network(blocks=1, side=side)
    assert made(torch.randn(1, 3, channels)).shape == (1, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "oracle"}, "network: expected one of .*ananet.*, got 'oracle'"),
        ({"name": 3}, "name: expected text, got 3"),
        ({"blokcs": 3}, "unknown setting blokcs: expected some of"),
        ({"side": ["colour"]}, "side: expected different ones of ratio, mutual, size, angle, got colour"),
        ({"side": ["ratio", "ratio"]}, "side: expected different ones of"),
        ({"side": "ratio"}, "side: expected a list of texts, got 'ratio'"),
        ([1], "settings: expected names and values"),
    ],
)
def test_wrong_settings_are_told(values, message):
    with pytest.raises(InputError, match=message):
        NetworkSettings.from_dict(values)


def test_settings_of_another_network_are_refused():
    with pytest.raises(InputError, match="settings: expected ANANetSettings, got NetworkSettings"):
        ANANet(NetworkSettings())


@pytest.mark.parametrize(
    ("network", "name"), [(ANANet, "ananet"), (CNe, "cne"), (ACNe, "acne"), (OANet, "oanet"), (LMCNet, "lmcnet")]
)
def test_pretrained_networks_take_batches_with_masks(network, name):
    made = network.from_pretrained(name)
    assert type(made) is network and not made.training
    matches = torch.rand(2, 60, 4, generator=torch.Generator().manual_seed(0)) - 0.5
    mask = torch.arange(60) < torch.tensor([[60], [40]])
    with torch.inference_mode():
        logits = made(matches, mask)
        alone = made(matches[1:, :40], None)
    assert logits.shape == (2, 60) and (logits[1, 40:] == 0).all()
    torch.testing.assert_close(logits[1:, :40], alone, atol=1e-3, rtol=1e-3)


def test_pretrained_weights_of_another_network_or_of_none():
    with pytest.raises(InputError, match=r"cne holds a CNe, not a ANANet; use CNe.from_pretrained"):
        ANANet.from_pretrained("cne")
    with pytest.raises(InputError, match="weights: expected one of .*ananet.* or a .safetensors file, got 'nothing'"):
        ANANet.from_pretrained("nothing")
    assert type(Network.from_pretrained("cne")) is CNe
