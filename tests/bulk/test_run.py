"""Whole calls, in a plain loop; `test_cluster.py` holds Ray to it."""

import sqlite3
import sys

import cv2
import numpy as np
import pytest

import ananet
from ananet import InputError
from ananet.bulk import prune_in_bulk
from ananet.features import load_detector
from ananet.integrations.colmap import prune_database
from ananet.io.npz import read_matches
from tests.bulk.problems import read_rows, write_database, write_npz
from tests.photos import photo

pytest.importorskip("pyarrow", reason="needs the extra 'bulk'")


def run(*arguments, **options):
    return prune_in_bulk(*arguments, **{"workers": 0, "device": "cpu", "pairs_per_part": 2} | options)


def test_answers_are_those_of_the_pruner(tmp_path):
    folder = write_npz(tmp_path / "in", 3)
    summary = run(folder, tmp_path / "out")
    rows = read_rows(tmp_path / "out")
    assert [row["source"] for row in rows] == ["scene-0/000.npz", "scene-0/002.npz", "scene-1/001.npz"]
    pruner = ananet.load(device="cpu")
    for row in rows:
        matches = read_matches(folder / row["source"])
        expected = pruner(matches)
        np.testing.assert_array_equal(row["mask"], expected.mask)
        np.testing.assert_allclose(row["scores"], expected.scores, atol=1e-4)
        pose = ananet.estimate_pose(matches, kept=expected)
        np.testing.assert_allclose(np.reshape(row["R"], (3, 3)), pose.R, atol=1e-6)
        np.testing.assert_allclose(row["t"], pose.t, atol=1e-6)
        assert row["inliers"] == pose.inliers.sum() > 40 and row["overlap"] and row["error"] is None
    counts = summary.counts
    assert (summary.parts, summary.skipped, counts.pairs, counts.failed, counts.poses) == (2, 0, 3, 0, 3)
    assert (counts.matches, counts.kept) == (300, sum(sum(row["mask"]) for row in rows))


def test_a_second_run_does_what_is_missing(tmp_path):
    folder, output = write_npz(tmp_path / "in", 5), tmp_path / "out"
    first = run(folder, output, pruner="lpm")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.glob("part-*")}
    gone = output / "part-0000001.parquet"
    gone.unlink()
    again = run(folder, output, pruner="lpm")
    assert (again.parts, again.skipped, again.counts) == (3, 2, first.counts)
    for path, (written, content) in before.items():
        assert path.read_bytes() == content
        assert (path.stat().st_mtime_ns == written) == (path != gone)


def test_failed_pairs_are_told_and_tried_again(tmp_path):
    folder, output = write_npz(tmp_path / "in", 4), tmp_path / "out"
    bad = folder / "scene-1" / "001.npz"
    good = bad.read_bytes()
    bad.write_bytes(good[:200])
    assert run(folder, output, pruner="lpm").counts.failed == 1
    assert [row["source"] for row in read_rows(output) if row["error"]] == ["scene-1/001.npz"]
    bad.write_bytes(good)
    assert run(folder, output, pruner="lpm").counts.failed == 1
    again = run(folder, output, pruner="lpm", retry_failed=True)
    assert (again.skipped, again.counts.failed, again.counts.pairs) == (1, 0, 4)


def test_other_settings_or_another_input_want_another_folder(tmp_path):
    folder, output = write_npz(tmp_path / "in", 2), tmp_path / "out"
    run(folder, output, pruner="lpm")
    with pytest.raises(InputError, match="output: .* was begun with other settings.*pruner 'lpm', now 'gms'"):
        run(folder, output, pruner="gms")
    with pytest.raises(InputError, match="output: expected a folder outside of the input"):
        run(folder, folder / "out", pruner="lpm")
    write_npz(folder, 3)
    with pytest.raises(InputError, match="another input"):
        run(folder, output, pruner="lpm")


def test_what_is_wrong_is_told_before_anything_is_written(tmp_path):
    folder, output = write_npz(tmp_path / "in", 1), tmp_path / "out"
    listed, empty = tmp_path / "pairs.txt", tmp_path / "empty.txt"
    listed.write_text("a.jpg b.jpg\n")
    empty.write_text("# nothing\n")
    for arguments, message in (
        ({"detector": "nothing", "pairs": listed}, "detector: expected one of"),
        ({"pairs": empty}, "pairs: expected two names in each line"),
        ({"pairs": tmp_path / "none.txt"}, "none.txt: no such file"),
        ({"min_matches": -1}, "min_matches: expected a whole number"),
        ({"min_overlap": 2}, "min_overlap: expected a number from 0 to 1"),
        ({"estimator": "nothing"}, "estimator: expected one of"),
    ):
        with pytest.raises(InputError, match=message):
            run(folder, output, **arguments)
    with pytest.raises(InputError, match="input: expected a folder of photos"):
        run(listed, output, pairs=listed)
    assert not output.exists()


def test_a_damaged_output_is_told(tmp_path):
    folder, output = write_npz(tmp_path / "in", 1), tmp_path / "out"
    run(folder, output, pruner="lpm")
    (part,) = output.glob("part-*")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(InputError, match=r"part-0000000.parquet: .* remove it and run again"):
        run(folder, output, pruner="lpm")
    part.unlink()
    assert run(folder, output, pruner="lpm").counts.pairs == 1
    (output / "bulk.json").write_text("[]")
    with pytest.raises(InputError, match="bulk.json: expected the settings"):
        run(folder, output, pruner="lpm")


