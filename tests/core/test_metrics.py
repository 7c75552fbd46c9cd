import numpy as np
import pytest

from ananet import InputError
from ananet.core import metrics

T, F = True, False


@pytest.mark.parametrize(
    ("kept", "inlier", "expected"),
    [
        ([T, T, T, F, F], [T, F, F, T, F], (1 / 3, 1 / 2, 0.4)),
        ([T, T], [T, T], (1, 1, 1)),
        ([T, F], [F, T], (0, 0, 0)),
        ([F, F], [T, T], (0, 0, 0)),
        ([T, T], [F, F], (0, 0, 0)),
        ([], [], (0, 0, 0)),
    ],
)
def test_precision_recall_f1(kept, inlier, expected):
    assert metrics.precision_recall_f1(np.array(kept, bool), np.array(inlier, bool)) == pytest.approx(expected)


def test_auc_by_hand():
    # The curve rises to 1/4 at 1, to 1/2 at 3, to 3/4 at 6 and stays there: 0.125 + 0.75 + 2 / 2 up to 5 degrees.
    errors = [6.0, 1.0, 180.0, 3.0]
    up_to_5 = 1 * 0.25 / 2 + 2 * (0.25 + 0.5) / 2 + 2 * 0.5
    up_to_6 = 1 * 0.25 / 2 + 2 * (0.25 + 0.5) / 2 + 3 * (0.5 + 0.75) / 2
    expected = [up_to_5 / 5, (up_to_6 + 4 * 0.75) / 10, (up_to_6 + 14 * 0.75) / 20]
    assert metrics.pose_auc(errors) == pytest.approx(expected)


def test_auc_extremes():
    assert metrics.pose_auc([]) == [0, 0, 0]
    assert metrics.pose_auc([np.nan, np.inf, 180.0]) == [0, 0, 0]
    # Perfect poses: level at 1 from 0 on.
    assert metrics.pose_auc([0.0, 0.0]) == pytest.approx([1, 1, 1])
    assert metrics.pose_auc([5.0], [5.0]) == [0.0], "an error at the threshold is beyond it"
    with pytest.raises(InputError, match="errors: "):
        metrics.pose_auc([-1.0])


def test_a_missing_answer_counts_like_180_degrees():
    assert metrics.pose_auc([1.0, np.nan, 3.0]) == metrics.pose_auc([1.0, 180.0, 3.0])


def test_auc_is_the_area_under_the_recall_curve():
    errors = np.random.default_rng(0).gamma(1.0, 6.0, 4000)
    at = np.linspace(0, 20, 20001)
    area = np.trapezoid(metrics.recall_curve(errors, at), at) / 20
    assert metrics.pose_auc(errors)[2] == pytest.approx(area, abs=1e-3)


def test_map_by_hand_and_larger_than_auc():
    # Recall at 5, 10, 15, 20 degrees: 2/4, 3/4, 3/4, 3/4.
    errors = [1.0, 4.0, 5.0, 30.0]
    assert metrics.binned_map(errors) == pytest.approx([0.5, 0.625, (0.5 + 3 * 0.75) / 4])
    assert metrics.binned_map([np.nan, 1.0]) == [0.5, 0.5, 0.5]
    assert metrics.binned_map([]) == [0, 0, 0]
    many = np.random.default_rng(0).gamma(1.0, 6.0, 1000)
    assert all(m > a for m, a in zip(metrics.binned_map(many), metrics.pose_auc(many), strict=True))
    with pytest.raises(InputError, match="thresholds: expected multiples of 5"):
        metrics.binned_map(errors, [7.0])


