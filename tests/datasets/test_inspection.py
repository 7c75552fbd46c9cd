import json

import cv2
import pytest

from ananet.cli import main
from tests.datasets.scenes import write_scene


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_scene(folder / "scenes" / "walls", images=3)
    wrong = write_scene(folder / "scenes" / "wrong", images=3, seed=9)
    # Poses that do not belong to the photos: the last two change places.
    images = wrong / "sparse" / "images.txt"
    images.write_text(images.read_text().replace("001.png", "x").replace("002.png", "001.png").replace("x", "002.png"))
    (wrong / "pairs.txt").write_text("000.png 001.png\n000.png 002.png\n")
    return folder


def test_build_then_inspect(built, capsys):
    out, picture = built / "out", built / "pairs.png"
    assert main(["data", "build", str(built / "scenes"), str(out), "--max-keypoints", "400", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scenes"] == 2 and result["pairs"] > 2
    assert main(["data", "inspect", str(out), "-o", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    walls, wrong = found["scenes"]
    assert walls["doubtful_pairs"] == 0 and walls["distinctive_inliers"] > 0.9
    assert wrong["distinctive_inliers"] < 0.8
    assert cv2.imread(str(picture)).shape[1] == 1800
    assert main(["data", "inspect", str(out), "-o", str(picture)]) == 0
    assert "doubtful_pairs" in capsys.readouterr().out


def test_wrong_arguments(built, tmp_path, capsys):
    for arguments, message in [
        (["build", tmp_path / "none", tmp_path / "out"], "scenes: expected a folder"),
        (["inspect", tmp_path], "no training pairs here"),
        (["build", built / "scenes", tmp_path / "out", "--max-keypoints", "1"], "max_keypoints: expected 8"),
    ]:
        assert main(["data", *(str(a) for a in arguments)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
