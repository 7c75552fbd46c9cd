"""kornia's detectors give here what they give there."""

import numpy as np
import pytest
import torch

from ananet import InputError, MissingExtraError
from ananet.features import load_detector
from tests.features.learned_detectors import random_detector
from tests.photos import photo

pytest.importorskip("kornia")


def as_kornia(image):
    return torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)[None].float() / 255


def by_score(points, descriptors, scores):
    order = scores.argsort(descending=True, stable=True)
    return points[order].numpy(), descriptors[order].numpy()


@pytest.mark.parametrize("name", ["aliked", "disk", "xfeat"])
def test_as_kornia_on_an_image_of_whole_cells(name, tmp_path):
    detector = random_detector(name, tmp_path, max_keypoints=100)
    image = photo(160, 128)
    with torch.inference_mode():
        if name == "xfeat":
            theirs = detector.network.detectAndCompute(as_kornia(image), top_k=100)[0]
            points, descriptors = by_score(theirs["keypoints"], theirs["descriptors"], theirs["scores"])
        else:
            more = {"n": 100} if name == "disk" else {}
            theirs = detector.network(as_kornia(image), **more)[0]
            scores = theirs.detection_scores if name == "disk" else theirs.keypoint_scores
            points, descriptors = by_score(theirs.keypoints, theirs.descriptors, scores)
    ours = detector.detect(image)
    np.testing.assert_array_equal(ours.points, points)
    np.testing.assert_allclose(ours.descriptors, descriptors, atol=1e-6)


def test_options(tmp_path):
    image = photo(160, 128)
    for name, threshold in (("aliked", 1.0), ("disk", 1e9), ("xfeat", 0.9)):
        every = random_detector(name, tmp_path).detect(image)
        # ALIKED takes those above the mean where none is above the threshold.
        assert len(random_detector(name, tmp_path, threshold=threshold).detect(image)) < len(every)
    for wrong, message in (
        ("aliked@model=n8", "model: expected one of n16, n32, n16rot, t16, got 'n8'"),
        ("aliked@threshold=2", "threshold: expected a number from 0 to 1"),
        ("xfeat@threshold=-1", "threshold: expected a number from 0 to 1"),
        ("disk@weights=nowhere.pth", "weights: expected a file, got nowhere.pth"),
    ):
        with pytest.raises(InputError, match=message):
            load_detector(wrong)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kornia.feature", None)
    with pytest.raises(MissingExtraError, match="extra 'features'"):
        load_detector("xfeat")
