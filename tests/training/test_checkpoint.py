import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from ananet import InputError
from ananet.networks import ANANet
from ananet.training.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from ananet.training.muon import OPTIMIZERS
from tests.training.conftest import SMALL

NOTES = {"best": {"step": 3, "average_precision": 0.5}, "seconds": 2.5, "data": "abc"}


def make(name: str = "adamw", seed: int = 0, settings=SMALL):
    torch.manual_seed(seed)
    network = ANANet(settings)
    return network, ANANet(settings), OPTIMIZERS[name](network.parameters(), 1e-2, weight_decay=0.0, fused=False)


def steps(network, optimizer, count: int) -> None:
    for number in range(count):
        matches = torch.rand(2, 20, 4, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        network(matches).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path, name):
    network, average, optimizer = make(name)
    steps(network, optimizer, 3)
    save_checkpoint(tmp_path / "last", 3, {"seed": 0}, network, average, optimizer, NOTES)
    other, other_average, other_optimizer = make(name, seed=1)
    assert load_checkpoint(tmp_path / "last", other, other_average, other_optimizer) == (3, NOTES)
    for module, restored in ((network, other), (average, other_average)):
        for key, value in module.state_dict().items():
            assert torch.equal(restored.state_dict()[key], value), key
    for one, its_optimizer in ((network, optimizer), (other, other_optimizer)):
        steps(one, its_optimizer, 2)
    for key, value in network.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value, rtol=0, atol=0)


def test_the_header_says_settings_and_notes(tmp_path):
    save_checkpoint(tmp_path / "last", 7, {"steps": 9}, *make(), NOTES)
    header, tensors = read_checkpoint(tmp_path / "last")
    assert header == {"step": 7, "settings": {"steps": 9}, "notes": NOTES}
    assert any(name.startswith("average/") for name in tensors)


def test_another_network_does_not_fit(tmp_path):
    network, average, optimizer = make()
    steps(network, optimizer, 1)
    save_checkpoint(tmp_path / "last", 1, {}, network, average, optimizer, NOTES)
    with pytest.raises(InputError, match="does not fit the run"):
        load_checkpoint(tmp_path / "last", *make(settings=replace(SMALL, blocks=2)))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "{",
        "[]",
        json.dumps({"step": 1, "settings": {}}),
        json.dumps({"step": "one", "settings": {}, "notes": NOTES}),
        json.dumps({"step": 1, "settings": {}, "notes": {"best": None}}),
    ],
)
def test_files_that_are_no_checkpoints(tmp_path, header):
    path = tmp_path / "last"
    save_file({"a": torch.zeros(1)}, path, None if header is None else {"checkpoint": header})
    with pytest.raises(InputError, match="is not a checkpoint of a training run"):
        read_checkpoint(path)


def test_broken_and_missing_files(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_checkpoint(tmp_path / "none")
    (tmp_path / "last").write_bytes(b"broken")
    with pytest.raises(InputError, match="cannot be read"):
        read_checkpoint(tmp_path / "last")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("optimizer/0/step", lambda value: value - 9),
        ("optimizer/0/exp_avg", lambda value: value[:1]),
        ("optimizer/0/exp_avg", lambda value: None),
        ("optimizer/0/exp_avg", lambda value: value.to(torch.complex64)),
        ("network/head.bias", lambda value: value * float("nan")),
        ("network/head.bias", lambda value: value.to(torch.int32)),
        ("average/head.bias", lambda value: None),
    ],
)
def test_numbers_that_would_fail_in_the_next_step(tmp_path, name, change):
    made = make()
    steps(made[0], made[2], 1)
    path = tmp_path / "last"
    save_checkpoint(path, 1, {}, *made, NOTES)
    header, tensors = read_checkpoint(path)
    tensors[name] = change(tensors[name])
    save_file({n: v for n, v in tensors.items() if v is not None}, path, {"checkpoint": json.dumps(header)})
    with pytest.raises(InputError, match="last does not fit the run"):
        load_checkpoint(path, *make())


@pytest.mark.parametrize(
    "changed",
    [{"step": -1}, {"step": True}, {"notes": {"best": 3, "seconds": 1}}, {"notes": {"best": None, "seconds": "1"}}],
)
def test_headers_of_wrong_numbers(tmp_path, changed):
    header = {"step": 1, "settings": {}, "notes": NOTES} | changed
    save_file({"a": torch.zeros(1)}, tmp_path / "last", {"checkpoint": json.dumps(header)})
    with pytest.raises(InputError, match="is not a checkpoint of a training run"):
        read_checkpoint(tmp_path / "last")
