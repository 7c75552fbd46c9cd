"""Triton decides when kernels are defined whether they are compiled or interpreted: hence a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["attention/interpreted", "inference/interpreted", "inference/interpreted_calls"])
def test_kernels_in_the_interpreter(file):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{file}.py"]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-1000:]
