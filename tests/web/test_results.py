import numpy as np
import pytest
import torch

from ananet.cli.demo import motorcycle
from ananet.core import geometry
from ananet.pruners import load
from ananet.twoview import match_photos
from ananet.web.results import match_result, prune_result
from tests.photos import photo


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


def result_of(pair, longest_side=1600, pruner="ratio", cameras=True):
    K = {"K0": pair.K0, "K1": pair.K1} if cameras else {}
    found = match_photos(pair.image0, pair.image1, pruner=pruner, longest_side=longest_side, motions=True, **K)
    return found, match_result(found)


def epipolar_distance(result, F):
    kept = np.array(result["mask"])
    points = [torch.tensor(result[name], dtype=torch.float64)[kept] for name in ("points0", "points1")]
    return geometry.epipolar_distance(*points, torch.as_tensor(F, dtype=torch.float64)).numpy()


def test_the_fundamental_matrix_belongs_to_the_points(pair):
    found, result = result_of(pair)
    np.testing.assert_allclose(result["points0"], found.matches.points0, atol=1e-4)
    assert result["threshold"] == 0.5 and result["mask"] == found.kept.mask.tolist()
    assert np.median(epipolar_distance(result, result["fundamental"])) < 1
    # Without cameras it comes from the matches alone.
    _, uncalibrated = result_of(pair, cameras=False)
    assert np.median(epipolar_distance(uncalibrated, uncalibrated["fundamental"])) < 1
    assert uncalibrated["pose"] is None and "focal length is not known" in uncalibrated["pose_summary"]


def test_reduced_photos_are_answered_in_their_own_pixels(pair):
    found, result = result_of(pair, longest_side=500)
    assert result["photos"][0]["width"] == 741 and np.max(result["points0"]) > 600
    np.testing.assert_allclose(result["keypoint_sizes0"], found.matches.keypoint_sizes0, atol=1e-4)
    # The truth, in pixels of the photos that were sent.
    E = geometry.essential_from_pose(torch.from_numpy(pair.R), torch.from_numpy(pair.t))
    F = geometry.fundamental_from_essential(E, torch.from_numpy(pair.K0), torch.from_numpy(pair.K1))
    assert np.median(epipolar_distance(result, F)) < 2
    assert np.median(epipolar_distance(result, result["fundamental"])) < 2
    angle = geometry.rotation_error(torch.tensor(result["pose"]["R"]).double(), torch.from_numpy(pair.R))
    assert float(angle) < 2


def test_the_answer_is_the_result_of_the_library(pair):
    found, result = result_of(pair)
    assert result.items() >= found.to_dict(matches=True).items()
    assert set(result) - set(found.to_dict(matches=True)) == {"conflicting", "fundamental"}
    assert result["motions"]["count"] >= 1 and len(result["motion_labels"]) == len(result["scores"])


def test_conflicting_matches_share_a_point_with_a_better_one(pair):
    _, result = result_of(pair)
    points0, points1 = np.array(result["points0"]), np.array(result["points1"])
    scores, conflicting = np.array(result["scores"]), np.array(result["conflicting"])
    assert 0 < conflicting.sum() < len(scores)
    for n in np.flatnonzero(conflicting)[:50]:
        same0 = (points0 == points0[n]).all(axis=1) & (np.linalg.norm(points1 - points1[n], axis=1) > 1)
        same1 = (points1 == points1[n]).all(axis=1) & (np.linalg.norm(points0 - points0[n], axis=1) > 1)
        assert scores[same0 | same1].max() >= scores[n]


def test_photos_apart(pair):
    result = match_result(match_photos(pair.image0, photo(640, 480), pruner="ratio"))
    assert not result["overlap"]["found"] and "do not seem to show the same scene" in result["overlap"]["summary"]
    assert result["motions"] is None and len(result["points0"]) == result["matches"]


def test_a_verdict_on_matches(problem):
    pruner = load("ratio")
    kept = pruner(problem.matches)
    result = prune_result(kept, pruner.decision)
    assert result["pruner"] == "ratio" and result["mask"] == kept.mask.tolist()
    assert result["scores"] == kept.scores.tolist()
