"""Weight files come back as they were written; broken and hostile ones are refused, quickly."""

import json
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ananet import InputError
from ananet.networks import load_network, save_network
from tests.networks.networks import network


def test_saved_weights_come_back(tmp_path):
    net = network(form="quadratic", side=("ratio", "mutual"))
    save_network(tmp_path / "a.safetensors", net, {"data": "none"})
    loaded, card = load_network(tmp_path / "a.safetensors")
    assert card == {"data": "none"}
    assert loaded.settings == net.settings
    assert not loaded.training
    x = torch.randn(1, 9, 6)
    torch.testing.assert_close(loaded(x), net(x))


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
