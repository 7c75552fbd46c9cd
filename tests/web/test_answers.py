import numpy as np
import pytest
import torch

from ananet.cli.demo import motorcycle
from ananet.core import geometry
from ananet.pruners import load
from ananet.twoview import Cameras, match_photos
from ananet.web.answers import matched_answer, pose_in_words, pruned_answer, score_of
from ananet.web.limits import Limits
from ananet.web.uploads import read_photo
from tests.photos import photo
from tests.web.conftest import encoded


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


def answer_of(pair, longest_side=1600, pruner="ratio", cameras=True):
    limits = Limits(longest_side=longest_side)
    photos = tuple(read_photo("a.png", encoded(image, ".png"), limits) for image in (pair.image0, pair.image1))
    given = Cameras("given", pair.K0, pair.K1) if cameras else Cameras()
    scaled = [photos[i].scaling @ K for i, K in enumerate((pair.K0, pair.K1))] if cameras else (None, None)
    pruner = load(pruner, device="cpu")
    found = match_photos(photos[0].pixels, photos[1].pixels, pruner=pruner, K0=scaled[0], K1=scaled[1])
    return found, matched_answer(found, photos, given, pruner.decision)


def epipolar_distance(answer, F):
    kept = np.array(answer["mask"])
    points = [torch.tensor(answer[name], dtype=torch.float64)[kept] for name in ("points0", "points1")]
    return geometry.epipolar_distance(*points, torch.as_tensor(F, dtype=torch.float64)).numpy()


def test_the_fundamental_matrix_belongs_to_the_points(pair):
    found, answer = answer_of(pair)
    np.testing.assert_allclose(answer["points0"], found.matches.points0, atol=1e-4)
    assert answer["threshold"] == score_of(0.0) == 0.5 and answer["mask"] == found.kept.mask.tolist()
    assert np.median(epipolar_distance(answer, answer["fundamental"])) < 1
    # Without cameras it comes from the matches alone.
    _, uncalibrated = answer_of(pair, cameras=False)
    assert np.median(epipolar_distance(uncalibrated, uncalibrated["fundamental"])) < 1
    assert uncalibrated["pose"] is None and "focal length is not known" in uncalibrated["pose_in_words"]


def test_reduced_photos_are_answered_in_their_own_pixels(pair):
    found, answer = answer_of(pair, longest_side=500)
    assert answer["photos"][0]["width"] == 741 and found.features0.image_size == (500, 337)
    assert np.max(answer["points0"]) > 600
    scale = answer["keypoint_sizes0"][0] / float(found.matches.keypoint_sizes0[0])
    assert scale == pytest.approx(741 / 500, abs=0.01)
    # The truth, in pixels of the photos that were sent.
    E = geometry.essential_from_pose(torch.from_numpy(pair.R), torch.from_numpy(pair.t))
    F = geometry.fundamental_from_essential(E, torch.from_numpy(pair.K0), torch.from_numpy(pair.K1))
    assert np.median(epipolar_distance(answer, F)) < 2
    assert np.median(epipolar_distance(answer, answer["fundamental"])) < 2
    angle = geometry.rotation_error(torch.tensor(answer["pose"]["R"]).double(), torch.from_numpy(pair.R))
    assert float(angle) < 2


def test_the_motion_in_words(pair):
    _, answer = answer_of(pair)
    # The right camera of the pair stands to the right, and is turned by 16.8 degrees in all.
    assert answer["pose_in_words"].startswith("The camera turned by 1")
    assert " and moved right. " in answer["pose_in_words"]
    assert answer["motions"]["count"] >= 1 and len(answer["motions"]["labels"]) == len(answer["scores"])
    still = match_photos(pair.image0, pair.image0, pruner="ratio", K0=pair.K0, K1=pair.K0)
    assert "hardly moved" in pose_in_words(still, Cameras("given", pair.K0, pair.K0))


def test_conflicting_matches_share_a_point_with_a_better_one(pair):
    _, answer = answer_of(pair)
    points0, points1 = np.array(answer["points0"]), np.array(answer["points1"])
    scores, conflicting = np.array(answer["scores"]), np.array(answer["conflicting"])
    assert 0 < conflicting.sum() < len(scores)
    for n in np.flatnonzero(conflicting)[:50]:
        same0 = (points0 == points0[n]).all(axis=1) & (np.linalg.norm(points1 - points1[n], axis=1) > 1)
        same1 = (points1 == points1[n]).all(axis=1) & (np.linalg.norm(points0 - points0[n], axis=1) > 1)
        assert scores[same0 | same1].max() >= scores[n]


def test_photos_apart(pair):
    blank = read_photo("a.png", encoded(photo(640, 480), ".png"), Limits())
    first = read_photo("b.png", encoded(pair.image0, ".png"), Limits())
    found = match_photos(first.pixels, blank.pixels, pruner="ratio")
    answer = matched_answer(found, (first, blank), Cameras(), 0.0)
    assert answer["motions"] is None and answer["fundamental"] is None
    assert answer["pose_in_words"] == "No pose: the photos have to show the same scene."


def test_a_verdict_on_matches(problem):
    pruner = load("ratio")
    kept = pruner(problem.matches)
    answer = pruned_answer(kept, pruner.decision)
    assert answer["pruner"] == "ratio" and answer["mask"] == kept.mask.tolist()
    assert answer["scores"] == kept.scores.tolist()
