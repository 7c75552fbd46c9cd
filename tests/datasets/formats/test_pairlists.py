from pathlib import Path

import cv2
import numpy as np
import pytest

from ananet.datasets.formats.pairlists import PairList, ViewsAndPairs, read_megadepth, read_pair_list
from ananet.errors import InputError

K = np.array([[300.0, 0, 161], [0, 310, 118], [0, 0, 1]])
R, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.1]))
T = np.array([0.5, 0.1, -0.1])


def numbers(*arrays: np.ndarray) -> str:
    return " ".join(f"{value:.10g}" for array in arrays for value in np.ravel(array))


def matrix() -> np.ndarray:
    return np.vstack([np.column_stack([R, T]), [0, 0, 0, 1]])


def test_superglue_list(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"a/0.jpg 1.jpg 0 3 {numbers(K, 2 * K / [[1], [1], [2]], matrix())}\n\n")
    (pair,) = read_pair_list(tmp_path / "list.txt", "photos")
    assert pair.image0.path == Path("photos/a/0.jpg") and pair.image1.path == Path("photos/1.jpg")
    assert pair.rotations == (0, 3) and pair.name == "a/0.jpg-1.jpg"
    np.testing.assert_allclose(pair.image0.K, K)
    np.testing.assert_allclose(pair.image1.K[0, 0], 600)
    np.testing.assert_allclose(pair.image1.R, R, atol=1e-9)
    np.testing.assert_allclose(pair.image1.t, T)


@pytest.mark.parametrize("pose", [numbers(matrix()), numbers(R, T)])
def test_glue_factory_list(tmp_path: Path, pose: str) -> None:
    (tmp_path / "list.txt").write_text(f"0.jpg 1.jpg {numbers(K, K)} {pose}\n")
    (pair,) = read_pair_list(tmp_path / "list.txt", tmp_path)
    assert pair.rotations == (0, 0)
    rotation, translation = pair.relative_pose()
    np.testing.assert_allclose(rotation, R, atol=1e-9)
    np.testing.assert_allclose(translation, T, atol=1e-9)


def test_megadepth(tmp_path: Path) -> None:
    (tmp_path / "views.txt").write_text(
        f"a.jpg {numbers(np.eye(3), np.ones(3))} PINHOLE 320 240 300 310 161 118\n"
        f"sub/b.jpg {numbers(R, T)} SIMPLE_RADIAL 320 240 300 160 120 0.1\n"
    )
    (tmp_path / "pairs.txt").write_text("sub/b.jpg a.jpg\na.jpg sub/b.jpg\n")
    first, second = read_megadepth(tmp_path)
    assert first.image0.path == tmp_path / "images" / "sub" / "b.jpg"
    np.testing.assert_allclose(second.image0.K, [[300, 0, 160.5], [0, 310, 117.5], [0, 0, 1]])
    assert first.image0.distortion == ("SIMPLE_RADIAL", (0.1,)) and second.image0.distortion is None
    rotation, translation = second.relative_pose()
    np.testing.assert_allclose(rotation, R, atol=1e-9)
    np.testing.assert_allclose(translation, T - R @ np.ones(3), atol=1e-9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.jpg b.jpg 1 2 3", "expected 38 columns"),
        (f"a.jpg b.jpg 0 4 {numbers(K, K, matrix())}", "quarter turns"),
        (f"a.jpg b.jpg {numbers(K, K, matrix())}".replace("300", "x", 1), "expected numbers"),
        (f"a.jpg b.jpg {numbers(K, K, matrix())}".replace("300", "nan", 1), "finite"),
        (f"a.jpg b.jpg {numbers(K, K, 2 * matrix())}", "expected a rotation"),
    ],
)
def test_broken_lists(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "list.txt").write_text(line)
    with pytest.raises(InputError, match=message):
        read_pair_list(tmp_path / "list.txt", tmp_path)


@pytest.mark.parametrize(
    ("view", "pairs", "message"),
    [
        ("a.jpg 1 2 3", "", "views.txt, line 1: expected name"),
        (f"a.jpg {numbers(R, T)} LENSBABY 320 240 1", "", "LENSBABY"),
        (f"a.jpg {numbers(R, T)} SIMPLE_PINHOLE 320 240 300 160 120", "a.jpg z.jpg", "pairs.txt, line 1"),
    ],
)
def test_broken_megadepth(tmp_path: Path, view: str, pairs: str, message: str) -> None:
    (tmp_path / "views.txt").write_text(view)
    (tmp_path / "pairs.txt").write_text(pairs)
    with pytest.raises(InputError, match=message):
        read_megadepth(tmp_path)


def test_missing_lists(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_pair_list(tmp_path / "list.txt", tmp_path)
    with pytest.raises(InputError, match=r"views.txt: no such file"):
        read_megadepth(tmp_path)


def test_folders_of_photos_are_scenes(tmp_path: Path) -> None:
    rows = [f"{a} {b} {numbers(K, K, matrix())}" for a, b in (("x/0.jpg", "x/1.jpg"), ("y/0.jpg", "y/1.jpg"))]
    (tmp_path / "list.txt").write_text("\n".join([*rows, rows[0]]))
    for source in (PairList(tmp_path / "list.txt"), PairList(tmp_path / "list.txt", tmp_path / "photos")):
        scenes = source.scenes()
        assert [(scene.name, len(scene.all_pairs())) for scene in scenes] == [("x", 2), ("y", 1)]
    assert scenes[1].all_pairs()[0].image0.path == tmp_path / "photos" / "y" / "0.jpg"


def test_photos_without_folders_are_one_nameless_scene(tmp_path: Path) -> None:
    (tmp_path / "views.txt").write_text(
        "".join(f"{name} {numbers(R, T)} SIMPLE_PINHOLE 320 240 300 160 120\n" for name in ("a.jpg", "b.jpg"))
    )
    (tmp_path / "pairs.txt").write_text("a.jpg b.jpg\n")
    (scene,) = ViewsAndPairs(tmp_path).scenes()
    assert scene.name == "" and [pair.name for pair in scene.all_pairs()] == ["a.jpg-b.jpg"]