def test_mean_by_bin():
    edges = np.array([0.0, 0.5, 1.0])
    mean, count = metrics.mean_by_bin(np.array([1.0, 3.0, 5.0, 7.0]), np.array([0.0, 0.49, 0.5, 1.0]), edges)
    assert mean.tolist() == [2.0, 6.0] and count.tolist() == [2, 2]
    mean, count = metrics.mean_by_bin(np.array([1.0]), np.array([1.1]), edges)
    assert np.isnan(mean).all() and count.tolist() == [0, 0]
    mean, count = metrics.mean_by_bin(np.zeros(0), np.zeros(0), edges)
    assert count.tolist() == [0, 0]
    with pytest.raises(InputError, match="edges: "):
        metrics.mean_by_bin(np.zeros(0), np.zeros(0), np.array([1.0, 0.0]))


def test_average_precision_by_hand():
    # Best first: right, wrong, right, right: (1 + 2/3 + 3/4) / 3.
    scores, inlier = np.array([0.1, 0.9, 0.4, 0.6]), np.array([T, T, T, F])
    assert metrics.average_precision(scores, inlier) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert metrics.average_precision(10 * scores - 3, inlier) == metrics.average_precision(scores, inlier)
    # Equal scores decide nothing: the precision is the share of inliers, whatever the order.
    assert metrics.average_precision(np.zeros(4), inlier) == pytest.approx(0.75)
    assert metrics.average_precision(np.zeros(4), inlier[::-1]) == pytest.approx(0.75)
    assert metrics.average_precision(scores, np.zeros(4, bool)) == 0
    assert metrics.average_precision(np.zeros(0), np.zeros(0, bool)) == 0
    with pytest.raises(InputError, match="scores: expected finite"):
        metrics.average_precision(np.array([np.nan]), np.array([T]))


def test_wrong_ones_among_the_kept():
    right = np.array([T] * 20 + [F] * 5)
    scores = np.r_[np.arange(20, 0, -1), 1.5, 1.5, 2.5, 0.5, 0.4]
    assert metrics.wrong_share_at_recall(scores, right) == pytest.approx(1 / 20), "19 of 20 right ones are enough"
    assert metrics.wrong_share_at_recall(scores, right, 1.0) == pytest.approx(3 / 23)
    assert metrics.wrong_share_at_recall(np.zeros(25), right) == pytest.approx(5 / 25), "equal ones are kept together"
    assert metrics.wrong_share_at_recall(scores, ~right | right) == 0
    assert metrics.wrong_share_at_recall(scores, np.zeros(25, bool)) == 0
    with pytest.raises(InputError, match="recall: expected"):
        metrics.wrong_share_at_recall(scores, right, 0.0)


def test_precision_recall_curve_keeps_equal_scores_together():
    curve = metrics.precision_recall_curve(np.array([2.0, 1.0, 2.0]), np.array([F, T, T]))
    assert curve.score.tolist() == [2, 1]
    assert curve.precision == pytest.approx([1 / 2, 2 / 3])
    assert curve.recall == pytest.approx([1 / 2, 1])


def test_calibration():
    # Two bins: scores 0.2 and 0.4 with one inlier of two (gap 0.2), 0.8 with one of one (gap 0.2).
    scores, inlier = np.array([0.2, 0.4, 0.8]), np.array([T, F, T])
    assert metrics.expected_calibration_error(scores, inlier, bins=2) == pytest.approx((2 * 0.2 + 0.2) / 3)
    rng = np.random.default_rng(0)
    honest = rng.random(100_000)
    assert metrics.expected_calibration_error(honest, rng.random(100_000) < honest) < 0.01
    assert metrics.expected_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0
    assert metrics.reliability(np.array([1.0, 0.0]), np.array([T, F]), 4).count.tolist() == [1, 0, 0, 1]
    with pytest.raises(InputError, match="scores: expected probabilities"):
        metrics.expected_calibration_error(np.array([2.0]), np.array([T]))


