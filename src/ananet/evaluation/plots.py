"""Plots of evaluations and of the inside of networks, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ananet._util.plots import figure_to_picture, import_matplotlib
from ananet.core import metrics
from ananet.evaluation.explain import NEIGHBOURS, separation
from ananet.evaluation.runner import Evaluation
from ananet.networks.base import BlockView

INLIER_RATIO_EDGES = np.linspace(0, 1, 11)
COLOURS = ("blue", "orange", "green", "red", "purple", "brown", "pink", "gray", "olive", "cyan")
# Points drawn of a curve; a pooled one has one per match.
CURVE_POINTS = 500


def evaluation_plots(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """All plots of an evaluation by file name without suffix; none if all pairs are empty."""
    if not evaluation.names:
        return {}
    plots = {f"auc-{estimator}": plot_recall(evaluation, estimator) for estimator in evaluation.estimators}
    others = {"f1-by-inlier-ratio": plot_f1, "precision-recall": plot_precision_recall, "reliability": plot_reliability}
    plots |= {name: plot(evaluation) for name, plot in others.items()}
    for name, scores in evaluation.scores.items():
        if scores.inlier_neighbours is not None:
            plots[f"neighbours-{name}"] = plot_neighbours(scores.inlier_neighbours, NEIGHBOURS, name)
    return plots


def plot_recall(evaluation: Evaluation, estimator: str) -> np.ndarray:
    """Recall over pose error, or mean corner error: the areas under these curves are the AUC."""
    of_plane = evaluation.model == "homography"
    thresholds = metrics.CORNER_THRESHOLDS if of_plane else metrics.THRESHOLDS
    figure, axis = _axis("mean corner error, px" if of_plane else "pose error, degrees", "share of pairs")
    at = np.linspace(0, thresholds[-1], 201)
    for name, scores in evaluation.scores.items():
        errors = (scores.corner_errors if of_plane else scores.errors)(estimator)
        auc = np.mean([metrics.pose_auc(run, thresholds) for run in errors], axis=0)
        areas = "/".join(f"{100 * area:.1f}" for area in auc)
        label = f"{name} (AUC@{'/'.join(f'{threshold:g}' for threshold in thresholds)} {areas})"
        axis.plot(at, metrics.recall_curve(errors.ravel(), at), label=label)
    title = f"{evaluation.source}: {evaluation.pose_settings.describe(estimator)}\n{evaluation.matching}"
    return _finished(figure, axis, title, "lower right", thresholds[-1])


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
    # Lines in front of bars.
    axis.set_zorder(pairs.get_zorder() + 1)
    axis.patch.set_visible(False)
    title = f"{evaluation.source}: {len(ratios)} pairs\n{evaluation.matching}"
    return _finished(figure, axis, title, "lower right", 1)


def plot_precision_recall(evaluation: Evaluation) -> np.ndarray:
    """Precision over recall by score, all matches together; a dot at the pruner's own threshold."""
    figure, axis = _axis("recall", "precision")
    for name, predictions in evaluation.predictions.items():
        scores, inlier = evaluation.pooled(name)
        curve = metrics.precision_recall_curve(scores, inlier)
        mask = np.concatenate([result.mask for result in predictions.results])
        precision, recall, _ = metrics.precision_recall_f1(mask, inlier)
        shown = np.unique(np.linspace(0, len(curve.recall) - 1, CURVE_POINTS).astype(int))
        (line,) = axis.plot(curve.recall[shown], curve.precision[shown], label=name)
        axis.plot(recall, precision, "o", color=line.get_color())
    return _finished(figure, axis, _all_matches(evaluation), "lower left", 1.02, 1.02)


def plot_reliability(evaluation: Evaluation) -> np.ndarray:
    """Share of inliers by score: on the diagonal, scores are probabilities."""
    figure, axis = _axis("score", "share of inliers")
    axis.plot([0, 1], [0, 1], color="0.7", linestyle="--")
    for name in evaluation.predictions:
        found = metrics.reliability(*evaluation.pooled(name))
        filled = found.count > 0
        error = evaluation.scores[name].calibration_error
        label = f"{name} (calibration error {error:.3f})"
        axis.plot(found.score[filled], found.inlier_ratio[filled], marker="o", label=label)
    return _finished(figure, axis, _all_matches(evaluation), "upper left", 1)


