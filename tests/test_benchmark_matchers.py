"""benchmarks/matchers.py: what it measures, and how it fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from safetensors.torch import save_file

from tests.features.learned_detectors import WEIGHTS_OF, random_matcher, random_network, shapes

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "matchers.py"


def run(weights: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ANANET_WEIGHTS": str(weights)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_matchers_and_pruners_in_one_run(tmp_path):
    pytest.importorskip("kornia")
    for name, glue in (("aliked", "aliked_lightglue"), ("xfeat", "xfeat-lighterglue")):
        save_file(random_network(name).state_dict(), tmp_path / f"{WEIGHTS_OF[name]}.safetensors")
        save_file(random_matcher(name).state_dict(), tmp_path / f"{glue}.safetensors")
    photos = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    for seed, photo in enumerate(photos):
        cv2.imwrite(photo, shapes(256, 192, seed))
    done = run(tmp_path, "--photos", *photos, "--sizes=64", "--runs=1", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert set(rows) >= {"lightglue", "lightglue, all layers", "lighterglue", "nearest neighbours", "ananet"}
    assert all(row["keypoints"] == 64 and row["ms"] >= 0 for row in rows.values())
    assert rows["lightglue"]["of lightglue"] == 1 and rows["ananet-small"]["bar"] is None


def test_no_weights(tmp_path):
    done = run(tmp_path / "nowhere", "--sizes=64")
    assert done.returncode == 1 and "matchers.py: " in done.stderr
