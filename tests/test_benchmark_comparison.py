"""benchmarks/comparison.py: networks trained alike for a step or two, and every table of them."""

import json
import subprocess
import sys
from pathlib import Path

from ananet.datasets.build import BuildSettings, build_pairs
from tests.datasets.scenes import write_scene

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "comparison.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_networks_are_trained_alike_and_compared(tmp_path):
    write_scene(tmp_path / "scenes" / "walls", images=3)
    settings = BuildSettings(max_keypoints=200, min_parallax=0.5)
    build_pairs(tmp_path / "scenes", tmp_path / "pairs", settings, progress=False)
    few = ["--steps=1", "--batch-size=2", "--matches=32", "--no-compile", "--device=cpu", "--jobs=2", "--json"]
    names = ["--networks=cne,cne-adam,first-order,sigmoid,linear", "--seeds=0,1"]
    folder = tmp_path / "runs"
    done = run("train", tmp_path / "pairs", tmp_path / "pairs", "-o", folder, *few, *names)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {(row["network"], row["seed"]) for row in json.loads(done.stdout)} == {
        (name, seed) for name in ("cne", "cne-adam", "first-order", "sigmoid", "linear") for seed in (0, 1)
    }
    options = ["--classical=all,lpm", "--repeats=1", "--limit=2", "--seconds=0.01"]
    done = run("tables", folder, tmp_path / "scenes", *options)
    assert done.returncode == 0, done.stderr[-2000:]
    for text in ("Table 1", "Table 2", "Table 5", "Table 6", "Optimisers", "eight-point AUC@5/10/20", "397057", "lpm"):
        assert text in done.stdout
    first = done.stdout.split("Table 2")[0]
    assert first.count("CNe") == 2 and first.count(", authors' decision") == 2, "one optimiser, two decisions"
    assert "CNe, Adam" in done.stdout
    assert (folder / "figure-5.png").stat().st_size > 1000


def test_wrong_names_and_empty_folders_are_told(tmp_path):
    done = run("train", tmp_path, tmp_path, "--networks=cne,supernet")
    assert done.returncode == 1 and "--networks: expected some of cne, acne" in done.stderr
    done = run("tables", tmp_path, tmp_path)
    assert done.returncode == 1 and "no trained network in" in done.stderr
