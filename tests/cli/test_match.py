import json
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from ananet.cli.demo import motorcycle, rotation
from ananet.cli.match import short_names
from ananet.core.correspondences import Correspondences
from ananet.features import MATCHERS, Matcher
from ananet.features.matching import Nearest
from ananet.io.images import read_image
from ananet.io.npz import OPTIONAL, REQUIRED
from ananet.twoview.result import COLUMNS


def test_match_with_cameras(photos, tmp_path, run):
    picture = tmp_path / "out.png"
    code, out, err = run(
        "match", photos / "a.jpg", photos / "b.jpg",
        "--k0", "994.978,994.978,311.193,254.877", "--k1", photos / "K1.txt", "-o", picture, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["overlap"]["found"] and 100 < result["kept"] < result["matches"]
    assert result["picture"] == str(picture)
    assert cv2.imread(str(picture)) is not None
    R = np.array(result["pose"]["R"])
    angle = np.degrees(np.arccos((np.trace(R @ motorcycle().R.T) - 1) / 2))
    assert angle < 5
    assert set(result["milliseconds"]) == {"detect", "match", "prune", "verify", "geometry"}
    assert (result["pose"]["estimator"], result["pose"]["pose_threshold"]) == ("poselib", 0.75)
    assert result["pose"]["match_selection"] == "one-to-one" and result["pruner"] == "ananet"


def test_the_estimator_and_its_options(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "--focal", 995, "-o", tmp_path / "o.png")
    code, out, _ = run(*both, "--estimator", "magsac@threshold=2", "--json")
    pose = json.loads(out)["pose"]
    assert code == 0 and pose["estimator"] == "magsac@threshold=2.0" and pose["pose_threshold"] == 2
    code, out, _ = run(*both, "--estimator", "poselib", "--pose-threshold", 0.5, "--confidence", 0.9)
    assert code == 0 and "poselib@threshold=0.5@confidence=0.9, 0.5 px" in out


def test_a_second_look(photos, tmp_path, run):
    saved = tmp_path / "m.npz"
    both = ("match", photos / "a.jpg", photos / "b.jpg", "--focal", 995, "-o", tmp_path / "o.png", *FAST)
    code, out, _ = run(*both, "--refine", "--save", saved)
    assert code == 0 and " kept matches\n" in out and "refine" in out
    arrays = np.load(saved)
    assert np.isnan(arrays["correlation"]).tolist() == (~arrays["mask"]).tolist()
    plain = tmp_path / "plain.npz"
    run(*both, "--save", plain)
    moved = np.linalg.norm(arrays["points1"] - np.load(plain)["points1"], axis=1)
    assert (moved[~arrays["mask"]] == 0).all() and 0 < np.median(moved[arrays["mask"]]) < 1
    assert json.loads(run(*both, "--refine", "--json")[1])["refined"] == (moved > 0).sum()


def test_match_without_cameras_says_how_to_get_a_pose(photos, tmp_path, run):
    code, out, _ = run("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.jpg", "--detector", "orb")
    assert code == 0
    assert "focal length is not known" in out and "kept by" in out
    assert (tmp_path / "o.jpg").exists()


def test_keypoints_of_ones_own(photos, tmp_path, run):
    from ananet.features import load_detector
    from ananet.io.images import read_image

    paths = [photos / "a.jpg", photos / "b.jpg"]
    for path in paths:
        found = load_detector("sift", max_keypoints=500).detect(read_image(path))
        np.savez(tmp_path / f"{path.stem}.npz", points=found.points, descriptors=found.descriptors)
    code, out, _ = run("match", *paths, "-o", tmp_path / "o.jpg", "--features", tmp_path, "--json")
    assert code == 0 and [photo["keypoints"] for photo in json.loads(out)["photos"]] == [500, 500]
    code, _, err = run("match", *paths, "--features", tmp_path, "--detector-weights", "a.pth")
    assert code == 2 and "--features: expected either --features or --detector-weights, got both" in err
    code, _, err = run("match", *paths, "--detector", "superpoint", "--detector-weights", "none.pth")
    assert code == 2 and "weights: expected a file, got none.pth" in err


def test_more_candidates(photos, tmp_path, run):
    paths = [photos / "a.jpg", photos / "b.jpg"]
    options = ("-o", tmp_path / "o.jpg", "--max-keypoints", 500, "--json", "--candidates")
    code, out, _ = run("match", *paths, *options, 2)
    assert code == 0 and json.loads(out)["matches"] == 1000
    code, _, err = run("match", *paths, *options, 0)
    assert code == 2 and "--candidates: expected a whole number of at least 1, got 0" in err


def test_photos_that_do_not_overlap(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "other.jpg", "-o", tmp_path / "o.png", "--focal", 900, *FAST)
    code, out, _ = run(*both, "--save", tmp_path / "m.npz", "--pruner", "all")
    assert code == 1 and "do not seem to show the same scene" in out
    assert "pose       poselib" in out and "not to be trusted" in out
    # The verdict is information: what was asked for is written all the same.
    assert (tmp_path / "o.png").exists() and np.load(tmp_path / "m.npz")["mask"].all()
    code, out, _ = run(*both, "--json")
    result = json.loads(out)
    assert code == 1 and result["overlap"]["found"] is False and result["picture"] == str(tmp_path / "o.png")
    assert "do not seem" in result["overlap"]["summary"]


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
        (
            ["--detector", "surf"],
            "detector: expected one of sift, orb, aliked, disk, xfeat, superpoint, stored, got 'surf'",
        ),
        (["--detector", "sift@colour=1"], "unknown option colour of detector 'sift': it has "),
        (["--estimator", "lmeds"], "estimator: expected one of poselib, ransac, magsac"),
        (["--k0", ""], "--k0: expected fx,fy,cx,cy"),
        (["--pose-threshold", "inf"], "--pose-threshold: expected a positive"),
        (["--images", "."], "--images: expected together with --pairs"),
        (["--pairs", "list.txt"], "photos: expected either photos or --pairs, got both (2 photos)"),
        (["--save", "a.txt"], "--save: expected a file that ends in .npz or .csv, got 'a.txt'"),
        (["--save", "no/such/a.csv"], "--save: the folder no/such does not exist"),
        (["-o", "no/such/folder/a.png"], "folder no/such/folder does not exist"),
        (["-o", "a.nonsense"], "expected a picture file"),
        (["-o", "a"], "expected a picture file"),
        (["--pose-threshold", "0"], "--pose-threshold: expected a positive"),
        (["--confidence", "1"], "--confidence: expected a probability above 0 and below 1"),
        (["--warp", "w.png", "--model", "essential"], "--warp: expected --model auto or homography, got essential"),
        (["--epipolar", "e.png", "--model", "homography"], "--epipolar: expected --model auto or essential or fund"),
        (["--warp", "e.png", "--epipolar", "e.png"], "--epipolar: e.png is the picture of --warp too"),
        (["--model", "essential"], "model: essential needs K0 and K1 or a focal length, which may be auto, got none"),
    ],
)
def test_wrong_arguments_of_match(arguments, message, photos, run):
    code, _, err = run("match", photos / "a.jpg", photos / "b.jpg", *arguments)
    assert code == 2
    assert message in err and err.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_found_before_the_work(photos, run, monkeypatch):
    def worked(*_, **__):
        raise AssertionError("worked")

    monkeypatch.setattr("ananet.twoview.matcher.PhotoMatcher", worked)
    monkeypatch.setattr("ananet.io.images.as_photo", worked)
    monkeypatch.setattr("ananet.pruners.load", worked)
    start = time.process_time()
    code, _, err = run("match", photos / "a.jpg", photos / "b.jpg", "--save", "matches.xyz")
    assert code == 2 and "--save: expected a file" in err
    code, _, err = run("match", photos / "a.jpg", photos / "b.jpg", "-o", "matches.xyz")
    assert code == 2 and "expected a picture file such as .png or .jpg, got 'matches.xyz'" in err
    assert time.process_time() - start < 5


