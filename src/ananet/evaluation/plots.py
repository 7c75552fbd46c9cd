"""Plots of evaluations and of what the network sees, as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ananet._util.plots import figure_to_picture, import_matplotlib
from ananet.core import metrics
from ananet.evaluation.explain import NEIGHBOURS
from ananet.evaluation.runner import Evaluation
from ananet.networks.base import BlockView

MAX_ERROR = 20.0
INLIER_RATIO_EDGES = np.linspace(0, 1, 11)
COLOURS = ("blue", "orange", "green", "red", "purple", "brown", "pink", "gray", "olive", "cyan")
# Points of a curve that are drawn; a pooled one has as many as there are matches.
CURVE_POINTS = 500


def evaluation_plots(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """All plots of an evaluation by file name without suffix."""
    plots = {f"auc-{estimator}": plot_recall(evaluation, estimator) for estimator in evaluation.estimators}
    plots["f1-by-inlier-ratio"] = plot_f1(evaluation)
    plots["precision-recall"] = plot_precision_recall(evaluation)
    plots["reliability"] = plot_reliability(evaluation)
    for name, scores in evaluation.scores.items():
        if scores.inlier_neighbours is not None:
            plots[f"neighbours-{name}"] = plot_neighbours(scores.inlier_neighbours, NEIGHBOURS, name)
    return plots


def plot_recall(evaluation: Evaluation, estimator: str) -> np.ndarray:
    """Recall over pose error: the areas under these curves are the AUC."""
    figure, axis = _axis("pose error, degrees", "share of pairs")
    at = np.linspace(0, MAX_ERROR, 201)
    for name, scores in evaluation.scores.items():
        areas = "/".join(f"{area:.1f}" for area in scores.pose_summary(estimator)["auc"])
        axis.plot(at, metrics.recall_curve(scores.errors(estimator).ravel(), at), label=f"{name} (AUC@5/10/20 {areas})")
    axis.set_xlim(0, MAX_ERROR)
    axis.set_ylim(0, 1)
    axis.legend(loc="lower right")
    title = f"{evaluation.source}: {evaluation.pose_settings.describe(estimator)}\n{evaluation.matching}"
    return _finished(figure, axis, title)


def plot_f1(evaluation: Evaluation) -> np.ndarray:
    """F1 by inlier ratio of the pair, and how many pairs have it."""
    figure, axis = _axis("inlier ratio of the pair", "mean F1")
    middle = (INLIER_RATIO_EDGES[1:] + INLIER_RATIO_EDGES[:-1]) / 2
    ratios = evaluation.inlier_ratios
    count = np.zeros(len(middle))
    for name, scores in evaluation.scores.items():
        mean, count = metrics.mean_by_bin(scores.column("f1"), ratios, INLIER_RATIO_EDGES)
        axis.plot(middle, mean, marker="o", label=name)
    pairs = axis.twinx()
    pairs.bar(middle, count, width=0.09, color="0.9", zorder=0)
    pairs.set_ylabel("pairs", color="0.5")
    # Lines before bars.
    axis.set_zorder(pairs.get_zorder() + 1)
    axis.patch.set_visible(False)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.legend(loc="lower right")
    return _finished(figure, axis, f"{evaluation.source}: {len(ratios)} pairs\n{evaluation.matching}")


def plot_precision_recall(evaluation: Evaluation) -> np.ndarray:
    """Precision over recall as the score decides, all matches together; a dot where the pruner itself decides."""
    figure, axis = _axis("recall", "precision")
    for name, predictions in evaluation.predictions.items():
        scores, inlier = evaluation.pooled(name)
        curve = metrics.precision_recall_curve(scores, inlier)
        mask = np.concatenate([result.mask for result in predictions.results])
        precision, recall, _ = metrics.precision_recall_f1(mask, inlier)
        shown = np.unique(np.linspace(0, len(curve.recall) - 1, CURVE_POINTS).astype(int))
        (line,) = axis.plot(curve.recall[shown], curve.precision[shown], label=name)
        axis.plot(recall, precision, "o", color=line.get_color())
    axis.set_xlim(0, 1.02)
    axis.set_ylim(0, 1.02)
    axis.legend(loc="lower left")
    return _finished(figure, axis, f"{evaluation.source}: all matches of {len(evaluation.names)} pairs together")


def plot_reliability(evaluation: Evaluation) -> np.ndarray:
    """Share of inliers by score: on the diagonal, scores are probabilities."""
    figure, axis = _axis("score", "share of inliers")
    axis.plot([0, 1], [0, 1], color="0.7", linestyle="--")
    for name in evaluation.predictions:
        found = metrics.reliability(*evaluation.pooled(name))
        filled = found.count > 0
        error = evaluation.scores[name].calibration_error
        axis.plot(
            found.score[filled], found.inlier_ratio[filled], marker="o", label=f"{name} (calibration error {error:.3f})"
        )
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.legend(loc="upper left")
    return _finished(figure, axis, f"{evaluation.source}: all matches of {len(evaluation.names)} pairs together")


def plot_neighbours(ratios: np.ndarray, neighbours: Sequence[int], name: str) -> np.ndarray:
    """Ratio of inliers among the k nearest neighbours of inliers in feature space, by block (Fig. 7 left).

    Args:
        ratios: [blocks + 1 x k's].
    """
    figure, axis = _axis("k nearest neighbours in feature space", "share of the same kind among them")
    for block, row in enumerate(ratios):
        axis.plot(neighbours, row, marker="o", label=f"after block {block}" if block else "before the blocks")
    axis.set_ylim(0, 1)
    axis.legend()
    return _finished(figure, axis, name)


def plot_context(views: Sequence[BlockView], groups: Mapping[str, np.ndarray], title: str) -> np.ndarray:
    """Histograms of the attention-consistent context by block and head, before and after normalisation (Figs. 3b, 8).

    Args:
        views: blocks with second order.
        groups: [N] bool of the matches to tell apart, by what they are; green the first, red the second.
    """
    plt = import_matplotlib()
    heads = len(views[0].attention)
    size = (2.6 * 2 * heads, 2.0 * len(views) + 0.6)
    figure, axes = plt.subplots(len(views), 2 * heads, figsize=size, dpi=80, layout="constrained", squeeze=False)
    for block, view in enumerate(views):
        assert view.context is not None and view.normalized is not None
        for head in range(heads):
            for column, (values, what) in enumerate(((view.context, "h"), (view.normalized, "sigmoid(alpha h)"))):
                axis = axes[block, 2 * head + column]
                _two_histograms(axis, values[head].cpu().numpy(), groups)
                axis.set_title(f"block {block + 1}, head {head + 1}: {what}", fontsize=8)
                axis.tick_params(labelsize=7)
                axis.set_yticks([])
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    return figure_to_picture(figure)


def _two_histograms(axis: Any, values: np.ndarray, groups: Mapping[str, np.ndarray]) -> None:
    # A few matches that everything attends to would squeeze all others into one bar.
    low, high = np.percentile(values, (0, 99))
    edges = np.linspace(low, high if high > low else low + 1e-6, 41)
    for (name, chosen), colour in zip(groups.items(), ("tab:green", "tab:red"), strict=False):
        if chosen.any():
            axis.hist(
                values[chosen].clip(edges[0], edges[-1]), edges, density=True, color=colour, alpha=0.5, label=name
            )


def _axis(x: str, y: str) -> tuple[Any, Any]:
    figure, axis = import_matplotlib().subplots(figsize=(8, 6), dpi=100, layout="constrained")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
    # Ten colours come once more, dashed.
    axis.set_prop_cycle(color=2 * [f"tab:{name}" for name in COLOURS], linestyle=10 * ["-"] + 10 * ["--"])
    return figure, axis


def _finished(figure: Any, axis: Any, title: str) -> np.ndarray:
    axis.set_title(title, fontsize=10)
    return figure_to_picture(figure)
