"""Motions scored on labelled pairs and on synthetic problems."""

import numpy as np
import pytest

from ananet import InputError, load
from ananet.evaluation.motions import evaluate_motions, motion_report, motion_rows, synthetic_problems, true_motions
from tests.twoview.test_motions import body, scene, turn


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for name in ("first", "second"):
        points0, points1, truth = scene(
            body(random, 60, (-0.8, 0, 5), turn(12, (0, 1, 0)), (0.3, 0, 0)),
            body(random, 50, (0.9, 0.3, 5), turn(-20, (1, 0, 0)), (0, 0.3, 0.2)),
        )
        (tmp_path / name).mkdir()
        arrays = {
            "points0": points0,
            "points1": points1,
            "motion": truth,
            "image_size0": (640, 480),
            "image_size1": (640, 480),
        }
        np.savez(tmp_path / name / "matches.npz", **arrays)
    return tmp_path


def test_labelled_pairs(folder):
    scores = evaluate_motions(folder, load("all"), repeats=2, progress=False)
    assert [score.name for score in scores] == ["first", "second"]
    for score in scores:
        assert score.true == 2 and score.found.tolist() == [2, 2]
        assert score.errors.shape == (2,) and score.errors.max() < 0.05
    rows = motion_rows(scores)
    assert [row["name"] for row in rows] == ["first", "second", "mean"]
    assert rows[-1]["number right"] == 1
    report = motion_report(folder, "all", 2, scores, "markdown")
    assert "seeds 0 to 1" in report and "| mean" in report


def test_synthetic_problems_have_the_motions_asked_for():
    problems = list(synthetic_problems(3, 0.5, count=2, matches=200))
    again = list(synthetic_problems(3, 0.5, count=2, matches=200))
    for (matches, truth), (same, _) in zip(problems, again, strict=True):
        assert len(matches) == 200 and matches.calibrated
        assert true_motions(truth) == 3
        assert (truth == 0).mean() == pytest.approx(0.5, abs=0.04)
        np.testing.assert_array_equal(matches.points1, same.points1)


def test_one_synthetic_motion_is_found():
    from ananet.evaluation.motions import score_motions

    scores = score_motions("one", list(synthetic_problems(1, 0.3, count=3, matches=300)), load("ananet"), 1)
    assert scores.found.tolist() == [1, 1, 1] and scores.errors.mean() < 0.08


def test_a_folder_without_labelled_pairs(tmp_path):
    with pytest.raises(InputError, match="holds none"):
        evaluate_motions(tmp_path, load("all"))
