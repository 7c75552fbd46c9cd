"""Evaluations as tables: a full report, the paper's tables in its layout, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.tables import count, format_table
from ananet.core.metrics import CORNER_THRESHOLDS, THRESHOLDS
from ananet.datasets.base import SHARE_GROUPS
from ananet.errors import InputError
from ananet.evaluation.explain import NEIGHBOURS
from ananet.evaluation.predictions import installed_versions
from ananet.evaluation.runner import Evaluation
from ananet.evaluation.scoring import COLUMNS, MAX_FALSE_MATCHES, MODEL_WORDS, TRUTH_COLUMNS, PrunerScores
from ananet.io.files import write_json

Rows = list[dict[str, Any]]
AUC_COLUMNS = tuple(f"AUC@{threshold:g}" for threshold in THRESHOLDS)
FORM_NAMES = {"cubic": "Cub.", "quadratic": "Qua.", "linear": "Lin."}


def describe(evaluation: Evaluation) -> str:
    """Source and matches in one line."""
    scenes = count(len(set(evaluation.scenes)), "scene")
    reused = f"; predictions reused: {', '.join(evaluation.reused)}" if evaluation.reused else ""
    empty = f"; {count(len(evaluation.empty_pairs), 'empty pair')} beside them" if evaluation.empty_pairs else ""
    return (
        f"{evaluation.source} ({evaluation.kind}): {count(len(evaluation.names), 'pair')} of {scenes}, "
        f"{_inlier_ratio(evaluation):.1%} inliers{empty}; {evaluation.matching}{reused}"
    )


def _inlier_ratio(evaluation: Evaluation) -> float:
    return float(evaluation.inlier_ratios.mean()) if evaluation.names else 0.0


def matches_table(evaluation: Evaluation) -> Rows:
    """Quality of the kept matches, means over pairs."""
    titles = ("kept", "P", "R", "F1", "AP", "calibration error")
    summaries = {name: scores.matches_summary() for name, scores in evaluation.scores.items()}
    return [
        {"pruner": name} | dict(zip(titles, summary.values(), strict=True)) | {"kept": round(summary["kept"])}
        for name, summary in summaries.items()
    ]


def pose_table(evaluation: Evaluation, estimator: str) -> Rows:
    """AUC of the pose, of its two parts, and OANet's mAP, in percent."""
    rows = []
    for name, scores in evaluation.scores.items():
        summary = scores.pose_summary(estimator)
        row = {"pruner": name, **_auc(scores, estimator)}
        columns = {"+/-": "auc_deviation"} if summary["auc_deviation"] else {}
        columns |= {"rotation AUC@5/10/20": "rotation_auc", "translation AUC@5/10/20": "translation_auc"}
        columns["mAP@5/10/20"] = "map"
        row |= {title: "/".join(f"{number:.1f}" for number in summary[key]) for title, key in columns.items()}
        rows.append(row | {"failures": summary["failures"]})
    return rows


def homography_table(evaluation: Evaluation, estimator: str) -> Rows:
    """AUC of the mean corner error, in percent."""
    rows = []
    for name, scores in evaluation.scores.items():
        summary = scores.homography_summary(estimator)
        titles = (f"AUC@{threshold:g} px" for threshold in CORNER_THRESHOLDS)
        row = {"pruner": name, **dict(zip(titles, summary["auc"], strict=True))}
        if summary["auc_deviation"]:
            row["+/-"] = "/".join(f"{number:.1f}" for number in summary["auc_deviation"])
        rows.append(row | {"failures": summary["failures"]})
    return rows


def model_table(evaluation: Evaluation, estimator: str) -> Rows:
    """The table of poses or of homographies."""
    return (homography_table if evaluation.model == "homography" else pose_table)(evaluation, estimator)


def _main_auc(evaluation: Evaluation, scores: PrunerScores, estimator: str) -> dict[str, float]:
    """The one AUC that stands for all: of poses at 5 degrees, of homographies at 3 pixels."""
    if evaluation.model == "homography":
        return {"AUC@3 px": scores.homography_summary(estimator)["auc"][CORNER_THRESHOLDS.index(3.0)]}
    return {"AUC@5": scores.pose_summary(estimator)["auc"][0]}


