import time

import cv2
import numpy as np
import pytest

from ananet import InputError
from ananet.io.images import check_picture, save_picture
from ananet.twoview.drawing import (
    BLUE,
    GREEN,
    MOTION_COLOURS,
    RED,
    draw_groups,
    draw_kinds,
    draw_matches,
    draw_motions,
    draw_right_wrong,
    grid,
    make_panel,
    stack,
)

GREY = np.full((100, 150, 3), 128, np.uint8)


ROWS, RIGHT = np.array([[10.0, 20], [10, 50], [10, 80]]), np.array([120.0, 0])


def coloured(picture):
    """[H] pixels of each row that are clearly neither grey nor red, and those that are red."""
    spread = picture.astype(int).max(-1) - picture.min(-1)
    red = (picture[..., 2].astype(int) - picture[..., :2].max(-1)) > 20
    return ((spread > 40) & ~red).sum(1), red.sum(1)


def test_all_kept_matches_are_drawn_and_removed_ones_only_on_request():
    points = np.tile(ROWS, (500, 1)) + np.random.default_rng(0).uniform(0, 5, (1500, 2))
    mask = np.tile([True, True, False], 500)
    picture = draw_matches(GREY, GREY, points, points + RIGHT, mask, "caption")
    seen, _ = coloured(picture)
    assert seen[100:200].sum() > 5000 and seen[300:400].sum() > 5000 and seen[500:600].sum() == 0
    _, red = coloured(draw_matches(GREY, GREY, points, points + RIGHT, mask, show_removed=True))
    assert red[500:600].sum() > 5000


def test_matches_can_be_told_apart_and_inliers_are_stronger():
    x = np.linspace(5, 90, 5)
    points = np.column_stack([x, np.full(5, 50.0)])
    both = draw_matches(GREY, GREY, points, points, np.ones(5, bool))
    at = [tuple(both[round(50.5 * 6.4 - 0.5), round((one + 0.5) * 6.4 - 0.5)]) for one in x]
    assert len(set(at)) == 5
    none, every = (
        draw_matches(GREY, GREY, ROWS, ROWS + RIGHT, np.ones(3, bool), inliers=np.full(3, inlier))
        for inlier in (False, True)
    )
    drawn = [(np.abs(picture[:640, 100:900].astype(int) - 128).sum(-1) > 120).sum() for picture in (none, every)]
    assert drawn[1] > 1.3 * drawn[0]


def test_the_legend_wraps_in_narrow_pictures():
    strip = np.full((900, 100, 3), 128, np.uint8)
    points = np.zeros((3, 2))
    wide = draw_matches(GREY, GREY, points, points, np.ones(3, bool), "kept by a pruner", inliers=np.ones(3, bool))
    narrow = draw_matches(strip, strip, points, points, np.ones(3, bool), "kept by a pruner", inliers=np.ones(3, bool))
    assert wide.shape[0] == 640 + 36 and narrow.shape[0] == 640 + 36 + 2 * 28


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


@pytest.mark.parametrize("shape", [(40, 9000), (9000, 40), (1, 30000)])
def test_strips_make_bounded_pictures(shape):
    strip = np.full((*shape, 3), 128, np.uint8)
    ends = np.array([[0.0, 0.0], [shape[1] - 1, shape[0] - 1]])
    start = time.thread_time()
    picture = draw_matches(strip, strip, ends, ends, np.array([True, False]))
    assert time.thread_time() - start < 2
    assert picture.shape[0] <= 640 + 36 and picture.shape[1] <= 2 * 4096 + 8
    # Both keep their shape.
    panel = make_panel(strip).pixels
    assert panel.shape[:2] == tuple(max(1, round(side * min(640 / shape[0], 4096 / shape[1]))) for side in shape)


def test_a_strip_beside_a_photo():
    picture = draw_matches(
        np.zeros((40, 9000, 3), np.uint8), GREY, np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, bool)
    )
    assert picture.shape == (640 + 36, 4096 + 8 + 960, 3)
    assert (picture[:18, :4096] == 0).all() and (picture[18:640, :4096] == 255).all()
    assert (picture[:640, 4104:] == 128).all()


def test_ordinary_photos_keep_their_size():
    points = np.array([[75.0, 50.0]])
    picture = draw_matches(GREY, GREY, points, points, np.array([True]))
    assert picture.shape == (640 + 36, 2 * 960 + 8, 3)
    panel = make_panel(GREY)
    np.testing.assert_array_equal(draw_matches(panel, panel, points, points, np.array([True])), picture)


def test_strong_groups_catch_the_eye():
    points0, points1 = np.array([[10.0, 50], [10, 50]]), np.array([[140.0, 50], [140, 50]])
    one = (np.array([0]), GREEN)
    plain = draw_groups(GREY, GREY, points0, points1, [one])
    strong = draw_groups(GREY, GREY, points0, points1, [(np.array([1]), RED)], strong=[one])

    def green(picture):
        return int((np.abs(picture.astype(int) - GREEN).sum(-1) < 30).sum())

    assert green(strong) > 3 * green(plain)


def test_motions_have_colours_of_their_own():
    points0 = np.column_stack([np.full(9, 10.0), np.arange(9) * 10.0 + 8])
    labels = np.array([0, 1, 2, 3, 4, 5, 6, 7, -1])
    picture = draw_motions(GREY, GREY, points0, points0 + np.array([120, 0]), labels, "eight motions")
    assert picture.shape == (640 + 36, 2 * 960 + 8, 3)

    def shows(colour):
        return bool((np.abs(picture.astype(int) - colour).sum(-1) < 12).any())

    assert all(shows(colour) for colour in MOTION_COLOURS)
    nothing = draw_motions(GREY, GREY, points0, points0, np.full(9, -1))
    assert not (np.abs(nothing.astype(int) - MOTION_COLOURS[0]).sum(-1) < 12).any()


def test_many_moving_matches():
    points = np.random.default_rng(0).uniform(0, 90, (900, 2))
    few = draw_motions(GREY, GREY, points, points, np.zeros(900, int), "many")
    assert few.shape == (640 + 36, 2 * 960 + 8, 3)


def test_right_and_wrong_matches_are_equally_strong():
    points = np.tile(np.linspace(5, 75, 40)[:, None], 2)
    picture = draw_right_wrong(GREY, GREY, points, points, np.arange(40) < 30)
    for colour in (GREEN, RED):
        assert (picture[:640] == colour).all(axis=-1).any(), "in full colour"


def test_matches_of_several_kinds():
    points = np.tile(np.linspace(5, 75, 40)[:, None], 2)
    kinds = {name: (colour, np.arange(40) // 20 == n) for n, (name, colour) in enumerate((("a", GREEN), ("b", RED)))}
    picture = draw_kinds(GREY, GREY, points, points, kinds, np.arange(20))
    assert (picture[:640] == GREEN).all(axis=-1).any() and not (picture[:640] == RED).all(axis=-1).any()
    assert (picture[640:] == RED).all(axis=-1).any(), "the legend has all kinds"
