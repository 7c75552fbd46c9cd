import logging
import struct
from pathlib import Path

import numpy as np
import pytest

from ananet.core.cameras import CAMERA_MODELS
from ananet.datasets.base import PosedScene
from ananet.datasets.formats.colmap import PosedScenes, read_colmap, read_posed_scene
from ananet.errors import InputError
from tests.core.test_cameras import PARAMETERS

QUATERNION = np.array([0.8, -0.2, 0.4, 0.4])


def write_text_model(folder: Path, cameras: str, images: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cameras.txt").write_text(cameras)
    (folder / "images.txt").write_text(images)
    return folder


def camera_line(model: str = "PINHOLE", identity: int = 1) -> str:
    return f"{identity} {model} 640 480 " + " ".join(map(str, PARAMETERS[model])) + "\n"


def image_lines(name: str, identity: int = 1, camera: int = 1, points: str = "") -> str:
    pose = " ".join(map(str, [*QUATERNION, 1, 2, 3]))
    return f"{identity} {pose} {camera} {name}\n{points}\n"


def write_binary_model(folder: Path, model: str, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    parameters = PARAMETERS[model]
    camera = struct.pack("<QiiQQ", 1, 7, CAMERA_MODELS[model].number, 640, 480)
    (folder / "cameras.bin").write_bytes(camera + struct.pack(f"<{len(parameters)}d", *parameters))
    image = struct.pack("<Qi7di", 1, 5, *QUATERNION, 1, 2, 3, 7) + name.encode() + b"\0"
    points = struct.pack("<Q", 2) + struct.pack("<ddq", 10, 20, -1) * 2
    (folder / "images.bin").write_bytes(image + points)
    return folder


def write_scene(folder: Path, names: list[str], pairs: str | None = None, model: str = "sparse") -> Path:
    rows = "".join(image_lines(name, i + 1) for i, name in enumerate(names))
    write_text_model(folder / model, "# comment\n" + camera_line(), "# comment\n" + rows)
    (folder / "images").mkdir()
    for name in names:
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "images" / name).write_bytes(b"photo")
    if pairs is not None:
        (folder / "pairs.txt").write_text(pairs)
    return folder


def names_of_pairs(scene: PosedScene) -> list[tuple[str, str]]:
    assert scene.pairs is not None
    return [(pair.image0.path.name, pair.image1.path.name) for pair in scene.pairs]


def test_text_model(tmp_path: Path) -> None:
    images = image_lines("a.jpg", points="10.5 20.5 -1 30 40 12") + image_lines("sub/b c.jpg", 2)
    scene = read_colmap(write_text_model(tmp_path / "model", camera_line(), images))
    assert scene.name == "model"
    assert list(scene.images) == ["a.jpg", "sub/b c.jpg"]
    image = scene.images["sub/b c.jpg"]
    assert image.path == Path("sub/b c.jpg")
    assert image.distortion is None and image.size == (640, 480)
    np.testing.assert_array_equal(image.K, [[500, 0, 321.5], [0, 510, 242.5], [0, 0, 1]])
    np.testing.assert_allclose(image.R @ image.R.T, np.eye(3), atol=1e-14)
    np.testing.assert_array_equal(image.t, [1, 2, 3])


@pytest.mark.parametrize("model", PARAMETERS)
def test_binary_equals_text(tmp_path: Path, model: str) -> None:
    text = read_colmap(write_text_model(tmp_path / "text", camera_line(model), image_lines("a.jpg")))
    binary = read_colmap(write_binary_model(tmp_path / "binary", model, "a.jpg"))
    ours, theirs = text.images["a.jpg"], binary.images["a.jpg"]
    for field in ("K", "R", "t"):
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
    assert ours.distortion == theirs.distortion
    assert (ours.distortion is None) == ("PINHOLE" in model)


def test_pose_agrees_with_colmap(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    R = read_colmap(write_binary_model(tmp_path, "PINHOLE", "a.jpg")).images["a.jpg"].R
    x, y, z, w = (QUATERNION / np.linalg.norm(QUATERNION))[[1, 2, 3, 0]]
    np.testing.assert_allclose(R, pycolmap.Rotation3d(np.array([x, y, z, w])).matrix(), atol=1e-12)


@pytest.mark.parametrize("model", ["sparse", "sparse/0"])
def test_posed_scene(tmp_path: Path, model: str) -> None:
    folder = write_scene(tmp_path / "place", ["a.jpg", "b.jpg"], "a.jpg b.jpg\nb.jpg a.jpg\n", model)
    scene = read_posed_scene(folder)
    assert scene.name == "place"
    assert scene.images["a.jpg"].path == folder / "images" / "a.jpg"
    assert names_of_pairs(scene) == [("a.jpg", "b.jpg"), ("b.jpg", "a.jpg")]
    assert scene.pairs is not None and scene.pairs[0].name == "a.jpg-b.jpg"
    assert scene.pairs[0].image0 is scene.images["a.jpg"] and scene.pairs[0].rotations == (0, 0)


def test_without_pair_list_any_two_may_be_paired(tmp_path: Path) -> None:
    scene = read_posed_scene(write_scene(tmp_path / "place", ["c.jpg", "a.jpg", "b.jpg"]))
    assert scene.pairs is None
    assert [pair.name for pair in scene.all_pairs()] == ["a.jpg-b.jpg", "a.jpg-c.jpg", "b.jpg-c.jpg"]


def test_a_folder_of_scenes_is_one_source(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_scene(tmp_path / name, ["a.jpg"])
    (tmp_path / "notes").mkdir()
    assert [scene.name for scene in PosedScenes(tmp_path).scenes()] == ["a", "b"]
    assert [scene.name for scene in PosedScenes(tmp_path / "a").scenes()] == ["a"]
    assert PosedScenes.recognises(tmp_path) and not PosedScenes.recognises(tmp_path / "notes")


def test_missing_photos_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_scene(tmp_path / "place", ["a.jpg", "b.jpg", "c.jpg"], "a.jpg b.jpg\nb.jpg c.jpg\n")
    (folder / "images" / "c.jpg").unlink()
    with caplog.at_level(logging.WARNING):
        scene = read_posed_scene(folder)
    assert list(scene.images) == ["a.jpg", "b.jpg"]
    assert names_of_pairs(scene) == [("a.jpg", "b.jpg")]
    assert "c.jpg" in caplog.text and "1 of 2 pairs" in caplog.text


@pytest.mark.parametrize(("focal", "warned"), [(200, 1), (500, 0)])
def test_lenses_that_see_beside_the_pinhole_are_told(
    focal: int, warned: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cameras = camera_line() + f"2 SIMPLE_FISHEYE 640 480 {focal} 320 240\n"
    rows = image_lines("a.jpg") + image_lines("b.jpg", 2, camera=2)
    with caplog.at_level(logging.WARNING):
        read_colmap(write_text_model(tmp_path, cameras, rows))
    assert caplog.text.count("1 of 2 photos have a very wide lens") == warned


@pytest.mark.parametrize(
    ("cameras", "images", "message"),
    [
        (camera_line(), "", "has none"),
        (camera_line(), "1 1 0 0 0 1 2 3\n\n", "line 1: expected IMAGE_ID"),
        (camera_line(), "1 1 0 0 0 1 x 3 1 a.jpg\n\n", "line 1: expected IMAGE_ID"),
        (camera_line(), "1 1 0 0 0 1 2 3 1 a.jpg\n2 1 0 0 0 1 2 3 1 b.jpg\n", "line 2: expected the points"),
        (camera_line(), "1 1 0 0 0 1 2 nan 1 a.jpg\n\n", "finite pose"),
        (camera_line(), "1 0 0 0 0 1 2 3 1 a.jpg\n\n", "quaternion"),
        (camera_line(), image_lines("a.jpg", camera=9), "camera 9, which is not there"),
        (camera_line(), image_lines("a.jpg") * 2, "twice"),
        ("1 PINHOLE 640\n", image_lines("a.jpg"), "expected CAMERA_ID MODEL"),
        ("1 PINHOLE 640 480 500 500 x 240\n", image_lines("a.jpg"), "expected CAMERA_ID"),
        ("1 PINHOLE 640 480 -500 500 320 240\n", image_lines("a.jpg"), "positive focal"),
        ("1 LENSBABY 640 480 500\n", image_lines("a.jpg"), "got LENSBABY"),
    ],
)
def test_broken_models(tmp_path: Path, cameras: str, images: str, message: str) -> None:
    folder = write_text_model(tmp_path, cameras, images)
    with pytest.raises(InputError, match=message):
        read_colmap(folder)


@pytest.mark.parametrize("part", ["cameras.bin", "images.bin"])
@pytest.mark.parametrize("cut", [3, 60])
def test_files_cut_short(tmp_path: Path, part: str, cut: int) -> None:
    folder = write_binary_model(tmp_path, "OPENCV", "a.jpg")
    (folder / part).write_bytes((folder / part).read_bytes()[:cut])
    with pytest.raises(InputError, match="cut short"):
        read_colmap(folder)


def test_unknown_binary_camera_model(tmp_path: Path) -> None:
    folder = write_binary_model(tmp_path, "PINHOLE", "a.jpg")
    (folder / "cameras.bin").write_bytes(struct.pack("<QiiQQ", 1, 7, 99, 640, 480))
    with pytest.raises(InputError, match="number 99"):
        read_colmap(folder)


def test_folders_that_are_no_scene(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds none"):
        read_colmap(tmp_path)
    with pytest.raises(InputError, match="folder of photos"):
        read_posed_scene(tmp_path)
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match="COLMAP model"):
        read_posed_scene(tmp_path)
    write_text_model(tmp_path / "sparse", camera_line(), image_lines("a.jpg"))
    with pytest.raises(InputError, match="none of its 1"):
        read_posed_scene(tmp_path)


@pytest.mark.parametrize("pairs", ["a.jpg\n", "a.jpg z.jpg\n", "a.jpg b.jpg c.jpg\n"])
def test_broken_pair_lists(tmp_path: Path, pairs: str) -> None:
    with pytest.raises(InputError, match="line 1: expected two names"):
        read_posed_scene(write_scene(tmp_path / "place", ["a.jpg", "b.jpg"], pairs))
