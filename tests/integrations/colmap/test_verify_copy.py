"""The program that verifies in a process of its own."""

import subprocess
import sys

import pytest

from ananet.integrations.colmap import verify_copy
from tests.integrations.colmap.databases import geometries, write_problem

pytest.importorskip("pycolmap")
PROGRAM = [sys.executable, "-P", verify_copy.__file__]


def run(path) -> tuple[int, str]:
    # Its stdin is open while its parent lives.
    with subprocess.Popen([*PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.read()
    return process.returncode, said


def test_it_verifies(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem, geometry=False)
    assert run(tmp_path / "a.db") == (0, "")
    assert len(geometries(tmp_path / "a.db")) == 1


def test_it_says_what_is_wrong(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem, camera=(99, 640, 480, (500.0,), 1), geometry=False)
    code, said = run(tmp_path / "a.db")
    assert code == 1 and said.startswith("expected a camera that COLMAP knows, got camera 1 (image 1, photo 0.jpg): ")


def test_it_ends_with_its_parent():
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['_end_with_parent']()"
    command = [sys.executable, "-c", code, verify_copy.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.stdin.close()
        assert process.wait(30) == 1
