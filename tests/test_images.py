import os

import cv2
import numpy as np
import pytest

from ananet import InputError
from ananet.cameras import calibrate
from ananet.images import read_image, resize
from tests.photos import photo


def test_reading_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(InputError, match="got a directory"):
        read_image(tmp_path)
    for name, content in (("empty.jpg", b""), ("text.jpg", b"hello")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="not an image"):
            read_image(tmp_path / name)


def test_pixels_come_back_as_written(tmp_path):
    image = photo(64, 32)
    cv2.imwrite(str(tmp_path / "a.png"), image)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), image)
    np.testing.assert_array_equal(read_image(str(tmp_path / "a.png")), image)
    cv2.imwrite(str(tmp_path / "grey.png"), image[..., 0])
    assert read_image(tmp_path / "grey.png").shape == (32, 64, 3)
    os.rename(tmp_path / "a.png", tmp_path / "Foto größer 写真.png")
    np.testing.assert_array_equal(read_image(tmp_path / "Foto größer 写真.png"), image)


def test_an_image_larger_than_opencv_allows(tmp_path):
    # A header alone: 60000 x 60000 pixels.
    (tmp_path / "huge.pgm").write_bytes(b"P5 60000 60000 255\n")
    with pytest.raises(InputError, match=r"huge.pgm: (OpenCV does not read this image|not an image)"):
        read_image(tmp_path / "huge.pgm")


def test_exif_orientation_is_applied(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    exif = pillow.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    pillow.fromarray(photo(64, 32)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape[:2] == (64, 32)
    stored = read_image(tmp_path / "turned.jpg", upright=False)
    assert stored.shape[:2] == (32, 64)
    np.testing.assert_array_equal(np.rot90(stored, -1), read_image(tmp_path / "turned.jpg"))


@pytest.mark.parametrize("scale", [0.5, 0.37, 1.0, 2.0])
def test_resizing_says_where_pixels_went(scale):
    image = np.zeros((120, 160, 3), np.uint8)
    cv2.circle(image, (100, 40), 12, (255, 255, 255), -1)
    resized, S = resize(image, scale)
    assert resized.shape == (round(120 * scale), round(160 * scale), 3)
    weight = resized[..., 0].astype(float)
    y, x = np.mgrid[: resized.shape[0], : resized.shape[1]]
    centre = np.array([(x * weight).sum(), (y * weight).sum()]) / weight.sum()
    np.testing.assert_allclose(centre, (S @ [100, 40, 1])[:2], atol=0.1)


def test_rays_stay_where_they_are():
    K = np.array([[200.0, 0, 80], [0, 200, 60], [0, 0, 1]])
    _, S = resize(photo(160, 120), 0.5)
    pixel = np.array([[30.0, 50.0]])
    moved = (S @ [*pixel[0], 1])[None, :2]
    np.testing.assert_allclose(calibrate(moved, S @ K), calibrate(pixel, K))


def test_nothing_is_resized_away():
    assert resize(photo(64, 8), 0.01)[0].shape == (1, 1, 3)
    assert resize(photo(64, 8)[..., 0], 0.5)[0].shape == (4, 32)
