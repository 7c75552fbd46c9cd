from dataclasses import replace

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError
from ananet.core.metrics import PoseError
from ananet.datasets.base import LabelledPair
from ananet.evaluation.pairs import with_hidden_cameras
from ananet.evaluation.predictions import Prediction
from ananet.evaluation.scoring import (
    PairScore,
    PoseSettings,
    PrunerScores,
    homography_error,
    pose_error,
    protocol_settings,
    score_empty_pair,
    score_pair,
)
from tests.conftest import make_problem
from tests.datasets.depth_pairs import pair_with_depth


@pytest.fixture(scope="module")
def pair():
    problem = make_problem(noise=0.05)
    return LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)


def kept(mask) -> Prediction:
    mask = np.asarray(mask)
    return Prediction(mask, np.where(mask, 1, -1).astype(np.float32))


@pytest.mark.parametrize("estimator", ["ransac", "magsac", "poselib"])
def test_true_matches_give_the_true_pose(pair, estimator):
    right = kept(pair.inlier)
    for settings in (PoseSettings(), PoseSettings(threshold=0.002, calibrated=True, confidence=0.99)):
        error = pose_error(pair, right, estimator, settings)
        assert error.worse == max(error.rotation, error.translation) < 1 and not error.failed


def test_a_calibrated_threshold_counts_in_focal_lengths(pair):
    everything = kept(np.ones(len(pair.matches), bool))
    in_pixels = pose_error(pair, everything, "ransac", PoseSettings(threshold=1.0))
    calibrated = pose_error(pair, everything, "ransac", PoseSettings(threshold=1.0 / 500, calibrated=True))
    assert in_pixels == calibrated


def test_repeats_shuffle_and_are_reproducible(pair):
    everything = kept(np.ones(len(pair.matches), bool))
    errors = [pose_error(pair, everything, "ransac", PoseSettings(), repeat).worse for repeat in (0, 1, 2, 1)]
    assert len(set(errors)) == 3 and errors[1] == errors[3]


def test_too_few_matches_and_no_answer_are_failures(pair, monkeypatch):
    few = kept(np.arange(len(pair.matches)) < 8)
    failure = PoseError(180.0, 180.0, failed=True)
    assert pose_error(pair, few, "ransac", PoseSettings()) == failure
    monkeypatch.setattr("ananet.estimators.methods.RANSAC.find_pose", lambda *_: None)
    assert pose_error(pair, kept(np.ones(len(pair.matches), bool)), "ransac", PoseSettings()) == failure


def test_score_of_a_pair(pair):
    inlier = pair.inlier.numpy()
    score = score_pair(pair, Prediction(inlier, np.where(inlier, 1, -1).astype(np.float32)), PoseSettings(repeats=2))
    assert (score.precision, score.recall, score.f1, score.average_precision) == (1, 1, 1, 1)
    assert score.kept == inlier.sum() and len(score.poses["ransac"]) == 2
    without_pose = LabelledPair("p", pair.matches, pair.inlier)
    assert score_pair(without_pose, Prediction(inlier, inlier.astype(np.float32)), PoseSettings()).poses == {}


def test_a_pair_without_matches(pair):
    empty = LabelledPair("p", pair.matches[[]], torch.zeros(0, dtype=torch.bool), R=pair.R, t=pair.t)
    score = score_pair(empty, Prediction(np.zeros(0, bool), np.zeros(0, np.float32)), PoseSettings())
    assert (score.f1, score.average_precision, score.poses["ransac"][0].failed) == (0, 0, True)


def test_true_precision_and_recall():
    pair = pair_with_depth()
    numbers = np.arange(len(pair.matches))
    right, accidental, unknown, wrong, wrong_of_unknown_depth = np.split(numbers, [100, 140, 200, 240])

    def score(*kept_ones) -> PairScore:
        mask = np.zeros(len(pair.matches), bool)
        mask[np.concatenate(kept_ones)] = True
        return score_pair(pair, kept(mask), PoseSettings(()))

    found = score(right[:50], accidental[:10], unknown, wrong[:5], wrong_of_unknown_depth[:5])
    assert found.true_precision == pytest.approx(50 / 70), "unknown ones near the line do not count, all others do"
    assert found.true_recall == pytest.approx(0.5)
    assert found.precision == pytest.approx(120 / 130), "by the line, accidental ones are right"
    assert np.isnan(score(unknown).true_precision) and score(unknown).true_recall == 0
    without = replace(pair, known=None, right=None, share=None)
    assert np.isnan(score_pair(without, kept(pair.inlier), PoseSettings(())).true_recall)
    nothing_right = pair_with_depth(right=0)
    assert np.isnan(score_pair(nothing_right, kept(nothing_right.inlier), PoseSettings(())).true_recall)


