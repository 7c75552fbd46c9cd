from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from ananet.datasets.formats.labelled import LabelledMatches, MULTICases, PlaneMatches, read_case, read_plane_matches
from ananet.datasets.sources import open_source, open_stored_pairs
from ananet.errors import InputError
from tests.datasets.planes import write_plane_matches

POINTS = np.arange(10.0).reshape(5, 2)


def write(folder, **changed) -> None:
    folder.mkdir(parents=True)
    arrays = {
        "points0": POINTS,
        "points1": POINTS + 1,
        "image_size0": (40, 30),
        "image_size1": (40, 30),
        "motion": [0, 1, 2, 0, 1],
    }
    np.savez(folder / "matches.npz", **{name: value for name, value in (arrays | changed).items() if value is not None})


def test_pairs_with_their_labels(tmp_path):
    for name in ("b", "a", "deep/c"):
        write(tmp_path / "set" / name, score=[1.0] * 5)
    source = open_source(tmp_path / "set")
    assert isinstance(source, LabelledMatches) and len(source) == 3 and not source.has_poses
    assert [pair.name for pair in source] == ["a", "b", "c"]
    pair = source[0]
    assert pair.inlier.tolist() == [False, True, True, False, True]
    assert (pair.distance, pair.R, pair.scene) == (None, None, "set")
    assert pair.matches.image_size0 == (40, 30) and pair.matches.points1.tolist() == (POINTS + 1).tolist()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"motion": None}, "expected arrays points0, points1, motion and optionally"),
        ({"motion": [0, 1]}, "motion: expected 5 whole numbers of at least 0, got"),
        ({"motion": [0, 1, -1, 0, 0]}, "motion: expected 5 whole numbers"),
        ({"motion": np.zeros(5)}, "motion: expected 5 whole numbers"),
        ({"points1": POINTS[:3]}, "points0 and points1: expected the same number of rows"),
    ],
)
def test_wrong_files_are_named(tmp_path, changed, message):
    write(tmp_path / "a", **changed)
    with pytest.raises(InputError, match=message) as error:
        open_source(tmp_path)[0]
    assert "matches.npz" in str(error.value)


def test_folders_without_any(tmp_path):
    with pytest.raises(InputError, match="holds none"):
        LabelledMatches(tmp_path)
    write(tmp_path / "a")
    with pytest.raises(InputError, match="labelled matches"):
        open_stored_pairs(tmp_path)


def write_case(folder: Path, **texts: str) -> Path:
    """Two right matches (one off by 0.9 px), one right only in the first image, one off by 1.1 px."""
    folder.mkdir(parents=True)
    for name, shape in (("B.JPG", (30, 40)), ("C.jpg", (50, 60))):
        _, data = cv2.imencode(".jpg", np.zeros(shape, np.uint8))
        (folder / name).write_bytes(data.tobytes())
    files = {
        "1key_location": "5\n1 2\n3.5 4.5\n5 6\n7 8\n9 9\n",
        "2key_location": "4\n10 20\n30.9 40\n50 60\n71.1 80\n",
        "match_idx": "0 0\n1 1\n2 0\n3 3\n",
        "gt_location": "3\n1 2 10 20\n3.5 4.5 30 40\n7 8 70 80\n",
    }
    for name, text in (files | texts).items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_one_case(tmp_path: Path) -> None:
    pair = read_case(write_case(tmp_path / "case3"))
    assert pair.name == "case3"
    assert pair.inlier.tolist() == [True, True, False, False]
    assert pair.distance is None and pair.R is None
    assert pair.matches.image_size0 == (40, 30) and pair.matches.image_size1 == (60, 50)
    assert pair.matches.points1.tolist() == [[10, 20], [30.9, 40], [10, 20], [71.1, 80]]
    expected = (torch.tensor([1.0, 2.0]) - torch.tensor([20.0, 15.0])) / (0.7 * 40)
    torch.testing.assert_close(pair.matches._as_tensors().normalized()[0, :2].float(), expected)
    assert pair.paths is not None and [path.name for path in pair.paths] == ["B.JPG", "C.jpg"]


def test_cases_come_in_order(tmp_path: Path) -> None:
    for part, case in (("part-b", "case1"), ("part-a", "case10"), ("part-a", "case2")):
        write_case(tmp_path / part / case)
    (tmp_path / "part-a" / "notes").mkdir()
    assert [pair.name for pair in MULTICases(tmp_path)] == ["case2", "case10", "case1"]
    assert MULTICases.find(tmp_path / "part-b") == [tmp_path / "part-b" / "case1"]


