import os
import shutil
import sys
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.datasets import sfm
from ananet.datasets.base import PosedScene
from ananet.datasets.formats.colmap import read_posed_scene
from ananet.datasets.sfm import reconstruct
from ananet.errors import InputError, MissingExtraError

pytest.importorskip("pycolmap")
SIZE = (360, 270)
K = np.array([[400.0, 0, 179.5], [0, 400, 134.5], [0, 0, 1]])


def texture(seed: int, width: int, height: int) -> np.ndarray:
    """Noise at several scales: features of every size, none like another."""
    random = np.random.default_rng(seed)
    layers = [
        cv2.resize(random.normal(size=(height // step, width // step)), (width, height), interpolation=cv2.INTER_CUBIC)
        for step in (2, 4, 8, 16)
    ]
    return np.clip(128 + 40 * sum(layers), 0, 255).astype(np.uint8)


def pose(view: int) -> tuple[np.ndarray, np.ndarray]:
    """A walk along an arc around the scene, in steps of 8 degrees."""
    angle = np.deg2rad(8.0 * (view - 2))
    R, _ = cv2.Rodrigues(np.array([0, angle, 0.02 * view]))
    centre = np.array([-5 * np.sin(angle), 0.05 * view, 5 - 5 * np.cos(angle)])
    return R, -R @ centre


def render(R: np.ndarray, t: np.ndarray) -> np.ndarray:
    """A wall at depth 6 with two posters in front of it, each a plane of texture mapped by its homography."""
    image = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    for seed, (x, y, width, height, depth) in enumerate(
        [(-4, -3, 8, 6, 6), (-2, -1.4, 1.8, 1.6, 5), (0, -0.6, 2, 1.8, 4.5)]
    ):
        scale = 80
        paint = texture(seed, int(width * scale), int(height * scale))
        # Pixels of the texture to points of the plane, and on to the image.
        plane = np.array([[1 / scale, 0, x], [0, 1 / scale, y], [0, 0, depth]])
        H = K @ (R @ plane + np.outer(t, [0, 0, 1]))
        warped = cv2.warpPerspective(paint, H, SIZE, flags=cv2.INTER_AREA)
        covered = cv2.warpPerspective(np.full_like(paint, 255), H, SIZE)
        image = np.where(covered > 127, warped, image)
    return image


def write_views(folder: Path, views: int = 5) -> Path:
    folder.mkdir()
    for view in range(views):
        cv2.imwrite(str(folder / f"view {view}.jpg"), render(*pose(view)), [cv2.IMWRITE_JPEG_QUALITY, 95])
    return folder


def largest_rotation_error(scene: PosedScene, truth: dict[str, tuple[np.ndarray, np.ndarray]]) -> float:
    errors = []
    for first, second in combinations(scene.images, 2):
        found = torch.from_numpy(scene.images[second].R @ scene.images[first].R.T)
        true = torch.from_numpy(truth[second][0] @ truth[first][0].T)
        errors.append(float(geometry.rotation_error(found, true)))
    return max(errors)


def test_reconstructs_rendered_views(tmp_path: Path) -> None:
    photos = write_views(tmp_path / "photos")
    (photos / "notes.txt").write_text("not a photo")
    (photos / "broken.jpg").write_bytes(b"not a photo either")
    result = reconstruct(photos, tmp_path / "scene", progress=False)
    assert result.photos == 6 and result.left_out == ("broken.jpg",)
    assert result.registered == tuple(f"view_{view}.jpg" for view in range(5))
    assert "5 of 6 photos" in result.summary and result.reprojection_error < 1.5
    scene = read_posed_scene(tmp_path / "scene")
    assert all(image.path.is_file() and image.distortion is None for image in scene.images.values())
    assert largest_rotation_error(scene, {f"view_{view}.jpg": pose(view) for view in range(5)}) < 1.5
    # Nothing else is left behind.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "scene"]
    with pytest.raises(InputError, match="out: expected a folder that does not exist"):
        reconstruct(photos, tmp_path / "scene", progress=False)


def test_large_collections_are_matched_by_likeness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sfm, "MAX_PHOTOS_FOR_ALL_PAIRS", 2)
    monkeypatch.setattr(sfm, "CANDIDATES", 3)
    result = reconstruct(write_views(tmp_path / "photos"), tmp_path / "scene", progress=False)
    assert len(result.registered) == 5


def test_real_photos(tmp_path: Path) -> None:
    """A scene with known poses, where the machine has one."""
    given = os.environ.get("ANANET_TEST_PHOTOS")
    if not given:
        pytest.skip("ANANET_TEST_PHOTOS names no scene")
    truth = read_posed_scene(given)
    (tmp_path / "photos").mkdir()
    for name in list(truth.images)[:6]:
        shutil.copy(truth.images[name].path, tmp_path / "photos")
    result = reconstruct(tmp_path / "photos", tmp_path / "scene", longest_side=640, progress=False)
    assert len(result.registered) >= 4
    poses = {Path(name).name: (image.R, image.t) for name, image in truth.images.items()}
    assert largest_rotation_error(read_posed_scene(tmp_path / "scene"), poses) < 3


def test_plain_photos_have_too_few_features(tmp_path: Path) -> None:
    for i in range(3):
        cv2.imwrite(str(tmp_path / f"{i}.png"), np.full((100, 100), 50 * i, np.uint8))
    with pytest.raises(InputError, match="too few features: 3 of 3"):
        reconstruct(tmp_path, tmp_path / "scene", progress=False)
    assert not (tmp_path / "scene").exists()


def test_unlike_photos_have_too_few_pairs(tmp_path: Path) -> None:
    for i in range(3):
        cv2.imwrite(str(tmp_path / f"{i}.png"), texture(i, 300, 200))
    with pytest.raises(InputError, match="too few matched pairs: 0 of 3"):
        reconstruct(tmp_path, tmp_path / "scene", progress=False)


def test_one_photo_thrice_has_no_initial_pair(tmp_path: Path) -> None:
    for i in range(3):
        cv2.imwrite(str(tmp_path / f"{i}.png"), render(*pose(2)))
    with pytest.raises(InputError, match="no initial pair: 3 pairs"):
        reconstruct(tmp_path, tmp_path / "scene", progress=False)


def test_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder"):
        reconstruct(tmp_path / "none", tmp_path / "scene")
    with pytest.raises(InputError, match="at least 3 photos"):
        reconstruct(tmp_path, tmp_path / "scene")
    for name in ("a.jpg", "b_c.jpg", "d.jpg"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match="does not exist"):
        reconstruct(tmp_path, tmp_path / "none" / "scene")
    with pytest.raises(InputError, match="that can be read, got 0"):
        reconstruct(tmp_path, tmp_path / "scene", progress=False)
    (tmp_path / "b c.jpg").write_bytes(b"")
    with pytest.raises(InputError, match="spaces and underscores"):
        reconstruct(tmp_path, tmp_path / "scene")


def test_without_pycolmap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtraError, match="pip install pycolmap .* extra 'colmap'"):
        reconstruct(tmp_path, tmp_path / "scene")
