"""Keypoints that many pairs share."""

import numpy as np
import pytest

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.features import load_detector
from ananet.twoview import keypoint_refinement
from ananet.twoview.keypoint_refinement import KeypointRefinement
from tests.twoview.test_refinement import MARGIN, moved


def test_keypoints_of_three_photos_agree(photo):
    """Keypoints are noisy in every photo; moved, they lie where the motions between the photos say."""
    random = np.random.default_rng(1)
    features = load_detector("sift", max_keypoints=200).detect(photo)
    last = np.array(photo.shape[::-1]) - 1 - 2 * MARGIN
    features = features[((features.points > 2 * MARGIN) & (features.points < last)).all(axis=1)]
    views = [moved(photo, *motion) for motion in ((0, 1, (0, 0)), (3, 1, (2.5, 0)), (-4, 1, (0, 1.5)))]
    true = [features.points @ motion[:, :2].T + motion[:, 2] for _, motion in views]
    points = [place + random.normal(0, 0.3, place.shape) for place in true]
    collection = KeypointRefinement([len(features)] * 3, device="cpu")
    same = np.repeat(np.arange(len(features))[:, None], 2, axis=1)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        matches = Correspondences(points[i], points[j], indices=same)
        correlation = collection.add_pair(i, j, views[i][0], views[j][0], matches)
        assert correlation.shape == (len(features),) and np.median(correlation) > 0.95
    shifts = collection.shifts()

    def disagreement(places: list[np.ndarray]) -> float:
        """Median distance of keypoints of the same thing, all taken back to the first photo."""
        back = [(place - m[:, 2]) @ np.linalg.inv(m[:, :2]).T for place, (_, m) in zip(places, views, strict=True)]
        return float(np.median(np.linalg.norm(back - np.mean(back, axis=0), axis=2)))

    after = [place + shift for place, shift in zip(points, shifts, strict=True)]
    assert disagreement(after) < 0.3 * disagreement(points)
    # They agree near the middle of where they were: nothing drifts.
    assert np.linalg.norm(np.mean(np.concatenate(shifts), axis=0)) < 0.1


def test_keypoints_without_looks_stay(photo):
    collection = KeypointRefinement([3, 0, 2], device="cpu")
    collection.add_pair(0, 2, photo, photo, Correspondences([], [], indices=[]))
    collection.add_pair(0, 2, photo, photo, Correspondences([[300.0, 200.0]], [[300.5, 200.0]], indices=[[2, 1]]))
    first, none, third = collection.shifts()
    assert none.shape == (0, 2) and not first[:2].any() and not third[0].any()
    assert first[2, 0] > 0.1 and third[1, 0] < -0.1
    assert KeypointRefinement([], device="cpu").shifts() == []


def test_a_keypoint_that_would_move_far_stays(photo, monkeypatch):
    monkeypatch.setattr(keypoint_refinement, "MAX_SHIFT", 0.1)
    collection = KeypointRefinement([1, 1], device="cpu")
    collection.add_pair(0, 1, photo, photo, Correspondences([[300.0, 200.0]], [[300.5, 200.0]], indices=[[0, 0]]))
    assert not np.any(collection.shifts())


def test_wrong_input_is_named(photo):
    collection = KeypointRefinement([3, 2], device="cpu")
    points = [[50.0, 50.0]]
    with pytest.raises(InputError, match="matches: expected the indices"):
        collection.add_pair(0, 1, photo, photo, Correspondences(points, points))
    with pytest.raises(InputError, match="indices below 2, the number of keypoints of photo 1, got 2"):
        collection.add_pair(0, 1, photo, photo, Correspondences(points, points, indices=[[0, 2]]))
    with pytest.raises(InputError, match="photo1: expected a whole number from 0 to 1"):
        collection.add_pair(0, 2, photo, photo, Correspondences(points, points, indices=[[0, 0]]))
    with pytest.raises(InputError, match=r"counts\[0\]"):
        KeypointRefinement([-1])
