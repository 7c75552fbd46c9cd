import json
from dataclasses import replace

import pytest

from ananet import InputError
from ananet.evaluation import reports
from ananet.evaluation.scoring import PoseSettings


def only(evaluation, *names):
    return replace(evaluation, scores={name: evaluation.scores[name] for name in names})


def test_tables_of_the_paper(evaluation):
    table = reports.paper_table(1, [evaluation], "markdown")
    assert "| Dataset | Method | AUC@5 | AUC@10 | AUC@20 |" in table and "**Table 1**" in table
    assert "ransac, threshold 1 px / mean focal length" in table
    rows = {number: make([evaluation], "ransac") for number, make in reports.TABLES.items()}
    assert [row["Method"] for row in rows[1]] == ["all", "first", "second"]
    assert rows[3][0]["Recall"] == 100
    assert list(rows[4][0]) == ["Method", "scenes"]
    assert [row["Form"] for row in rows[5]] == ["none", "Qua."]
    assert [row["SOC"] for row in rows[6]] == ["", "x"]
    assert rows[6][1]["+Parm."] == pytest.approx(rows[6][1]["Parm.(k)"] - rows[6][0]["Parm.(k)"])
    assert rows[6][0]["+Parm."] is None and [row["L"] for row in rows[6]] == [1, 1]


def test_tables_of_networks_need_some(evaluation):
    for table in (5, 6):
        with pytest.raises(InputError, match="table: 5 and 6 compare networks"):
            reports.paper_table(table, [only(evaluation, "all")], "text")


def test_a_table_without_poses_is_printed_once(evaluation):
    both = replace(evaluation, estimators=("ransac", "magsac"))
    assert reports.table_estimators(1, [both]) == ("ransac", "magsac")
    assert reports.table_estimators(3, [both]) == ("",)
    assert reports.paper_table(3, [both], "text").count("Table 3") == 1
    assert "threshold" not in reports.paper_table(3, [both], "text")


def test_reports_as_json(evaluation):
    (report,) = reports.reports_as_json([evaluation])
    json.dumps(report, allow_nan=False)
    assert report["pairs"] == 3 and report["kind"] == "posed scenes"
    names = ("ransac", "poselib")
    assert report["estimators"] == {name: evaluation.pose_settings.describe(name) for name in names}
    assert report["pruners"]["all"]["recall"] == 1 and len(report["pruners"]["all"]["poses"]["ransac"]["auc"]) == 3
    tables = reports.reports_as_json([evaluation], table=5)
    assert [table["estimator"] for table in tables] == ["ransac", "poselib"]
    assert tables[0]["rows"] == reports.table_5([evaluation], "ransac")
    assert reports.reports_as_json([evaluation], table=3)[0]["estimator"] is None


def test_scores_by_scene(evaluation):
    divided = replace(evaluation, scenes=["a", "b", "a"])
    rows = reports.scores_by_scene(divided)
    assert [(row["scene"], row["pruner"], row["pairs"]) for row in rows[:4]] == [
        ("a", "all", 2), ("a", "first", 2), ("a", "second", 2), ("b", "all", 1),
    ]  # fmt: skip
    f1 = evaluation.scores["all"].column("f1")
    assert rows[0]["F1"] == pytest.approx(f1[[0, 2]].mean()) and rows[3]["F1"] == pytest.approx(f1[1])
    assert "ransac AUC@5" in rows[0]


def test_a_report_says_what_decides_its_numbers(evaluation):
    text = reports.report(evaluation, "text", by_scene=True)
    assert "scenes (posed scenes): 3 pairs of 1 scene" in text and "SIFT, 100 keypoints" in text
    assert "Pose: ransac, threshold 1 px / mean focal length, confidence 0.99999" in text
    assert "By scene" in text and "Inliers among the k nearest neighbours" in text
    assert "By scene" not in reports.report(evaluation, "text")
    markdown = reports.report(evaluation, "markdown")
    assert "**Matches, means over pairs**" in markdown and "| pruner |" in markdown
    reused = replace(evaluation, reused=("all",), scenes=["a", "b", "c"])
    assert reports.describe(reused).endswith("; predictions reused: all") and "3 scenes" in reports.describe(reused)


def test_a_source_without_poses_says_so(evaluation):
    text = reports.report(replace(evaluation, estimators=()), "text")
    assert "This source has no poses: estimators were not run." in text and "AUC" not in text


def test_repeats_show_how_much_they_differ(evaluation):
    twice = replace(
        evaluation,
        pose_settings=PoseSettings(repeats=2),
        scores={
            name: replace(
                scores,
                pairs=[replace(pair, poses={"ransac": [*pair.poses["ransac"]] * 2}) for pair in scores.pairs],
            )
            for name, scores in evaluation.scores.items()
        },
    )
    assert "+/-" not in reports.pose_table(evaluation, "ransac")[0]
    assert reports.pose_table(twice, "ransac")[0]["+/-"] == "0.0/0.0/0.0"


def test_neighbours_are_told_of_networks_alone(evaluation):
    rows = reports.neighbour_table(evaluation)
    assert [(row["pruner"], row["blocks"]) for row in rows] == [
        ("first", 0),
        ("first", 1),
        ("second", 0),
        ("second", 1),
    ]
    assert all(0 <= row["k=5"] <= 1 for row in rows)
