import cv2
import numpy as np
import pytest

import ananet
from ananet import InputError
from ananet.cli.demo import motorcycle
from ananet.integrations.opencv import prune
from ananet.pruners.base import Pruner


class Seen(Pruner):
    """Keeps every second match and remembers what it was shown."""

    name = "seen"

    def batch(self, pairs):
        (self.matches,) = pairs
        return super().batch(pairs)

    def logits(self, matches):
        return (-1.0) ** matches.points0.new_tensor(range(len(matches)))


@pytest.fixture(scope="module")
def photos():
    pair = motorcycle()
    sift = cv2.SIFT_create(1500)
    found = [sift.detectAndCompute(image, None) for image in (pair.image0, pair.image1)]
    return pair, found[0], found[1]


def size_of(image):
    return image.shape[1], image.shape[0]


def test_two_lines_in_a_script(photos):
    """As the same matches through the library's own front door."""
    pair, (keypoints0, descriptors0), (keypoints1, descriptors1) = photos
    matcher = cv2.BFMatcher()
    matches = matcher.knnMatch(descriptors0, descriptors1, k=2)
    back = matcher.match(descriptors1, descriptors0)
    kept = prune(keypoints0, keypoints1, matches, size_of(pair.image0), size_of(pair.image1), back=back)
    assert all(isinstance(match, cv2.DMatch) for match in kept)
    assert 100 < len(kept) < len(matches)
    order = [match.queryIdx for match in kept]
    assert order == sorted(order)

    best = [pair[0] for pair in matches]
    nearest_back = {match.queryIdx: match.trainIdx for match in back}
    first, second = [keypoints0[m.queryIdx] for m in best], [keypoints1[m.trainIdx] for m in best]
    expected = ananet.load()(
        [k.pt for k in first],
        [k.pt for k in second],
        image_size0=size_of(pair.image0),
        image_size1=size_of(pair.image1),
        ratio=[min(1.0, a.distance / b.distance) for a, b in matches],
        mutual=[nearest_back[m.trainIdx] == m.queryIdx for m in best],
        keypoint_sizes0=[k.size for k in first],
        keypoint_sizes1=[k.size for k in second],
        angles0=np.radians([k.angle for k in first]),
        angles1=np.radians([k.angle for k in second]),
    )
    assert [id(m) for m in kept] == [id(m) for m, keep in zip(best, expected.mask, strict=True) if keep]


def test_camera_matrices_in_place_of_sizes(photos):
    pair, (keypoints0, descriptors0), (keypoints1, descriptors1) = photos
    matches = cv2.BFMatcher(crossCheck=True).match(descriptors0, descriptors1)
    assert len(prune(keypoints0, keypoints1, matches, K0=pair.K0, K1=pair.K1)) > 100
    with pytest.raises(InputError, match="camera matrices"):
        prune(keypoints0, keypoints1, matches)


def keypoints(*rows):
    return [cv2.KeyPoint(*row) for row in rows]


def test_what_is_not_measured_is_not_used():
    seen = Seen()
    points = keypoints((1, 2, 3, 90), (4, 5, 6, 0), (7, 8, 9, 10))
    matches = [cv2.DMatch(i, i, 1.0) for i in range(3)]
    kept = prune(points, points, matches, (10, 10), (10, 10), pruner=seen)
    assert kept == [matches[0], matches[2]]
    assert seen.matches.ratio is None and seen.matches.mutual is None
    np.testing.assert_allclose(seen.matches.angles0, np.radians([90, 0, 10]), rtol=1e-6)
    assert seen.matches.keypoint_sizes0.tolist() == [3, 6, 9]
    # One without an angle, and sizes that are all the same, as a corner detector gives them.
    corners = keypoints((1, 2, 7, 90), (4, 5, 7, -1), (7, 8, 7, 10))
    prune(points, corners, matches, (10, 10), (10, 10), pruner=seen)
    assert seen.matches.angles0 is None and seen.matches.keypoint_sizes0 is None


def test_neighbours_that_are_missing():
    seen = Seen()
    points = keypoints((1, 2, 3), (4, 5, 6), (7, 8, 9))
    matches = [
        [cv2.DMatch(0, 0, 1.0), cv2.DMatch(0, 1, 4.0)],
        [],
        [cv2.DMatch(1, 1, 2.0)],
        [cv2.DMatch(2, 2, 0.0), cv2.DMatch(2, 1, 0.0)],
    ]
    back = [cv2.DMatch(0, 0, 1.0), cv2.DMatch(1, 2, 1.0)]
    prune(points, points, matches, (10, 10), (10, 10), back=back, pruner=seen)
    assert seen.matches.ratio.tolist() == [0.25, 1, 1]
    assert seen.matches.mutual.tolist() == [True, False, False]


def test_nothing_and_nonsense():
    points = keypoints((1, 2, 3))
    assert prune(points, points, [], (10, 10), (10, 10)) == []
    with pytest.raises(InputError, match="in the order of the images"):
        prune(points, points, [cv2.DMatch(0, 5, 1.0)], (10, 10), (10, 10))
    with pytest.raises(InputError, match="cv2.DMatch"):
        prune(points, points, [3], (10, 10), (10, 10))


def test_wrong_keypoints_are_told():
    for given, message in (
        (([], None, []), "keypoints1: expected a list of cv2.KeyPoint, got NoneType"),
        ((np.zeros((3, 2)), [], []), "keypoints0: expected a list of cv2.KeyPoint, got ndarray"),
        (([(1, 2)], [], []), "keypoints0: expected a list of cv2.KeyPoint, got list"),
        (([], [], None), "matches: expected a list of cv2.DMatch, got NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            prune(*given, (640, 480), (640, 480))


def test_wrong_arguments_are_told():
    points, match = keypoints((1, 2, 3)), cv2.DMatch(0, 0, 1.0)
    sizes = {"image_size0": (10, 10), "image_size1": (10, 10)}
    for given, message in (
        ({"keypoints0": [*points, None]}, "keypoints0: expected a list of cv2.KeyPoint"),
        ({"back": 3}, "back: expected a list of cv2.DMatch, got int"),
        ({"back": [None]}, "back: expected cv2.DMatch or lists of them, got NoneType"),
        ({"pruner": []}, r"pruner: expected a name or a pruner, got \[\]"),
        ({"pruner": 3}, "pruner: expected a name or a pruner, got 3"),
    ):
        with pytest.raises(InputError, match=message):
            prune(**{"keypoints0": points, "keypoints1": points, "matches": [match]} | sizes | given)


@pytest.mark.parametrize("nothing", [[], ()])
def test_empty_lists_are_no_matches(nothing):
    sizes = {"image_size0": (10, 10), "image_size1": (10, 10)}
    points = keypoints((1, 2, 3))
    for given in ((nothing, nothing, nothing), (points, nothing, nothing), (points, points, [nothing])):
        for back in (None, nothing):
            assert prune(*given, **sizes, back=back) == []
