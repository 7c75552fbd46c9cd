"""OpenCV's detectors: their own keypoints, and defined answers for photos that have none."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from ananet import InputError
from ananet.features import load_detector, match, opencv
from ananet.features.base import keypoints_for_size
from tests.photos import photo


@pytest.mark.parametrize("detector", ["sift", "orb"])
def test_detect_and_match_a_shifted_photo(detector):
    image = photo()
    shifted = np.roll(image, 5, axis=1)
    features0, features1 = load_detector(detector, max_keypoints=300).batch([image, shifted])
    assert 0 < len(features0) <= 300
    assert features0.image_size == (320, 240)
    matches = match(features0, features1)
    good = matches.mutual
    step = (matches.points1 - matches.points0)[good]
    assert np.median(np.abs(step - (5, 0)), axis=0).max() < 1
    assert matches.image_size0 == (320.0, 240.0)


def test_descriptors_have_unit_length_and_strongest_come_first():
    features = load_detector("sift", max_keypoints=50).detect(photo())
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    assert (np.diff(features.scores) <= 0).all()
    fewer = load_detector("sift", max_keypoints=20).detect(photo())
    np.testing.assert_allclose(fewer.points, features.points[:20])


def test_descriptors_of_sift_are_square_roots_of_l1_normalised_ones():
    grey = cv2.cvtColor(photo(), cv2.COLOR_BGR2GRAY)
    keypoints, histograms = cv2.SIFT_create(nfeatures=50, contrastThreshold=1e-5).detectAndCompute(grey, None)
    strongest = np.argsort([-keypoint.response for keypoint in keypoints], kind="stable")[:50]
    expected = [[math.sqrt(value / sum(row)) for value in row] for row in histograms[strongest].astype(float)]
    root = load_detector("sift", max_keypoints=50).detect(grey)
    plain = load_detector("sift@root=false", max_keypoints=50).detect(grey)
    np.testing.assert_allclose(root.descriptors, expected, atol=1e-6)
    expected = [[value / math.hypot(*row) for value in row] for row in histograms[strongest].astype(float)]
    np.testing.assert_allclose(plain.descriptors, expected, atol=1e-6)
    np.testing.assert_array_equal(plain.points, root.points)
    assert root.descriptors.dtype == plain.descriptors.dtype == np.float32


@pytest.mark.parametrize("name", ["sift", "sift@root=false"])
def test_a_zero_descriptor_stays_zero(name):
    assert load_detector(name).name == name
    np.testing.assert_array_equal(load_detector(name).describe(np.zeros((2, 128), np.float32)), 0)


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_a_larger_photo_has_more_keypoints(name):
    noise = cv2.resize(np.random.default_rng(0).integers(0, 256, (300, 300), np.uint8), (600, 600))
    detector = load_detector(name)
    assert len(detector.detect(noise)) == keypoints_for_size((600, 600)) == 4800
    assert len(detector.detect(noise[:400, :400])) == keypoints_for_size((400, 400)) == 3200
    assert len(load_detector(name, max_keypoints=900).detect(noise)) == 900


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_sizes_angles_and_scores_are_opencvs_own(name):
    grey = cv2.cvtColor(photo(), cv2.COLOR_BGR2GRAY)
    theirs = {
        "sift": lambda: cv2.SIFT_create(nfeatures=80, contrastThreshold=1e-5),
        "orb": lambda: cv2.ORB_create(nfeatures=80, fastThreshold=0),
    }[name]()
    keypoints, _ = theirs.detectAndCompute(grey, None)
    keypoints = sorted(keypoints, key=lambda keypoint: -keypoint.response)[:80]
    features = load_detector(name, max_keypoints=80).detect(grey)
    np.testing.assert_array_equal(features.scores, np.float32([k.response for k in keypoints]))
    np.testing.assert_array_equal(features.sizes, np.float32([k.size for k in keypoints]))
    np.testing.assert_allclose(features.angles, np.radians([k.angle for k in keypoints]), rtol=1e-6)
    np.testing.assert_array_equal(features.points, np.float32([k.pt for k in keypoints]))
    assert features.sizes.dtype == features.angles.dtype == features.scores.dtype == np.float32


def test_angles_go_from_the_x_axis_towards_the_y_axis():
    """A photo turned clockwise by a quarter, as its viewer sees it, turns its keypoints by as much."""
    image = photo(256, 256)
    turned = cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE)
    matches = match(*load_detector("sift", max_keypoints=200).batch([image, turned]))
    good = matches.mutual & (matches.ratio < 0.7)
    assert good.sum() > 50
    turn = (matches.angles1 - matches.angles0)[good]
    assert np.median(np.cos(turn - np.pi / 2)) > 0.99


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 50, 3), (50, 1), (2, 2, 3), (16, 16)])
@pytest.mark.parametrize("detector", ["sift", "orb"])
def test_tiny_and_flat_images_have_no_keypoints(shape, detector):
    loaded = load_detector(detector)
    flat = loaded.detect(np.zeros(shape, np.uint8))
    assert len(flat) == 0
    assert len(flat.sizes) == len(flat.angles) == len(flat.scores) == 0
    assert len(match(flat, flat)) == 0
    # One photo with features, one without.
    assert len(match(loaded.detect(photo()), flat)) == 0


def test_options_reach_opencv():
    few = load_detector("sift@contrast_threshold=0.2").detect(photo())
    assert 0 < len(few) < len(load_detector("sift").detect(photo()))
    flat = (photo() // 16 + 100).astype(np.uint8)
    assert len(load_detector("orb", fast_threshold=255).detect(flat)) < len(load_detector("orb").detect(flat))
    for wrong, message in (
        ("sift@contrast_threshold=0", "contrast_threshold: expected a positive number, got 0.0"),
        ("sift@contrast_threshold=low", "contrast_threshold: expected a number, got 'low'"),
        ("orb@fast_threshold=256", "fast_threshold: expected a whole number from 0 to 255, got 256"),
    ):
        with pytest.raises(InputError, match=message):
            load_detector(wrong)


def test_large_images_are_processed_one_at_a_time(monkeypatch):
    detector = load_detector("orb", max_keypoints=20)
    running, most = 0, 0

    class Slow:
        def detectAndCompute(self, image, mask):
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.05)
            running -= 1
            return cv2.ORB_create(20).detectAndCompute(image, mask)

    monkeypatch.setattr(type(detector), "create", lambda self, max_keypoints: Slow())
    for limit, expected in ((opencv.LARGE_IMAGE, 2), (1000, 1)):
        most = 0
        monkeypatch.setattr(opencv, "LARGE_IMAGE", limit)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(detector.detect, [photo()] * 4))
        assert most == expected


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_large_photos_can_be_scaled_down_first(name):
    grey = cv2.cvtColor(photo(), cv2.COLOR_BGR2GRAY)
    image = cv2.resize(grey, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    plain = load_detector(name, max_keypoints=300).detect(cv2.resize(image, (320, 240), interpolation=cv2.INTER_AREA))
    scaled = load_detector(f"{name}@longest_side=320", max_keypoints=300).detect(image)
    assert scaled.image_size == (640, 480)
    # The same keypoints, in pixels of the whole photo: its corner stays, half a pixel before the first pixel's centre.
    np.testing.assert_allclose(scaled.points, 2 * plain.points + 0.5, atol=1e-3)
    np.testing.assert_allclose(scaled.sizes, 2 * plain.sizes, rtol=1e-5)
    unchanged = load_detector(f"{name}@longest_side=5000", max_keypoints=300).detect(image)
    np.testing.assert_array_equal(unchanged.points, load_detector(name, max_keypoints=300).detect(image).points)
