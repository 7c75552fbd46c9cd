import numpy as np
import pytest

from ananet.datasets.formats.labelled import LabelledMatches
from ananet.datasets.sources import open_source, open_stored_pairs
from ananet.errors import InputError

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
