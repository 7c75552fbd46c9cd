"""What every detector has in common."""

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.features import Features, ImageDetector, load_detector
from tests.photos import photo


def test_bad_images_are_named():
    detector = load_detector("sift")
    with pytest.raises(InputError, match=r"image: expected a uint8 array .* got float64"):
        detector.detect(np.zeros((5, 5)))
    with pytest.raises(InputError, match="image: expected a uint8 array .* got str"):
        detector.detect("a.jpg")
    for wrong in (np.zeros((5, 5, 2), np.uint8), np.zeros((0, 5), np.uint8)):
        with pytest.raises(InputError, match="image: expected a uint8 array"):
            detector.detect(wrong)
    with pytest.raises(InputError, match="image: expected a uint8 array"):
        detector.batch([photo(), None])


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_the_number_of_keypoints_is_checked(name):
    for wrong in (0, 10.5, "5", True, 99999999999):
        with pytest.raises(InputError, match="max_keypoints: expected a whole number"):
            load_detector(name, max_keypoints=wrong)
    assert load_detector(name, max_keypoints=np.int64(5)).max_keypoints == 5


def test_many_images_at_once_are_as_one_by_one():
    detector = load_detector("sift", max_keypoints=60)
    images = [photo(), photo(160, 200, seed=1), np.zeros((9, 9), np.uint8)]
    for together, image in zip(detector.batch(images), images, strict=True):
        alone = detector.detect(image)
        np.testing.assert_array_equal(together.points, alone.points)
        np.testing.assert_array_equal(together.descriptors, alone.descriptors)
        assert together.image_size == alone.image_size == (image.shape[1], image.shape[0])
    assert detector.batch([]) == []


def test_some_of_the_features():
    features = load_detector("sift", max_keypoints=30).detect(photo())
    order = np.array([4, 1, 7])
    for which in (slice(3, 9), order, np.arange(len(features)) % 2 == 0):
        picked = features[which]
        for name in ("points", "descriptors", "sizes", "angles", "scores"):
            np.testing.assert_array_equal(getattr(picked, name), getattr(features, name)[which])
        assert picked.image_size == features.image_size and len(picked) == len(features.points[which])
    bare = Features(features.points, features.descriptors, (320, 240))[order]
    assert len(bare) == 3 and bare.sizes is None and bare.scores is None


def test_a_detector_of_ones_own_says_its_name():
    class Nothing(ImageDetector):
        name = "nothing"

        def extract(self, image):
            none = np.zeros((0, 2), np.float32)
            return Features(none, none, image.shape[1::-1])

    assert repr(Nothing()) == "<detector nothing>"
    assert len(Nothing().detect(photo())) == 0


def test_features_of_tensors():
    points, descriptors = torch.rand(4, 2, dtype=torch.float64, requires_grad=True), torch.rand(4, 8).bfloat16()
    features = Features(points, descriptors, (10, 10), scores=torch.arange(4))
    assert features.points.dtype == features.descriptors.dtype == features.scores.dtype == np.float32
    np.testing.assert_array_equal(features.descriptors, descriptors.float().numpy())
    assert Features(points, torch.zeros(4, 8, dtype=torch.uint8), (10, 10)).descriptors.dtype == np.uint8


def test_features_that_do_not_belong_together_are_told():
    points, descriptors = np.zeros((4, 2)), np.zeros((4, 8), np.float32)
    for arguments, message in (
        ((points, descriptors[:3]), r"descriptors: expected shape \(4, D\), got \(3, 8\)"),
        ((points[:, :1], descriptors), r"points: expected shape \(4, 2\), got \(4, 1\)"),
        (([[1, 2]], descriptors), "points: expected an array or a tensor, got list"),
        ((points, np.zeros((4, 8), complex)), "descriptors: expected real numbers, got complex128"),
    ):
        with pytest.raises(InputError, match=message):
            Features(*arguments, (10, 10))
    with pytest.raises(InputError, match=r"scores: expected shape \(4,\), got \(3,\)"):
        Features(points, descriptors, (10, 10), scores=np.zeros(3))


def test_a_file_makes_no_difference_to_a_detector(tmp_path):
    detector = load_detector("sift", max_keypoints=20)
    np.testing.assert_array_equal(detector.detect(photo(), tmp_path).points, detector.detect(photo()).points)
