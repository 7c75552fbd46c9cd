import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError
from ananet.pruners.base import Pruned
from ananet.twoview import same_place
from ananet.twoview.same_place import judge_pair, pair_probability, robust_affine
from tests.conftest import make_problem


def pruned(mask, name="ananet") -> Pruned:
    logits = np.where(mask, 4.0, -4.0).astype(np.float32)
    return Pruned(np.asarray(mask), 1 / (1 + np.exp(-logits)), logits, name)


def test_a_true_pair_is_likely_and_random_matches_are_not(problem):
    judged = judge_pair(problem.matches, pruned(problem.inlier))
    assert judged.probability > 0.9 and judged.reasons
    assert any("agree on one geometry" in reason for reason in judged.reasons)
    nothing = make_problem(inliers=0, outliers=100).matches
    for kept in (np.ones(100, bool), pruned(np.ones(100, bool), "lpm")):
        assert pair_probability(nothing, kept) < 0.5


def test_what_is_known_decides_which_regression_answers(problem):
    kept, matches = pruned(problem.inlier), problem.matches
    numbers = judge_pair(matches, kept).numbers
    assert same_place.head_of(numbers) == "scores+ratio"
    assert same_place.head_of(judge_pair(matches, problem.inlier).numbers) == "ratio"
    bare = Correspondences(matches.points0, matches.points1, image_size0=(640, 480), image_size1=(640, 480))
    assert same_place.head_of(judge_pair(bare, problem.inlier).numbers) == "points"
    # Logits of classical pruners are no probabilities.
    assert same_place.head_of(judge_pair(bare, pruned(problem.inlier, "ratio+lpm@k=3")).numbers) == "points"
    turned = bare.replace(angles0=torch.zeros(len(bare)), angles1=torch.ones(len(bare)))
    numbers = judge_pair(turned, problem.inlier).numbers
    assert same_place.head_of(numbers) == "angles" and numbers["angles_agree"] == 1
    assert set(same_place.load_weights()["heads"]) == {
        "points", "scores", "ratio", "angles", "scores+ratio", "scores+angles", "ratio+angles", "scores+ratio+angles",
    }  # fmt: skip


def test_a_networks_threshold_does_not_matter(problem):
    kept = pruned(problem.inlier)
    stricter = Pruned(kept.mask & (np.arange(len(kept.mask)) % 2 == 0), kept.scores, kept.logits, kept.pruner)
    assert pair_probability(problem.matches, kept) == pair_probability(problem.matches, stricter)


def test_few_matches(problem):
    right = problem.matches[problem.inlier]
    few = [judge_pair(right[:n], np.ones(n, bool)) for n in range(8)]
    assert all(one.probability < 0.5 for one in few[:4]) and few[3].reasons == ("only 3 one-to-one matches were kept",)
    assert [one.probability for one in few] == sorted(one.probability for one in few) and not few[0].numbers


def test_coverage_is_that_of_the_common_view(problem):
    """Keypoints without a match empty the view, unless they lie where the other photo does not reach."""
    matches = problem.matches[problem.inlier]
    kept, rng = np.ones(len(matches), bool), np.random.default_rng(0)
    alone = judge_pair(matches, kept).numbers["coverage"]
    assert alone == 1
    centre = np.abs(matches.points0 - (320, 240)).max(axis=1) < 100
    keypoints = [np.concatenate([p, rng.uniform((0, 0), (640, 480), (2000, 2))]) for p in matches.numpy_points()]
    small = judge_pair(matches[centre], kept[centre], *keypoints)
    assert small.numbers["coverage"] < 0.4 < judge_pair(matches, kept, *keypoints).numbers["coverage"]
    # A camera that turned away sees half.
    far = judge_pair(matches.replace(points1=matches._as_tensors().points1 + torch.tensor([400, 0])), kept)
    assert far.numbers["coverage"] > 0.5


def test_affine_maps_ignore_some_wrong_matches():
    rng = np.random.default_rng(0)
    points0 = rng.uniform(0, 500, (100, 2))
    points1 = points0 @ [[1.1, 0.2], [-0.1, 0.9]] + (5, 7)
    points1[:20] = rng.uniform(0, 500, (20, 2))
    affine, misfit = robust_affine(points0, points1)
    np.testing.assert_allclose(affine, [[1.1, 0.2], [-0.1, 0.9], [5, 7]], atol=0.5)
    assert misfit < 1
    assert np.isfinite(robust_affine(np.ones((9, 2)), np.ones((9, 2)))[0]).all(), "all in one place"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size0": None}, "expected image_size0 and image_size1"),
        ({}, "kept: expected a mask of 500 matches"),
    ],
)
def test_wrong_input(problem, change, message):
    with pytest.raises(InputError, match=message):
        judge_pair(problem.matches.replace(**change), [True])
    with pytest.raises(InputError, match=r"keypoints1: expected shape \(M, 2\), got \(3,\)"):
        judge_pair(problem.matches, problem.inlier, None, np.zeros(3))
