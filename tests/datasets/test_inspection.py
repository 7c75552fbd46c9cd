import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from ananet.cli.main import main
from ananet.datasets.base import LabelledPair
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.formats.shards import PairShards
from ananet.datasets.inspection import PairFacts, draw_pair_set, facts_as_json, facts_by_scene, facts_of
from ananet.twoview.drawing import GREEN, GREY, ORANGE, RED
from tests.conftest import make_problem
from tests.datasets.depth_pairs import pair_with_depth, write_pairs
from tests.datasets.scenes import write_scene


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_scene(folder / "scenes" / "walls", images=3)
    wrong = write_scene(folder / "scenes" / "wrong", images=3, seed=9)
    # Poses that do not belong to the photos: the last two change places.
    images = wrong / "sparse" / "images.txt"
    images.write_text(images.read_text().replace("001.png", "x").replace("002.png", "001.png").replace("x", "002.png"))
    (wrong / "pairs.txt").write_text("000.png 001.png\n000.png 002.png\n")
    return folder


def test_build_then_inspect(built, capsys):
    out, picture = built / "out", built / "pairs.png"
    assert main(["data", "build", str(built / "scenes"), str(out), "--max-keypoints", "400", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scenes"] == 2 and result["pairs"] > 2
    assert main(["data", "inspect", str(out), "-o", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    walls, wrong = found["scenes"]
    assert walls["doubtful_pairs"] == 0 and walls["distinctive_inliers"] > 0.9
    assert wrong["distinctive_inliers"] < 0.8
    assert cv2.imread(str(picture)).shape[1] == 1800
    assert main(["data", "inspect", str(out), "-o", str(picture)]) == 0
    assert "doubtful_pairs" in capsys.readouterr().out


def test_wrong_arguments(built, tmp_path, capsys):
    for arguments, message in [
        (["build", tmp_path / "none", tmp_path / "out"], "source: no such file or folder"),
        (["inspect", tmp_path], "no training pairs here"),
        (
            ["build", built / "scenes", tmp_path / "out", "--max-keypoints", "1"],
            "max_keypoints: expected a whole",
        ),
    ]:
        assert main(["data", *(str(a) for a in arguments)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_labels_by_depth(tmp_path, capsys):
    right, hard = pair_with_depth(0.5), pair_with_depth(0.2, right=6, unknown=4)
    folder = write_pairs(tmp_path / "pairs", {"a": [right, hard, pair_with_depth(0)], "b": [pair_with_depth(0.7)] * 2})
    picture = tmp_path / "a.png"
    assert main(["data", "inspect", str(folder), "-o", str(picture), "--scene", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["depth"] == [
        {
            "scene": "a", "known": round((140 + 46) / (200 + 50), 4), "accidental": round(80 / 186, 4),
            "10 to 30 %": 1, "30 to 60 %": 1, "above 60 %": 0, "hard_pairs": 1, "empty_pairs": 1,
        }
    ]  # fmt: skip
    assert [row["scene"] for row in found["scenes"]] == ["a"] and found["scenes"][0]["pairs"] == 3
    assert found["scenes"][0]["inlier_ratio"] == pytest.approx((200 / 280 + 50 / 130) / 2, abs=1e-4), "no empty pair"
    assert [pair["number"] for pair in found["pairs"]] == [0, 1, 2]
    drawn = cv2.imread(str(picture))
    for colour in (GREEN, ORANGE, RED, GREY):
        assert (drawn == colour).all(axis=-1).any()
    assert main(["data", "inspect", str(folder), "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "empty_pairs" in out and "5 pairs. Picture:" in out and "orange: accidental" in out
    assert main(["data", "inspect", str(folder), "-o", str(picture), "--scene", "bb"]) == 2
    assert f"--scene: expected a scene of {folder}, got 'bb'" in capsys.readouterr().err


def test_an_empty_pair_is_not_doubtful():
    pair = pair_with_depth(0)
    wrong_pose = LabelledPair.from_pose("p", pair.matches, pair.R.T, pair.t.flip(0))
    assert facts_of(wrong_pose, 0).doubtful
    assert not facts_of(replace(wrong_pose, known=pair.known, right=pair.right, share=0.0), 0).doubtful


def labelled() -> LabelledPair:
    problem = make_problem(200, 100, noise=0.05)
    return LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)


def test_facts_of_a_pair():
    pair = labelled()
    facts = facts_of(pair, 3)
    assert (facts.scene, facts.matches) == (3, 300)
    assert facts.inlier_ratio == pytest.approx(float(pair.inlier.float().mean()))
    turn = np.degrees(np.arccos((np.trace(pair.R.numpy()) - 1) / 2))
    assert facts.rotation == pytest.approx(turn, abs=0.01)
    assert 1 < facts.parallax < 20 and 0 < facts.residual < 0.1
    assert facts.distinctive_inliers > 0.9 and not facts.doubtful


def test_distinctive_matches_are_mutual_and_below_a_ratio_of_eight_tenths():
    pair = labelled()
    ratio = torch.where(torch.arange(300) < 150, 0.79, 0.8)
    mutual = torch.arange(300) % 2 == 0
    facts = facts_of(LabelledPair.from_pose("p", pair.matches.replace(ratio=ratio, mutual=mutual), pair.R, pair.t), 0)
    assert facts.distinctive == 75
    assert facts.distinctive_inliers == pytest.approx(float(pair.inlier[:150][mutual[:150]].float().mean()))


def test_a_wrong_pose_is_doubtful():
    pair = labelled()
    wrong = LabelledPair.from_pose("p", pair.matches, pair.R.T, pair.t.flip(0))
    assert facts_of(wrong, 0).doubtful
    # Few distinctive matches are not enough to judge by.
    few = LabelledPair.from_pose("p", pair.matches[:20], pair.R.T, pair.t.flip(0))
    assert not facts_of(few, 0).doubtful


def test_a_pair_without_matches_has_facts():
    pair = labelled()
    facts = facts_of(LabelledPair.from_pose("p", pair.matches[[]], pair.R, pair.t), 0)
    assert (facts.matches, facts.inlier_ratio, facts.parallax, facts.distinctive) == (0, 0.0, 0.0, 0)
    assert np.isnan(facts.residual)
    found = json.loads(json.dumps(facts_as_json([], [facts]), allow_nan=False))
    assert found["pairs"][0]["residual"] is None and found["pairs"][0]["matches"] == 0


def test_facts_by_scene_are_means_over_its_pairs(tmp_path):
    for name, seed in (("a", 0), ("b", 9)):
        write_scene(tmp_path / "scenes" / name, images=2, seed=seed)
    settings = BuildSettings(max_keypoints=100, min_parallax=0.5)
    build_pairs(tmp_path / "scenes", tmp_path / "pairs", settings, progress=False)
    pairs = PairShards(tmp_path / "pairs")

    def fact(scene: int, inlier_ratio: float, residual: float = 1.0) -> PairFacts:
        return PairFacts(scene, 100, inlier_ratio, 5.0, 2.0, 30, 0.2, residual)

    rows = facts_by_scene(pairs, [fact(0, 0.2), fact(0, 0.6, float("nan"))])
    assert [row["scene"] for row in rows] == ["a", "b"] and [row["pairs"] for row in rows] == [2, 0]
    assert rows[0]["inlier_ratio"] == pytest.approx(0.4) and rows[0]["residual"] == 1.0
    assert rows[0]["doubtful_pairs"] == 2 and rows[0]["photos"] == 2
    assert rows[1]["inlier_ratio"] is None and rows[1]["matches"] == 0
    facts = [facts_of(pair, scene) for pair, scene in zip(pairs, pairs.pair_scene.tolist(), strict=True)]
    json.dumps(facts_as_json(facts_by_scene(pairs, facts), facts), allow_nan=False)
    assert draw_pair_set(pairs, facts).shape[1] == 1800