def scores_by_scene(evaluation: Evaluation) -> Rows:
    """F1 and AUC@5, of homographies AUC@3 px, by scene and pruner."""
    rows = []
    for scene in dict.fromkeys(evaluation.scenes):
        chosen = [number for number, name in enumerate(evaluation.scenes) if name == scene]
        for name, scores in evaluation.scores.items():
            own = scores.only(chosen)
            row = {"scene": scene, "pairs": len(chosen), "pruner": name, "F1": own.column("f1").mean()}
            auc = {
                f"{estimator} {title}": round(value, 1)
                for estimator in evaluation.estimators
                for title, value in _main_auc(evaluation, own, estimator).items()
            }
            rows.append(row | auc)
    return rows


def truth_table(evaluation: Evaluation) -> Rows:
    """Quality of the kept matches by depth; no rows where none is known."""
    titles = ("true P", "true R", "wrong at 95 % R", "mutual: wrong at 95 % R")
    return [
        {"pruner": name} | dict(zip(titles, scores.truth_summary().values(), strict=True))
        for name, scores in evaluation.scores.items()
        if evaluation.knows_depth
    ]


def scores_by_share(evaluation: Evaluation) -> Rows:
    """F1, true precision and recall, and AUC by share of common view and on hard pairs, for groups with pairs."""
    groups = {
        name: (evaluation.shares >= low) & (evaluation.shares < high) for name, (low, high) in SHARE_GROUPS.items()
    }
    rows = []
    for group, members in (groups | {"hard pairs": evaluation.hard}).items():
        chosen = np.flatnonzero(members).tolist()
        for name, scores in evaluation.scores.items() if chosen else ():
            own = scores.only(chosen)
            row = {"common view": group, "pairs": len(chosen), "pruner": name, "f1": float(own.column("f1").mean())}
            row |= {column: own.truth_summary()[column] for column in TRUTH_COLUMNS}
            auc = {estimator: own.pose_summary(estimator)["auc"] for estimator in evaluation.estimators}
            rows.append(row | {"auc": auc})
    return rows


def share_table(evaluation: Evaluation) -> Rows:
    """The rows of `scores_by_share` as they are printed."""
    titles = {"f1": "F1", "true_precision": "true P", "true_recall": "true R"}
    return [
        {titles.get(key, key): value for key, value in row.items() if key != "auc"}
        | {f"{name} AUC@5/10/20": "/".join(f"{one:.1f}" for one in auc) for name, auc in row["auc"].items()}
        for row in scores_by_share(evaluation)
    ]


def empty_table(evaluation: Evaluation) -> Rows:
    """What is kept of pairs whose photos have nothing in common; no rows where there are none."""
    titles = ("kept", f"more than {MAX_FALSE_MATCHES} one-to-one", "same scene by the overlap test")
    return [
        {"pruner": name, "pairs": len(scores.empty_pairs)}
        | dict(zip(titles, scores.empty_summary().values(), strict=True))
        for name, scores in evaluation.scores.items()
        if scores.empty_pairs
    ]


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
        by_scene: add F1 and AUC@5 (of homographies AUC@3 px) by scene.
    """
    parts = [describe(evaluation)]
    if evaluation.names:
        parts.append(_titled("Matches, means over pairs", matches_table(evaluation), style))
    if truth := truth_table(evaluation):
        title = "Truth by depth: means over pairs; share of wrong matches at 95 % true recall, over all pairs together"
        parts.append(_titled(title, truth, style))
    failures = 0
    for estimator in evaluation.estimators:
        rows = model_table(evaluation, estimator)
        failures += sum(row["failures"] for row in rows)
        settings = f"{evaluation.pose_settings.describe(estimator)}; {evaluation.matching}"
        parts.append(_titled(f"{MODEL_WORDS[evaluation.model]}: {settings}", rows, style, decimals=1))
    if not evaluation.estimators and evaluation.names:
        parts.append("This source has no poses or homographies: estimators were not run.")
    elif failures and evaluation.model == "homography":
        parts.append("Failures (no homography found) have an infinite error.")
    elif failures:
        parts.append("Failures (fewer than 9 matches kept, or no pose found) count as 180 degrees.")
    if by_share := share_table(evaluation):
        parts.append(_titled("By share of common view", by_share, style))
    if empty := empty_table(evaluation):
        title = "False alarms: pairs that show nothing in common, mean number of kept matches and shares of pairs"
        parts.append(_titled(title, empty, style))
    if by_scene:
        parts.append(_titled("By scene", scores_by_scene(evaluation), style))
    if neighbours := neighbour_table(evaluation):
        title = "Inliers among the k nearest neighbours of an inlier in feature space, by number of blocks"
        parts.append(_titled(title, neighbours, style))
    return "\n\n".join(parts)


def table_1(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Camera pose: Dataset, Method, AUC@5, @10, @20."""
    return [{**method, **_auc(scores, estimator)} for method, _, scores in _methods(evaluations)]