FAST = ("--pruner", "mutual+ratio", "--max-keypoints", 800)


def test_matches_are_saved_as_arrays(photos, tmp_path, run):
    saved = tmp_path / "m.npz"
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--save", saved, *FAST)
    code, out, _ = run(*both, "--focal", 995, "--json")
    result = json.loads(out)
    assert code == 0 and result["saved"] == str(saved)
    with np.load(saved) as stored:
        arrays = dict(stored)
    known = {*REQUIRED, *OPTIONAL}
    assert set(arrays) == {*known, "mask", "logits", "R", "t", "overlap", "model", "inliers", "F", "H"}
    assert arrays["mask"].sum() == result["kept"] and len(arrays["points0"]) == result["matches"]
    np.testing.assert_allclose(arrays["R"], result["pose"]["R"])
    np.testing.assert_allclose(arrays["K0"], result["cameras"]["K0"])
    # What a pruner takes is there under the names it takes.
    matches = Correspondences(**{name: values for name, values in arrays.items() if name in known})
    assert matches.calibrated and matches.image_size0 == (741, 500) and len(matches) == result["matches"]
    code, out, _ = run("prune", saved, "--pruner", "mutual+ratio", "--json")
    assert code == 0 and json.loads(out)["kept"] == result["kept"]
    code, out, _ = run(*both)
    assert code == 0 and f"saved      {saved}" in out
    with np.load(saved) as stored:
        assert not {"K0", "R", "t"} & set(stored)


