"""The whole command on a small world. Worker processes take seconds to start, so few runs show many things."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from ananet.evaluation.sources import MatchSettings

from ananet.cli import main
from ananet.evaluation.runner import evaluate
from ananet.networks import ANANet, ANANetSettings, save_network

SMALL = ("--max-keypoints", "300", "--device", "cpu")


def run(capsys, *arguments):
    code = main(["evaluate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_evaluate(world, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    weights = tmp_path / "tiny.safetensors"
    weights.write_bytes(world.weights.read_bytes())
    pruners = f"all,ratio,{weights}"
    keep = ("--predictions", tmp_path / "predictions")
    code, out, err = run(
        capsys, world.folder, "--pruner", pruners, *SMALL, *keep, "--workers", 2, "--neighbours", "--by-scene",
        "--plots", tmp_path / "plots", "--scores", tmp_path / "scores.json",
    )  # fmt: skip
    assert code == 0, err
    assert "scenes (posed scenes): 3 pairs of 1 scene" in out
    assert "Pose: ransac, threshold 1 px / mean focal length, confidence 0.99999; SIFT, 300 keypoints, photos at" in out
    assert sorted(p.stem for p in (tmp_path / "plots").iterdir()) == [
        "auc-ransac", "f1-by-inlier-ratio", "neighbours-tiny", "precision-recall", "reliability",
    ]  # fmt: skip
    assert sorted(p.stem for p in (tmp_path / "predictions").iterdir()) == ["all", "ratio", "tiny"]
    (scores,) = json.loads((tmp_path / "scores.json").read_text())
    assert scores["pairs"] == ["room/0.png-1.png", "room/1.png-2.png", "room/2.png-0.png"]
    ratio = scores["pruners"]["ratio"]
    assert ratio["summary"]["f1"] == pytest.approx(np.mean(ratio["pairs"]["f1"]), abs=1e-5)
    assert ratio["summary"]["precision"] > 0.8 and scores["pruners"]["all"]["summary"]["recall"] == 1
    assert len(ratio["poses"]["ransac"]["rotation_error"][0]) == 3
    assert scores["pruners"]["tiny"]["network"]["blocks"] == 2

    # Again from the stored predictions, with another number of workers: the same scores.
    code, out, err = run(
        capsys, world.folder, "--pruner", pruners, *SMALL, *keep, "--workers", 1, "--scores", tmp_path / "again.json"
    )
    assert code == 0, err
    assert "predictions reused: all, ratio, tiny" in out
    assert json.loads((tmp_path / "again.json").read_text()) == [scores]

    # Other weights under the same name, or other keypoints: refused before any work.
    save_network(weights, ANANet(ANANetSettings(blocks=1, width=32, heads=2)))
    code, _, err = run(capsys, world.folder, "--pruner", pruners, *SMALL, *keep)
    assert code == 2 and "tiny.safetensors is stale: its weights (sha256) was" in err
    code, _, err = run(capsys, world.folder, "--pruner", "all", "--max-keypoints", 200, *keep)
    assert code == 2 and "all.safetensors is stale: its match settings was" in err


def test_tables_and_json(world, capsys, tmp_path):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    save_network(first, ANANet(ANANetSettings(blocks=1, width=32, heads=2, second_order=False)))
    save_network(second, ANANet(ANANetSettings(blocks=1, width=32, heads=2, form="quadratic")))
    from ananet.evaluation import reports

    evaluation = evaluate(
        world.folder, ["all", str(first), str(second)], MatchSettings(max_keypoints=100), workers=1, progress=False
    )
    assert evaluation.estimators == ("ransac",)
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
    assert json.dumps(reports.reports_as_json([evaluation]), allow_nan=False)
    assert reports.reports_as_json([evaluation], table=5)[0]["rows"] == rows[5]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nothing", "--pruner", "all"], "source: expected a file or folder, there is no nothing"),
        (["scenes", "--pruner", "wrong"], "pruner: expected one of "),
        (["scenes", "--pruner", "all,all"], "pruner: expected different names"),
        (["scenes", "--pruner", "all", "--estimator", "lmeds"], "estimators: expected some of"),
        (["scenes", "--pruner", "all", "--threshold", "-1"], "threshold: expected a positive number"),
        (["scenes", "--pruner", "ratio@threshold=-5"], "threshold: expected a ratio between 0 and 1, got -5"),
        (["scenes", "--pruner", "all", "--outlier-share", "1"], "outlier_share: expected a number from 0 to below 1"),
        (["scenes", "--pruner", "all", "--confidence", "1"], "confidence: expected a probability above 0 and below 1"),
        (["scenes", "--pruner", "all", "--workers", "0"], "--workers: expected at least 1"),
        (["scenes", "scenes", "--pruner", "all"], "SOURCE: expected sources of different names"),
        (["scenes", "--pruner", "all", "--scores", "no/folder.json"], "--scores: the folder no does not exist"),
    ],
)
def test_wrong_arguments(world, capsys, monkeypatch, arguments, word):
    monkeypatch.chdir(world.folder.parent)
    code, out, err = run(capsys, *arguments)
    assert code == 2 and word in err and not out
    assert err.count("\n") == 1


def test_an_error_in_a_worker_is_told_in_one_line(world, capsys, tmp_path):
    pytest.importorskip("h5py")
    images = world.folder / "room" / "images"
    K, pose = "300 0 159.5 0 300 119.5 0 0 1", "1 0 0 0.5 0 1 0 0 0 0 1 0 0 0 0 1"
    (tmp_path / "pairs.txt").write_text(f"0.png gone.png {K} {K} {pose}\n")
    code, _, err = run(capsys, tmp_path / "pairs.txt", "--images", images, "--pruner", "all", "--workers", 1)
    assert code == 2 and "gone.png: no such file" in err


@pytest.mark.skipif("ANANET_TEST_DATA" not in os.environ, reason="needs photos: set ANANET_TEST_DATA")
def test_reference_numbers(capsys):
    """An independent scorer's numbers for the validation scenes, and MULTI's first part."""
    data = Path(os.environ["ANANET_TEST_DATA"])
    multi = evaluate(data / "multi" / "part-a", ["all", "gms"], progress=False)
    for name, f1 in (("all", 0.569), ("gms", 0.760)):
        assert multi.scores[name].matches_summary()["f1"] == pytest.approx(f1, abs=0.005)
    scenes = evaluate(data / "val", ["all", "mutual", "ratio", "gms"], progress=False)
    for name, f1, auc in (
        ("all", 0.320, (20.9, 28.9, 36.9)),
        ("mutual", 0.491, (42.4, 53.8, 64.0)),
        ("ratio", 0.605, (57.5, 71.2, 81.4)),
        ("gms", 0.471, (31.5, 41.8, 52.2)),
    ):
        assert scenes.scores[name].matches_summary()["f1"] == pytest.approx(f1, abs=0.005)
        # One draw of RANSAC against another: each is off by a point or so.
        assert scenes.scores[name].pose_summary("ransac")["auc"] == pytest.approx(auc, abs=3)
