"""What holds for every command."""

import subprocess
import sys
import time

import numpy as np
import pytest

from ananet.cli import COMMANDS, main


def test_help_is_quick_and_imports_no_torch():
    code = """
import sys
from ananet.cli import main
try:
    main(["--help"])
except SystemExit:
    sys.exit("torch" in sys.modules or "cv2" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ananet", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
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