def test_cases_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    write_case(tmp_path / "case1")
    (write_case(tmp_path / "case2") / "match_idx.txt").write_text("0 9\n")
    cases = MULTICases(tmp_path)
    assert len(cases) == 2 and not cases.has_poses and cases.name == "MULTI"
    assert cases[0].name == "case1"
    with pytest.raises(InputError, match="match_idx.txt"):
        cases[1]


def test_nothing_true(tmp_path: Path) -> None:
    assert not read_case(write_case(tmp_path / "case", gt_location="0\n")).inlier.any()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"match_idx": "0 4\n"}, "match_idx.txt: expected whole numbers from 0 to"),
        ({"match_idx": "0.5 0\n"}, "match_idx.txt: expected whole numbers from 0 to"),
        ({"match_idx": "-1 0\n"}, "match_idx.txt: expected whole numbers from 0 to"),
        ({"gt_location": "2\n1 2 3 4\n"}, "expected 2 rows"),
        ({"gt_location": "2\n1 2 3\n4 5 6\n"}, "gt_location.txt: expected a count"),
        ({"1key_location": ""}, "1key_location.txt: expected a count"),
        ({"1key_location": "1\n1 nan\n", "match_idx": "0 0\n"}, "finite"),
        ({"2key_location": "1\nx y\n"}, "2key_location.txt: expected a count"),
    ],
)
def test_broken_files(tmp_path: Path, texts: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_case(write_case(tmp_path / "case", **texts))


def test_missing_things(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds none"):
        MULTICases(tmp_path)
    case = write_case(tmp_path / "case")
    (case / "1key_location.txt").unlink()
    with pytest.raises(InputError, match="no such file"):
        read_case(case)
    (case / "B.JPG").unlink()
    with pytest.raises(InputError, match="two JPEG"):
        read_case(case)


def test_matches_of_a_plane_are_labelled_anew(tmp_path: Path) -> None:
    path = write_plane_matches(tmp_path / "evd" / "cat_pts.txt")
    pair = read_plane_matches(path)
    assert (pair.name, pair.scene, pair.paths) == ("cat", "evd", None)
    assert pair.inlier.tolist() == [True] * 40 + [False] * 20, "also those labelled 0 that lie on the plane"
    assert pair.matches.image_size0 == tuple(pair.matches.points0.max(axis=0) + 1)
    for side, shape in (("A", (240, 320)), ("B", (250, 340))):
        cv2.imwrite(str(path.with_name(f"cat{side}.png")), np.zeros(shape, np.uint8))
    pair = read_plane_matches(path)
    assert (pair.matches.image_size0, pair.matches.image_size1) == ((320, 240), (340, 250))
    assert pair.paths is not None and [photo.name for photo in pair.paths] == ["catA.png", "catB.png"]


def test_the_matches_of_planes_in_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_plane_matches(tmp_path / f"{name}_pts.txt")
    (tmp_path / "readme.txt").write_text("")
    source = open_source(tmp_path)
    assert isinstance(source, PlaneMatches) and source.models == ()
    assert [pair.name for pair in source] == ["a", "b"]
    one = open_source(tmp_path / "a_pts.txt")
    assert isinstance(one, PlaneMatches) and len(one) == 1
    with pytest.raises(InputError, match="holds none"):
        PlaneMatches(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected at least 4 matches with label 1, got 0"),
        ("1 2 3 4 1\n" * 3, "expected at least 4 matches with label 1, got 3"),
        ("1 2 3 1\n", "a last column of 0 or 1"),
        ("1 2 3 4\n", "a last column of 0 or 1"),
        ("1 2 3 4 0.7\n", "a last column of 0 or 1"),
        ("1 2 3 nan 1\n", "expected finite x0 y0 x1 y1"),
        ("1 2 x 4 1\n", "expected x0 y0 x1 y1"),
        ("1 2 3 4 1\n" * 8, "a_pts.txt: expected matches"),
        ("0 0 0 0 1\n9 0 900 0 1\n9 9 9 9 1\n0 9 0 900 1\n4 3 70 2 1\n1 8 5 300 1\n", "within 10 px of one homography"),
    ],
)
def test_broken_matches_of_planes(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a_pts.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        read_plane_matches(tmp_path / "a_pts.txt")
