import cv2
import numpy as np
import pytest

from ananet import InputError
from ananet.drawing import GREEN, RED, draw_matches, save_picture, stack

GREY = np.full((100, 150, 3), 128, np.uint8)


def test_kept_is_green_on_top_and_removed_red():
    points0, points1 = np.array([[10.0, 20], [10, 80]]), np.array([[140.0, 20], [140, 80]])
    picture = draw_matches(GREY, GREY, points0, points1, np.array([True, False]), "caption")
    green = (np.abs(picture.astype(int) - GREEN).sum(-1) < 30).sum(1)
    reddish = ((picture[..., 2].astype(int) - picture[..., 0]) > 60).sum(1)
    assert green[:300].sum() > 500
    assert green[400:600].sum() == 0
    assert reddish[:300].sum() == 0
    assert reddish[400:600].sum() > 500
    assert RED != GREEN


def test_no_matches_and_odd_sizes():
    picture = draw_matches(GREY, np.zeros((1, 1, 3), np.uint8), np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, bool))
    assert picture.dtype == np.uint8
    assert stack(picture, GREY).shape[1] == max(picture.shape[1], 150)


def test_saving(tmp_path):
    save_picture(tmp_path / "a.png", GREY)
    assert (cv2.imread(str(tmp_path / "a.png")) == GREY).all()
    for wrong in ("a.xyz", "a", "none/a.png"):
        with pytest.raises(InputError, match="output: "):
            save_picture(tmp_path / wrong, GREY)
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
