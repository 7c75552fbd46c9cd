"""benchmarks/colmap.py: a small database, and one kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "colmap.py"


def test_a_small_database(tmp_path):
    pytest.importorskip("pycolmap")
    options = ("--photos=4", "--pairs=6", "--matches=300", "--kills=1", "--pruner=lpm", "--json")
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert [run["pairs"] for run in found["runs"]] == [1, 6]
    assert all(0 < run["io_share"] < 1 and 0 < run["kept"] < 1 for run in found["runs"])
    assert sum(found["kills"].values()) == 1
