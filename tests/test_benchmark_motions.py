"""benchmarks/motions.py: what it measures, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "motions.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_speed_of_things_that_are_told_apart():
    done = run("--runs=1", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)["speed"]
    assert {row["matches"] for row in rows} == {400, 2000}
    assert all(row["found"] == row["motions"] and row["ms"] > 0 for row in rows)


def test_no_pairs(tmp_path):
    done = run("--runs=1", f"--pairs={tmp_path}")
    assert done.returncode == 1 and "motions.py: " in done.stderr
