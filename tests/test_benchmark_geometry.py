"""benchmarks/geometry.py on a rendered scene, and on planes made from one photo."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

from ananet.cli.demo import motorcycle
from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "geometry.py"


def test_models_and_poses(tmp_path):
    write_scene(tmp_path / "scene", images=3)
    folder = tmp_path / "planes" / "poster"
    folder.mkdir(parents=True)
    photo = cv2.resize(motorcycle().image0, None, fx=0.5, fy=0.5)
    for number in range(1, 7):
        H = np.array([[1 - 0.02 * number, 0.01 * number, 3], [0, 1, number], [1e-5 * number, 0, 1]])
        cv2.imwrite(str(folder / f"img{number}.png"), cv2.warpPerspective(photo, H, photo.shape[1::-1]))
        np.savetxt(folder / f"H1to{number}p", H)
    words = [sys.executable, str(SCRIPT), str(tmp_path / "scene"), "--planes", str(folder.parent), "--turned", "1"]
    printed = subprocess.run([*words, "--json", "--pruner", "mutual+ratio"], capture_output=True, text=True, check=True)
    found = json.loads(printed.stdout)
    models = {row.pop(""): row for row in found["models"]}
    assert models["pairs, cameras hidden"]["number"] == models["pairs, true cameras"]["number"] == 3
    assert models["planes"] == {"number": 5, "essential": 0, "fundamental": 0, "homography": 5}
    assert models["turned photos"]["number"] == 1
    assert {row[""] for row in found["poses"]} >= {"focal length found", "true cameras"}
    assert all(0 <= row["AUC@5"] <= row["AUC@20"] <= 1 for row in found["poses"])
