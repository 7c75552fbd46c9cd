import numpy as np
import pytest

from ananet import Correspondences, InputError
from ananet.pruners.base import Pruned
from ananet.twoview.overlap import check_overlap, judge_overlap, log10_false_alarms
from tests.conftest import make_problem


def test_overlapping_views_are_found(problem):
    verdict = check_overlap(problem.matches, problem.inlier)
    assert verdict.found
    assert verdict.consistent >= 290


def test_few_right_matches_among_many_wrong_ones_are_found():
    hard = make_problem(inliers=40, outliers=960)
    assert check_overlap(hard.matches, hard.inlier).found


@pytest.mark.parametrize("seed", range(5))
def test_random_matches_are_not_found(seed):
    nothing = make_problem(inliers=0, outliers=600, seed=seed)
    assert not check_overlap(nothing.matches, np.ones(600, bool)).found


@pytest.mark.parametrize("n", [0, 1, 7])
def test_few_matches_are_not_enough(n):
    few = make_problem().matches[:n]
    assert not check_overlap(few, np.ones(n, bool)).found


def test_false_alarms_fall_with_agreement():
    values = [log10_false_alarms(300, k, 0.01) for k in (8, 30, 60, 120)]
    assert values == sorted(values, reverse=True)


def test_the_probability_decides(problem):
    logits = np.where(problem.inlier, 4.0, -4.0).astype(np.float32)
    judged = judge_overlap(problem.matches, Pruned(problem.inlier, logits, logits, "ananet"))
    assert judged.found and judged.probability > 0.9 and judged.log10_nfa < -6
    assert f"(probability {judged.probability:.2f}): {judged.reasons[0]}" in judged.summary
    assert judged.to_dict()["probability"] == judged.probability
    nothing = make_problem(inliers=0, outliers=600).matches
    doubted = judge_overlap(nothing, Pruned(np.ones(600, bool), np.zeros(600), np.zeros(600), "all"))
    assert not doubted.found and doubted.probability < 0.5


def test_a_pruner_that_fails_does_not_decide(problem):
    none = np.zeros(500, bool)
    matches = problem.matches
    matches = matches.replace(ratio=np.where(problem.inlier, 0.5, 0.9).astype(np.float32), mutual=problem.inlier)
    judged = judge_overlap(matches, Pruned(none, none * 0.0, none - 5.0, "ananet"))
    assert judged.found and judged.probability > 0.5


def test_needs_side_input():
    with pytest.raises(InputError, match="expects image_size0, image_size1, ratio and mutual"):
        check_overlap(Correspondences([], []), np.zeros(0, bool))
