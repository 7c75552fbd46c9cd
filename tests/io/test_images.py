import os
import struct
import sys
import zlib
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from ananet import InputError
from ananet.core.cameras import calibrate
from ananet.io.images import as_photo, exif_focal, image_size, read_image, resize
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


def test_a_small_file_that_claims_many_pixels(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1_500_000)))
    path = tmp_path / "huge.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))
    assert path.stat().st_size < 2000
    with pytest.raises(InputError, match=r"huge.png: (OpenCV does not read this image|not an image)"):
        read_image(path)


def test_a_photo_larger_than_the_memory(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    cv2.imwrite(str(tmp_path / "a.png"), photo(64, 32))
    monkeypatch.setattr(cv2, "imdecode", fail)
    with pytest.raises(InputError, match=r"a.png: OpenCV does not read this image \(out of memory\)"):
        read_image(tmp_path / "a.png")


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    Image.fromarray(photo(64, 32)).save(tmp_path / "turned.jpg", exif=exif)
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


FOCAL_35, FOCAL, RESOLUTION, UNIT, PIXELS_X = 0xA405, 0x920A, 0xA20E, 0xA210, 0xA002


def write_exif(path, tags, size=(64, 32), order="<", orientation=1, as_fractions=True, image=None):
    exif = Image.Exif()
    exif.endian = order
    exif[0x0112] = orientation
    # Cameras write fractions; left to itself, Pillow writes floats.
    for tag, value in tags.items():
        fraction = as_fractions and isinstance(value, float)
        exif.get_ifd(0x8769)[tag] = IFDRational(round(10 * value), 10) if fraction else value
    Image.fromarray(photo(*size) if image is None else image).save(path, exif=exif)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("size", [(64, 32), (32, 64)])
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({FOCAL_35: 27}, 64 * 27 / 36),
        ({FOCAL_35: 27, FOCAL: 4.0, RESOLUTION: 100.0}, 64 * 27 / 36),
        # 5 mm at 254 pixels an inch, in a photo of 64 pixels: 50 pixels.
        ({FOCAL_35: 0, FOCAL: 5.0, RESOLUTION: 254.0, UNIT: 2}, 50.0),
        ({FOCAL: 5.0, RESOLUTION: 254.0}, 50.0),
        ({FOCAL: 5.0, RESOLUTION: 100.0, UNIT: 3}, 50.0),
        # Resized to half.
        ({FOCAL: 5.0, RESOLUTION: 200.0, UNIT: 3, PIXELS_X: 128}, 50.0),
        ({FOCAL: 5.0}, None),
        ({RESOLUTION: 254.0}, None),
        ({FOCAL: 5.0, RESOLUTION: 254.0, UNIT: 9}, None),
        ({FOCAL: 5.0, RESOLUTION: 0.0}, None),
        ({FOCAL_35: 60000}, None),
        ({}, None),
    ],
)
def test_focal_length_of_exif(tmp_path, tags, expected, size, order):
    path = write_exif(tmp_path / "a.jpg", tags, size, order)
    assert exif_focal(path) == (None if expected is None else pytest.approx(expected))
    path = write_exif(tmp_path / "a.jpg", tags, size, order, as_fractions=False)
    assert exif_focal(path) == (None if expected is None else pytest.approx(expected))


def test_focal_length_of_a_turned_photo(tmp_path):
    path = write_exif(tmp_path / "a.jpg", {FOCAL_35: 36}, orientation=6)
    assert max(read_image(path).shape) == exif_focal(path) == 64


def test_files_without_exif_have_no_focal_length(tmp_path):
    cv2.imwrite(str(tmp_path / "a.jpg"), photo(64, 32))
    cv2.imwrite(str(tmp_path / "a.png"), photo(64, 32))
    (tmp_path / "empty.jpg").write_bytes(b"")
    for name in ("a.jpg", "a.png", "empty.jpg", "none.jpg", "."):
        assert exif_focal(tmp_path / name) is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_broken_exif_is_no_exif(tmp_path, order):
    whole = write_exif(tmp_path / "a.jpg", {FOCAL: 5.0, RESOLUTION: 254.0}, order=order).read_bytes()
    scan = whole.index(b"\xff\xda")
    head = whole[: scan + 2 + int.from_bytes(whole[scan + 2 : scan + 4], "big")]
    path = tmp_path / "broken.jpg"
    path.write_bytes(head)
    assert exif_focal(path) == pytest.approx(50)
    frame = whole.index(b"\xff\xc0")
    for end in range(0, frame, 2):
        path.write_bytes(head[:end])
        assert exif_focal(path) is None
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(head)
        for place in rng.integers(2, len(head), 4):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        focal = exif_focal(path)
        assert focal is None or 0 < focal < np.inf