def table_3(evaluations: Sequence[Evaluation], _estimator: str) -> Rows:
    """Kept matches: Method, Precision, Recall, F1, in percent."""
    columns = {"Precision": "precision", "Recall": "recall", "F1-Scores": "f1"}
    return [
        method | {title: 100.0 * float(scores.column(column).mean()) for title, column in columns.items()}
        for method, _, scores in _methods(evaluations)
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
        {**method, "Form": FORM_NAMES[network["form"]] if network.get("second_order") else "none"}
        | _auc(scores, estimator)
        for method, network, scores in _networks(evaluations)
    ]


def table_6(evaluations: Sequence[Evaluation], estimator: str) -> Rows:
    """Ablation: parts of the network, parameters in thousands and AUC@5, each compared with the line before."""
    rows: Rows = []
    for method, network, scores in _networks(evaluations):
        before = rows[-1] if rows and rows[-1]["Dataset"] == method["Dataset"] else None
        parameters, auc = network["parameters"] / 1000, _auc(scores, estimator)["AUC@5"]
        second_order = network.get("second_order")
        row = {**method, "L": network.get("blocks"), "SOC": "x" if second_order else ""}
        row["LNN"] = "x" if second_order and network["learnable_normalization"] else ""
        row |= {"Parm.(k)": parameters, "+Parm.": None if before is None else parameters - before["Parm.(k)"]}
        rows.append(row | {"AUC@5": auc, "+ step": None if before is None else auc - before["AUC@5"]})
    return rows


TABLES = {1: table_1, 3: table_3, 4: table_4, 5: table_5, 6: table_6}
WITH_POSE = (1, 4, 5, 6)


def paper_table(number: int, evaluations: Sequence[Evaluation], style: str) -> str:
    """A table in the paper's layout, one for each estimator, with the settings below."""
    parts = []
    for estimator in table_estimators(number, evaluations):
        parts.append(_titled(f"Table {number}", TABLES[number](evaluations, estimator), style, decimals=2))
        settings = [f" {e.pose_settings.describe(estimator)}." if estimator else "" for e in evaluations]
        parts.append("\n".join(f"{describe(e)}.{words}" for e, words in zip(evaluations, settings, strict=True)))
    return "\n\n".join(parts)


