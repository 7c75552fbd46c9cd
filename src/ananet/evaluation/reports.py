"""Evaluations as tables: a full report, the paper's tables in its layout, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.tables import format_table
from ananet.core.metrics import THRESHOLDS
from ananet.errors import InputError
from ananet.evaluation.explain import NEIGHBOURS
from ananet.evaluation.predictions import installed_versions
from ananet.evaluation.runner import Evaluation
from ananet.evaluation.scoring import PrunerScores
from ananet.io.files import write_json

Rows = list[dict[str, Any]]
AUC_COLUMNS = tuple(f"AUC@{threshold:g}" for threshold in THRESHOLDS)
FORM_NAMES = {"cubic": "Cub.", "quadratic": "Qua.", "linear": "Lin."}
PERCENT = 100.0


def describe(evaluation: Evaluation) -> str:
    """Source and matches in one line."""
    count = len(set(evaluation.scenes))
    scenes = "1 scene" if count == 1 else f"{count} scenes"
    reused = f"; predictions reused: {', '.join(evaluation.reused)}" if evaluation.reused else ""
    return (
        f"{evaluation.source} ({evaluation.kind}): {len(evaluation.names)} pairs of {scenes}, "
        f"{evaluation.inlier_ratios.mean():.1%} inliers; {evaluation.matching}{reused}"
    )


def matches_table(evaluation: Evaluation) -> Rows:
    """Quality of the kept matches, means over pairs."""
    columns = {"P": "precision", "R": "recall", "F1": "f1", "AP": "average_precision"}
    columns["calibration error"] = "calibration_error"
    return [
        {"pruner": name, "kept": round(summary["kept"]), **{title: summary[key] for title, key in columns.items()}}
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
                **_auc(scores, estimator),
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
    """Ratio of inliers among the k nearest neighbours of an inlier, by block (Fig. 7 left)."""
    return [
        {"pruner": name, "blocks": block, **{f"k={k}": float(v) for k, v in zip(NEIGHBOURS, row, strict=True)}}
        for name, scores in evaluation.scores.items()
        if scores.inlier_neighbours is not None
        for block, row in enumerate(scores.inlier_neighbours)
    ]


def report(evaluation: Evaluation, style: str = "text", by_scene: bool = False) -> str:
    """All tables of one evaluation, each under the settings it depends on.

    Args:
        style: "text" or "markdown".
        by_scene: add F1 and AUC@5 by scene.
    """
    parts = [describe(evaluation)]
    parts.append(_titled("Matches, means over pairs", format_table(matches_table(evaluation), style), style))
    failures = 0
    for estimator in evaluation.estimators:
        rows = pose_table(evaluation, estimator)
        failures += sum(row["failures"] for row in rows)
        title = f"Pose: {evaluation.pose_settings.describe(estimator)}; {evaluation.matching}"
        parts.append(_titled(title, format_table(rows, style, decimals=1), style))
    if not evaluation.estimators:
        parts.append("This source has no poses: estimators were not run.")
    elif failures:
        parts.append("Failures (fewer than 9 matches kept, or no pose found) count as 180 degrees.")
    if by_scene:
        parts.append(_titled("By scene", format_table(scores_by_scene(evaluation), style), style))
    if neighbours := neighbour_table(evaluation):
        title = "Inliers among the k nearest neighbours of an inlier in feature space, by number of blocks"
        parts.append(_titled(title, format_table(neighbours, style), style))
    return "\n\n".join(parts)


def table_1(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Camera pose: Dataset, Method, AUC@5, @10, @20."""
    return [
        {"Dataset": evaluation.source, "Method": name, **_auc(scores, estimator)}
        for evaluation in evaluations
        for name, scores in evaluation.scores.items()
    ]


def table_3(evaluations: Sequence[Evaluation], _estimator: str) -> Rows:
    """Kept matches: Method, Precision, Recall, F1, in percent."""
    columns = {"Precision": "precision", "Recall": "recall", "F1-Scores": "f1"}
    return [
        {
            "Dataset": evaluation.source,
            "Method": name,
            **{title: PERCENT * float(scores.column(column).mean()) for title, column in columns.items()},
        }
        for evaluation in evaluations
        for name, scores in evaluation.scores.items()
    ]


