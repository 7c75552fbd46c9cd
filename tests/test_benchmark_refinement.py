"""benchmarks/refinement.py: on a rendered scene, whose truth is exact."""

import json
import subprocess
import sys
from pathlib import Path

from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "refinement.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_matches_become_more_precise(tmp_path):
    write_scene(tmp_path / "walls", images=3)
    done = run(str(tmp_path), "--pruner=ratio", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    everything, walls = found["scenes"]
    assert found["pairs"] == 3 and walls[""] == "walls" and everything["matches"] == walls["matches"] > 100
    assert walls["median after"] < walls["median before"]
    assert sum(row["matches"] for row in found["correlations"]) == walls["matches"]
    assert found["milliseconds of 500 matches"] > 0
    assert "scenes" in run(str(tmp_path), "--pruner=ratio", "--limit=1").stdout


def test_nothing_to_look_at(tmp_path):
    done = run(str(tmp_path / "none"))
    assert done.returncode == 1 and "no such file or folder" in done.stderr and "Traceback" not in done.stderr
