"""Evaluations as tables: one that shows everything, and those of the paper in its layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ananet._util.tables import format_table
from ananet.core.metrics import THRESHOLDS
from ananet.errors import InputError
from ananet.evaluation.explain import NEIGHBOURS
from ananet.evaluation.runner import Evaluation
from ananet.evaluation.scoring import PrunerScores

Rows = list[dict[str, Any]]
AUC_COLUMNS = tuple(f"AUC@{threshold:g}" for threshold in THRESHOLDS)
FORM_NAMES = {"cubic": "Cub.", "quadratic": "Qua.", "linear": "Lin."}
PERCENT = 100.0


def describe(evaluation: Evaluation) -> str:
    """What was measured on, in one line."""
    count = len(set(evaluation.scenes))
    scenes = "1 scene" if count == 1 else f"{count} scenes"
    reused = f"; predictions reused: {', '.join(evaluation.reused)}" if evaluation.reused else ""
    return (
        f"{evaluation.source} ({evaluation.kind}): {len(evaluation.names)} pairs of {scenes}, "
        f"{evaluation.inlier_ratios.mean():.1%} inliers; {evaluation.matching}{reused}"
    )


def matches_table(evaluation: Evaluation) -> Rows:
    """How good the kept matches are, means over pairs."""
    return [
        {
            "pruner": name,
            "kept": round(summary["kept"]),
            "P": summary["precision"],
            "R": summary["recall"],
            "F1": summary["f1"],
            "AP": summary["average_precision"],
            "calibration error": summary["calibration_error"],
        }
        for name, scores in evaluation.scores.items()
        for summary in [scores.matches_summary()]
    ]


def pose_table(evaluation: Evaluation, estimator: str) -> Rows:
    """AUC of the pose, of its two parts, and OANet's mAP, in percent."""
    rows = []
    for name, scores in evaluation.scores.items():
        summary = scores.pose_summary(estimator)
        rows.append(
            {
                "pruner": name,
                **_auc(summary["auc"]),
                **({"+/-": _joined(summary["auc_deviation"])} if summary["auc_deviation"] else {}),
                "rotation AUC@5/10/20": _joined(summary["rotation_auc"]),
                "translation AUC@5/10/20": _joined(summary["translation_auc"]),
                "mAP@5/10/20": _joined(summary["map"]),
                "failures": summary["failures"],
            }
        )
    return rows


def scores_by_scene(evaluation: Evaluation) -> Rows:
    """F1 and AUC@5 by scene and pruner."""
    rows = []
    for scene in dict.fromkeys(evaluation.scenes):
        chosen = [number for number, name in enumerate(evaluation.scenes) if name == scene]
        for name, scores in evaluation.scores.items():
            own = scores.only(chosen)
            row: dict[str, Any] = {"scene": scene, "pairs": len(chosen), "pruner": name, "F1": own.column("f1").mean()}
            for estimator in evaluation.estimators:
                row[f"{estimator} AUC@5"] = round(own.pose_summary(estimator)["auc"][0], 1)
            rows.append(row)
    return rows


def neighbour_table(evaluation: Evaluation) -> Rows:
    """The paper's Fig. 7 left: ratio of inliers among the k nearest neighbours of an inlier, by block."""
    return [
        {"pruner": name, "blocks": block, **{f"k={k}": float(v) for k, v in zip(NEIGHBOURS, row, strict=True)}}
        for name, scores in evaluation.scores.items()
        if scores.inlier_neighbours is not None
        for block, row in enumerate(scores.inlier_neighbours)
    ]


def report(evaluation: Evaluation, style: str, by_scene: bool = False) -> str:
    """Everything about one source; every number stands under the settings that decide it."""
    parts = [describe(evaluation)]
    failures = Counter[str]()
    parts.append(_titled("Matches, means over pairs", format_table(matches_table(evaluation), style), style))
    for estimator in evaluation.estimators:
        rows = pose_table(evaluation, estimator)
        failures[estimator] += sum(row["failures"] for row in rows)
        title = f"Pose: {evaluation.pose_settings.describe(estimator)}; {evaluation.matching}"
        parts.append(_titled(title, format_table(rows, style, decimals=1), style))
    if not evaluation.estimators:
        parts.append("This source has no poses: estimators were not run.")
    elif failures.total():
        parts.append("Failures (fewer than 9 matches kept, or no answer) count as 180 degrees.")
    if by_scene:
        parts.append(_titled("By scene", format_table(scores_by_scene(evaluation), style), style))
    if neighbours := neighbour_table(evaluation):
        title = "Inliers among the k nearest neighbours of an inlier in feature space, after so many blocks"
        parts.append(_titled(title, format_table(neighbours, style), style))
    return "\n\n".join(parts)


