"""How well a network does on pairs it was not trained on, as it ships, and the fit of its scores to probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ananet.core.metrics import average_precision, pose_auc, precision_recall_f1, wrong_share_at_recall
from ananet.datasets.base import LabelledPair
from ananet.datasets.labels import BY_LINE, LabelRule
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


@dataclass(frozen=True, eq=False)
class Truth:
    """The label of a pair's matches, as the loss has it."""

    right: np.ndarray
    """[N] bool."""
    known: np.ndarray
    """[N] bool: which matches have a label. Others are not scored."""
    by_depth: bool


def labels(pairs: Iterable[LabelledPair], rule: LabelRule = BY_LINE) -> list[Truth]:
    """Labels of every pair. By depth, those near the line have one where the depth is known, all others are wrong."""
    truths = []
    for pair in pairs:
        near = (pair.inlier if pair.distance is None else pair.distance < rule.inlier_distance).numpy()
        if rule.labels == "line" or pair.known is None or pair.right is None:
            truths.append(Truth(near, np.ones_like(near), by_depth=False))
        else:
            truths.append(Truth(pair.right.numpy() & near, pair.known.numpy() | ~near, by_depth=True))
    return truths


def score(answers: Sequence[Pruned], truths: Sequence[Truth]) -> dict[str, float]:
    """Precision, recall, F1 and average precision, each the mean over pairs, and with labels by depth `wrong_at_95`.

    That is the share of wrong ones among the kept matches of all pairs, where 95 % of the right ones are kept.
    """
    rows = []
    for kept, truth in zip(answers, truths, strict=True):
        mask, logits = (np.asarray(values)[truth.known] for values in (kept.mask, kept.logits))
        right = truth.right[truth.known]
        rows.append((*precision_recall_f1(mask, right), average_precision(logits, right)))
    names = ("precision", "recall", "f1", "average_precision")
    scores = dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
    pooled = [
        (np.asarray(kept.logits)[truth.known], truth.right[truth.known])
        for kept, truth in zip(answers, truths, strict=True)
        if truth.by_depth
    ]
    if pooled:
        logits, right = (np.concatenate(part) for part in zip(*pooled, strict=True))
        scores["wrong_at_95"] = wrong_share_at_recall(logits, right)
    return scores


def pose_scores(answers: Sequence[Pruned], pairs: Sequence[LabelledPair], estimator: str) -> dict[str, float]:
    """AUC at 5, 10 and 20 degrees, in percent, of the poses that an estimator finds in the kept matches."""
    loaded = load_estimator(estimator)
    errors = [
        pair.pose_error(loaded.pose(pair.matches, answer)).worse for answer, pair in zip(answers, pairs, strict=True)
    ]
    return {f"auc_{degrees}": 100 * auc for degrees, auc in zip((5, 10, 20), pose_auc(errors), strict=True)}


def fit_scores(
    network: Network,
    pairs: Sequence[LabelledPair],
    device: torch.device,
    rule: LabelRule = BY_LINE,
) -> dict[str, tuple[float, float]]:
    """Make the sigmoid of each of the network's outputs the probability of what it tells, on the given pairs.

    Returns scale and shift of the logits, by label of the output.
    """
    fitted = {}
    for label in network.labels:
        answers = predict(LearnedPruner(network, device, conflict_odds=1, label=label), pairs)
        own_rule = rule if label == network.labels[-1] else BY_LINE
        labelled = [
            (torch.from_numpy(answer.logits[truth.known]), torch.from_numpy(truth.right[truth.known]))
            for answer, truth in zip(answers, labels(pairs, own_rule), strict=True)
        ]
        of_output = (label,) if len(network.labels) > 1 else ()
        fitted[label] = fit_probabilities(labelled)
        network.rescale_logits(*fitted[label], *of_output)
    return fitted


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
