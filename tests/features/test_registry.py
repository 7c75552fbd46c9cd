"""Detectors by name."""

import pytest

from ananet import InputError
from ananet.features import DETECTORS, load_detector, load_matcher
from ananet.features.opencv import ORB, SIFT


def test_names_and_options():
    assert DETECTORS.names == ["sift", "orb", "aliked", "disk", "xfeat", "superpoint", "stored"]
    assert isinstance(load_detector(), SIFT) and isinstance(load_detector("orb"), ORB)
    given = load_detector("sift@contrast_threshold=0.01", max_keypoints=500, device="cpu")
    assert (given.contrast_threshold, given.max_keypoints) == (0.01, 500)
    assert given.name == "sift@contrast_threshold=0.01@max_keypoints=500"
    # None leaves a number that came with the name.
    assert load_detector("sift@max_keypoints=500", max_keypoints=None).max_keypoints == 500
    assert load_detector().max_keypoints is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("surf", "detector: expected one of sift, orb, aliked, disk, xfeat, superpoint, stored, got 'surf'"),
        (None, "detector: expected a name, got None"),
        ("sift@colour=1", "unknown option colour of detector 'sift': it has max_keypoints, contrast_threshold"),
        ("sift@max_keypoints", "detector: expected an option as name=value after '@', got 'max_keypoints'"),
        ("sift@max_keypoints=many", "max_keypoints: expected a whole number, got 'many'"),
    ],
)
def test_wrong_names_and_options_are_told(wrong, message):
    with pytest.raises(InputError, match=message):
        load_detector(wrong)


def test_the_device_is_checked():
    with pytest.raises(InputError, match="device: expected"):
        load_detector("sift", device="toaster")


@pytest.mark.parametrize("detector", [None, 3])
def test_a_matcher_is_told_the_detectors_name(detector):
    with pytest.raises(InputError, match=f"detector: expected a name, got {detector}"):
        load_matcher(detector=detector)
