from dataclasses import replace

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.datasets.base import LabelledPair
from ananet.datasets.formats.shards import PairShards
from ananet.datasets.labels import LabelRule
from ananet.networks import ANANet
from ananet.pruners import LearnedPruner
from ananet.pruners.base import Pruned
from ananet.training import calibration
from ananet.training.calibration import Truth, fit_probabilities, fit_scores, labels, pose_scores, predict, score
from tests.conftest import make_problem
from tests.training.conftest import SMALL


@pytest.fixture(scope="module")
def network() -> ANANet:
    torch.manual_seed(0)
    return ANANet(SMALL).eval()


def answer(mask) -> Pruned:
    mask = np.asarray(mask)
    logits = np.where(mask, 1.0, -1.0).astype(np.float32)
    return Pruned(mask, logits, logits)


def truth(*right: bool) -> Truth:
    return Truth(np.array(right), np.ones(len(right), bool), by_depth=False)


def labelled(seed: int = 0) -> LabelledPair:
    problem = make_problem(100, 60, noise=0.05, seed=seed)
    return LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)


def test_many_pairs_at_once_get_the_answers_of_each(network, data, monkeypatch):
    pairs = [*PairShards(data / "pairs"), *PairShards(data / "validation")]
    pruner = LearnedPruner(network, "cpu")
    monkeypatch.setattr(calibration, "PAIRS_AT_ONCE", 3)
    found = predict(pruner, iter(pairs))
    assert len(found) == len(pairs)
    for got, pair in zip(found, pairs, strict=True):
        np.testing.assert_allclose(got.logits, pruner(pair.matches).logits, atol=1e-4)


def test_labels_follow_the_distance_that_is_asked_for():
    pair = labelled()
    tight = LabelRule(1e-8)
    assert (labels([pair])[0].right == pair.inlier.numpy()).all() and labels([pair])[0].known.all()
    assert (labels([pair], tight)[0].right == (pair.distance < 1e-8).numpy()).all()
    without = replace(pair, distance=None)
    assert (labels([without], tight)[0].right == pair.inlier.numpy()).all(), "several motions have no single distance"


def test_labels_by_depth_leave_out_what_is_unknown():
    pair = labelled()
    known = torch.arange(160) % 4 > 0
    right = known & pair.inlier & (torch.arange(160) % 4 > 1)
    by_depth = LabelRule(labels="depth")
    with_depth, without = labels([replace(pair, known=known, right=right, share=0.5), pair], by_depth)
    assert with_depth.by_depth and (with_depth.right == right.numpy()).all()
    assert (with_depth.known == (known | ~pair.inlier).numpy()).all()
    assert not without.by_depth and (without.right == pair.inlier.numpy()).all() and without.known.all()


def test_unknown_matches_are_not_scored():
    kept = Pruned(np.array([True, True, True, False]), np.ones(4, np.float32), np.array([3, 2, 1, -1], np.float32))
    right, known = np.array([True, False, False, False]), np.array([True, False, True, True])
    found = score([kept, kept], [Truth(right, known, by_depth=True), Truth(right, known, by_depth=True)])
    assert found["precision"] == 0.5 and found["recall"] == found["average_precision"] == 1
    assert found["wrong_at_95"] == 0, "what is best of the known ones is right"
    other = Truth(np.array([False, False, True, False]), known, by_depth=True)
    assert score([kept, kept], [Truth(right, known, by_depth=True), other])["wrong_at_95"] == 0.5, "over all pairs"


def test_scores_by_hand():
    found = score([answer([True, False, True])], [truth(True, True, False)])
    assert found["precision"] == found["recall"] == found["f1"] == 0.5
    both = score([answer([True, False]), answer([True, False])], [truth(True, False), truth(False, True)])
    assert both["f1"] == both["precision"] == 0.5, "means over pairs"
    assert set(both) == {"precision", "recall", "f1", "average_precision"}


def test_poses_of_right_matches_are_right():
    pairs = [labelled(seed) for seed in range(3)]
    right = [answer(pair.inlier.numpy()) for pair in pairs]
    found = pose_scores(right, pairs, "ransac")
    assert list(found) == ["auc_5", "auc_10", "auc_20"] and found["auc_5"] > 85
    nothing = [answer(np.zeros(160, bool)) for _ in pairs]
    assert pose_scores(nothing, pairs, "ransac") == {"auc_5": 0, "auc_10": 0, "auc_20": 0}
    with pytest.raises(InputError, match="estimator: "):
        pose_scores(right, pairs, "lmeds")


def test_probabilities_are_fitted():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(20_000, generator=generator) * 2 - 1
    right = torch.rand(20_000, generator=generator) < truth.sigmoid()
    scale, shift = fit_probabilities([((truth - 0.5) * 3, right)])
    assert scale == pytest.approx(1 / 3, abs=0.02)
    assert shift == pytest.approx(0.5, abs=0.1)


def test_every_pair_weighs_the_same_in_the_fit():
    generator = torch.Generator().manual_seed(0)

    def pair(count: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        right = torch.rand(count, generator=generator) < share
        return torch.randn(count, generator=generator) * 0.01, right

    _, shift = fit_probabilities([pair(200, 0.2), pair(20_000, 0.8)])
    assert torch.tensor(shift).sigmoid().item() == pytest.approx(0.5, abs=0.05)
    fit_probabilities([pair(200, 0.2), (torch.zeros(0), torch.zeros(0, dtype=torch.bool))])


def test_the_fit_never_turns_better_into_worse():
    logits = torch.linspace(-3, 3, 100)
    scale, _ = fit_probabilities([(logits, logits < 0)])
    assert scale > 0


def test_fitted_networks_say_how_many_matches_are_right(network, data):
    pairs = list(PairShards(data / "pairs"))

    def mean_gap(fitted: ANANet, limit: float) -> float:
        answers = predict(LearnedPruner(fitted, "cpu", conflict_odds=1), pairs)
        said = np.mean([one.scores.mean() for one in answers])
        return abs(float(said - np.mean([truth.right.mean() for truth in labels(pairs, LabelRule(limit))])))

    for limit in (1e-4, 1e-6):
        fitted = ANANet(SMALL).eval()
        fitted.load_state_dict(network.state_dict())
        fitted.rescale_logits(2.0, 3.0)
        assert mean_gap(fitted, limit) > 0.05
        before = fitted.head.bias.item()
        found = fit_scores(fitted, pairs, torch.device("cpu"), LabelRule(limit))
        scale, shift = found["line"]
        assert list(found) == ["line"] and fitted.head.bias.item() == pytest.approx(scale * before + shift)
        assert mean_gap(fitted, limit) < 0.01
