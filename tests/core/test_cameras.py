import numpy as np
import pytest
import torch

from ananet.core.cameras import (
    CAMERA_MODELS,
    calibrate,
    camera_matrices,
    camera_matrix,
    camera_parameters,
    centred_camera,
    mean_focal,
    parse_camera,
    pixel_scaling,
    project,
    rotate_axes,
    rotate_camera,
    scale_by_size,
    undistort_points,
)
from ananet.errors import InputError

K = np.array([[300.0, 0, 161], [0, 310, 118], [0, 0, 1]])
SKEWED = K + np.diag([2.0, 0.0], k=1)
SIZE = (320, 240)
# Strong but usual lenses: focal lengths, principal point, then the model's own coefficients.
PARAMETERS: dict[str, list[float]] = {
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


def pixels(count: int = 20) -> np.ndarray:
    return np.random.default_rng(0).uniform((0, 0), SIZE, (count, 2))


def turned(points: np.ndarray, size: tuple[int, int], turns: int) -> np.ndarray:
    """Where [N x 2] pixels of a photo of the given size are after quarter turns: np.rot90 done to coordinates."""
    for _ in range(turns):
        points, size = np.stack([points[:, 1], size[0] - 1 - points[:, 0]], axis=1), (size[1], size[0])
    return points


@pytest.mark.parametrize("camera", [K, SKEWED])
def test_rays_are_what_the_inverse_camera_makes_of_pixels(camera: np.ndarray) -> None:
    points = pixels()
    expected = np.c_[points, np.ones(len(points))] @ np.linalg.inv(camera).T
    np.testing.assert_allclose(calibrate(points, camera), expected[:, :2], atol=1e-12)
    np.testing.assert_allclose(project(calibrate(points, camera), camera), points, atol=1e-10)


def test_batches_of_tensors_are_calibrated_as_single_arrays() -> None:
    points, cameras = np.stack([pixels(), pixels() + 5]), np.stack([K, SKEWED])
    rays = calibrate(torch.from_numpy(points), torch.from_numpy(cameras))
    for n in range(2):
        np.testing.assert_allclose(rays[n].numpy(), calibrate(points[n], cameras[n]), atol=1e-12)
    torch.testing.assert_close(project(rays, torch.from_numpy(cameras)), torch.from_numpy(points))


def test_scaling_by_size_maps_the_image_around_its_centre() -> None:
    points = torch.tensor([[160.0, 120.0], [320.0, 120.0]])
    torch.testing.assert_close(
        scale_by_size(points, torch.tensor([320.0, 240.0])), torch.tensor([[0.0, 0.0], [0.5 / 0.7, 0.0]])
    )


def test_matrices_and_parameters_say_the_same() -> None:
    parameters = camera_parameters(K)
    assert parameters.tolist() == [300, 310, 161, 118]
    np.testing.assert_array_equal(camera_matrix(*parameters), K)
    both = camera_matrices(torch.tensor([[300.0, 310, 161, 118], [1, 2, 3, 4]]))
    np.testing.assert_array_equal(both[0].numpy(), K)
    assert both[1].tolist() == [[1, 0, 3], [0, 2, 4], [0, 0, 1]]


def test_focal_lengths_and_centres() -> None:
    assert mean_focal(K, 2 * K) == pytest.approx((300 + 310 + 600 + 620) / 4)
    assert mean_focal(torch.from_numpy(K), torch.from_numpy(K)) == pytest.approx(305)
    np.testing.assert_array_equal(centred_camera(300, SIZE), [[300, 0, 159.5], [0, 300, 119.5], [0, 0, 1]])


def test_resizing_keeps_the_corner_of_the_image() -> None:
    corners = np.array([[-0.5, -0.5, 1], [319.5, 239.5, 1]])
    np.testing.assert_allclose(corners @ pixel_scaling(2, 0.5).T, [[-0.5, -0.5, 1], [639.5, 119.5, 1]])


@pytest.mark.parametrize("turns", range(4))
def test_turning_camera_and_axes_moves_projections_as_it_moves_pixels(turns: int) -> None:
    points = np.random.default_rng(0).uniform((-1, -1, 3), (1, 1, 5), (20, 3))

    def seen(camera: np.ndarray, X: np.ndarray) -> np.ndarray:
        return project(X[:, :2] / X[:, 2:], camera)

    expected = turned(seen(K, points), SIZE, turns)
    got = seen(rotate_camera(K, SIZE, turns), points @ rotate_axes(turns).T)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_pixels_turn_as_numpy_turns_images() -> None:
    image = np.arange(12).reshape(3, 4)
    for turns in range(4):
        x, y = turned(np.array([[3.0, 1.0]]), (4, 3), turns)[0].astype(int)
        assert np.rot90(image, turns)[y, x] == image[1, 3]


def test_skewed_cameras_cannot_be_turned() -> None:
    with pytest.raises(InputError, match="skew"):
        rotate_camera(SKEWED, SIZE, 1)


def test_principal_points_move_to_the_centre_of_the_first_pixel() -> None:
    camera = parse_camera("OPENCV", (640, 480), PARAMETERS["OPENCV"], "here")
    np.testing.assert_array_equal(camera.K, [[500, 0, 321.5], [0, 510, 242.5], [0, 0, 1]])
    assert camera.size == (640, 480) and camera.distortion == ("OPENCV", (-0.2, 0.05, 0.003, -0.002))
    for name in PARAMETERS:
        parsed = parse_camera(name, (640, 480), PARAMETERS[name], "here")
        assert (parsed.distortion is None) == ("PINHOLE" in name)
    assert set(PARAMETERS) == set(CAMERA_MODELS)


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        ("LENSBABY", [500], "here: expected a camera model of .* got LENSBABY"),
        ("EQUIRECTANGULAR", [500], "got EQUIRECTANGULAR; cut panoramas of 360 degrees into pinhole views first"),
        ("number 17", [500], "got number 17; cut panoramas of 360 degrees into pinhole views first"),
        ("PINHOLE", [500, 500, 320], "here: expected 4 finite parameters of PINHOLE"),
        ("PINHOLE", [500, 500, 320, float("nan")], "here: expected 4 finite parameters"),
        ("PINHOLE", [-500, 500, 320, 240], "here: expected positive focal lengths"),
    ],
)
def test_wrong_cameras_are_refused(model: str, parameters: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_camera(model, (640, 480), parameters, "here")


@pytest.mark.parametrize("model", PARAMETERS)
def test_undistortion_agrees_with_colmap(model: str) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    theirs = pycolmap.Camera(model=model, width=640, height=480, params=PARAMETERS[model])
    camera = parse_camera(model, (640, 480), PARAMETERS[model], "here")
    x, y = np.meshgrid(np.linspace(0, 639, 21), np.linspace(0, 479, 17))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    rays = calibrate(undistort_points(points, camera.K, camera.distortion), camera.K)
    np.testing.assert_allclose(rays, theirs.cam_from_img(points + 0.5), atol=1e-7)
    again = np.array(theirs.img_from_cam(np.concatenate([rays, np.ones((len(rays), 1))], axis=1))) - 0.5
    np.testing.assert_allclose(again, points, atol=1e-6)


def test_undistortion_has_no_answer_behind_a_fisheye() -> None:
    camera = camera_matrix(100, 100, 319.5, 239.5)
    points = undistort_points(np.array([[319.5, 239.5], [319.5 + 100 * 1.7, 239.5]]), camera, ("SIMPLE_FISHEYE", ()))
    np.testing.assert_array_equal(np.isnan(points), [[False, False], [True, True]])


def test_undistortion_of_no_points_and_of_no_distortion() -> None:
    assert undistort_points(np.zeros((0, 2)), np.eye(3), ("SIMPLE_RADIAL", (0.1,))).shape == (0, 2)
    np.testing.assert_array_equal(undistort_points(pixels(), K, None), pixels())


@pytest.mark.parametrize(
    ("distortion", "message"), [(("LENSBABY", ()), "LENSBABY"), (("OPENCV", (0.1,)), "expected 4 coefficients")]
)
def test_undistortion_refuses_unknown_lenses(distortion: tuple[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        undistort_points(np.zeros((1, 2)), np.eye(3), distortion)
    with pytest.raises(InputError, match="shape"):
        undistort_points(np.zeros(2), np.eye(3), distortion)
