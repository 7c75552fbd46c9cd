"""Which of the kept matches an estimator uses."""

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, Pruned, estimate_pose
from ananet.estimators import load_estimator
from ananet.estimators.selection import IN_WORDS, MIN_SELECTED, select_matches


def pruned(mask, logits=None) -> Pruned:
    mask = np.asarray(mask)
    logits = np.where(mask, 2.0, -2.0).astype(np.float32) if logits is None else np.asarray(logits, np.float32)
    return Pruned(mask, 1 / (1 + np.exp(-logits)), logits)


def line(n: int, **more) -> Correspondences:
    """n matches of different points."""
    points = np.stack([np.arange(n), np.arange(n) % 7], axis=1) * 10.0
    return Correspondences(points, points + 3, image_size0=(640, 480), image_size1=(640, 480), **more)


def test_all_kept():
    mask = np.arange(60) % 2 == 0
    assert select_matches(line(60), pruned(mask), "all").tolist() == mask.tolist()


def test_mutual_ones_where_that_is_known():
    mask, mutual = np.arange(100) < 80, np.arange(100) % 2 == 0
    assert select_matches(line(100, mutual=mutual), pruned(mask), "one-to-one").tolist() == (mask & mutual).tolist()


def test_otherwise_the_best_of_conflicting_ones():
    matches = line(60)
    # Match 59 ends where match 0 ends, and begins elsewhere.
    points1 = matches.points1.copy()
    points1[59] = points1[0]
    matches = matches.replace(points1=points1)
    logits = np.full(60, 2.0)
    logits[59] = 1.0
    assert select_matches(matches, pruned(np.ones(60, bool), logits), "one-to-one").tolist() == [True] * 59 + [False]
    # What was not kept outdoes nothing.
    logits[0] = -1.0
    found = select_matches(matches, pruned(logits > 0, logits), "one-to-one")
    assert found.tolist() == [False] + [True] * 59


def test_without_cameras_and_sizes_nobody_knows_what_is_apart():
    points = np.zeros((50, 2))
    matches = Correspondences(points, points + np.arange(50)[:, None])
    assert select_matches(matches, pruned(np.ones(50, bool)), "one-to-one").all()


def test_few_are_not_made_fewer():
    n = MIN_SELECTED
    matches = line(n, mutual=np.arange(n) > 0)
    assert select_matches(matches, pruned(np.ones(n, bool)), "one-to-one").all()


@pytest.mark.parametrize("rule", IN_WORDS)
def test_nothing(rule):
    assert select_matches(line(0), pruned(np.zeros(0, bool)), rule).shape == (0,)


def test_tensors_on_any_side():
    found = select_matches(line(40), Pruned(torch.ones(40) > 0, torch.ones(40), torch.ones(40)), "one-to-one")
    assert found.dtype == torch.bool and found.all()


@pytest.mark.parametrize("name", ["poselib", "ransac", "magsac"])
def test_a_pose_of_a_pruners_answer(name, problem):
    kept = pruned(problem.inlier)
    pose = estimate_pose(problem.matches, name, kept=kept)
    assert pose is not None and pose.inliers.shape == problem.inlier.shape
    assert not pose.inliers[~problem.inlier].any()
    assert pose.inliers.sum() > 0.8 * problem.inlier.sum()


def test_wrong_answers_are_told(problem):
    with pytest.raises(InputError, match=r"kept: expected the result for these \d+ matches, got 3"):
        estimate_pose(problem.matches, kept=pruned([True] * 3))
    with pytest.raises(InputError, match="kept: expected a pruner's result, .* got ndarray"):
        estimate_pose(problem.matches, kept=problem.inlier)
    with pytest.raises(InputError, match="match_selection: expected one of one-to-one, all, got 'best'"):
        load_estimator("poselib", match_selection="best")
