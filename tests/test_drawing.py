import cv2
import numpy as np
import pytest

from ananet import InputError
from ananet.drawing import BLUE, GREEN, RED, check_picture, draw_groups, draw_matches, grid, save_picture, stack

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


def test_a_place_for_a_picture_is_checked_without_writing(tmp_path):
    (tmp_path / "photo.png").write_bytes(b"mine")
    for right in ("a.png", "a.JPG", "photo.png"):
        check_picture(tmp_path / right)
    for wrong, message in (
        ("a.xyz", "output: expected a picture file such as .png or .jpg, got"),
        ("a", "output: expected a picture file"),
        ("none/a.png", "output: the folder .* does not exist"),
        (".", "output: expected a file name, got the directory"),
    ):
        with pytest.raises(InputError, match=message):
            check_picture(tmp_path / wrong)
    with pytest.raises(InputError, match="is an input and would be overwritten"):
        check_picture(tmp_path / "photo.png", tmp_path / "photo.png")
    assert [p.name for p in tmp_path.iterdir()] == ["photo.png"]


def test_groups_have_their_colours():
    points0, points1 = np.array([[10.0, 20], [10, 80], [10, 50]]), np.array([[140.0, 20], [140, 80], [140, 50]])
    picture = draw_groups(GREY, GREY, points0, points1, [(np.array([0]), BLUE), (np.array([1]), RED)])
    # Lines between two rows of pixels are blended into both.
    difference = picture[..., 0].astype(int) - picture[..., 2]
    blue, red = (difference > 60).sum(1), (difference < -60).sum(1)
    assert blue[:300].sum() > 500 and blue[300:].sum() == 0
    assert red[400:].sum() > 500 and red[:400].sum() == 0


def test_pictures_in_rows():
    small = np.zeros((10, 20, 3), np.uint8)
    sheet = grid([GREY, small, GREY], columns=2)
    assert sheet.shape == (208, 308, 3)
    assert (sheet[:10, 158:178] == 0).all() and (sheet[10:100, 158:] == 255).all()
    assert grid([small], columns=5).shape == (10, 20, 3)