def table_1(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Camera pose: Dataset, Method, AUC@5, @10, @20."""
    return [
        {"Dataset": evaluation.source, "Method": name, **_auc(scores.pose_summary(estimator)["auc"])}
        for evaluation in evaluations
        for name, scores in evaluation.scores.items()
    ]


def table_3(evaluations: Sequence[Evaluation], _estimator: str) -> Rows:
    """Kept matches: Method, Precision, Recall, F1, in percent."""
    rows = []
    for evaluation in evaluations:
        for name, scores in evaluation.scores.items():
            numbers = {
                title: PERCENT * float(scores.column(column).mean())
                for title, column in (("Precision", "precision"), ("Recall", "recall"), ("F1-Scores", "f1"))
            }
            rows.append({"Dataset": evaluation.source, "Method": name, **numbers})
    return rows


def table_4(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Generalisation: AUC@5 of every method, a column for each dataset."""
    return [
        {"Method": name, **{e.source: _auc5(e.scores[name], estimator) for e in evaluations}}
        for name in evaluations[0].scores
    ]


def table_5(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Forms of second-order attention: AUC of networks that differ in it. Its right half is `ananet benchmark`'s."""
    rows = []
    for evaluation in evaluations:
        for name, scores in evaluation.scores.items():
            network = evaluation.pruners[name].network
            if network is not None:
                form = FORM_NAMES[network["form"]] if network.get("second_order") else "none"
                auc = _auc(scores.pose_summary(estimator)["auc"])
                rows.append({"Dataset": evaluation.source, "Method": name, "Form": form, **auc})
    return _of_networks(rows)


def table_6(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Ablation: parts of the network, parameters in thousands and AUC@5, each compared with the line before."""
    rows: Rows = []
    for evaluation in evaluations:
        before: dict[str, float] | None = None
        for name, scores in evaluation.scores.items():
            network = evaluation.pruners[name].network
            if network is None:
                continue
            now = {"parameters": network["parameters"] / 1000, "auc": _auc5(scores, estimator)}
            rows.append(
                {
                    "Dataset": evaluation.source,
                    "Method": name,
                    "L": network.get("blocks"),
                    "SOC": "x" if network.get("second_order") else "",
                    "LNN": "x" if network.get("second_order") and network["learnable_normalization"] else "",
                    "Parm.(k)": now["parameters"],
                    "+Parm.": None if before is None else now["parameters"] - before["parameters"],
                    "AUC@5": now["auc"],
                    "+ step": None if before is None else now["auc"] - before["auc"],
                }
            )
            before = now
    return _of_networks(rows)


TABLES: dict[int, Callable[[Sequence[Evaluation], str], Rows]] = {
    1: table_1,
    3: table_3,
    4: table_4,
    5: table_5,
    6: table_6,
}
WITH_POSE = (1, 4, 5, 6)


def paper_table(number: int, evaluations: Sequence[Evaluation], style: str) -> str:
    """A table in the paper's layout, one for each estimator, with what decides its numbers."""
    parts = []
    for estimator in table_estimators(number, evaluations):
        captions = [
            f"{describe(e)}. {e.pose_settings.describe(estimator)}." if estimator else f"{describe(e)}."
            for e in evaluations
        ]
        rows = TABLES[number](evaluations, estimator)
        parts.append(_titled(f"Table {number}", format_table(rows, style, decimals=2), style))
        parts.append("\n".join(captions))
    return "\n\n".join(parts)


def table_estimators(number: int, evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """The estimators to print a table for; a table without poses is printed once."""
    return evaluations[0].estimators if number in WITH_POSE else ("",)


def reports_as_json(evaluations: Sequence[Evaluation], table: int | None = None) -> list[dict[str, Any]]:
    """Settings and means of every source, or one table of the paper for each estimator."""
    if table is not None:
        return [
            {
                "table": table,
                "estimator": estimator or None,
                "sources": [describe(evaluation) for evaluation in evaluations],
                "rows": TABLES[table](evaluations, estimator),
            }
            for estimator in table_estimators(table, evaluations)
        ]
    return [
        {
            "source": evaluation.source,
            "kind": evaluation.kind,
            "pairs": len(evaluation.names),
            "matches": evaluation.matching,
            "reused_predictions": list(evaluation.reused),
            "inlier_ratio": float(evaluation.inlier_ratios.mean()),
            "estimators": {name: evaluation.pose_settings.describe(name) for name in evaluation.estimators},
            "pruners": {
                name: {
                    **scores.matches_summary(),
                    "poses": {estimator: scores.pose_summary(estimator) for estimator in evaluation.estimators},
                }
                for name, scores in evaluation.scores.items()
            },
            "by_scene": scores_by_scene(evaluation),
            "inlier_neighbours": neighbour_table(evaluation),
        }
        for evaluation in evaluations
    ]


def _of_networks(rows: Rows) -> Rows:
    if not rows:
        raise InputError("table: 5 and 6 compare networks, expected weight files as pruners, got none")
    return rows


def _auc(areas: Sequence[float]) -> dict[str, float]:
    return dict(zip(AUC_COLUMNS, areas, strict=True))


def _auc5(scores: PrunerScores, estimator: str) -> float:
    return float(scores.pose_summary(estimator)["auc"][0])


def _joined(numbers: Sequence[float]) -> str:
    return "/".join(f"{number:.1f}" for number in np.asarray(numbers))


def _titled(title: str, table: str, style: str) -> str:
    return f"**{title}**\n\n{table}" if style == "markdown" else f"{title}\n{table}"