def test_means_are_over_pairs_with_known_truth():
    poses: dict = {"ransac": []}
    scores = PrunerScores([PairScore(1, 1, 1, 1, 1, poses, p, r) for p, r in ((0.5, np.nan), (1, 0.2))], 0.0)
    means = {"true_precision": 0.75, "true_recall": 0.2, "wrong_at_95": None, "wrong_at_95_mutual": None}
    assert scores.truth_summary() == means
    assert scores.only([]).truth_summary()["true_recall"] is None


def test_false_alarms_on_an_empty_pair():
    pair = pair_with_depth(share=0)
    agreeing, few = pair.inlier.numpy(), np.arange(len(pair.matches)) < 15
    alarm, quiet = (score_empty_pair(pair, kept(mask)) for mask in (agreeing, few))
    assert (alarm.kept, alarm.one_to_one, alarm.overlap) == (200, 200, True), "matches that agree on a false geometry"
    assert (quiet.kept, quiet.one_to_one) == (15, 15)
    summary = PrunerScores([], 0.0, empty_pairs=[alarm, replace(quiet, overlap=False)]).empty_summary()
    assert summary == {"kept": 107.5, "more_than_15": 0.5, "same_scene": 0.5}


def test_summaries_by_hand():
    def score(f1: float, *errors: PoseError) -> PairScore:
        return PairScore(10, 0.5, 0.5, f1, 0.5, {"ransac": errors})

    failed = PoseError(180, 180, failed=True)
    scores = PrunerScores(
        [score(0.2, PoseError(1, 2), PoseError(1, 1)), score(0.6, PoseError(4, 3), failed)], calibration_error=0.1
    )
    assert scores.errors("ransac").tolist() == [[2, 4], [1, 180]]
    assert scores.matches_summary()["f1"] == pytest.approx(0.4)
    summary = scores.pose_summary("ransac")
    # First run: 1/2 at 2, 1 at 4: (0.5 + 1.5 + 1) / 5. Second: 1/2 at 1, then level: (0.25 + 2) / 5.
    assert summary["auc"][0] == pytest.approx(100 * (0.6 + 0.45) / 2)
    assert summary["auc_deviation"][0] == pytest.approx(100 * 0.15 / np.sqrt(2))
    assert summary["map"][0] == pytest.approx(75)
    assert summary["failures"] == 1
    assert scores.only([1]).pose_summary("ransac")["auc"][0] < summary["auc"][0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimators": ("ransac", "lmeds")}, "expected one of poselib, ransac, magsac, eight-point, got 'lmeds'"),
        ({"estimators": ("ransac@loss=cauchy",)}, "unknown option loss of estimator 'ransac': it has"),
        ({"estimators": ("ransac@threshold",)}, "expected an option as name=value"),
        ({"estimators": ("ransac", "ransac")}, "estimators: expected different ones"),
        ({"estimators": "ransac"}, "estimators: expected a list of texts"),
        ({"threshold": 0}, "threshold: "),
        ({"confidence": 1.0}, "confidence: expected a probability above 0 and below 1"),
        ({"repeats": 0}, "repeats: "),
        ({"calibrated": "yes"}, "calibrated: expected true or false"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        PoseSettings(**settings)


def test_settings_are_described():
    described = "ransac, threshold 1 px / mean focal length, confidence 0.99999, all kept matches"
    assert PoseSettings().describe("ransac") == described
    assert "confidence 0.999999999999," in PoseSettings(confidence=1 - 1e-12).describe("ransac")
    assert PoseSettings(repeats=5).describe("ransac").endswith(", mean of 5 runs")
    paper = {"detector": "sift@root=false", "max_keypoints": 2000}
    assert protocol_settings("yfcc")[1] == {**paper, "longest_side": 1600}
    assert protocol_settings("sun3d")[1] == paper and protocol_settings("plain")[1] == {}
    assert "0.001 in calibrated coordinates, confidence 0.99" in protocol_settings("sun3d")[0].describe("ransac")


def test_options_of_a_name_go_before_the_settings():
    settings = PoseSettings(("ransac@threshold=3", "magsac@confidence=0.9"), threshold=0.5, confidence=0.99)
    first, second = (settings.load(name) for name in settings.estimators)
    assert (first.settings("essential").threshold, first.confidence) == (3.0, 0.99)
    assert (second.settings("essential").threshold, second.confidence) == (0.5, 0.9)
    described = "ransac, threshold 3 px / mean focal length, confidence 0.99, all kept matches"
    assert settings.describe("ransac@threshold=3") == described
    calibrated = PoseSettings(("ransac@threshold=3", "magsac"), threshold=0.002, calibrated=True)
    matches = make_problem().matches
    first, second = (calibrated.load(name, matches).settings("essential") for name in calibrated.estimators)
    assert first.threshold == 3, "an option of a name is in pixels"
    assert second.threshold == pytest.approx(1.0)
    assert "3 px" in calibrated.describe("ransac@threshold=3") and "calibrated" in calibrated.describe("magsac")


def test_poselib_has_options_and_a_default_confidence_of_its_own(pair):
    name = "poselib@loss=huber@match_selection=all@threshold=1"
    settings = PoseSettings((name, "poselib"))
    own = "poselib, threshold 0.75 px / mean focal length, confidence its default, one-to-one matches"
    assert settings.describe("poselib") == own
    other = "poselib, threshold 1 px / mean focal length, confidence its default, all kept matches, loss huber"
    assert settings.describe(name) == other
    assert pose_error(pair, kept(pair.inlier), name, settings).worse < 1
    inlier = pair.inlier.numpy()
    score = score_pair(pair, Prediction(inlier, inlier.astype(np.float32)), settings)
    assert list(score.poses) == [name, "poselib"]


@pytest.mark.parametrize("estimator", ["ransac", "magsac", "poselib"])
def test_a_fundamental_matrix_is_scored_with_the_true_cameras(pair, estimator):
    hidden, settings = with_hidden_cameras(pair), PoseSettings((estimator,), model="fundamental")
    (error,) = score_pair(hidden, kept(pair.inlier), settings).poses[estimator]
    assert error.worse < 4 and not error.failed
    twice = hidden.cameras[1] @ torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))
    other = replace(hidden, cameras=(hidden.cameras[0], twice))
    assert pose_error(other, kept(pair.inlier), estimator, settings).worse > 5


