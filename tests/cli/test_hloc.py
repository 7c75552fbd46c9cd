import json

import numpy as np
import pytest

from tests.integrations.test_hloc import write_features, write_matches

pytest.importorskip("h5py")


def test_prune_a_file(problem, tmp_path, run):
    points0, points1 = problem.matches.numpy_points()
    write_features(tmp_path / "f.h5", {"a.jpg": (points0, (640, 480)), "b.jpg": (points1, (640, 480))})
    write_matches(tmp_path / "m.h5", {"a.jpg/b.jpg": np.arange(500)})
    files = (tmp_path / "f.h5", tmp_path / "m.h5", "-o", tmp_path / "p.h5")
    code, out, _ = run("hloc", *files, "--json")
    result = json.loads(out)
    assert code == 0 and result["pairs"] == 1 and result["matches"] == 500 and 200 < result["kept"] < 400
    code, out, _ = run("hloc", *files, "--pruner", "all")
    assert code == 0 and "kept 500 of 500" in out


def test_warnings_and_errors_are_told(tmp_path, run):
    keypoints = np.random.default_rng(0).random((3, 2)) * 3000
    write_features(tmp_path / "f.h5", {"a": (keypoints, (3000, 3000)), "b": (keypoints, (3000, 3000))}, np.float16)
    write_matches(tmp_path / "m.h5", {"a/b": [0, 1, 2]})
    code, _, err = run("hloc", tmp_path / "f.h5", tmp_path / "m.h5", "-o", tmp_path / "p.h5", "--pruner", "all")
    assert code == 0 and err.count("half precision") == 1
    code, _, err = run("hloc", tmp_path / "f.h5", tmp_path / "none.h5", "-o", tmp_path / "p.h5")
    assert code == 2 and "no such file" in err
    code, _, err = run("hloc", tmp_path / "f.h5", tmp_path / "m.h5", "-o", tmp_path / "m.h5")
    assert code == 2 and "is an input" in err
