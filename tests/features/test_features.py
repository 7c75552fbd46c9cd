import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ananet import InputError
from ananet.features import ROWS_AT_ONCE, detect, match, nearest_neighbours, read_image


def photo(width=320, height=240, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)


def literal_neighbours(a, b):
    distance = np.linalg.norm(a[:, None].astype(float) - b[None], axis=-1)
    index = distance.argmin(1)
    ordered = np.sort(distance, axis=1)
    ratio = ordered[:, 0] / ordered[:, 1]
    return index, ratio, distance.argmin(0)[index] == np.arange(len(a))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (7, 30), (ROWS_AT_ONCE + 3, 50), (50, 700)])
def test_neighbours_by_brute_force(n, m):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(n, 16)).astype(np.float32), rng.normal(size=(m, 16)).astype(np.float32)
    index, ratio, mutual = literal_neighbours(a, b)
    found = nearest_neighbours(a, b)
    np.testing.assert_array_equal(found.index, index)
    np.testing.assert_allclose(found.ratio, ratio, atol=1e-3)
    np.testing.assert_array_equal(found.mutual, mutual)


def test_neighbours_agree_with_opencv():
    rng = np.random.default_rng(0)
    a, b = rng.random((200, 128), np.float32), rng.random((300, 128), np.float32)
    pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(a, b, k=2)
    found = nearest_neighbours(a, b)
    assert found.index.tolist() == [first.trainIdx for first, _ in pairs]
    np.testing.assert_allclose(found.ratio, [f.distance / s.distance for f, s in pairs], atol=1e-4)


def test_binary_neighbours_agree_with_opencv():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (100, 32), np.uint8), rng.integers(0, 256, (150, 32), np.uint8)
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING).knnMatch(a, b, k=2)
    found = nearest_neighbours(a, b)
    assert found.index.tolist() == [first.trainIdx for first, _ in pairs]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 1000))
def test_mutual_matches_are_one_to_one_even_among_duplicates(n, m, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, (n, 3)).astype(np.float32), rng.integers(0, 2, (m, 3)).astype(np.float32)
    found = nearest_neighbours(a, b)
    targets = found.index[found.mutual]
    assert len(np.unique(targets)) == len(targets)
    assert ((found.ratio >= 0) & (found.ratio <= 1)).all()


def test_every_descriptor_is_its_own_mutual_neighbour():
    descriptors = detect(photo(), max_keypoints=200).descriptors
    descriptors = np.unique(descriptors, axis=0)
    found = nearest_neighbours(descriptors, descriptors)
    np.testing.assert_array_equal(found.index, np.arange(len(descriptors)))
    assert found.mutual.all()


def test_neighbours_at_the_edges():
    empty = np.zeros((0, 8), np.float32)
    some = np.ones((3, 8), np.float32)
    for a, b in ((empty, some), (some, empty), (empty, empty)):
        assert len(nearest_neighbours(a, b).index) == 0
    assert nearest_neighbours(some, some[:1]).ratio.tolist() == [1, 1, 1]
    assert nearest_neighbours(some, some).ratio.tolist() == [1, 1, 1]
    with pytest.raises(InputError, match="same kind and width"):
        nearest_neighbours(some, np.ones((3, 9), np.float32))
    with pytest.raises(InputError, match="same kind and width"):
        nearest_neighbours(some, np.ones((3, 1), np.uint8))
    with pytest.raises(InputError, match=r"descriptors0: expected an array of shape \(N, D\)"):
        nearest_neighbours(np.ones(3), some)
    with pytest.raises(InputError, match="descriptors1: expected finite"):
        nearest_neighbours(some, some * np.nan)


@pytest.mark.parametrize("detector", ["sift", "orb"])
def test_detect_and_match_a_shifted_photo(detector):
    image = photo()
    shifted = np.roll(image, 5, axis=1)
    features0, features1 = detect(image, detector, 300), detect(shifted, detector, 300)
    assert 0 < len(features0) <= 300
    assert features0.size == (320, 240)
    matches = match(features0, features1)
    good = matches.mutual.numpy()
    step = (matches.points1 - matches.points0).numpy()[good]
    assert np.median(np.abs(step - (5, 0)), axis=0).max() < 1
    assert matches.size0 == (320.0, 240.0)


def test_descriptors_have_unit_length_and_strongest_come_first():
    features = detect(photo(), max_keypoints=50)
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(detect(photo(), max_keypoints=20).points, features.points[:20])


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 50, 3), (50, 1), (2, 2, 3), (16, 16)])
@pytest.mark.parametrize("detector", ["sift", "orb"])
def test_tiny_and_flat_images_have_no_keypoints(shape, detector):
    flat = detect(np.zeros(shape, np.uint8), detector)
    assert len(flat) == 0
    assert len(match(flat, flat)) == 0
    # One photo with features, one without.
    assert len(match(detect(photo(), detector), flat)) == 0


def test_bad_images_are_named():
    with pytest.raises(InputError, match=r"image: expected a uint8 array .* got float64"):
        detect(np.zeros((5, 5)))
    with pytest.raises(InputError, match="image: expected a uint8 array .* got str"):
        detect("a.jpg")
    with pytest.raises(InputError, match="detector: expected one of sift, orb, got 'surf'"):
        detect(photo(), "surf")
    for wrong in (np.zeros((5, 5, 2), np.uint8), np.zeros((0, 5), np.uint8)):
        with pytest.raises(InputError, match="image: expected a uint8 array"):
            detect(wrong)
    for wrong in (0, 10.5, "5"):
        with pytest.raises(InputError, match="max_keypoints: expected a whole number"):
            detect(photo(), max_keypoints=wrong)


def test_reading_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(InputError, match="got a directory"):
        read_image(tmp_path)
    for name, content in (("empty.jpg", b""), ("text.jpg", b"hello")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="not an image"):
            read_image(tmp_path / name)


def test_exif_orientation_is_applied(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    exif = pillow.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    pillow.fromarray(photo(64, 32)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape[:2] == (64, 32)
