"""benchmarks/weights.py: pairs turned by quarters stay the same problem, and one command measures everything."""

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from ananet.core import geometry
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.sources import open_stored_pairs
from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "weights.py"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_scene(folder / "scenes" / "walls", images=3)
    build_pairs(folder / "scenes", folder / "usual", BuildSettings(max_keypoints=200, min_parallax=0.5), progress=False)
    for part in ("hard", "paper"):
        (folder / part).symlink_to(folder / "usual")
    return folder


def test_turned_pairs_keep_their_geometry(pairs):
    spec = spec_from_file_location("weights_benchmark", SCRIPT)
    tool = module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    pair = open_stored_pairs(str(pairs / "usual"))[0]
    for quarters in range(4):
        found = tool.turned(pair, quarters)
        rays = found.matches._as_tensors().normalized().double()
        E = geometry.essential_from_pose(found.R, found.t / found.t.norm())
        distance = geometry.symmetric_epipolar_distance_squared(rays[:, :2], rays[:, 2:], E)
        torch.testing.assert_close(distance, pair.distance.double(), rtol=1e-3, atol=1e-8)
        width, height = found.matches.image_size1
        inside = found.matches._as_tensors().points1
        assert (inside >= -0.5).all() and (inside[:, 0] <= width).all() and (inside[:, 1] <= height).all()
    turned = tool.turned(tool.turned(pair, 1), 3)
    torch.testing.assert_close(turned.matches._as_tensors().points1, pair.matches._as_tensors().points1)


def test_one_command_measures_everything(pairs):
    command = [sys.executable, str(SCRIPT), "--pairs", str(pairs), "--limit=1", "--workers=1", "--json"]
    command += ["--empty", str(pairs / "usual"), "--set", f"again={pairs / 'usual'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert len({row["network"] for row in rows}) == 8
    assert {row["measure"] for row in rows} >= {"F1", "AUC@5", "wrong at 95", "F1 lost, turned by 180 degrees"}
    assert all(0 <= row["value"] <= 1 for row in rows if row["measure"] == "F1")
