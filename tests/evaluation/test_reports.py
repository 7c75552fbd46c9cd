import json
from dataclasses import replace

import pytest

from ananet import InputError
from ananet.evaluation import evaluate, reports
from ananet.evaluation.scoring import PoseSettings
from tests.datasets.depth_pairs import pair_with_depth, write_pairs
from tests.datasets.planes import write_planes


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
    assert "This source has no poses or homographies: estimators were not run." in text and "AUC" not in text


@pytest.fixture
def with_depth(tmp_path, in_this_process):
    """Pairs of each share and kind; the third has no depth, the last two photos have nothing in common."""
    unknown = replace(pair_with_depth(seed=3), known=None, right=None, share=None)
    hard, empty = pair_with_depth(0.7, right=6, unknown=4, seed=1), pair_with_depth(0, seed=2)
    folder = write_pairs(tmp_path, {"a": [pair_with_depth(0.2), hard, unknown, empty]})
    return evaluate(folder, ["all", "ratio"], estimators="poselib", device="cpu", progress=False)[0]


def test_truth_by_depth(with_depth):
    assert with_depth.names == [f"a/{n}.jpg-{n + 1}.jpg" for n in (0, 2, 4)]
    assert with_depth.empty_pairs == ["a/6.jpg-7.jpg"]
    text = reports.report(with_depth)
    assert "3 pairs of 1 scene" in text and "; 1 empty pair beside them; " in text
    everything, _ = reports.truth_table(with_depth)
    assert everything["true P"] == pytest.approx((100 / 220 + 6 / 126) / 2) and everything["true R"] == 1
    assert everything["wrong at 95 % R"] == pytest.approx(240 / 346), "all scores are equal, all pairs together"
    assert everything["mutual: wrong at 95 % R"] < everything["wrong at 95 % R"]
    rows = reports.scores_by_share(with_depth)
    groups = [(row["common view"], row["pairs"], row["pruner"]) for row in rows if row["pruner"] == "all"]
    assert groups == [("10 to 30 %", 1, "all"), ("above 60 %", 1, "all"), ("hard pairs", 1, "all")]
    assert rows[0]["true_precision"] == pytest.approx(100 / 220) and len(rows[0]["auc"]["poselib"]) == 3
    assert reports.share_table(with_depth)[0]["poselib AUC@5/10/20"].count("/") == 2
    assert reports.empty_table(with_depth)[0]["kept"] == 280
    for title in ("Truth by depth", "By share of common view", "False alarms", "more than 15 one-to-one"):
        assert title in text


def test_truth_by_depth_as_json(with_depth):
    (found,) = json.loads(json.dumps(reports.reports_as_json([with_depth]), allow_nan=False))
    assert found["truth"]["all"]["true_recall"] == 1 and len(found["by_share"]) == 6
    assert found["empty_pairs"]["pruners"]["all"]["more_than_15"] == 1
    scores = json.loads(json.dumps(reports.scores_as_json(with_depth), allow_nan=False))
    assert scores["share"] == [0.2, 0.7, None] and scores["hard"] == [False, True, False]
    assert scores["truth"]["all"]["true_recall"] == [1, 1, None]
    assert scores["empty_pairs"]["pairs"] == ["a/6.jpg-7.jpg"]
    assert scores["empty_pairs"]["pruners"]["all"][0]["kept"] == 280


def test_only_empty_pairs(tmp_path, in_this_process):
    folder = write_pairs(tmp_path, {"a": [pair_with_depth(0), pair_with_depth(0, seed=1)]})
    (found,) = evaluate(folder, "all", device="cpu", progress=False)
    text = reports.report(found)
    assert "0 pairs" in text and "False alarms" in text and "Matches, means" not in text
    json.dumps([reports.reports_as_json([found]), reports.scores_as_json(found)], allow_nan=False)


def test_sources_without_depth_have_no_such_tables(evaluation):
    assert not evaluation.knows_depth and not evaluation.empty_pairs
    text = reports.report(evaluation)
    assert "Truth" not in text and "common view" not in text and "False alarms" not in text
    known = {"truth", "by_share", "empty_pairs", "share", "hard"}
    assert not known & (reports.reports_as_json([evaluation])[0].keys() | reports.scores_as_json(evaluation).keys())


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


def test_reports_of_homographies(tmp_path, in_this_process):
    folder, options = write_planes(tmp_path / "wall"), {"max_keypoints": 100, "device": "cpu", "progress": False}
    (found,) = evaluate(folder, ["all", "mutual"], estimators="poselib", repeats=2, **options)
    text = reports.report(found, by_scene=True)
    assert "Homography, mean corner error in px: poselib, threshold 2 px, confidence its default" in text
    for title in ("AUC@1 px", "AUC@10 px", "+/-", "poselib AUC@3 px"):
        assert title in text
    assert "Pose" not in text and "no poses" not in text
    row = reports.homography_table(found, "poselib")[1]
    assert row["AUC@5 px"] > 60 and row["failures"] == 0
    (answer,) = json.loads(json.dumps(reports.reports_as_json([found]), allow_nan=False))
    assert answer["model"] == "homography" and len(answer["pruners"]["all"]["homographies"]["poselib"]["auc"]) == 4
    none = [replace(pair, homographies={"poselib": [float("inf")] * 2}) for pair in found.scores["all"].pairs]
    failed = replace(found, scores={"all": replace(found.scores["all"], pairs=none)})
    assert "Failures (no homography found) have an infinite error" in reports.report(failed)
    scores = json.loads(json.dumps(reports.scores_as_json(failed), allow_nan=False))
    assert scores["pruners"]["all"]["homographies"]["poselib"]["corner_error"] == [[None] * 2] * 2
    assert scores["pose_settings"]["model"] == "homography"


def test_reports_without_cameras(world, in_this_process):
    options = {"max_keypoints": 100, "device": "cpu", "progress": False}
    (found,) = evaluate(world.folder, "mutual", model="fundamental", estimators="poselib", **options)
    text = reports.report(found)
    assert "Pose from the fundamental matrix, true cameras in scoring only: poselib, threshold 1 px, conf" in text
    assert reports.reports_as_json([found])[0]["model"] == "fundamental"
