"""Pruning together gives what pruning alone gives; one bad pair costs the others nothing."""

from dataclasses import replace

import numpy as np
import pytest

import ananet
from ananet import Correspondences
from ananet.bulk import stages
from ananet.bulk.inputs import Pair
from ananet.bulk.stages import Counts, part_path, read_counts, write_part
from ananet.estimators import Pose
from ananet.pruners import Pruned
from tests.bulk.problems import read_rows
from tests.conftest import make_problem


def make_pairs(count):
    problems = [make_problem(40 + 10 * number, 30, seed=number) for number in range(count)]
    return [Pair(str(number), matches=problem.matches, cameras_known=True) for number, problem in enumerate(problems)]


def test_pruned_together_as_alone():
    pairs = [*make_pairs(4), Pair("failed", error="x")]
    row = stages.Prune("ananet-small", "cpu")({"path": "a", "pairs": np.array(pairs, object)})
    found = row["pairs"]
    assert row["path"] == "a"
    pruner = ananet.load("ananet-small", device="cpu")
    assert [pair.source for pair in found] == ["0", "1", "2", "3", "failed"] and found[4].kept is None
    for pair in found[:4]:
        expected = pruner(pair.matches)
        np.testing.assert_array_equal(pair.kept.mask, expected.mask)
        np.testing.assert_allclose(pair.kept.scores, expected.scores, atol=1e-4)


def test_one_pair_that_breaks_a_batch():
    pairs = make_pairs(3)
    # Neither cameras nor sizes: networks cannot place these points.
    bad = pairs[1].matches.replace(K0=None, K1=None, image_size0=None, image_size1=None)
    pairs[1] = Pair("bad", matches=bad)
    found = stages.Prune("ananet-small", "cpu").prune(pairs)
    assert [pair.error is None for pair in found] == [True, False, True]
    assert "expected camera matrices" in found[1].error and found[1].source == "bad"
    assert [pair.error is None for pair in stages.Verify("poselib")(found)] == [True, False, True]


def test_verified():
    problem = make_problem()
    matches = problem.matches
    kept = ananet.load("ananet-small", device="cpu")(matches)
    pairs = [
        Pair("known", matches=matches, cameras_known=True, kept=kept),
        Pair("guessed", matches=matches, cameras_known=False, kept=kept),
        Pair("no sizes", matches=matches.replace(image_size0=None, image_size1=None), cameras_known=True, kept=kept),
    ]
    known, guessed, no_sizes = stages.Verify("poselib")(pairs)
    assert known.overlap and np.abs(known.pose.R - problem.R.numpy()).max() < 0.01
    assert guessed.overlap and guessed.pose is None
    assert known.probability > 0.9
    assert no_sizes.overlap is None and no_sizes.probability is None and no_sizes.pose is not None


def test_rows_and_counts(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra 'bulk'")
    matches = Correspondences(np.zeros((3, 2)), np.zeros((3, 2)), indices=[[0, 5], [1, 6], [2, 7]])
    kept = Pruned(np.array([True, False, True]), np.array([0.9, 0.1, 0.8], np.float32), np.zeros(3))
    pose = Pose(np.eye(3), np.array([0.0, 0.0, 1.0]), np.array([True, False, False]))
    plain = Pair("a.db", "7", "x", "y", matches, kept=kept)
    pairs = [
        plain,
        replace(plain, usable=np.array([False, True, True, True, False]), pose=pose, overlap=True),
        Pair("a.db", "8").failed(ValueError("no")),
    ]
    path = part_path(tmp_path, 3)
    counts = write_part(path, pairs, with_indices=True)
    assert counts == read_counts(path) == Counts(pairs=3, failed=1, matches=8, kept=4, poses=1)
    first, second, third = read_rows(tmp_path)
    assert (first["source"], first["pair"], first["name0"], first["name1"]) == ("a.db", "7", "x", "y")
    assert first["mask"] == [True, False, True] and first["R"] is None and first["overlap"] is None
    assert first["indices"] == [0, 5, 1, 6, 2, 7]
    # A match that the pruner did not see is there, and not kept.
    assert second["mask"] == [False, True, False, True, False]
    np.testing.assert_allclose(second["scores"], [0, 0.9, 0.1, 0.8, 0], rtol=1e-6)
    assert (second["R"], second["t"], second["inliers"]) == (np.eye(3).ravel().tolist(), [0, 0, 1], 1)
    assert third["error"] == "ValueError: no" and third["mask"] == third["scores"] == []


def test_a_part_without_pairs_has_the_same_columns(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'bulk'")

    assert write_part(tmp_path / "a.parquet", [], with_indices=False) == Counts()
    write_part(tmp_path / "b.parquet", [Pair("x").failed(ValueError("no"))], with_indices=False)
    assert parquet.read_schema(tmp_path / "a.parquet").equals(parquet.read_schema(tmp_path / "b.parquet"))


def test_counts_add_up():
    assert Counts(1, 2, 3, 4, 5) + Counts(1, 1, 1, 1, 1) == Counts(2, 3, 4, 5, 6)
