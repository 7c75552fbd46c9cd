"""How well a network does on pairs it was not trained on, as it ships, and the fit of its scores to probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ananet._util.defaults import INLIER_DISTANCE
from ananet.core.metrics import average_precision, pose_auc, precision_recall_f1
from ananet.datasets.base import LabelledPair
from ananet.estimators import load_estimator
from ananet.networks import Network
from ananet.pruners.base import Pruned
from ananet.pruners.learned import LearnedPruner

PAIRS_AT_ONCE = 64


def predict(pruner: LearnedPruner, pairs: Iterable[LabelledPair]) -> list[Pruned]:
    """Results for all pairs, many at once."""
    waiting, answers = iter(pairs), []
    while some := list(islice(waiting, PAIRS_AT_ONCE)):
        answers += pruner.batch([pair.matches for pair in some])
    return answers


def labels(pairs: Iterable[LabelledPair], inlier_distance: float = INLIER_DISTANCE) -> list[np.ndarray]:
    """[N] bool of every pair: a squared epipolar distance below the given one."""
    return [
        (pair.distance < inlier_distance).numpy() if pair.distance is not None else pair.inlier.numpy()
        for pair in pairs
    ]


def score(answers: Sequence[Pruned], inliers: Sequence[np.ndarray]) -> dict[str, float]:
    """Precision, recall, F1 and average precision, each the mean over pairs."""
    rows = [
        (*precision_recall_f1(np.asarray(kept.mask), inlier), average_precision(np.asarray(kept.logits), inlier))
        for kept, inlier in zip(answers, inliers, strict=True)
    ]
    return dict(zip(("precision", "recall", "f1", "average_precision"), np.mean(rows, axis=0).tolist(), strict=True))


def pose_scores(answers: Sequence[Pruned], pairs: Sequence[LabelledPair], estimator: str) -> dict[str, float]:
    """AUC at 5, 10 and 20 degrees, in percent, of the poses that an estimator finds in the kept matches."""
    loaded = load_estimator(estimator)
    errors = [
        pair.pose_error(loaded.pose(pair.matches, answer)).worse for answer, pair in zip(answers, pairs, strict=True)
    ]
    return {f"auc_{degrees}": 100 * auc for degrees, auc in zip((5, 10, 20), pose_auc(errors), strict=True)}


def fit_scores(
    network: Network, pairs: Sequence[LabelledPair], device: torch.device, inlier_distance: float = INLIER_DISTANCE
) -> None:
    """Make the sigmoid of the network's logits the probability that a match is right, on the given pairs."""
    answers = predict(LearnedPruner(network, device, conflict_odds=1), pairs)
    logits = [torch.from_numpy(answer.logits) for answer in answers]
    right = [torch.from_numpy(inlier) for inlier in labels(pairs, inlier_distance)]
    network.rescale_logits(*fit_probabilities(list(zip(logits, right, strict=True))))


def fit_probabilities(answers: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Scale and shift of the logits that make their sigmoid a probability (Platt scaling); every pair weighs the same.

    The balanced loss trains as if half of all matches were right, so untouched logits promise too much.
    """
    logits = torch.cat([answer.double() for answer, _ in answers])
    inlier = torch.cat([right.double() for _, right in answers])
    weights = torch.cat([torch.full((len(a),), 1 / max(len(a), 1), dtype=torch.float64) for a, _ in answers])
    # The logarithm of the scale: better matches must not become worse ones, whatever a few pairs say.
    parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        scaled = parameters[0].exp() * logits + parameters[1]
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(scaled, inlier, reduction="none")
        loss = (weights * entropy).sum() / weights.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    log_scale, shift = parameters.tolist()
    return math.exp(log_scale), shift