def table_estimators(number: int, evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """The estimators to print a table for; a table without poses is printed once."""
    return evaluations[0].estimators if number in WITH_POSE else ("",)


def reports_as_json(evaluations: Sequence[Evaluation], table: int | None = None) -> list[dict[str, Any]]:
    """Settings and means of every source, or one table of the paper for each estimator."""
    if table is not None:
        sources = [describe(evaluation) for evaluation in evaluations]
        return [
            {"table": table, "estimator": name or None, "sources": sources, "rows": TABLES[table](evaluations, name)}
            for name in table_estimators(table, evaluations)
        ]
    return [
        {
            "source": evaluation.source,
            "kind": evaluation.kind,
            "pairs": len(evaluation.names),
            "matches": evaluation.matching,
            "reused_predictions": list(evaluation.reused),
            "inlier_ratio": _inlier_ratio(evaluation),
            "model": evaluation.model if evaluation.estimators else None,
            "estimators": {name: evaluation.pose_settings.describe(name) for name in evaluation.estimators},
            "pruners": {
                name: scores.matches_summary()
                | _by_model(evaluation, {e: _summary(evaluation, scores, e) for e in evaluation.estimators})
                for name, scores in evaluation.scores.items()
            },
            "by_scene": scores_by_scene(evaluation),
            "inlier_neighbours": neighbour_table(evaluation),
            **_depth_as_json(evaluation),
        }
        for evaluation in evaluations
    ]


def _by_model(evaluation: Evaluation, values: dict[str, Any]) -> dict[str, Any]:
    """Values by estimator, under the name of what was estimated."""
    return {"homographies" if evaluation.model == "homography" else "poses": values}


def _summary(evaluation: Evaluation, scores: PrunerScores, estimator: str) -> dict[str, Any]:
    of_plane = evaluation.model == "homography"
    return scores.homography_summary(estimator) if of_plane else scores.pose_summary(estimator)


def _errors(evaluation: Evaluation, scores: PrunerScores, estimator: str) -> dict[str, Any]:
    """Errors of every pair by run; None where there is no homography."""
    if evaluation.model == "homography":
        return {"corner_error": [_or_none(row, 4) for row in scores.corner_errors(estimator)]}
    parts = ("rotation", "translation")
    return {f"{part}_error": scores.errors(estimator, part).round(4).tolist() for part in parts}


def _depth_as_json(evaluation: Evaluation) -> dict[str, Any]:
    """What is known by depth; nothing for other sources."""
    found: dict[str, Any] = {}
    if evaluation.knows_depth:
        found["truth"] = {name: scores.truth_summary() for name, scores in evaluation.scores.items()}
        found["by_share"] = scores_by_share(evaluation)
    if evaluation.empty_pairs:
        summaries = {name: scores.empty_summary() for name, scores in evaluation.scores.items()}
        found["empty_pairs"] = {"pairs": len(evaluation.empty_pairs), "pruners": summaries}
    return found


def scores_as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Settings, summaries, and the numbers of every pair by column."""
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
        **_depth_of_pairs_as_json(evaluation),
        "pruners": {
            name: {
                "weights_sha256": evaluation.pruners[name].weights_sha256,
                "network": evaluation.pruners[name].network,
                "summary": scores.matches_summary(),
                "pairs": {column: scores.column(column).round(6).tolist() for column in COLUMNS},
                **_by_model(
                    evaluation,
                    {
                        estimator: {"summary": _summary(evaluation, scores, estimator)}
                        | _errors(evaluation, scores, estimator)
                        for estimator in evaluation.estimators
                    },
                ),
            }
            for name, scores in evaluation.scores.items()
        },
    }


def _depth_of_pairs_as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Shares, true precision and recall of every pair, and counts of every empty one; nothing for other sources."""
    found: dict[str, Any] = {}
    if evaluation.knows_depth:
        found |= {"share": _or_none(evaluation.shares), "hard": evaluation.hard.tolist()}
        found["truth"] = {
            name: {column: _or_none(scores.column(column)) for column in TRUTH_COLUMNS}
            for name, scores in evaluation.scores.items()
        }
    if evaluation.empty_pairs:
        rows = {name: [asdict(pair) for pair in scores.empty_pairs] for name, scores in evaluation.scores.items()}
        found["empty_pairs"] = {"pairs": evaluation.empty_pairs, "pruners": rows}
    return found


def _or_none(values: np.ndarray, decimals: int = 6) -> list[float | None]:
    return [round(float(value), decimals) if np.isfinite(value) else None for value in values]


def write_scores(path: str | Path, evaluations: Sequence[Evaluation]) -> None:
    """Write the scores of every pair as JSON."""
    write_json(path, [scores_as_json(evaluation) for evaluation in evaluations])


def _methods(evaluations: Sequence[Evaluation]) -> list[tuple[dict[str, Any], dict[str, Any] | None, PrunerScores]]:
    """First columns of a row, settings of the network if there is one, and scores of every pruner."""
    return [
        ({"Dataset": evaluation.source, "Method": name}, evaluation.pruners[name].network, scores)
        for evaluation in evaluations
        for name, scores in evaluation.scores.items()
    ]


def _networks(evaluations: Sequence[Evaluation]) -> list[tuple[dict[str, Any], dict[str, Any], PrunerScores]]:
    found = [(method, network, scores) for method, network, scores in _methods(evaluations) if network is not None]
    if not found:
        raise InputError("table: 5 and 6 compare networks, expected weight files as pruners, got none")
    return found


def _auc(scores: PrunerScores, estimator: str) -> dict[str, float]:
    return dict(zip(AUC_COLUMNS, scores.pose_summary(estimator)["auc"], strict=True))


def _titled(title: str, rows: Rows, style: str, decimals: int = 3) -> str:
    table = format_table(rows, style, decimals)
    return f"**{title}**\n\n{table}" if style == "markdown" else f"{title}\n{table}"
