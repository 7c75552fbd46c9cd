"""benchmarks/fisheye.py on a rendered scene."""

import subprocess
import sys
from pathlib import Path

from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fisheye.py"


def test_ways_to_use_a_fisheye_photo(tmp_path):
    write_scene(tmp_path / "scene", images=2)
    words = [sys.executable, str(SCRIPT), str(tmp_path / "scene"), "--tilts", "0", "80", "--pruner", "mutual+ratio"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = {(line[:4].strip(), line[6:].partition("  ")[0].strip()): line.split() for line in printed[1:]}
    assert len(rows) == 7

    def recall(tilt, way):
        return float(rows[tilt, way][-7])

    photos = recall("", "the photos themselves")
    assert photos > 0.4
    # In the middle of the lens nothing is lost; at its edge only if points must lie in one plane.
    assert min(recall("0", "undistorted"), recall("0", "turned to the scene")) > 0.8 * photos
    assert recall("80", "undistorted") < 0.8 * recall("80", "turned to the scene")
