import logging
import struct
from pathlib import Path

import numpy as np
import pytest

from ananet.datasets.base import PosedImage
from ananet.datasets.formats.colmap import CAMERA_MODELS, read_colmap, read_posed_scene, undistort_points
from ananet.errors import InputError

# Strong but usual lenses: focal lengths, principal point, then the model's own coefficients.
PARAMETERS = {
    "SIMPLE_PINHOLE": [500, 322, 243],
    "PINHOLE": [500, 510, 322, 243],
    "SIMPLE_RADIAL": [500, 322, 243, -0.15],
    "RADIAL": [500, 322, 243, -0.2, 0.05],
    "OPENCV": [500, 510, 322, 243, -0.2, 0.05, 0.003, -0.002],
    "OPENCV_FISHEYE": [300, 310, 322, 243, 0.03, -0.01, 0.004, -0.001],
    "FULL_OPENCV": [500, 510, 322, 243, 0.2, 0.05, 0.003, -0.002, 0.01, 0.3, 0.02, 0.01],
    "FOV": [400, 410, 322, 243, 0.9],
    "SIMPLE_RADIAL_FISHEYE": [300, 322, 243, 0.02],
    "RADIAL_FISHEYE": [300, 322, 243, 0.02, -0.01],
    "THIN_PRISM_FISHEYE": [300, 310, 322, 243, 0.03, -0.01, 0.002, -0.001, 0.004, -0.001, 0.001, 0.002],
    "SIMPLE_FISHEYE": [300, 322, 243],
    "FISHEYE": [300, 310, 322, 243],
}
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


def test_text_model(tmp_path: Path) -> None:
    images = image_lines("a.jpg", points="10.5 20.5 -1 30 40 12") + image_lines("sub/b c.jpg", 2)
    scene = read_colmap(write_text_model(tmp_path / "model", camera_line(), images))
    assert scene.name == "model"
    assert list(scene.images) == ["a.jpg", "sub/b c.jpg"]
    image = scene.images["sub/b c.jpg"]
    assert image.path == Path("sub/b c.jpg")
    assert image.distortion is None
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


@pytest.mark.parametrize("model", PARAMETERS)
def test_undistort_agrees_with_colmap(tmp_path: Path, model: str) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    camera = pycolmap.Camera(model=model, width=640, height=480, params=PARAMETERS[model])
    image = read_colmap(write_binary_model(tmp_path, model, "a.jpg")).images["a.jpg"]
    x, y = np.meshgrid(np.linspace(0, 639, 21), np.linspace(0, 479, 17))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    ideal = undistort_points(points, image)
    rays = (ideal - image.K[:2, 2]) / image.K[[0, 1], [0, 1]]
    np.testing.assert_allclose(rays, camera.cam_from_img(points + 0.5), atol=1e-7)
    again = np.array(camera.img_from_cam(np.concatenate([rays, np.ones((len(rays), 1))], axis=1))) - 0.5
    np.testing.assert_allclose(again, points, atol=1e-6)


def test_pose_agrees_with_colmap(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    R = read_colmap(write_binary_model(tmp_path, "PINHOLE", "a.jpg")).images["a.jpg"].R
    x, y, z, w = (QUATERNION / np.linalg.norm(QUATERNION))[[1, 2, 3, 0]]
    np.testing.assert_allclose(R, pycolmap.Rotation3d(np.array([x, y, z, w])).matrix(), atol=1e-12)


def test_undistort_has_no_answer_behind_a_fisheye() -> None:
    K = np.array([[100.0, 0, 319.5], [0, 100, 239.5], [0, 0, 1]])
    image = PosedImage(Path("a"), K, np.eye(3), np.zeros(3), ("SIMPLE_FISHEYE", ()))
    points = undistort_points(np.array([[319.5, 239.5], [319.5 + 100 * 1.7, 239.5]]), image)
    np.testing.assert_array_equal(np.isnan(points), [[False, False], [True, True]])


def test_undistort_of_no_points() -> None:
    image = PosedImage(Path("a"), np.eye(3), np.eye(3), np.zeros(3), ("SIMPLE_RADIAL", (0.1,)))
    assert undistort_points(np.zeros((0, 2)), image).shape == (0, 2)


@pytest.mark.parametrize("model", ["sparse", "sparse/0"])
def test_posed_scene(tmp_path: Path, model: str) -> None:
    folder = write_scene(tmp_path / "place", ["a.jpg", "b.jpg"], "a.jpg b.jpg\nb.jpg a.jpg\n", model)
    scene = read_posed_scene(folder)
    assert scene.name == "place"
    assert scene.images["a.jpg"].path == folder / "images" / "a.jpg"
    assert scene.pairs == [("a.jpg", "b.jpg"), ("b.jpg", "a.jpg")]


def test_without_pair_list_any_two_may_be_paired(tmp_path: Path) -> None:
    assert read_posed_scene(write_scene(tmp_path / "place", ["a.jpg"])).pairs is None


def test_missing_photos_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_scene(tmp_path / "place", ["a.jpg", "b.jpg", "c.jpg"], "a.jpg b.jpg\nb.jpg c.jpg\n")
    (folder / "images" / "c.jpg").unlink()
    with caplog.at_level(logging.WARNING):
        scene = read_posed_scene(folder)
    assert list(scene.images) == ["a.jpg", "b.jpg"]
    assert scene.pairs == [("a.jpg", "b.jpg")]
    assert "c.jpg" in caplog.text and "1 of 2 pairs" in caplog.text


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


@pytest.mark.parametrize(
    ("distortion", "message"), [(("LENSBABY", ()), "LENSBABY"), (("OPENCV", (0.1,)), "expected 4 coefficients")]
)
def test_undistort_refuses_unknown_lenses(distortion: tuple[str, tuple[float, ...]], message: str) -> None:
    image = PosedImage(Path("a"), np.eye(3), np.eye(3), np.zeros(3), distortion)
    with pytest.raises(InputError, match=message):
        undistort_points(np.zeros((1, 2)), image)
    with pytest.raises(InputError, match="shape"):
        undistort_points(np.zeros(2), image)
