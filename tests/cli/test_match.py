import json
import time

import cv2
import numpy as np
import pytest

from ananet.cli.demo import motorcycle


def test_match_with_cameras(photos, tmp_path, run):
    picture = tmp_path / "out.png"
    code, out, err = run(
        "match", photos / "a.jpg", photos / "b.jpg",
        "--k0", "994.978,994.978,311.193,254.877", "--k1", photos / "K1.txt", "-o", picture, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["overlap"] and 100 < result["kept"] < result["matches"]
    assert result["picture"] == str(picture)
    assert cv2.imread(str(picture)) is not None
    R = np.array(result["pose"]["R"])
    angle = np.degrees(np.arccos((np.trace(R @ motorcycle().R.T) - 1) / 2))
    assert angle < 5
    assert set(result["milliseconds"]) == {"detect", "match", "prune", "verify", "pose"}
    assert (result["pose"]["estimator"], result["pose"]["threshold_pixels"]) == ("ransac", 1.0)


def test_the_estimator_and_its_options(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "--focal", 995, "-o", tmp_path / "o.png")
    code, out, _ = run(*both, "--estimator", "magsac@threshold=2", "--json")
    pose = json.loads(out)["pose"]
    assert code == 0 and pose["estimator"] == "magsac@threshold=2.0" and pose["threshold_pixels"] == 2
    code, out, _ = run(*both, "--estimator", "poselib", "--threshold", 0.5, "--confidence", 0.9)
    assert code == 0 and "poselib@threshold=0.5@confidence=0.9 at 0.5 px" in out


def test_match_without_cameras_says_how_to_get_a_pose(photos, tmp_path, run):
    code, out, _ = run("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.jpg", "--detector", "orb")
    assert code == 0
    assert "--focal" in out and "kept by" in out
    assert (tmp_path / "o.jpg").exists()


def test_photos_that_do_not_overlap(photos, tmp_path, run):
    code, out, err = run("match", photos / "a.jpg", photos / "other.jpg", "-o", tmp_path / "o.png", "--focal", 900)
    assert (code, out) == (1, "")
    assert "do not seem to show the same scene" in err
    assert not (tmp_path / "o.png").exists()
    code, out, _ = run("match", photos / "a.jpg", photos / "other.jpg", "-o", tmp_path / "o.png", "--json")
    assert code == 1
    result = json.loads(out)
    assert result["overlap"] is False and result["picture"] is None and result["pose"] is None


def test_bad_photos_are_one_clear_line(photos, tmp_path, run):
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "empty.jpg").write_bytes(b"")
    for bad in (tmp_path / "none.jpg", tmp_path / "text.jpg", tmp_path / "empty.jpg", tmp_path):
        code, out, err = run("match", photos / "a.jpg", bad, "-o", tmp_path / "o.png")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and str(bad) in err
    cv2.imwrite(str(tmp_path / "pixel.png"), np.zeros((1, 1, 3), np.uint8))
    code, _, err = run("match", photos / "a.jpg", tmp_path / "pixel.png", "-o", tmp_path / "o.png")
    assert code == 2
    assert "no keypoints" in err and str(tmp_path / "pixel.png") in err and err.count("\n") == 1
    assert not (tmp_path / "o.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k0", "1,2"], "--k0: expected fx,fy,cx,cy"),
        (["--k1", "1,2,3,4"], "--k1: expected together with --k0"),
        (["--focal", "0"], "--focal: expected a positive"),
        (["--focal", "900", "--k0", "1,2,3,4"], "either --focal or --k0"),
        (["--pruner", "nonsense"], "pruner: expected one of"),
        (["--max-keypoints", "0"], "max_keypoints: expected a whole number from 1 to"),
        (["--max-keypoints", "99999999999"], "max_keypoints: expected a whole number from 1 to"),
        (["--detector", "surf"], "detector: expected one of sift, orb, got 'surf'"),
        (["--detector", "sift@colour=1"], "options of the detector 'sift': expected some of"),
        (["--estimator", "lmeds"], "estimator: expected one of ransac, magsac, poselib, got 'lmeds'"),
        (["--k0", ""], "--k0: expected fx,fy,cx,cy"),
        (["--threshold", "inf"], "--threshold: expected a positive"),
        (["-o", "no/such/folder/a.png"], "folder no/such/folder does not exist"),
        (["-o", "a.nonsense"], "expected a picture file"),
        (["-o", "a"], "expected a picture file"),
        (["--threshold", "0"], "--threshold: expected a positive"),
        (["--confidence", "1"], "--confidence: expected a probability above 0 and below 1"),
    ],
)
def test_wrong_arguments_of_match(arguments, message, photos, run):
    code, _, err = run("match", photos / "a.jpg", photos / "b.jpg", *arguments)
    assert code == 2
    assert message in err and err.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_found_before_the_work(photos, run, monkeypatch):
    def worked(*_, **__):
        raise AssertionError("worked")

    monkeypatch.setattr("ananet.pipeline.match_photos", worked)
    monkeypatch.setattr("ananet.images.read_image", worked)
    monkeypatch.setattr("ananet.pruners.load", worked)
    start = time.perf_counter()
    code, _, err = run("match", photos / "a.jpg", photos / "b.jpg", "-o", "matches.xyz")
    assert code == 2 and "expected a picture file such as .png or .jpg, got 'matches.xyz'" in err
    assert time.perf_counter() - start < 2
