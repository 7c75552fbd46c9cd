"""What holds for every command."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from ananet.cli.main import COMMANDS, main


def test_help_is_quick_and_imports_no_torch():
    code = """
import sys
from ananet.cli.main import main
try:
    main(["--help"])
except SystemExit:
    sys.exit("torch" in sys.modules or "cv2" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    times = []
    for _ in range(3):
        start = sum(os.times()[2:4])  # the processor time of finished children: other load does not count
        subprocess.run([sys.executable, "-m", "ananet", "--help"], capture_output=True, check=True)
        times.append(sum(os.times()[2:4]) - start)
    assert min(times) < 0.5, times


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: ananet" in capsys.readouterr().out


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2


def test_inputs_are_never_overwritten(photos, problem, tmp_path, run):
    p0, p1 = problem.matches.numpy_points()
    np.savez(tmp_path / "m.npz", points0=p0, points1=p1)
    before = (tmp_path / "m.npz").read_bytes(), (photos / "a.jpg").read_bytes()
    for arguments in (
        ["prune", tmp_path / "m.npz", "-o", tmp_path / "m.npz"],
        ["match", photos / "a.jpg", photos / "b.jpg", "-o", photos / "a.jpg"],
    ):
        code, _, err = run(*arguments)
        assert code == 2 and "would be overwritten" in err
    assert before == ((tmp_path / "m.npz").read_bytes(), (photos / "a.jpg").read_bytes())


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m ananet list | head -n 1; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_what_the_system_refuses_is_one_line(monkeypatch, run):
    def full(_):
        raise OSError("could not write a.png: No space left on device")

    monkeypatch.setattr("ananet.cli.list.run", full)
    assert run("list") == (2, "", "ananet list: could not write a.png: No space left on device\n")


def test_an_interrupted_command_says_so(monkeypatch, run):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ananet.cli.list.run", interrupted)
    assert run("list") == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
        (MemoryError(), "MemoryError"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (ImportError("no such library"), "ImportError: no such library"),
        (KeyError("name"), "KeyError: 'name'"),
    ],
)
def test_a_crash_is_no_answer(error, words, monkeypatch, run):
    def crash(_):
        raise error

    monkeypatch.setattr("ananet.cli.list.run", crash)
    line = f"ananet list: crashed: {words}"
    assert run("list") == (3, "", f"{line} (run again with --debug for the traceback)\n")
    for arguments in (("--debug", "list"), ("list", "--debug")):
        code, _, err = run(*arguments)
        assert code == 3 and err.startswith("Traceback") and err.splitlines()[-1] == line


def test_debug_is_taken_everywhere(tmp_path, run):
    for arguments in (("--debug", "data", "inspect"), ("data", "--debug", "inspect"), ("data", "inspect", "--debug")):
        code, _, err = run(*arguments, tmp_path / "nowhere")
        assert code == 2 and "Traceback" in err and err.splitlines()[-1].startswith("ananet data inspect: ")
    code, _, err = run("data", "inspect", tmp_path / "nowhere")
    assert code == 2 and "Traceback" not in err


def test_numbers_beyond_reason_are_wrong_arguments(photos, tmp_path, run):
    large = "99999999999999999999"
    for arguments, message in (
        (("match", photos / "a.jpg", photos / "b.jpg", "--max-keypoints", large), "max_keypoints: expected"),
        (("train", "-o", tmp_path / "run", "--seed", large), "seed: expected a whole number"),
        (("data", "build", photos, tmp_path / "pairs", "--seed", large), "seed: expected a whole number"),
    ):
        code, _, err = run(*arguments)
        assert code == 2 and message in err, err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_a_wrong_argument(photos, tmp_path, run):
    for arguments in (
        ("match", photos / "a.jpg", photos / "b.jpg"),
        ("evaluate", photos, "--pruner", "ananet"),
        ("train", "-o", tmp_path / "run"),
    ):
        code, _, err = run(*arguments, "--device", "cuda")
        assert code == 2 and "PyTorch sees no CUDA GPU here" in err and err.count("\n") == 1


def test_threads_of_a_command_hardly_spin():
    code = (
        "import os, sys, ananet; from ananet.cli import main\n"
        "before = dict(os.environ); main._limit_spinning(); "
        "assert ('GOMP_SPINCOUNT' in before) == ('GOMP_SPINCOUNT' in ORIGINAL), 'import changes nothing'\n"
        'sys.exit(f\'{os.environ["OMP_WAIT_POLICY"]} {os.environ.get("GOMP_SPINCOUNT")} {"torch" in sys.modules}\')'
    ).replace("import os, sys, ananet;", "import os, sys; ORIGINAL = dict(os.environ); import ananet;")
    policy, spins = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
    for given, expected in (({}, "PASSIVE 1000"), ({spins: "7"}, "PASSIVE 7"), ({policy: "ACTIVE"}, "ACTIVE None")):
        environment = {name: value for name, value in os.environ.items() if name not in (policy, spins)} | given
        finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert finished.stderr.strip() == f"{expected} False"
