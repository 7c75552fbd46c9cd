"""`ananet sfm`."""

import json

import pytest

from tests.datasets.test_sfm import write_views

pytest.importorskip("pycolmap")
FAST = ("--pruner", "ratio", "--max-keypoints", 1500, "--device", "cpu", "--cameras", "one")


def test_a_model_and_its_report(tmp_path, run):
    photos = write_views(tmp_path / "photos", views=4)
    (photos / "other.jpg").write_bytes(b"not a photo")
    code, out, err = run("sfm", photos, "-o", tmp_path / "model", *FAST)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("4 of 5 photos registered, ") and " points, each seen in " in lines[0]
    assert lines[1].startswith("6 pairs matched by ratio, ") and lines[2] == "not registered: other.jpg"
    assert lines[3].startswith("seconds: features ") and ", mapping " in lines[3]
    assert lines[4] == f"model: {tmp_path}/model/sparse/0, picture: {tmp_path}/model/model.png"
    code, out, _ = run("sfm", photos, "-o", tmp_path / "model", *FAST, "--json")
    found = json.loads(out)
    assert code == 0 and found["left_out"] == ["other.jpg"] and found["doubtful"] == [] and found["summary"] in lines[0]


def test_wrong_arguments(tmp_path, run):
    code, out, err = run("sfm", tmp_path / "none", "-o", tmp_path / "model")
    assert (code, out) == (2, "") and err.startswith("ananet sfm: photos: expected a folder, got ")
    with pytest.raises(SystemExit):
        run("sfm", tmp_path)
