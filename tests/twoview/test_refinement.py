"""Subpixel refinement: known motions of a real photo are recovered, and odd input has a defined answer."""

import cv2
import numpy as np
import pytest
import torch

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.features import load_detector
from ananet.twoview.refinement import refine

# How far detectors are off, in pixels.
NOISE = 0.5
# Points of a photo whose patches lie within it.
MARGIN = 30


def moved(photo: np.ndarray, degrees: float, scale: float, shift: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """The photo turned, scaled and shifted around its middle, darker than it was, and the map [2 x 3] that did it."""
    height, width = photo.shape
    angle, middle = np.radians(degrees), np.array([(width - 1) / 2, (height - 1) / 2])
    linear = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    motion = np.c_[linear, middle - linear @ middle + shift]
    source = photo.astype(np.float32)
    if scale < 1:
        source = cv2.GaussianBlur(source, (0, 0), 0.5 / scale)
    warped = cv2.warpAffine(source, motion, (width, height), flags=cv2.INTER_LANCZOS4)
    return np.clip(0.7 * warped + 20, 0, 255).round().astype(np.uint8), motion


def noisy_matches(photo: np.ndarray, motion: np.ndarray, oriented: bool = True) -> tuple[Correspondences, np.ndarray]:
    """Keypoints matched with where they went, almost; and where they really went."""
    features = load_detector("sift", max_keypoints=400).detect(photo)
    true = features.points @ motion[:, :2].T + motion[:, 2]
    last = np.array(photo.shape[::-1]) - 1 - MARGIN
    inside = ((features.points > MARGIN) & (features.points < last) & (true > MARGIN) & (true < last)).all(axis=1)
    features, true = features[inside], true[inside]
    random = np.random.default_rng(0)
    (a, _), (c, _) = motion[:, :2]
    given = {
        "keypoint_sizes0": features.sizes,
        "keypoint_sizes1": features.sizes * np.hypot(a, c) * np.exp(random.normal(0, 0.1, len(true))),
        "angles0": features.angles,
        "angles1": (features.angles + np.arctan2(c, a) + random.normal(0, 0.1, len(true))) % (2 * np.pi),
    }
    points1 = true + random.normal(0, NOISE, true.shape)
    return Correspondences(features.points.astype(float), points1, **(given if oriented else {})), true


@pytest.mark.parametrize("oriented", [True, False], ids=["keypoints", "local motion"])
@pytest.mark.parametrize(
    ("degrees", "scale", "shift", "within"),
    [(0, 1, (0, 0), 0.01), (0, 1, (7.3, -4.6), 0.06), (30, 1, (0.4, 0), 0.04), (-100, 1, (0, 9.5), 0.05),
     (10, 0.6, (3, 2), 0.08), (-60, 1.7, (0, 0), 0.12)],
)  # fmt: skip
def test_known_motions_are_recovered(photo, degrees, scale, shift, within, oriented):
    other, motion = moved(photo, degrees, scale, shift)
    matches, true = noisy_matches(photo, motion, oriented)
    found = refine(photo, other, matches, device="cpu")
    error = np.linalg.norm(found.matches.points1 - true, axis=1)
    assert found.aligned.mean() > 0.95
    assert np.median(error) < within * max(scale, 1)
    assert np.median(found.correlation) > 0.95
    assert np.array_equal(found.matches.points0, matches.points0) and found.matches.points1.dtype == np.float64


def test_colour_photos_and_tensors(photo):
    other, motion = moved(photo, 5, 1, (2.5, 0))
    matches, _ = noisy_matches(photo, motion)
    tensors = matches.to("cpu")
    grey = refine(photo, other, matches, device="cpu")
    colour = refine(cv2.merge([photo] * 3), cv2.merge([other] * 3), tensors, device="cpu")
    assert isinstance(grey.correlation, np.ndarray) and isinstance(grey.aligned, np.ndarray)
    assert isinstance(colour.correlation, torch.Tensor) and isinstance(colour.aligned, torch.Tensor)
    assert np.allclose(grey.matches.points1, colour.matches.points1, atol=1e-3)
    assert repr(grey) == f"Refined({grey.aligned.sum()} of {len(matches)} matches aligned)"


def test_correlation_tells_right_matches_from_wrong_ones(photo):
    other, motion = moved(photo, 0, 1, (3.5, 1))
    matches, _ = noisy_matches(photo, motion)
    wrong = matches.replace(points1=np.roll(matches.points1, 7, axis=0))
    right_ones, wrong_ones = (refine(photo, other, some, device="cpu").correlation for some in (matches, wrong))
    assert np.percentile(right_ones, 10) > np.percentile(wrong_ones, 90)


def test_matches_do_not_depend_on_each_other(photo):
    other, motion = moved(photo, 20, 1, (0, 0))
    matches, _ = noisy_matches(photo, motion)
    together = refine(photo, other, matches, device="cpu")
    alone = refine(photo, other, matches[3:4], device="cpu")
    assert np.allclose(together.matches.points1[3:4], alone.matches.points1, atol=1e-2)


def test_no_matches(photo):
    found = refine(photo, photo, Correspondences([], []), device="cpu")
    assert len(found.matches) == len(found.correlation) == len(found.aligned) == 0
    assert found.correlation.dtype == np.float32 and found.aligned.dtype == bool


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_identical_points(photo, count):
    points = np.full((count, 2), [300.0, 200.0])
    found = refine(photo, photo, Correspondences(points, points + 0.4), device="cpu")
    assert found.aligned.all() and np.allclose(found.matches.points1, points, atol=0.05)


def test_what_cannot_be_compared_stays(photo):
    height, width = photo.shape
    points = np.array([[3, 200], [width - 2, 100], [-50, 90], [1e30, 100], [300, 1e8], [300, height - 3]], float)
    given = {"keypoint_sizes0": [4, 4, 4, 4, 1e30, 400], "keypoint_sizes1": [4, 4, 4, 4, 1e-30, 400]}
    angles = np.zeros(len(points))
    for options in ({}, {**given, "angles0": angles, "angles1": angles}):
        found = refine(photo, photo, Correspondences(points, points, **options), device="cpu")
        assert not found.aligned.any() and (found.correlation == 0).all()
        assert np.array_equal(found.matches.points1, points)


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (20, 20), (33, 64)])
def test_tiny_photos(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found = refine(image, image, Correspondences([[0.0, 0.0], [5, 5]], [[0.0, 0.0], [5, 5]]), device="cpu")
    assert not found.aligned.any()


def test_flat_patches_stay():
    flat, points = np.full((100, 120), 77, np.uint8), [[50.0, 50.0], [60, 40]]
    edge = flat.copy()
    edge[:, 55:] = 200
    for first, second in ((flat, flat), (flat, edge), (edge, flat)):
        found = refine(first, second, Correspondences(points, points), device="cpu")
        assert not found.aligned.any() and (found.correlation == 0).all()
        assert found.matches.points1.tolist() == points


def test_a_straight_edge_does_not_run_away():
    edge = cv2.GaussianBlur(np.where(np.arange(200) < 100, 50, 200).astype(np.uint8)[None].repeat(150, 0), (0, 0), 2)
    found = refine(edge, edge, Correspondences([[100.0, 70.0]], [[100.6, 70.0]]), device="cpu")
    x, y = found.matches.points1[0].tolist()
    assert abs(x - 100) < 0.05 and abs(y - 70) < 0.05


def test_wrong_input_is_named(photo):
    matches = Correspondences([[50.0, 50.0]], [[50.0, 50.0]], image_size0=(741, 500), image_size1=(741, 500))
    with pytest.raises(InputError, match="matches: expected Correspondences, got ndarray"):
        refine(photo, photo, np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"image1: expected a uint8 array .* got float64"):
        refine(photo, photo / 255, matches)
    with pytest.raises(InputError, match="image0: expected a uint8 array .* got str"):
        refine("photo.jpg", photo, matches)
    with pytest.raises(InputError, match="image1: expected the photo .* 741 x 500 pixels, got 600 x 500"):
        refine(photo, photo[:, :600], matches)
    with pytest.raises(InputError, match="device"):
        refine(photo, photo, matches, device="nonsense")
