"""What every network has in common. Weight files come back as written; broken and hostile ones are refused, quickly."""

import json
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

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
    load_network,
    make_network,
    save_network,
)
from ananet.networks.base import Network, rescale_linear
from tests.conftest import make_problem
from tests.networks import checks
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
    with pytest.raises(InputError, match=r"cne is for CNe, not ANANet; use CNe.from_pretrained"):
        ANANet.from_pretrained("cne")
    with pytest.raises(InputError, match="weights: expected one of .*ananet.* or a .safetensors file, got 'nothing'"):
        ANANet.from_pretrained("nothing")
    assert type(Network.from_pretrained("cne")) is CNe


def test_saved_weights_come_back(tmp_path):
    net = network(form="quadratic", side=("ratio", "mutual"))
    save_network(tmp_path / "a.safetensors", net, {"data": "none"})
    loaded, card = load_network(tmp_path / "a.safetensors")
    assert card == {"data": "none"}
    assert loaded.settings == net.settings
    assert not loaded.training
    x = torch.randn(1, 9, 6)
    torch.testing.assert_close(loaded(x), net(x))


@pytest.mark.parametrize(
    ("name", "setting", "before"),
    [("cne", "batch_eps", 1e-5), ("oanet", "eight_point", "careful"), ("lmcnet", "basis", "subspace")],
)
@torch.no_grad()
def test_files_older_than_a_setting_keep_what_was_before(name, setting, before, tmp_path):
    net = checks.made(name, **{setting: before}).float()
    path = tmp_path / "old.safetensors"
    save_network(path, net)
    with safe_open(path, "pt") as file:
        header = {key: value for key, value in json.loads(file.metadata()["settings"]).items() if key != setting}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    save_file(tensors, path, {"settings": json.dumps(header)})
    old, _ = load_network(path)
    matches = make_problem().matches._as_tensors().normalized().float()[None]
    assert getattr(old.settings, setting) == before != getattr(type(old.settings)(), setting)
    assert torch.equal(old(matches), net(matches))
    assert not torch.equal(
        old.with_settings(**{setting: getattr(type(old.settings)(), setting)})(matches), net(matches)
    )


def test_the_header_says_what_the_file_is(tmp_path):
    save_network(tmp_path / "a.safetensors", network(blocks=1))
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert set(metadata) == {"settings", "card"}
    settings = json.loads(metadata["settings"])
    assert settings["name"] == "ananet" and settings["blocks"] == 1 and settings["side"] == []


def test_unreadable_weights_are_named(tmp_path):
    with pytest.raises(InputError, match="no file"):
        load_network(tmp_path / "none.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a safetensors file")
    with pytest.raises(InputError, match="not a safetensors file"):
        load_network(broken)
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, other)
    with pytest.raises(InputError, match="has a broken header"):
        load_network(other)
    for header in ({"settings": "{"}, {"network": "ananet"}, {"settings": "{}", "card": "{"}):
        save_file({"x": torch.zeros(1)}, other, header)
        with pytest.raises(InputError, match="broken header"):
            load_network(other)
    broken_net = network()
    broken_net.head.bias.data.fill_(float("nan"))
    save_network(other, broken_net)
    with pytest.raises(InputError, match="holds NaN or infinity in head.bias"):
        load_network(other)
    tampered = tmp_path / "tampered.safetensors"
    save_file({"x": torch.zeros(1)}, tampered, {"settings": "{}"})
    with pytest.raises(InputError, match="does not fit its own settings"):
        load_network(tampered)


def test_a_card_that_is_none(tmp_path):
    net = network(blocks=1)
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    save_file(tensors, tmp_path / "a.safetensors", {"settings": json.dumps(net.settings.to_dict()), "card": "[1]"})
    with pytest.raises(InputError, match=r"broken header: expected a card of names and values, got \[1\]"):
        load_network(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"width": 40000}', "width: expected a whole number from 1 to 4096, got 40000"),
        ('{"blocks": 1000000000}', "blocks: expected a whole number from 1 to 100, got 1000000000"),
        ('{"blocks": 100, "width": 4096}', "does not fit its own settings"),
        ('{"heads": 1e400}', "heads: expected a whole number, got inf"),
        ('{"blocks": ' + "9" * 5000 + "}", "has a broken header"),
        ("[" * 100_000, "has a broken header"),
        ('{"side": ' + "[" * 100_000, "has a broken header"),
        ('{"side": [["ratio"]]}', "side: expected text"),
        ('{"name": "oracle"}', "network: expected one of .*ananet.*, got 'oracle'"),
        ('{"name": ["ananet"]}', "name: expected text"),
        ('{"colour": 1}', "unknown setting colour"),
        ("[1]", "settings: expected names and values"),
        ("null", "settings: expected names and values"),
    ],
    ids=lambda value: value[:30],
)
def test_headers_that_ask_for_too_much_are_refused_at_once(settings, message, tmp_path):
    net = network(blocks=1)
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    save_file(tensors, tmp_path / "w.safetensors", {"settings": settings})
    start = time.process_time()
    with pytest.raises(InputError, match=message) as error:
        load_network(tmp_path / "w.safetensors")
    assert time.process_time() - start < 5  # a network of that size would take minutes and gigabytes
    assert "w.safetensors" in str(error.value)


def test_a_header_that_contradicts_its_tensors(tmp_path):
    net = network(blocks=2)
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    for change in ({"blocks": 3}, {"blocks": 1}, {"width": 64}, {"side": ["size"]}, {"second_order": False}):
        header = json.dumps({**net.settings.to_dict(), **change})
        save_file(tensors, tmp_path / "w.safetensors", {"settings": header})
        with pytest.raises(InputError, match="does not fit its own settings: [0-9]+ tensors differ"):
            load_network(tmp_path / "w.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_weights_of_any_precision_are_read(dtype, tmp_path):
    net = network(blocks=1)
    tensors = {name: value.to(dtype) for name, value in net.state_dict().items()}
    save_file(tensors, tmp_path / "w.safetensors", {"settings": json.dumps(net.settings.to_dict())})
    loaded, _ = load_network(tmp_path / "w.safetensors")
    assert loaded.head.weight.dtype == torch.float32
    assert torch.equal(loaded.head.weight, tensors["head.weight"].float())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool])
def test_weights_that_are_no_real_numbers_are_refused(dtype, tmp_path):
    net = network(blocks=1)
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    tensors["head.bias"] = tensors["head.bias"].to(dtype)
    save_file(tensors, tmp_path / "w.safetensors", {"settings": json.dumps(net.settings.to_dict())})
    with pytest.raises(InputError, match=f"w.safetensors: expected floating-point numbers in head.bias, got {dtype}"):
        load_network(tmp_path / "w.safetensors")


def test_a_failed_write_leaves_the_old_weights(tmp_path, monkeypatch):
    import safetensors.torch
    from safetensors import SafetensorError

    path = tmp_path / "w.safetensors"
    save_network(path, network(blocks=1))
    before = path.read_bytes()

    def full_disk(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
    with pytest.raises(OSError, match=r"could not write .*w.safetensors: No space left on device"):
        save_network(path, network(blocks=2))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
