import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.datasets.base import LabelledPair
from ananet.evaluation.predictions import Prediction
from ananet.evaluation.scoring import (
    PROTOCOLS,
    PairScore,
    PoseError,
    PoseSettings,
    PrunerScores,
    pose_error,
    score_pair,
)

from ..conftest import make_problem


@pytest.fixture(scope="module")
def pair():
    problem = make_problem(noise=0.05)
    return LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)


@pytest.mark.parametrize("estimator", ["ransac", "magsac", "poselib"])
def test_true_matches_give_the_true_pose(pair, estimator):
    if estimator == "poselib":
        pytest.importorskip("poselib")
    mask = pair.inlier.numpy()
    for settings in (PoseSettings(), PoseSettings(threshold=0.002, calibrated=True, confidence=0.99)):
        error = pose_error(pair, mask, estimator, settings)
        assert error.worse == max(error.rotation, error.translation) < 1 and not error.failed


def test_a_calibrated_threshold_counts_in_focal_lengths(pair):
    mask = np.ones(len(pair.matches), bool)
    in_pixels = pose_error(pair, mask, "ransac", PoseSettings(threshold=1.0))
    calibrated = pose_error(pair, mask, "ransac", PoseSettings(threshold=1.0 / 500, calibrated=True))
    assert in_pixels == calibrated


def test_repeats_shuffle_and_are_reproducible(pair):
    mask = np.ones(len(pair.matches), bool)
    errors = [pose_error(pair, mask, "ransac", PoseSettings(), repeat).worse for repeat in (0, 1, 2, 1)]
    assert len(set(errors)) == 3 and errors[1] == errors[3]


def test_too_few_matches_and_no_answer_are_failures(pair, monkeypatch):
    few = np.arange(len(pair.matches)) < 8
    failure = PoseError(180.0, 180.0, failed=True)
    assert pose_error(pair, few, "ransac", PoseSettings()) == failure
    monkeypatch.setattr("ananet.evaluation.scoring.estimate_pose", lambda *_, **__: None)
    assert pose_error(pair, np.ones(len(pair.matches), bool), "ransac", PoseSettings()) == failure


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


def test_settings_are_checked_and_described():
    with pytest.raises(InputError, match="estimators: expected some of ransac, magsac, poselib, got lmeds"):
        PoseSettings(("ransac", "lmeds"))
    with pytest.raises(InputError, match="threshold: "):
        PoseSettings(threshold=0)
    with pytest.raises(InputError, match="repeats: "):
        PoseSettings(repeats=0)
    assert PoseSettings().describe("ransac") == "ransac, threshold 1 px / mean focal length, confidence 0.99999"
    assert PoseSettings(confidence=1 - 1e-12).describe("ransac").endswith("confidence 0.999999999999")
    assert PROTOCOLS["yfcc"].longest_side == 1600
    assert "0.001 in calibrated coordinates, confidence 0.99" in PROTOCOLS["sun3d"].pose.describe("ransac")