def test_motions_are_told_drawn_and_saved(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--motions", *FAST)
    code, out, _ = run(*both)
    assert code == 0 and "motions    1: " in out
    code, out, _ = run(*both, "--save", tmp_path / "m.npz", "--json")
    result = json.loads(out)
    assert code == 0 and result["motions"]["count"] == 1 and result["milliseconds"]["motions"] > 0
    with np.load(tmp_path / "m.npz") as stored:
        assert (stored["motions"] == 0).sum() == result["motions"]["motions"][0]["support"]
        assert (stored["motions"][~stored["mask"]] == -1).all()
    assert run("prune", tmp_path / "m.npz")[0] == 0, "what was saved can be pruned"


def test_matches_are_saved_as_a_table(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", *FAST)
    assert run(*both, "--save", tmp_path / "m.csv")[0] == run(*both, "--save", tmp_path / "m.npz")[0] == 0
    lines = (tmp_path / "m.csv").read_text().splitlines()
    assert lines[0] == "x0,y0,x1,y1,kept,score,ratio,mutual,index0,index1" == ",".join(COLUMNS)
    table = np.genfromtxt(tmp_path / "m.csv", delimiter=",", names=True)
    with np.load(tmp_path / "m.npz") as stored:
        assert len(lines) == len(stored["points0"]) + 1
        for name, expected in (
            ("x0", stored["points0"][:, 0]), ("y1", stored["points1"][:, 1]), ("kept", stored["mask"]),
            ("score", stored["scores"]), ("ratio", stored["ratio"]), ("mutual", stored["mutual"]),
            ("index1", stored["indices"][:, 1]),
        ):  # fmt: skip
            np.testing.assert_array_equal(table[name].astype(expected.dtype), expected)


def test_another_matcher(photos, tmp_path, run, monkeypatch):
    class OneToOne(Matcher):
        """Mutual nearest neighbours, of which it tells neither ratio nor flag."""

        name = "one-to-one"

        def pair(self, features0, features1):
            indices, known = Nearest().pair(features0, features1)
            return indices[known["mutual"]], {"scores": 1 - known["ratio"][known["mutual"]]}

    monkeypatch.setitem(MATCHERS._added, "one-to-one", OneToOne)
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--matcher")
    code, out, _ = run(*both, "one-to-one", "--save", tmp_path / "m.csv", "--json")
    result = json.loads(out)
    assert code == 0 and result["overlap"]["found"] and result["matches"] < result["photos"][0]["keypoints"]
    assert result["pruner"] == "ananet", "there is nothing beside coordinates"
    table = np.genfromtxt(tmp_path / "m.csv", delimiter=",", names=True)
    assert np.isnan(table["ratio"]).all() and np.isnan(table["mutual"]).all() and table["kept"].sum() == result["kept"]
    for arguments, message in (
        (("one-to-one", "--candidates", 2), "unknown option neighbours of matcher 'one-to-one': it has none"),
        (("lightglue",), "matcher 'lightglue': expected keypoints of aliked or disk, got 'sift'"),
    ):
        code, _, err = run(*both, *arguments)
        assert code == 2 and message in err


def test_matches_never_replace_photos(photos, tmp_path, run):
    (tmp_path / "a.csv").write_bytes((photos / "a.jpg").read_bytes())
    code, _, err = run("match", tmp_path / "a.csv", photos / "b.jpg", "--save", tmp_path / "a.csv")
    assert code == 2 and "--save: " in err and "is an input and would be overwritten" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.fixture
def with_exif(photos, tmp_path):
    """Both photos, the camera's focal length in each, and the first in a form without it."""
    pillow = pytest.importorskip("PIL.Image")
    for name, focal in (("a", 48), ("b", 70)):
        exif = pillow.Exif()
        exif.get_ifd(0x8769)[0xA405] = focal
        pillow.open(photos / f"{name}.jpg").save(tmp_path / f"{name}.jpg", exif=exif, quality=95)
    return tmp_path


def test_focal_lengths_from_exif(photos, with_exif, run):
    both = ("match", with_exif / "a.jpg", with_exif / "b.jpg", "-o", with_exif / "o.png", *FAST)
    code, out, _ = run(*both, "--json")
    result = json.loads(out)
    assert code == 0 and result["cameras"]["source"] == "exif" and result["pose"]
    assert result["cameras"]["K0"] == [
        [pytest.approx(48 / 36 * 741), 0, 370],
        [0, pytest.approx(988), 249.5],
        [0, 0, 1],
    ]
    assert result["cameras"]["K1"][0][0] == pytest.approx(70 / 36 * 741)
    code, out, _ = run(*both)
    assert "camera     focal lengths 988 and 1441 px, from EXIF" in out
    for given, source in ((("--focal", 900), "given"), (("--k0", "900,900,370,250"), "given"), (("--no-exif",), None)):
        code, out, _ = run(*both, *given, "--json")
        result = json.loads(out)
        assert result["cameras"]["source"] == source and (result["pose"] is None) == (source is None)
        if source:
            assert result["cameras"]["K0"][0][0] == result["cameras"]["K1"][1][1] == 900
    # One is not enough.
    code, out, _ = run("match", with_exif / "a.jpg", photos / "b.jpg", "-o", with_exif / "o.png", *FAST, "--json")
    assert json.loads(out)["cameras"] == {"source": None, "K0": None, "K1": None, "doubt": None}


def test_a_camera_that_only_turned(photos, tmp_path, run):
    K = np.array([[900.0, 0, 370], [0, 900, 249.5], [0, 0, 1]])
    image = read_image(photos / "a.jpg")
    turned = cv2.warpPerspective(image, K @ rotation(3, -4, 5) @ np.linalg.inv(K), (741, 500), flags=cv2.INTER_CUBIC)
    cv2.imwrite(str(tmp_path / "turned.jpg"), turned)
    both = ("match", photos / "a.jpg", tmp_path / "turned.jpg", "-o", tmp_path / "o.png", "--focal", 900, *FAST)
    code, out, _ = run(*both)
    assert code == 0 and "only the rotation can be trusted: the camera hardly moved" in out
    pose = json.loads(run(*both, "--json")[1])["pose"]
    assert pose["rotation_only"] and pose["parallax_degrees"] < 0.5
    moved = run("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--focal", 995, *FAST)[1]
    assert "pose       poselib, 0.75 px, one-to-one matches: " in moved and "hardly moved" not in moved


def test_pictures_of_the_geometry(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", *FAST)
    warped, lines = tmp_path / "w.png", tmp_path / "e.png"
    code, out, _ = run(*both, "--warp", warped, "--epipolar", lines)
    assert code == 0 and warped.exists() and lines.exists() and f"\nepipolar   {lines}\n" in out
    assert f"\nwarp       {warped} (a scene with depth: right for one plane only, " in out
    lines.unlink()
    same = ("match", photos / "a.jpg", photos / "a.jpg", "-o", tmp_path / "o.png", *FAST)
    code, out, _ = run(*same, "--warp", warped, "--epipolar", lines)
    assert code == 0 and f"\nwarp       {warped}\nepipolar   none: A homography explains" in out and not lines.exists()
    assert json.loads(run(*same, "--epipolar", lines, "--json")[1])["epipolar"] is None


def test_nothing_kept(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--focal", 995)
    code, out, _ = run(*both, "--pruner", "ratio@threshold=0.01")
    assert code == 0 and "nothing kept by ratio" in out
    assert "pose       none: nothing was kept" in out
    assert json.loads(run(*both, "--pruner", "ratio@threshold=0.01", "--json")[1])["pose"] is None


def test_every_pair_of_many_photos(photos, tmp_path, run, monkeypatch):
    from ananet.features.opencv import SIFT

    detected = []
    extract = SIFT.extract
    monkeypatch.setattr(SIFT, "extract", lambda self, image: detected.append(1) or extract(self, image))
    cv2.imwrite(str(tmp_path / "c.png"), read_image(photos / "b.jpg")[:, ::-1][:, ::-1][10:])
    three = (photos / "a.jpg", photos / "b.jpg", tmp_path / "c.png")
    folders = ("-o", tmp_path / "new" / "pictures", "--save", tmp_path / "saved")
    code, out, err = run("match", *three, *folders, "--focal", 995, *FAST)
    assert (code, err) == (0, "") and len(detected) == 3
    lines = out.splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"{three[0]} {three[1]}  ") and "pose with" in lines[0]
    names = ["a-b", "a-c", "b-c"]
    assert sorted(path.name for path in (tmp_path / "new" / "pictures").iterdir()) == [f"{n}.png" for n in names]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [f"{n}.npz" for n in names]
    # The same as for one pair alone.
    alone = ("-o", tmp_path / "o.png", "--save", tmp_path / "m.npz", "--focal", 995, *FAST)
    assert run("match", *three[:2], *alone)[0] == 0
    assert (tmp_path / "o.png").read_bytes() == (tmp_path / "new" / "pictures" / "a-b.png").read_bytes()
    with np.load(tmp_path / "m.npz") as one, np.load(tmp_path / "saved" / "a-b.npz") as other:
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_list_of_pairs(photos, tmp_path, run):
    pairs = tmp_path / "pairs.txt"
    (photos / "text.jpg").write_text("hello")
    pairs.write_text("# mine\n\na.jpg b.jpg\na.jpg\tother.jpg\n  # more\nnone.jpg a.jpg\ntext.jpg b.jpg\na.jpg b.jpg\n")
    many = ("match", "--pairs", pairs, "--images", photos, "-o", tmp_path / "out", *FAST)
    code, out, err = run(*many)
    lines = out.splitlines()
    assert code == 2 and len(lines) == 4
    assert f"{tmp_path / 'out' / 'a-b.png'}" in lines[0] and "kept" in lines[0]
    assert "  no overlap, " in lines[1]
    assert "none.jpg: no such file" in lines[2] and "text.jpg: not an image" in lines[3]
    assert err == "4 pairs: 1 without overlap, 2 not matched\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a-b.png", "a-other.png"]
    code, out, _ = run(*many, "--json")
    results = json.loads(out)
    assert code == 2 and [result["error"] is None for result in results] == [True, True, False, False]
    assert results[1]["overlap"]["found"] is False
    assert [photo["name"] for photo in results[0]["photos"]] == [str(photos / "a.jpg"), str(photos / "b.jpg")]
    pairs.write_text("a.jpg b.jpg\na.jpg other.jpg\n")
    assert run(*many)[0] == 1
    pairs.write_text("a.jpg b.jpg\n")
    assert run(*many)[::2] == (0, "")


def test_wrong_lists_and_folders(photos, tmp_path, run):
    pairs = tmp_path / "pairs.txt"
    for content, arguments, message in (
        (b"a.jpg b.jpg c.jpg", (), "if they contain spaces, got 'a.jpg b.jpg c.jpg'"),
        (b"# nothing\n", (), "expected at least one pair of photos, got none"),
        (b"\xff\xfe\x00", (), "expected a text file in UTF-8"),
        (b"a.jpg b.jpg", ("-o", pairs), "output: expected a folder for the results of many pairs, got the file"),
        (b"a.jpg b.jpg", ("--save", pairs), "--save: expected a folder for the results of many pairs, got the file"),
        (b"a.jpg b.jpg", ("--images", tmp_path / "none"), "--images: expected a folder, got"),
        (b"a-b.jpg c.jpg\na.jpg b-c.jpg", ("-o", tmp_path), "a-b-c would also be the output of"),
        (b"x.jpg y.jpg\nx-y.png y.jpg", ("-o", tmp_path, "--images", tmp_path), "is an input and would be overwritten"),
    ):
        pairs.write_bytes(content)
        code, _, err = run("match", "--pairs", pairs, *arguments)
        assert code == 2 and message in err and err.count("\n") == 1, err
    code, _, err = run("match", photos / "a.jpg")
    assert code == 2 and "photos: expected two or more, or --pairs LIST, got 1" in err


def test_a_match_imports_nothing_slow_in_vain(photos, tmp_path):
    code = f"""
import sys
from ananet.cli.main import main
code = main(["match", {str(photos / "a.jpg")!r}, {str(photos / "a.jpg")!r}, "-o", {str(tmp_path / "out.png")!r}])
sys.exit(f"{{code}} {{slow}}" if (slow := {{"torch.onnx", "torch._dynamo"}} & set(sys.modules)) else code)
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr


def test_photos_of_the_same_name_are_told_apart():
    for paths, expected in (
        (["x/a.jpg", "y/b.jpg", "x/a.jpg"], ["a", "b"]),
        (["x/a.jpg", "x/a.png"], ["a.jpg", "a.png"]),
        (["/x/a.jpg", "../y/a.jpg"], ["x_a", "y_a"]),
        (["x/a.jpg", "x/a.png", "y/a.png"], ["x_a.jpg", "x_a.png", "y_a.png"]),
        (["x/a.jpg", "x_a.jpg", "y/a.jpg"], ["0_a.jpg", "1_x_a.jpg", "2_a.jpg"]),
    ):
        assert list(short_names([Path(path) for path in paths]).values()) == expected


@pytest.mark.parametrize(
    ("camera", "doubt"),
    [
        (("--focal", 35), "a focal length of 35 pixels means a field of view of 169 degrees"),
        (("--k0", "995,995,1200,540"), "the principal point (1200, 540) is far from the centre of the image"),
        (("--focal", 995), None),
    ],
)
def test_cameras_that_hardly_belong_to_the_photos_are_doubted(camera, doubt, photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", *camera, *FAST)
    code, out, _ = run(*both)
    assert code == 0 and ("camera     doubtful: " in out) == (doubt is not None) and (doubt or "") in out
    found = json.loads(run(*both, "--json")[1])["cameras"]["doubt"]
    assert found is None if doubt is None else found.startswith(doubt)


def test_a_failed_start_makes_no_folder(photos, tmp_path, run):
    three = (photos / "a.jpg", photos / "b.jpg", photos / "a.jpg")
    code, _, err = run("match", *three, "-o", tmp_path / "pictures", "--pruner", "nonsense")
    assert code == 2 and "pruner: expected one of" in err and not (tmp_path / "pictures").exists()


def test_the_threshold_is_a_probability(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--json", "--max-keypoints", 500)
    kept = {}
    for threshold in (0.1, 0.5, 0.9):
        result = json.loads(run(*both, "--threshold", threshold)[1])
        kept[threshold] = result["kept"]
        assert result["threshold"] == pytest.approx(threshold)
    assert kept[0.1] > kept[0.5] > kept[0.9]
    for arguments, message in (
        (("--threshold", 2), "--threshold: expected"),
        (
            ("--threshold", 0.9, "--pruner", "ratio"),
            "threshold: only networks have a probability threshold; for that of ratio",
        ),
        (("--pose-threshold", -1), "--pose-threshold: expected a positive number of pixels, got -1"),
    ):
        code, _, err = run(*both, *arguments)
        assert code == 2 and message in err


def test_large_photos_are_scaled_down(photos, tmp_path, run):
    both = ("match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.png", "--save", tmp_path / "m.npz", *FAST)
    assert run(*both)[0] == 0
    whole = np.load(tmp_path / "m.npz")["points0"]
    for side, same in (("none", True), (5000, True), (370, False)):
        code, out, _ = run(*both, "--longest-side", side, "--json")
        result, points = json.loads(out), np.load(tmp_path / "m.npz")["points0"]
        assert code == 0 and (result["photos"][0]["width"], result["photos"][0]["height"]) == (741, 500)
        assert np.array_equal(points, whole) == same
        # In the photo's own pixels.
        assert points[:, 0].max() > 600
    code, _, err = run(*both, "--longest-side", "much")
    assert code == 2 and "--longest-side: expected a number of pixels or none, got 'much'" in err