@pytest.mark.parametrize("orientation", [1, 6])
def test_large_photos_are_decoded_reduced(tmp_path, orientation):
    image = cv2.resize(photo(640, 480), (1290, 967), interpolation=cv2.INTER_CUBIC)
    write_exif(tmp_path / "a.jpg", {FOCAL_35: 36}, orientation=orientation, image=image)
    for side in (2000, 700, 640, 300, 200, 100):
        found = as_photo(tmp_path / "a.jpg", longest_side=side)
        assert found.size == ((1290, 967) if orientation == 1 else (967, 1290)) and found.exif_focal == 1290
        assert max(found.pixels.shape) == min(side, 1290)
        whole = cv2.resize(read_image(tmp_path / "a.jpg"), found.pixels.shape[1::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(found.pixels.astype(int) - whole).mean() < 3


def test_only_a_fraction_of_a_large_jpeg_is_decoded(tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "a.jpg"), photo(1600, 800))
    flags = []
    decode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda data, flag: flags.append(flag) or decode(data, flag))
    for side in (None, 1600, 800, 399, 150):
        as_photo(tmp_path / "a.jpg", longest_side=side)
    names = ("REDUCED_COLOR_2", "REDUCED_COLOR_4", "REDUCED_COLOR_8")
    reduced = [getattr(cv2, f"IMREAD_{name}") | cv2.IMREAD_IGNORE_ORIENTATION for name in names]
    assert flags == [cv2.IMREAD_COLOR, cv2.IMREAD_COLOR, *reduced]


def test_too_many_pixels_for_a_format_that_cannot_be_reduced(tmp_path, monkeypatch):
    monkeypatch.setattr("ananet.io.images.MAX_PIXELS", 1000)
    cv2.imwrite(str(tmp_path / "a.png"), photo(64, 32))
    with pytest.raises(InputError, match=r"a.png: expected JPEG or at most 1,000 pixels, got 64 x 32; convert it"):
        as_photo(tmp_path / "a.png", longest_side=1600)


@pytest.mark.parametrize("kind", [".jpg", ".png", ".webp", ".tiff"])
def test_sizes_from_headers(tmp_path, kind):
    data = cv2.imencode(kind, photo(64, 32))[1].tobytes()
    (tmp_path / "a").write_bytes(data)
    assert image_size(data) == image_size(tmp_path / "a") == (64, 32)
    assert image_size(data[:9]) is None and image_size(b"") is None and image_size(tmp_path / "none") is None


def test_arrays_of_every_kind():
    image = photo(64, 32)
    grey = image[..., 0]
    same = {
        "uint16": image.astype(np.uint16) * 257,
        "double": image / 255,
        "half": (image / 255).astype(np.float16),
        "alpha": np.dstack([image, grey]),
        "pillow": Image.fromarray(image[..., ::-1].copy()),
        "tensor": torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1),
        "floats": torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1).double() / 255,
    }
    for name, given in same.items():
        found = as_photo(given)
        assert found.pixels.flags.c_contiguous and found.size == (64, 32)
        assert np.abs(found.pixels.astype(int) - image).max() <= (name == "half"), name
    for given in (grey, grey[..., None], torch.from_numpy(grey)[None], Image.fromarray(grey)):
        np.testing.assert_array_equal(as_photo(given).pixels, np.dstack([grey] * 3))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    np.testing.assert_array_equal(as_photo(deep).pixels, np.dstack([grey] * 3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "left: expected a file path, a numpy array, a PIL image or a torch tensor, got NoneType"),
        ([[1, 2]], "left: expected a file path, .* got list"),
        (np.zeros(5), r"left: expected an array of shape \(H, W\), .* got \(5,\)"),
        (np.zeros((4, 0, 3)), "left: expected an array of shape"),
        (np.zeros((3, 20, 30), np.uint8), r"left: expected an array of shape .* got \(3, 20, 30\)"),
        (np.full((8, 8), 200.0), "left: expected floats in 0..1 or uint8, got float64 from 200 to 200"),
        (np.full((8, 8), np.nan), "left: expected floats in 0..1"),
        (np.zeros((8, 8), int), "left: expected uint8, uint16 or floats in 0..1, got int64"),
        (
            torch.zeros(20, 30, 3),
            r"left: expected a tensor of shape \(C, H, W\) .* got \(20, 30, 3\)",
        ),
        (torch.zeros(1, 3, 20, 30), r"left: expected a tensor of shape \(C, H, W\)"),
    ],
)
def test_wrong_arrays(given, message):
    with pytest.raises(InputError, match=message):
        as_photo(given, name="left")


def test_heic_needs_its_package(tmp_path, monkeypatch):
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(InputError, match=r"a.heic: HEIC photos need the package pillow-heif .* or convert"):
        as_photo(tmp_path / "a.heic")
    assert exif_focal(tmp_path / "a.heic") is None
    opened = SimpleNamespace(register_heif_opener=lambda: None)
    monkeypatch.setitem(sys.modules, "pillow_heif", opened)
    with pytest.raises(InputError, match=r"a.heic: not a HEIC photo that pillow-heif can read"):
        as_photo(tmp_path / "a.heic")
    monkeypatch.setattr(Image, "open", lambda _: Image.fromarray(photo(64, 32)[..., ::-1].copy()))
    np.testing.assert_array_equal(as_photo(tmp_path / "a.heic").pixels, photo(64, 32))
