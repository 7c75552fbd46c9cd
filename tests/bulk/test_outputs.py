"""What a part's file says. Pruned databases are tested in `test_bulk.py`."""

from dataclasses import replace

import numpy as np
import pytest

from ananet import Correspondences
from ananet.bulk.inputs import Pair
from ananet.bulk.outputs import Counts, part_path, read_counts, write_part
from ananet.estimators import Pose
from ananet.pruners import Pruned
from tests.bulk.problems import read_rows

pytest.importorskip("pyarrow", reason="needs the extra 'bulk'")


def test_rows_and_counts(tmp_path):
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
    import pyarrow.parquet as parquet

    assert write_part(tmp_path / "a.parquet", [], with_indices=False) == Counts()
    write_part(tmp_path / "b.parquet", [Pair("x").failed(ValueError("no"))], with_indices=False)
    assert parquet.read_schema(tmp_path / "a.parquet").equals(parquet.read_schema(tmp_path / "b.parquet"))


def test_counts_add_up():
    assert Counts(1, 2, 3, 4, 5) + Counts(1, 1, 1, 1, 1) == Counts(2, 3, 4, 5, 6)