def test_without_a_fundamental_matrix_there_is_no_pose(pair, monkeypatch):
    hidden, settings = with_hidden_cameras(pair), PoseSettings(("ransac",), model="fundamental")
    failure = PoseError(180.0, 180.0, failed=True)
    assert pose_error(hidden, kept(np.arange(len(pair.matches)) < 8), "ransac", settings) == failure
    monkeypatch.setattr("ananet.estimators.methods.RANSAC.find_fundamental", lambda *_: None)
    assert pose_error(hidden, kept(pair.inlier), "ransac", settings) == failure


def plane(count: int = 60) -> LabelledPair:
    """Half of the matches lie on the plane."""
    rng = np.random.default_rng(0)
    points0 = rng.uniform(0, 400, (count, 2))
    points1 = points0 + np.array([12.0, -7.0])
    points1[count // 2 :] = rng.uniform(0, 400, (count - count // 2, 2))
    matches = Correspondences(points0, points1, image_size0=(400, 400), image_size1=(400, 400))
    H = torch.tensor([[1, 0, 12], [0, 1, -7], [0, 0, 1]], dtype=torch.float64)
    return LabelledPair.from_homography("plane", matches, H)


@pytest.mark.parametrize("estimator", ["ransac", "magsac", "poselib"])
def test_homographies_are_scored_by_their_corners(estimator):
    pair, settings = plane(), PoseSettings((estimator,), repeats=2, model="homography")
    assert pair.inlier.tolist() == [True] * 30 + [False] * 30
    score = score_pair(pair, kept(np.ones(60, bool)), settings)
    assert max(score.homographies[estimator]) < 1e-3 and len(score.homographies[estimator]) == 2 and score.poses == {}
    for count in (0, 1, 3):
        assert homography_error(pair, kept(np.arange(60) < count), estimator, settings) == np.inf
    nothing = score_pair(plane(0), kept(np.zeros(0, bool)), settings)
    assert nothing.homographies[estimator] == [np.inf, np.inf]
    scores = PrunerScores([score, nothing], 0.0)
    summary = scores.homography_summary(estimator)
    assert summary["auc"] == pytest.approx([50] * 4, abs=0.1) and summary["failures"] == 1
    assert summary["auc_deviation"] == pytest.approx([0] * 4, abs=0.1)


def test_what_is_estimated_has_settings_of_its_own():
    for settings, estimator, expected in (
        (PoseSettings(model="fundamental"), "poselib", "poselib, threshold 1 px, confidence its default"),
        (PoseSettings(model="homography", threshold=4.0), "magsac", "magsac, threshold 4 px, confidence 0.99999"),
    ):
        assert settings.describe(estimator).startswith(expected)
    with pytest.raises(InputError, match="model: expected one of essential, fundamental, homography, got 'affine'"):
        PoseSettings(model="affine")
    with pytest.raises(InputError, match="threshold: expected a threshold in pixels, .* got one in calibrated"):
        PoseSettings(threshold=0.001, calibrated=True, model="fundamental")
