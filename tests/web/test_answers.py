import numpy as np
import pytest
import torch

from ananet.cli.demo import motorcycle
from ananet.core import geometry
from ananet.pruners import load
from ananet.twoview import match_photos
from ananet.web.answers import matched_answer, pruned_answer
from tests.photos import photo


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


def answer_of(pair, longest_side=1600, pruner="ratio", cameras=True):
    K = {"K0": pair.K0, "K1": pair.K1} if cameras else {}
    found = match_photos(pair.image0, pair.image1, pruner=pruner, longest_side=longest_side, motions=True, **K)
    return found, matched_answer(found)


def epipolar_distance(answer, F):
    kept = np.array(answer["mask"])
    points = [torch.tensor(answer[name], dtype=torch.float64)[kept] for name in ("points0", "points1")]
    return geometry.epipolar_distance(*points, torch.as_tensor(F, dtype=torch.float64)).numpy()


def test_the_fundamental_matrix_belongs_to_the_points(pair):
    found, answer = answer_of(pair)
    np.testing.assert_allclose(answer["points0"], found.matches.points0, atol=1e-4)
    assert answer["threshold"] == 0.5 and answer["mask"] == found.kept.mask.tolist()
    assert np.median(epipolar_distance(answer, answer["fundamental"])) < 1
    # Without cameras it comes from the matches alone.
    _, uncalibrated = answer_of(pair, cameras=False)
    assert np.median(epipolar_distance(uncalibrated, uncalibrated["fundamental"])) < 1
    assert uncalibrated["pose"] is None and "focal length is not known" in uncalibrated["pose_summary"]


def test_reduced_photos_are_answered_in_their_own_pixels(pair):
    found, answer = answer_of(pair, longest_side=500)
    assert answer["photos"][0]["width"] == 741 and np.max(answer["points0"]) > 600
    np.testing.assert_allclose(answer["keypoint_sizes0"], found.matches.keypoint_sizes0, atol=1e-4)
    # The truth, in pixels of the photos that were sent.
    E = geometry.essential_from_pose(torch.from_numpy(pair.R), torch.from_numpy(pair.t))
    F = geometry.fundamental_from_essential(E, torch.from_numpy(pair.K0), torch.from_numpy(pair.K1))
    assert np.median(epipolar_distance(answer, F)) < 2
    assert np.median(epipolar_distance(answer, answer["fundamental"])) < 2
    angle = geometry.rotation_error(torch.tensor(answer["pose"]["R"]).double(), torch.from_numpy(pair.R))
    assert float(angle) < 2


def test_the_answer_is_the_result_of_the_library(pair):
    found, answer = answer_of(pair)
    assert answer.items() >= found.to_dict(matches=True).items()
    assert set(answer) - set(found.to_dict(matches=True)) == {"conflicting", "fundamental"}
    assert answer["motions"]["count"] >= 1 and len(answer["motion_labels"]) == len(answer["scores"])


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
    answer = matched_answer(match_photos(pair.image0, photo(640, 480), pruner="ratio"))
    assert not answer["overlap"]["found"] and "do not seem to show the same scene" in answer["overlap"]["summary"]
    assert answer["motions"] is None and len(answer["points0"]) == answer["matches"]


def test_a_verdict_on_matches(problem):
    pruner = load("ratio")
    kept = pruner(problem.matches)
    answer = pruned_answer(kept, pruner.decision)
    assert answer["pruner"] == "ratio" and answer["mask"] == kept.mask.tolist()
    assert answer["scores"] == kept.scores.tolist()
