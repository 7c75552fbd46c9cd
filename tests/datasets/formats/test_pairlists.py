from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from ananet import geometry
from ananet.datasets.base import LabelledPair, PosedImage
from ananet.datasets.formats.pairlists import (
    PosedPair,
    label_pair,
    read_megadepth,
    read_pair_list,
    rotate_axes,
    rotate_camera,
)
from ananet.errors import InputError

K = np.array([[300.0, 0, 161], [0, 310, 118], [0, 0, 1]])
R, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.1]))
T = np.array([0.5, 0.1, -0.1])
SIZE = (320, 240)


def numbers(*arrays: np.ndarray) -> str:
    return " ".join(f"{value:.10g}" for array in arrays for value in np.ravel(array))


def matrix() -> np.ndarray:
    return np.vstack([np.column_stack([R, T]), [0, 0, 0, 1]])


def turned(pixels: np.ndarray, size: tuple[int, int], turns: int) -> np.ndarray:
    """Where [N x 2] pixels of a photo of the given size are after quarter turns: np.rot90 done to coordinates."""
    for _ in range(turns):
        pixels, size = np.stack([pixels[:, 1], size[0] - 1 - pixels[:, 0]], axis=1), (size[1], size[0])
    return pixels


def test_superglue_list(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"a/0.jpg 1.jpg 0 3 {numbers(K, 2 * K / [[1], [1], [2]], matrix())}\n\n")
    (pair,) = read_pair_list(tmp_path / "list.txt", "photos")
    assert pair.image0.path == Path("photos/a/0.jpg") and pair.image1.path == Path("photos/1.jpg")
    assert pair.rotations == (0, 3)
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


@pytest.mark.parametrize("turns", range(4))
def test_turning_camera_and_axes_moves_projections_as_it_moves_pixels(turns: int) -> None:
    points = np.random.default_rng(0).uniform((-1, -1, 3), (1, 1, 5), (20, 3))

    def project(camera: np.ndarray, X: np.ndarray) -> np.ndarray:
        pixels = X @ camera.T
        return pixels[:, :2] / pixels[:, 2:]

    expected = turned(project(K, points), SIZE, turns)
    got = project(rotate_camera(K, SIZE, turns), points @ rotate_axes(turns).T)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_pixels_turn_as_numpy_turns_images() -> None:
    image = np.arange(12).reshape(3, 4)
    for turns in range(4):
        x, y = turned(np.array([[3.0, 1.0]]), (4, 3), turns)[0].astype(int)
        assert np.rot90(image, turns)[y, x] == image[1, 3]


def make_pair(folder: Path, turns: tuple[int, int] = (0, 0)) -> PosedPair:
    """Two photos of a textured plane, stored so that quarter turns bring them upright."""
    random = np.random.default_rng(0)
    texture = cv2.GaussianBlur(random.uniform(0, 255, (SIZE[1], SIZE[0])), (0, 0), 1.5)
    image0 = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    normal, depth = np.array([0.1, 0.2, 1.0]), 4.0
    H = K @ (R + np.outer(T, normal) / depth) @ np.linalg.inv(K)
    images = [image0, cv2.warpPerspective(image0, H, SIZE)]
    posed = []
    for i, (image, pose) in enumerate(zip(images, [(np.eye(3), np.zeros(3)), (R, T)], strict=True)):
        path = folder / f"{i}.png"
        stored = np.ascontiguousarray(np.rot90(image, -turns[i]))
        cv2.imwrite(str(path), stored)
        back = -turns[i] % 4
        posed.append(PosedImage(path, rotate_camera(K, SIZE, back), *(rotate_axes(back) @ part for part in pose)))
    return PosedPair(posed[0], posed[1], turns)


def right_among_the_sure(pair: LabelledPair) -> float:
    """Share of inliers among matches that are mutual and pass the ratio test, of which there must be some."""
    assert pair.matches.ratio is not None and pair.matches.mutual is not None
    sure = pair.matches.mutual & (pair.matches.ratio < 0.8)
    assert sure.sum() > 50
    return float(pair.inlier[sure].float().mean())


@pytest.mark.parametrize("turns", [(0, 0), (1, 0), (2, 3)])
def test_label_pair(tmp_path: Path, turns: tuple[int, int]) -> None:
    pair = make_pair(tmp_path, turns)
    labelled = label_pair(pair, max_keypoints=300)
    assert labelled.R is not None and labelled.t is not None and labelled.paths is not None
    torch.testing.assert_close(labelled.R, torch.from_numpy(R))
    assert geometry.translation_error(labelled.t, torch.from_numpy(T)) < 1e-4
    assert right_among_the_sure(labelled) > 0.95
    assert labelled.matches.size0 == SIZE
    assert labelled.name == "0.png 1.png" and labelled.paths[1] == pair.image1.path


def test_label_pair_at_another_size(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    labelled = label_pair(pair, max_keypoints=300, longest_side=640)
    assert labelled.matches.size0 == (640, 480)
    assert labelled.matches.K0 is not None
    # The corner (-0.5, -0.5) stays where it is.
    np.testing.assert_allclose(labelled.matches.K0[:2, 2] + 0.5, 2 * (K[:2, 2] + 0.5), rtol=1e-6)
    assert right_among_the_sure(labelled) > 0.95


def test_label_pair_undistorts(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    plain = label_pair(pair, max_keypoints=100).matches.points0
    bent = replace(pair.image0, distortion=("SIMPLE_RADIAL", (0.1,)))
    assert not torch.allclose(label_pair(replace(pair, image0=bent), max_keypoints=100).matches.points0, plain)
    with pytest.raises(InputError, match="undistorted photo"):
        label_pair(PosedPair(bent, bent, (1, 0)))


def test_photos_without_features(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    cv2.imwrite(str(pair.image0.path), np.zeros((SIZE[1], SIZE[0]), np.uint8))
    assert len(label_pair(pair).matches) == 0


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


def test_skewed_cameras_cannot_be_turned() -> None:
    skewed = K + np.diag([2.0, 0.0], k=1)
    with pytest.raises(InputError, match="skew"):
        rotate_camera(skewed, SIZE, 1)
