"""benchmarks/depth_labels.py on a rendered scene, whose labels must fit its exact poses."""

import subprocess
import sys
from pathlib import Path

from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "depth_labels.py"


def test_labels_of_a_rendered_scene_fit_its_poses(tmp_path):
    write_scene(tmp_path / "scenes" / "walls", images=6)
    write_scene(tmp_path / "scenes" / "other", images=2)
    words = [sys.executable, str(SCRIPT), str(tmp_path / "scenes"), "walls"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(printed) == 2 and "right within 2 px" in printed[0]
    scene, photos, _, right, precise, _, _, several, wrong = printed[1].split()
    assert (scene, photos) == ("walls", "6")
    assert int(right) > 500 and float(precise) > 0.99
    assert int(several) > 100 and float(wrong) < 0.01