def test_inlier_neighbours():
    rng = np.random.default_rng(0)
    inlier = np.arange(60) < 20
    apart = rng.normal(0, 0.1, (60, 8)) + 10 * inlier[:, None]
    assert metrics.inlier_neighbour_ratio(apart, inlier, [1, 19]) == [1.0, 1.0]
    # With all others as neighbours, 19 of 59 are inliers, and more cannot be had.
    assert metrics.inlier_neighbour_ratio(apart, inlier, [59, 100]) == pytest.approx([19 / 59, 19 / 59])
    assert metrics.inlier_neighbour_ratio(apart, np.zeros(60, bool), [5]) == [0.0]
    assert metrics.inlier_neighbour_ratio(apart[:1], inlier[:1], [5]) == [0.0]
    assert metrics.inlier_neighbour_ratio(np.zeros((0, 8)), np.zeros(0, bool), [5]) == [0.0]
    with pytest.raises(InputError, match="neighbours: "):
        metrics.inlier_neighbour_ratio(apart, inlier, [0])


def test_wrong_shapes_are_named():
    with pytest.raises(InputError, match="mask: expected an array of bool"):
        metrics.precision_recall_f1(np.array([0.5]), np.array([T]))
    with pytest.raises(InputError, match="mask and inlier: expected the same length, got 2 and 1"):
        metrics.precision_recall_f1(np.array([T, F]), np.array([T]))


@pytest.mark.parametrize(
    ("labels", "truth", "expected"),
    [
        ([0, 0, 1, 1], [2, 2, 1, 1], 0),
        ([0, 0, 0, 0], [1, 1, 2, 2], 0.5),
        ([0, 1, 2, 3], [1, 1, 1, 1], 0.75),
        ([-1, -1, 0, 0], [0, 1, 1, 0], 0.5),
        ([-1, -1], [0, 0], 0),
        ([0, 0], [0, 0], 1),
        ([], [], 0),
    ],
)
def test_misclassification_error(labels, truth, expected):
    found = metrics.misclassification_error(np.array(labels, int), np.array(truth, int))
    assert found == pytest.approx(expected)


def test_misclassification_error_is_least_over_all_names():
    from itertools import permutations

    random = np.random.default_rng(0)
    for _ in range(20):
        labels, truth = random.integers(-1, 4, 30), random.integers(0, 4, 30)
        # Four motions found, three true ones: one of the four has no name, which is written as 9.
        names = permutations([1, 2, 3, 9], 4)
        least = min((np.array([*name, 0])[labels] != truth).mean() for name in names)
        assert metrics.misclassification_error(labels, truth) == pytest.approx(least)


@pytest.mark.parametrize(
    ("labels", "truth", "message"),
    [
        ([0.5], [1], "labels: expected whole numbers of at least -1"),
        ([0], [-1], "truth: expected whole numbers of at least 0"),
        ([0, 1], [0], "expected the same length"),
        (list(range(17)), list(range(1, 18)), "expected at most 16 motions, got 17"),
    ],
)
def test_wrong_labels_of_motions(labels, truth, message):
    with pytest.raises(InputError, match=message):
        metrics.misclassification_error(np.array(labels), np.array(truth))


def test_corner_error_by_hand():
    # Twice as large: the corners of a photo of 4 x 3 move by 0, 3, sqrt(13) and 2.
    assert metrics.corner_error(np.diag([2.0, 2.0, 1.0]), np.eye(3), (4, 3)) == pytest.approx((3 + 13**0.5 + 2) / 4)
    assert metrics.corner_error(-5 * np.eye(3), np.eye(3), (640, 480)) == 0, "of any scale"
    tilted = np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 639, 0, 1]])
    assert metrics.corner_error(tilted, np.eye(3), (640, 480)) == np.inf, "a corner at infinity"
    assert metrics.corner_error(np.full((3, 3), np.nan), np.eye(3), (640, 480)) == np.inf
    assert metrics.corner_error(np.zeros((3, 3)), np.eye(3), (640, 480)) == np.inf
    assert metrics.pose_auc([0.5, np.inf], metrics.CORNER_THRESHOLDS) == pytest.approx(
        [0.375, 0.4583333, 0.475, 0.4875]
    )
    with pytest.raises(InputError, match=r"H: expected shape \(3, 3\), got \(2, 3\)"):
        metrics.corner_error(np.eye(3)[:2], np.eye(3), (640, 480))
