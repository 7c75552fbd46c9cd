"""Parts are the same each time, and hold every pair once; what is wrong with a pair stays with it."""

import re

import numpy as np
import pytest

from ananet import InputError
from ananet.bulk.inputs import Databases, HlocFiles, MatchFiles, Pair, PhotoPairs, Tables, attempt, open_source
from tests.bulk.problems import write_database, write_npz
from tests.conftest import make_problem


def read_all(source, size):
    """All pairs, read in parts of a size, from parts that were listed twice."""
    parts = list(source.parts(size))
    assert parts == list(source.parts(size)) and all(part.count <= size for part in parts)
    pairs = [list(source.read(part)) for part in parts]
    assert [len(some) for some in pairs] == [part.count for part in parts]
    return [pair for some in pairs for pair in some]


def as_told(pairs):
    return [(pair.source, pair.key, pair.error is None) for pair in pairs]


def test_databases(tmp_path):
    write_database(tmp_path / "a.db", 5, bad=3)
    source = open_source(tmp_path)
    assert isinstance(source, Databases)
    pairs = read_all(source, 2)
    assert as_told(pairs) == as_told(read_all(source, 100))
    assert [pair.error is None for pair in pairs] == [True, True, True, False, True]
    assert len({pair.key for pair in pairs}) == 5 and "IndexError" in pairs[3].error
    assert pairs[0].cameras_known and pairs[0].usable.all() and len(pairs[0].matches) == 100


def test_match_files(tmp_path):
    source = open_source(write_npz(tmp_path, 5))
    assert isinstance(source, MatchFiles)
    pairs = read_all(source, 2)
    assert [pair.source for pair in pairs] == sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.npz")
    )
    assert all(pair.cameras_known for pair in pairs)


def test_hloc_files(tmp_path):
    h5py = pytest.importorskip("h5py")
    points0, points1 = make_problem(60, 40).matches.numpy_points()
    with h5py.File(tmp_path / "features.h5", "w") as file:
        for name, points in (("a.jpg", points0), ("b.jpg", points1), ("c.jpg", points1)):
            group = file.create_group(name)
            group["keypoints"], group["image_size"] = points.astype(np.float32), np.array([640, 480])
    with h5py.File(tmp_path / "matches.h5", "w") as file:
        for name, partners in (("a.jpg/b.jpg", np.arange(100)), ("a.jpg/c.jpg", np.arange(100) + 50)):
            file.create_group(name)["matches0"] = partners.astype(np.int16)
    source = open_source(tmp_path)
    assert isinstance(source, HlocFiles)
    first, second = read_all(source, 1)
    assert (first.source, first.key, first.name0, first.name1) == ("matches.h5", "a.jpg/b.jpg", "a.jpg", "b.jpg")
    np.testing.assert_allclose(first.matches.points1, points1, rtol=1e-6)
    assert not first.cameras_known and "expected indices below 100" in second.error
    (tmp_path / "features.h5").unlink()
    with pytest.raises(InputError, match="expected hloc's features and matches, got matches.h5"):
        open_source(tmp_path)


@pytest.mark.parametrize("nested", [False, True])
def test_tables(tmp_path, nested):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = []
    for number in range(5):
        matches = make_problem(30, 20, seed=number).matches
        arrays = {"points0": matches.points0, "points1": matches.points1, "K0": matches.K0, "K1": matches.K1}
        row = {name: (value if nested else value.flatten()).tolist() for name, value in arrays.items()}
        rows.append(row | {"ratio": matches.ratio.tolist(), "name0": "a", "more": 1})
    rows[3]["ratio"] = rows[3]["ratio"][:-1]
    del rows[4]["points1"]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "pairs.parquet", row_group_size=2)
    (tmp_path / "worse.parquet").write_text("no table")
    source = open_source(tmp_path)
    assert isinstance(source, Tables)
    pairs = read_all(source, 3)
    assert as_told(pairs) == as_told(read_all(source, 1))
    assert [pair.error is None for pair in pairs] == [True, True, True, False, False, False]
    assert "ratio: expected shape (50,), got (49,)" in pairs[3].error
    assert "expected points0 and points1, got no points1" in pairs[4].error
    for number, pair in enumerate(pairs[:3]):
        expected = make_problem(30, 20, seed=number).matches
        np.testing.assert_array_equal(pair.matches.points1, expected.points1)
        np.testing.assert_array_equal(pair.matches.ratio, expected.ratio)
        assert pair.cameras_known and pair.name0 == "a" and pair.key == str(number)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("abc", "points0: expected a list of numbers, got string"),
        (["a", "b"], r"points0: expected a list of numbers, got list<"),
        ([1.0, 2.0, 3.0], "points0: expected N x 2 numbers, got 3"),
        (None, "row 0: expected points0 and points1, got no points0"),
    ],
)
def test_tables_of_something_else(tmp_path, points, message):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"points0": [points], "points1": [[1.0, 2.0]]}), tmp_path / "pairs.parquet")
    (pair,) = read_all(open_source(tmp_path), 1)
    assert re.match(message, pair.error)


def test_lists_of_photos(tmp_path):
    listed = tmp_path / "pairs.txt"
    listed.write_bytes(b"\xef\xbb\xbfa b\n\na c\r\nd e f\nwith blank\tother blank\n\xff b\n/a b\nb ../c\nb c\0")
    source = PhotoPairs(tmp_path, listed, tmp_path / "features", "sift", 100)
    for size in (1, 2, 100):
        pairs = read_all(source, size)
        names = [(pair.name0, pair.name1) for pair in pairs]
        assert names == [
            ("a", "b"), ("a", "c"), (None, None), ("with blank", "other blank"), (None, None),
            (None, None), (None, None), (None, None),
        ]  # fmt: skip
        assert "expected two names, with a tab between them if they contain spaces, got 'd e f'" in pairs[2].error
    assert source.photos() == ["a", "b", "c", "with blank", "other blank"]


def test_inputs_of_no_or_of_two_kinds(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        open_source(tmp_path / "nothing")
    with pytest.raises(InputError, match="expected files of one kind .* got none of them"):
        open_source(tmp_path)
    write_npz(tmp_path, 1)
    write_database(tmp_path / "a.db", 1)
    with pytest.raises(InputError, match=r"got \.db and \.npz"):
        open_source(tmp_path)
    assert [part.source for part in open_source(tmp_path / "a.db").parts(5)] == ["a.db"]


def test_what_a_step_raises_stays_with_the_pair():
    def step(pair):
        raise KeyError("x")

    failed = attempt(Pair("a", "1", "n0", "n1"), step)
    assert (failed.error, failed.source, failed.key, failed.name1) == ("KeyError: 'x'", "a", "1", "n1")
    assert attempt(failed, step) is failed
