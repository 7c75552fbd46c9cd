import json
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from ananet import InputError, MissingExtraError
from ananet.networks import ANANet
from ananet.training.checkpoint import Progress, load_checkpoint, read_checkpoint, save_checkpoint
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


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_go_to_the_log_and_to_the_screen(tmp_path, capsys):
    with Progress(tmp_path / "log.jsonl", steps=10, step=0) as progress:
        progress.say("hello")
        progress.log(2, loss=0.123456789, learning_rate=1e-3)
        progress.log(4, loss=0.5)
    first, second = lines(tmp_path / "log.jsonl")
    assert first == {"step": 2, "seconds": first["seconds"], "loss": 0.123457, "learning_rate": 0.001}
    assert second["step"] == 4 and second["loss"] == 0.5
    shown = capsys.readouterr().err
    assert "hello" in shown and "step 2/10  loss 0.1235  learning_rate 0.001" in shown and "min left" in shown


def test_lines_are_there_before_the_run_ends(tmp_path):
    with Progress(tmp_path / "log.jsonl", 10, 0) as progress:
        progress.log(1, loss=1.0)
        assert lines(tmp_path / "log.jsonl")[0]["step"] == 1


def test_a_run_that_goes_on_has_no_step_twice(tmp_path):
    log = tmp_path / "log.jsonl"
    with Progress(log, 10, 0) as progress:
        for step in (1, 2, 3, 4):
            progress.log(step, loss=step)
    # Killed at step 4; the last checkpoint is of step 2.
    with Progress(log, 10, 2) as progress:
        assert [line["step"] for line in lines(log)] == [1, 2]
        for step in (3, 4):
            progress.log(step, loss=10 * step)
    assert [(line["step"], line["loss"]) for line in lines(log)] == [(1, 1), (2, 2), (3, 30), (4, 40)]
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_lines_that_were_cut_off_are_removed(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"step": 1, "loss": 1.0}\n[1]\n{"loss": 3}\n\xff\n{"step": 2, "loss": 2.0}\n{"step": 2, "lo')
    with Progress(log, 10, 5) as progress:
        progress.log(6, loss=0.0)
    assert [line["step"] for line in lines(log)] == [1, 2, 6]


def test_other_processes_are_silent(tmp_path, capsys):
    with Progress(None, 10, 0, tensorboard=True) as progress:
        progress.say("hello")
        progress.log(1, loss=1.0)
    captured = capsys.readouterr()
    assert not captured.err and not captured.out


def test_a_terminal_has_a_bar(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress(tmp_path / "log.jsonl", 10, 4) as progress:
        progress.say("hello")
        progress.log(6, loss=0.5)
        assert progress.bar.n == 6
    shown = capsys.readouterr().err
    assert "hello" in shown and "6/10" in shown


def test_tensorboard_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="extra 'tensorboard'"):
        Progress(tmp_path / "log.jsonl", 10, 0, tensorboard=True)


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    with Progress(tmp_path / "log.jsonl", 10, 0, tensorboard=True) as progress:
        progress.log(1, loss=1.0)
    assert any("tfevents" in path.name for path in tmp_path.iterdir())
