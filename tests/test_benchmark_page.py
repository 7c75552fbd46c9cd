import sys

import cv2
import numpy as np
import pytest

from ananet.datasets.base import PosedImage, PosedPair
from benchmarks import page
from tests.photos import photo

K = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])


@pytest.fixture
def pair(tmp_path):
    turn = cv2.Rodrigues(np.array([0.02, 0.1, -0.03]))[0]
    first = PosedImage(tmp_path / "0.png", K, np.eye(3), np.zeros(3))
    return PosedPair(first, PosedImage(tmp_path / "1.png", K, turn, np.array([1.0, 0.1, 0.2])))


def test_poses_from_what_the_page_keeps(pair):
    numbers = np.random.default_rng(0)
    points = np.column_stack([numbers.uniform(-2, 2, (60, 2)), numbers.uniform(4, 8, 60)])
    seen = [(points @ image.R.T + image.t) @ K.T for image in (pair.image0, pair.image1)]
    answer = {f"points{i}": (each[:, :2] / each[:, 2:]).tolist() for i, each in enumerate(seen)}
    answer |= {"scores": [0.9] * 60, "mask": [True] * 60, "ratio": [0.5] * 60, "mutual": [True] * 60}
    answer |= {
        "keypoint_sizes0": [4.0] * 60,
        "keypoint_sizes1": [4.0] * 60,
        "indices": [[k, k // 2] for k in range(60)],
    }
    answer["photos"] = [{"width": 640, "height": 480}] * 2
    pose = page.pose_of(pair, answer)
    assert page.pose_error(pair, pose) < 0.5 and page.pose_error(pair, None) == 180
    row = page.scores([pair], [pose], [answer], [answer | {"mask": [False] * 60}])
    assert row["kept, one scene"] == "30 to 30, 0 of 1 at least 50"
    assert row["different scenes"] == "0 to 0, 0 of 1 at least 50"


def test_photos_of_the_size_of_a_phone(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), photo(64, 48))
    (tmp_path / "large").mkdir()
    large = cv2.imread(str(page.enlarged(tmp_path / "a.png", 0.03, tmp_path / "large")))
    assert large.shape[:2] == (150, 200)


def test_needs_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "PAGE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["page.py"])
    with pytest.raises(SystemExit):
        page.main()
    assert "run make page" in capsys.readouterr().err