def table_4(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Generalisation: AUC@5 of every method, a column for each dataset."""
    return [
        {"Method": name, **{e.source: _auc(e.scores[name], estimator)["AUC@5"] for e in evaluations}}
        for name in evaluations[0].scores
    ]


def table_5(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Forms of second-order attention: AUC of networks that differ in it. Its right half is `benchmarks/speed.py`'s."""
    return [
        {
            "Dataset": source,
            "Method": name,
            "Form": FORM_NAMES[network["form"]] if network.get("second_order") else "none",
            **_auc(scores, estimator),
        }
        for source, name, network, scores in _networks(evaluations)
    ]


def table_6(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Ablation: parts of the network, parameters in thousands and AUC@5, each compared with the line before."""
    rows: Rows = []
    for source, name, network, scores in _networks(evaluations):
        before = rows[-1] if rows and rows[-1]["Dataset"] == source else None
        parameters, auc = network["parameters"] / 1000, _auc(scores, estimator)["AUC@5"]
        rows.append(
            {
                "Dataset": source,
                "Method": name,
                "L": network.get("blocks"),
                "SOC": "x" if network.get("second_order") else "",
                "LNN": "x" if network.get("second_order") and network["learnable_normalization"] else "",
                "Parm.(k)": parameters,
                "+Parm.": None if before is None else parameters - before["Parm.(k)"],
                "AUC@5": auc,
                "+ step": None if before is None else auc - before["AUC@5"],
            }
        )
    return rows


TABLES: dict[int, Callable[[Sequence[Evaluation], str], Rows]] = {
    1: table_1,
    3: table_3,
    4: table_4,
    5: table_5,
    6: table_6,
}
WITH_POSE = (1, 4, 5, 6)


def paper_table(number: int, evaluations: Sequence[Evaluation], style: str) -> str:
    """A table in the paper's layout, one for each estimator, with the settings below."""
    parts = []
    for estimator in table_estimators(number, evaluations):
        rows = TABLES[number](evaluations, estimator)
        parts.append(_titled(f"Table {number}", format_table(rows, style, decimals=2), style))
        settings = [f" {e.pose_settings.describe(estimator)}." if estimator else "" for e in evaluations]
        parts.append("\n".join(f"{describe(e)}.{words}" for e, words in zip(evaluations, settings, strict=True)))
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


def scores_as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Settings, summaries, and the numbers of every pair by column."""
    columns = ("kept", "precision", "recall", "f1", "average_precision")
    return {
        "source": evaluation.source,
        "kind": evaluation.kind,
        "matches": evaluation.matching,
        "match_settings": evaluation.match_settings.to_dict(),
        "pose_settings": evaluation.pose_settings.to_dict(),
        "versions": installed_versions(),
        "pairs": evaluation.names,
        "scenes": evaluation.scenes,
        "inlier_ratio": evaluation.inlier_ratios.round(6).tolist(),
        "pruners": {
            name: {
                "weights_sha256": evaluation.pruners[name].weights_sha256,
                "network": evaluation.pruners[name].network,
                "summary": scores.matches_summary(),
                "pairs": {column: scores.column(column).round(6).tolist() for column in columns},
                "poses": {
                    estimator: {
                        "summary": scores.pose_summary(estimator),
                        "rotation_error": scores.errors(estimator, "rotation").round(4).tolist(),
                        "translation_error": scores.errors(estimator, "translation").round(4).tolist(),
                    }
                    for estimator in evaluation.estimators
                },
            }
            for name, scores in evaluation.scores.items()
        },
    }


def write_scores(path: str | Path, evaluations: Sequence[Evaluation]) -> None:
    """Write the scores of every pair as JSON."""
    write_json(path, [scores_as_json(evaluation) for evaluation in evaluations])


def _networks(evaluations: Sequence[Evaluation]) -> list[tuple[str, str, dict[str, Any], PrunerScores]]:
    """Source, name, settings and scores of the pruners with a network."""
    found = [
        (evaluation.source, name, network, scores)
        for evaluation in evaluations
        for name, scores in evaluation.scores.items()
        if (network := evaluation.pruners[name].network) is not None
    ]
    if not found:
        raise InputError("table: 5 and 6 compare networks, expected weight files as pruners, got none")
    return found


def _auc(scores: PrunerScores, estimator: str) -> dict[str, float]:
    return dict(zip(AUC_COLUMNS, scores.pose_summary(estimator)["auc"], strict=True))


def _joined(numbers: Sequence[float]) -> str:
    return "/".join(f"{number:.1f}" for number in np.asarray(numbers))


def _titled(title: str, table: str, style: str) -> str:
    return f"**{title}**\n\n{table}" if style == "markdown" else f"{title}\n{table}"
