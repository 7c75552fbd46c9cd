"""benchmarks/faithful.py: one row for each of the paper's rivals."""

import json
import subprocess
import sys
from pathlib import Path

from ananet.datasets.build import BuildSettings, build_pairs
from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "faithful.py"


def test_both_settings_are_compared(tmp_path):
    write_scene(tmp_path / "scenes" / "walls", images=2)
    settings = BuildSettings(max_keypoints=200, min_parallax=0.5)
    build_pairs(tmp_path / "scenes", tmp_path / "pairs", settings, progress=False)
    command = [sys.executable, str(SCRIPT), str(tmp_path / "pairs"), "--limit=1", "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [row["weights"] for row in rows] == ["cne", "oanet", "lmcnet"]
    assert all(row["logits, most"] > 0 and 0 <= row["decisions"] <= row["matches"] for row in rows)
