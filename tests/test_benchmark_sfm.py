"""benchmarks/sfm.py: the table of structure from motion, on a rendered scene."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sfm import side_by_side
from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "sfm.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments, "--threads=1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_poses_of_a_rendered_scene(tmp_path):
    pytest.importorskip("pycolmap")
    write_scene(tmp_path / "walls", images=5)
    kinds = ("colmap", "colmap+lpm", "sift:nearest+ratio", "sfm+ratio")
    done = run(str(tmp_path), "--rows=walls:1:1000", f"--matches={','.join(kinds)}", "--refine", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    table = json.loads(done.stdout)
    assert [row["matches"] for row in table] == [name for kind in kinds for name in (kind, f"{kind}, refined")]
    for row in table:
        assert (row["scene"], row["photos"], row["keypoints"]) == ("walls", 5, 1000)
        assert row["registered"] == 5 and row["auc5"] > 80 and row["points"] > 50
    assert all(row["cpu"] > 0 for row in table)
    for plain, refined in zip(table[::2], table[1::2], strict=True):
        assert refined["error"] < plain["error"] and plain["refine"] == 0 < refined["refine"]


def test_rows_are_checked(tmp_path):
    pytest.importorskip("pycolmap")
    done = run(str(tmp_path), "--rows=walls")
    assert done.returncode == 2 and "--rows: expected scene:every" in done.stderr and "Traceback" not in done.stderr


def test_kinds_side_by_side():
    measured = {"registered": 5.0, "points": 763.4, "auc1": 72.46, "auc5": 94.3}
    facts = {"scene": "entry", "photos": 5, "keypoints": 2000}
    table = [facts | {"matches": kind, "cpu": cpu} | measured for kind, cpu in (("colmap", 0.4), ("sfm", 1.0))]
    assert side_by_side(table) == [
        {
            "scene, photos": "entry, 5",
            "keypoints": "2000",
            "colmap": "5 / 763 / 72.5 / 94.3",
            "colmap, CPU s": "0.40",
            "sfm": "5 / 763 / 72.5 / 94.3",
            "sfm, CPU s": "1.00 (2.5 x)",
        }
    ]
