import json
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from ananet.cli import COMMANDS, main
from ananet.cli.demo import motorcycle


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    pair = motorcycle()
    cv2.imwrite(str(folder / "a.jpg"), pair.image0)
    cv2.imwrite(str(folder / "b.jpg"), pair.image1)
    rng = np.random.default_rng(0)
    other = cv2.resize(rng.integers(0, 256, (60, 80, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(folder / "other.jpg"), other)
    np.savetxt(folder / "K1.txt", pair.K1)
    return folder


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_is_quick_and_imports_no_torch():
    code = """
import sys
from ananet.cli import main
try:
    main(["--help"])
except SystemExit:
    sys.exit("torch" in sys.modules or "cv2" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ananet", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5, times


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: ananet" in capsys.readouterr().out


def test_match_with_cameras(photos, tmp_path, capsys):
    picture = tmp_path / "out.png"
    code, out, err = run(
        capsys, "match", photos / "a.jpg", photos / "b.jpg",
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
    assert {"read", "detect", "match", "prune", "pose", "draw"} <= set(result["milliseconds"])


def test_match_without_cameras_says_how_to_get_a_pose(photos, tmp_path, capsys):
    code, out, _ = run(
        capsys, "match", photos / "a.jpg", photos / "b.jpg", "-o", tmp_path / "o.jpg", "--features", "orb"
    )
    assert code == 0
    assert "--focal" in out and "kept by" in out
    assert (tmp_path / "o.jpg").exists()


def test_photos_that_do_not_overlap(photos, tmp_path, capsys):
    code, out, err = run(
        capsys, "match", photos / "a.jpg", photos / "other.jpg", "-o", tmp_path / "o.png", "--focal", 900
    )
    assert (code, out) == (1, "")
    assert "do not seem to show the same scene" in err
    assert not (tmp_path / "o.png").exists()
    code, out, _ = run(capsys, "match", photos / "a.jpg", photos / "other.jpg", "-o", tmp_path / "o.png", "--json")
    assert code == 1
    assert json.loads(out)["overlap"] is False


def test_bad_photos_are_one_clear_line(photos, tmp_path, capsys):
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "empty.jpg").write_bytes(b"")
    for bad in (tmp_path / "none.jpg", tmp_path / "text.jpg", tmp_path / "empty.jpg", tmp_path):
        code, out, err = run(capsys, "match", photos / "a.jpg", bad, "-o", tmp_path / "o.png")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and str(bad) in err
    cv2.imwrite(str(tmp_path / "pixel.png"), np.zeros((1, 1, 3), np.uint8))
    code, _, err = run(capsys, "match", photos / "a.jpg", tmp_path / "pixel.png", "-o", tmp_path / "o.png")
    assert code == 2
    assert "no keypoints" in err and err.count("\n") == 1
    assert not (tmp_path / "o.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k0", "1,2"], "--k0: expected fx,fy,cx,cy"),
        (["--k1", "1,2,3,4"], "--k1: expected together with --k0"),
        (["--focal", "0"], "--focal: expected a positive"),
        (["--focal", "900", "--k0", "1,2,3,4"], "either --focal or --k0"),
        (["--pruner", "nonsense"], "pruner: expected one of"),
        (["--max-keypoints", "0"], "max_keypoints: expected a whole number of at least 1"),
        (["--k0", ""], "--k0: expected fx,fy,cx,cy"),
        (["--threshold", "inf"], "--threshold: expected a positive"),
        (["-o", "no/such/folder/a.png"], "folder no/such/folder does not exist"),
        (["-o", "a.nonsense"], "expected a picture file"),
        (["--threshold", "0"], "--threshold: expected a positive"),
        (["--confidence", "1"], "--confidence: expected a probability above 0 and below 1"),
    ],
)
def test_wrong_arguments_of_match(arguments, message, photos, capsys):
    code, _, err = run(capsys, "match", photos / "a.jpg", photos / "b.jpg", *arguments)
    assert code == 2
    assert message in err


def test_prune_a_file(problem, tmp_path, capsys):
    p0, p1 = problem.matches.numpy_points()
    np.savez(tmp_path / "m.npz", points0=p0, points1=p1, K0=problem.matches.K0, K1=problem.matches.K1)
    code, out, _ = run(capsys, "prune", tmp_path / "m.npz", "--pruner", "magsac", "--json")
    assert code == 0
    result = json.loads(out)
    stored = np.load(tmp_path / "m.pruned.npz")
    assert stored["mask"].sum() == result["kept"]
    assert stored["scores"].dtype == np.float32
    assert problem.inlier[stored["mask"]].mean() > 0.9
    code, out, _ = run(capsys, "prune", tmp_path / "m.npz", "-o", tmp_path / "x.npz")
    assert code == 0 and "kept" in out


def test_prune_wrong_files(tmp_path, capsys):
    def write(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npz.npy", np.zeros(3))
    points = np.zeros((5, 2))
    for path, message in [
        (tmp_path / "none.npz", "no such file"),
        (tmp_path / "empty.npz", "not a readable .npz"),
        (tmp_path / "text.npz", "not a readable .npz"),
        (tmp_path / "array.npz.npy", "got a single array"),
        (write("less.npz", points0=points), "expected arrays points0, points1"),
        (write("more.npz", points0=points, points1=points, colour=points), "got points0, points1, colour"),
        (write("pickle.npz", points0=np.array([{}], dtype=object), points1=points), "not a readable .npz"),
        (write("nan.npz", points0=points * np.nan, points1=points), "points0: expected finite"),
    ]:
        code, _, err = run(capsys, "prune", path)
        assert code == 2, path
        assert message in err and err.count("\n") == 1
    assert not list(tmp_path.glob("*.pruned.npz"))


def test_inputs_are_never_overwritten(photos, problem, tmp_path, capsys):
    p0, p1 = problem.matches.numpy_points()
    np.savez(tmp_path / "m.npz", points0=p0, points1=p1)
    before = (tmp_path / "m.npz").read_bytes(), (photos / "a.jpg").read_bytes()
    for arguments in (
        ["prune", tmp_path / "m.npz", "-o", tmp_path / "m.npz"],
        ["match", photos / "a.jpg", photos / "b.jpg", "-o", photos / "a.jpg"],
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 2 and "would be overwritten" in err
    assert before == ((tmp_path / "m.npz").read_bytes(), (photos / "a.jpg").read_bytes())


def test_prune_no_matches(tmp_path, capsys):
    np.savez(tmp_path / "m.npz", points0=np.zeros((0, 2)), points1=np.zeros((0, 2)))
    assert run(capsys, "prune", tmp_path / "m.npz")[0] == 0


def test_list(capsys):
    assert "(default)" in run(capsys, "list")[1]
    assert "gms" in json.loads(run(capsys, "list", "--json")[1])["pruners"]


def test_demo(tmp_path, capsys):
    code, out, _ = run(capsys, "demo", "-o", tmp_path / "demo.png", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["after"]["precision"] > result["before"]["precision"] + 0.3
    assert result["after"]["f1"] > 0.7
    assert (tmp_path / "demo.png").stat().st_size > 100_000


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2


def test_demo_without_scikit_image(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    code, _, err = run(capsys, "demo")
    assert code == 2
    assert "pip install 'ananet[demo]'" in err
