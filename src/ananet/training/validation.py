"""How well a network does on pairs it was not trained on, and the fit of its scores to probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ananet.datasets.base import INLIER_DISTANCE, LabelledPair
from ananet.evaluation.metrics import average_precision, precision_recall_f1
from ananet.networks import ANANet
from ananet.networks.input import network_input


@torch.inference_mode()
def predict(
    network: ANANet, pairs: Iterable[LabelledPair], device: torch.device, inlier_distance: float = INLIER_DISTANCE
) -> list[tuple[Tensor, Tensor]]:
    """Logits and labels of every pair, on the CPU; the label is a squared epipolar distance below the given one."""
    network.eval()
    answers = []
    for pair in pairs:
        matches = network_input(pair.matches, network.settings).to(device)
        assert pair.distance is not None
        answers.append((network(matches).float().cpu(), pair.distance < inlier_distance))
    return answers


def score(answers: list[tuple[Tensor, Tensor]], threshold: float = 0.0) -> dict[str, float]:
    """Precision, recall, F1 and average precision, each the mean over pairs."""
    rows = [
        (
            *precision_recall_f1((logits > threshold).numpy(), inlier.numpy()),
            average_precision(logits.numpy(), inlier.numpy()),
        )
        for logits, inlier in answers
    ]
    return dict(zip(("precision", "recall", "f1", "average_precision"), np.mean(rows, axis=0).tolist(), strict=True))


def fit_probabilities(answers: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Scale and shift of the logits that make their sigmoid a probability (Platt scaling); every pair weighs the same.

    The balanced loss trains as if half of all matches were right, so untouched logits promise too much.
    """
    logits = torch.cat([answer.double() for answer, _ in answers])
    labels = torch.cat([inlier.double() for _, inlier in answers])
    weights = torch.cat([torch.full((len(a),), 1 / max(len(a), 1), dtype=torch.float64) for a, _ in answers])
    # The logarithm of the scale: better matches must not become worse ones, whatever a few pairs say.
    parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(
            parameters[0].exp() * logits + parameters[1], labels, reduction="none"
        )
        loss = (weights * entropy).sum() / weights.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    log_scale, shift = parameters.tolist()
    return math.exp(log_scale), shift


@torch.no_grad()
def fold_into_head(network: ANANet, scale: float, shift: float) -> None:
    """Make the network's own logits the calibrated ones: its last layer is linear."""
    network.head.weight.mul_(scale)
    network.head.bias.mul_(scale).add_(shift)


def pose_scores(answers: list[tuple[Tensor, Tensor]], pairs: Sequence[LabelledPair]) -> dict[str, float]:
    """AUC at 5, 10 and 20 degrees, in percent, of poses that OpenCV's RANSAC finds in the kept matches at 1 pixel."""
    from ananet.evaluation.metrics import pose_auc
    from ananet.evaluation.scoring import PoseSettings, pose_error

    settings = PoseSettings()
    errors = [
        pose_error(pair, (logits > 0).numpy(), "ransac", settings).worse
        for (logits, _), pair in zip(answers, pairs, strict=True)
    ]
    aucs = pose_auc(np.array(errors))
    return {f"auc_{degrees}": 100 * auc for degrees, auc in zip((5, 10, 20), aucs, strict=True)}