def test_databases(tmp_path):
    write_database(tmp_path / "in" / "a.db", 3)
    write_database(tmp_path / "in" / "more" / "b.db", 3, bad=1)
    (tmp_path / "in" / "c.db").write_text("no database")
    output = tmp_path / "out"
    summary = run(tmp_path / "in", output, databases=True)
    rows = read_rows(output)
    assert [(row["source"], row["error"] is None) for row in rows] == [
        ("a.db", True), ("a.db", True), ("a.db", True), ("c.db", False),
        ("more/b.db", True), ("more/b.db", False), ("more/b.db", True),
    ]  # fmt: skip
    assert summary.counts.failed == 2 and summary.counts.poses == 5
    assert (rows[0]["name0"], rows[0]["name1"]) == ("photo 0.jpg", "photo 1.jpg")

    # The same database as `ananet colmap` makes, which has nothing left to do.
    prune_database(tmp_path / "in" / "a.db", output=tmp_path / "expected.db", device="cpu")
    copy = output / "databases" / "a.db"
    assert _matches(copy) == _matches(tmp_path / "expected.db") != _matches(tmp_path / "in" / "a.db")
    assert prune_database(copy, device="cpu").skipped == 3
    # A pair that failed is as it was.
    given, found = _matches(tmp_path / "in" / "more" / "b.db"), _matches(output / "databases" / "more" / "b.db")
    assert [a == b for a, b in zip(given, found, strict=True)] == [False, True, False]
    assert not (output / "databases" / "c.db").exists()

    doubted = tmp_path / "doubted"
    run(tmp_path / "in", doubted, databases=True, min_overlap=1)
    assert all(row["error"] or 0.9 < row["probability"] < 1 for row in read_rows(doubted))
    assert all(rows == 0 for _, rows, _ in _matches(doubted / "databases" / "a.db"))
    written = copy.stat().st_mtime_ns
    run(tmp_path / "in", output, databases=True)
    assert copy.stat().st_mtime_ns == written
    with pytest.raises(InputError, match=r"databases: expected COLMAP databases as the input, got \.npz files"):
        run(write_npz(tmp_path / "npz", 1), tmp_path / "other", databases=True)


def _matches(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT pair_id, rows, data FROM matches ORDER BY pair_id").fetchall()
    finally:
        connection.close()


def test_without_pyarrow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow .ananet's extra 'bulk'"):
        run(write_npz(tmp_path / "in", 1), tmp_path / "out")


def test_photos(tmp_path):
    folder, output = tmp_path / "photos", tmp_path / "out"
    (folder / "more").mkdir(parents=True)
    image = photo(480, 360)
    for number, name in enumerate(("a.png", "b.png", "more/c.png")):
        cv2.imwrite(str(folder / name), image[10 * number : 300 + 10 * number])
    (folder / "bad.png").write_text("no photo")
    listed = tmp_path / "pairs.txt"
    listed.write_text("# pairs\na.png b.png\na.png more/c.png\n\na.png bad.png\na.png ../pairs.txt\nb.png more/c.png")
    summary = run(folder, output, pairs=listed, focal=400.0)
    rows = read_rows(output)
    assert [(row["name0"], row["name1"]) for row in rows if row["error"] is None] == [
        ("a.png", "b.png"), ("a.png", "more/c.png"), ("b.png", "more/c.png"),
    ]  # fmt: skip
    assert (summary.counts.pairs, summary.counts.failed) == (5, 2)
    assert "bad.png" in rows[2]["error"] and "'../pairs.txt'" in rows[3]["error"]

    expected = ananet.match_photos(
        folder / "a.png", folder / "b.png", K0=[[400, 0, 239.5], [0, 400, 149.5], [0, 0, 1]],
        K1=[[400, 0, 239.5], [0, 400, 149.5], [0, 0, 1]], device="cpu",
    )  # fmt: skip
    np.testing.assert_array_equal(rows[0]["mask"], expected.kept.mask)
    np.testing.assert_array_equal(np.reshape(rows[0]["indices"], (-1, 2)), expected.matches.indices)
    assert rows[0]["overlap"] == expected.overlap.found

    # Features are there once, as `--features` takes them.
    stored = sorted(path.relative_to(output / "features").as_posix() for path in output.rglob("*.npz"))
    assert stored == ["a.png.npz", "b.png.npz", "bad.png.npz", "more/c.png.npz"]
    detector = load_detector(f"stored@path={output / 'features'}")
    found = detector.detect(cv2.imread(str(folder / "a.png")), folder / "a.png")
    np.testing.assert_array_equal(found.points, expected.features0.points)


def test_large_photos(tmp_path):
    """As `match_photos`, in pixels of the scaled photos; features are stored in the photo's own pixels."""
    folder = tmp_path / "photos"
    folder.mkdir()
    image = photo(480, 360)
    for number, name in enumerate(("a.png", "b.png")):
        cv2.imwrite(str(folder / name), image[10 * number : 300 + 10 * number])
    (tmp_path / "pairs.txt").write_text("a.png b.png\n")
    detector = "sift@longest_side=240"
    run(folder, tmp_path / "out", pairs=tmp_path / "pairs.txt", focal=400.0, detector=detector)
    (row,) = read_rows(tmp_path / "out")
    expected = ananet.match_photos(folder / "a.png", folder / "b.png", focal=400.0, detector=detector, device="cpu")
    np.testing.assert_array_equal(row["mask"], expected.kept.mask)
    np.testing.assert_allclose(row["scores"], expected.kept.scores, atol=1e-4)
    assert row["overlap"] == expected.overlap.found
    stored = np.load(tmp_path / "out" / "features" / "a.png.npz")
    np.testing.assert_allclose(stored["points"], expected.features0.points, atol=1e-4)
    assert stored["image_size"].tolist() == [480, 300]
