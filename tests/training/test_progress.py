import json
import sys

import pytest

from ananet import MissingExtraError
from ananet.training.progress import Progress


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