def _all_matches(evaluation: Evaluation) -> str:
    return f"{evaluation.source}: all matches of {len(evaluation.names)} pairs together"


def plot_neighbours(ratios: np.ndarray, neighbours: Sequence[int], name: str) -> np.ndarray:
    """[blocks + 1 x k's] ratios of inliers among the nearest neighbours of inliers, by block (Fig. 7 left)."""
    figure, axis = _axis("number k of nearest neighbours in feature space", "share of the same kind among them")
    for block, row in enumerate(ratios):
        axis.plot(neighbours, row, marker="o", label=f"after block {block}" if block else "before the blocks")
    return _finished(figure, axis, name, "best")


def plot_context(
    views: Sequence[BlockView], good: np.ndarray, words: tuple[str, str] = ("right", "wrong"), name: str = ""
) -> np.ndarray:
    """Histograms of the attention-consistent context by block and head, before and after normalisation (Figs. 3b, 8).

    Args:
        good: [N] bool: green matches; the others are red.
        words: what green and red matches are.
    """
    heads = len(views[0].attention)
    groups = ((words[0], good, "tab:green"), (words[1], ~good, "tab:red"))
    figure = import_matplotlib().figure(figsize=(4.6 * heads, 1.7 * len(views) + 2.2), dpi=80, layout="constrained")
    halves = figure.subfigures(1, 2, wspace=0.03)
    titles = ("as computed from the attention (h in the paper)", "as the network uses it: sigmoid(alpha h)")
    for half, title, normalized in zip(halves, titles, (False, True), strict=True):
        half.suptitle(title, fontsize=11)
        half.supxlabel("agreement with the other matches", fontsize=10)
        axes = half.subplots(len(views), heads, squeeze=False)
        for block, view in enumerate(views):
            context = view.normalized if normalized else view.context
            assert context is not None
            for head in range(heads):
                axis, values = axes[block, head], context[head].cpu().numpy()
                _histograms(axis, values, groups)
                axis.set_title(f"{words[0]} higher: {separation(values, good):.0%}", fontsize=8, loc="right", pad=2)
                if block == 0:
                    axis.set_title(f"head {head + 1}", fontsize=10, loc="left", pad=2)
            axes[block, 0].set_ylabel(f"block {block + 1}\nshare of matches", fontsize=8)
    figure.suptitle(
        f"{name}: how well the attention of each match agrees with that of the other matches\n"
        f"Far to the right: many other matches support it. The further green and red are apart, the better this head "
        f"tells {words[0]} from {words[1]} matches.\n"
        f"'{words[0]} higher': how often a {words[0]} match is to the right of a {words[1]} one (50%: no difference)",
        fontsize=11,
    )
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=11)
    return figure_to_picture(figure)


def _histograms(axis: Any, values: np.ndarray, groups: Sequence[tuple[str, np.ndarray, str]]) -> None:
    # A few large values would squeeze all others into one bar: they are put into the last one.
    low, high = np.percentile(values, (0, 99))
    edges = np.linspace(low, high if high > low else low + 1e-6, 31)
    for word, chosen, colour in groups:
        shares = np.full(chosen.sum(), 1 / max(chosen.sum(), 1))
        label = f"{word} matches ({chosen.sum()})"
        axis.hist(values[chosen].clip(edges[0], edges[-1]), edges, weights=shares, color=colour, alpha=0.5, label=label)
    axis.tick_params(labelsize=7)
    axis.set_yticks([])


def _axis(x: str, y: str) -> tuple[Any, Any]:
    figure, axis = import_matplotlib().subplots(figsize=(8, 6), dpi=100, layout="constrained")
    axis.set(xlabel=x, ylabel=y)
    axis.grid(alpha=0.3)
    # Ten colours, then the same dashed.
    axis.set_prop_cycle(color=2 * [f"tab:{name}" for name in COLOURS], linestyle=10 * ["-"] + 10 * ["--"])
    return figure, axis


def _finished(
    figure: Any, axis: Any, title: str, legend: str, right: float | None = None, top: float = 1.0
) -> np.ndarray:
    axis.set_title(title, fontsize=10)
    axis.legend(loc=legend)
    axis.set_ylim(0, top)
    if right is not None:
        axis.set_xlim(0, right)
    return figure_to_picture(figure)
