"""Which geometry two photos have."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, PhotoMatcher, Pruned, match_photos
from ananet.cli.demo import MeasuredPair, motorcycle, rotation
from ananet.core.geometry import epipolar_distance, homography_distance
from ananet.estimators import load_estimator
from ananet.twoview.drawing import without_far_side
from ananet.twoview.models import find_models
from tests.conftest import make_problem


def all_kept(n: int) -> Pruned:
    return Pruned(np.ones(n, bool), np.ones(n, np.float32), np.full(n, 4.0, np.float32))


def choose(matches: Correspondences, model="auto"):
    return find_models(matches, all_kept(len(matches)), load_estimator(), model)


def uncalibrated(matches: Correspondences) -> Correspondences:
    return Correspondences(*matches.numpy_points(), image_size0=(640, 480), image_size1=(640, 480))


def mapped(H: np.ndarray, n: int = 200, noise: float = 0.3) -> Correspondences:
    rng = np.random.default_rng(2)
    points0 = rng.uniform(0, [640, 480], (n, 2))
    points1 = cv2.perspectiveTransform(points0[None], H)[0]
    noisy = [points + rng.normal(0, noise, (n, 2)) for points in (points0, points1)]
    return Correspondences(*noisy, image_size0=(640, 480), image_size1=(640, 480))


TILTED = np.array([[0.9, -0.1, 40], [0.1, 1.0, -20], [2e-4, 1e-4, 1.0]])


def test_a_scene_with_depth_has_epipolar_geometry():
    clean = make_problem(outliers=20)
    calibrated, blind = choose(clean.matches), choose(uncalibrated(clean.matches))
    assert calibrated.model == "essential" and calibrated.pose is not None and calibrated.fundamental is None
    assert blind.model == "fundamental" and blind.pose is None and blind.homography is not None
    assert set(blind.criterion) == {"fundamental", "homography"}
    assert blind.criterion["fundamental"] < blind.criterion["homography"]


def test_planes_and_rotations_have_a_homography():
    assert choose(mapped(TILTED)).model == "homography"
    K = np.array([[600, 0, 319.5], [0, 600, 239.5], [0, 0, 1]])
    R = cv2.Rodrigues(np.array([0.05, 0.2, 0.03]))[0]
    turned = mapped(K @ R @ np.linalg.inv(K))
    assert choose(turned).model == "homography"
    found = choose(turned.replace(K0=torch.from_numpy(K).float(), K1=torch.from_numpy(K).float()))
    assert found.model == "homography" and found.pose is not None


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 8])
def test_few_matches_have_an_answer_or_none(n):
    found = choose(mapped(TILTED)[:n])
    assert found.model == (None if n < 4 else "homography" if n < 8 else found.model)
    assert n >= 8 or found.fundamental is None


def test_identical_points_do_not_crash():
    same = np.full((20, 2), 50.0)
    found = choose(Correspondences(same, same, image_size0=(640, 480), image_size1=(640, 480)))
    assert found.model in (None, "fundamental", "homography")


def test_one_photo_twice_is_a_homography():
    points = np.random.default_rng(0).uniform(0, 480, (80, 2))
    found = choose(Correspondences(points, points, image_size0=(640, 480), image_size1=(640, 480)))
    assert found.model == "homography"
    np.testing.assert_allclose(found.homography.H, np.eye(3), atol=1e-6)


def test_a_named_model_alone_is_estimated():
    problem = make_problem()
    for model, name in (("essential", "pose"), ("fundamental", "fundamental"), ("homography", "homography")):
        found = choose(problem.matches, model)
        there = {part for part in ("pose", "fundamental", "homography") if getattr(found, part) is not None}
        assert found.model == model and there == {name} and not found.criterion
    with pytest.raises(InputError, match="model: essential needs K0 and K1 or a focal length, which may be auto"):
        choose(uncalibrated(problem.matches), "essential")
    with pytest.raises(InputError, match=r"model: expected one of auto, .*, homography, got 'affine'"):
        PhotoMatcher(model="affine")
    with pytest.raises(InputError, match="got 'homografy'; did you mean 'homography'"):
        PhotoMatcher(model="homografy")


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


@pytest.fixture(scope="module")
def blind(pair):
    return match_photos(pair.image0, pair.image1, pruner="mutual+ratio")


@pytest.fixture(scope="module")
def turned(pair):
    """A photo, and what the camera would have seen after a turn."""
    R = rotation(4, -9, 6)
    H = pair.K0 @ R @ np.linalg.inv(pair.K0)
    image1 = cv2.warpPerspective(pair.image0, H, pair.image0.shape[1::-1], flags=cv2.INTER_CUBIC)
    return MeasuredPair(pair.image0, image1, pair.K0, pair.K0, R, np.zeros(3), pair.disparity, H)


def test_photos_of_unknown_cameras(pair, blind):
    assert blind.model == "fundamental" and blind.pose is None and "The scene has depth" in blind.model_summary
    points = [torch.from_numpy(points[blind.inliers]) for points in blind.matches.numpy_points()]
    distance = epipolar_distance(*points, torch.from_numpy(blind.epipolar_matrix))
    assert distance.median() < 0.5 and blind.covered > 0.2
    result = blind.to_dict()
    assert result["model"] == "fundamental" and result["model_inliers"] == blind.inliers.sum()
    assert np.shape(result["fundamental"]) == np.shape(result["homography"]) == (3, 3)
    assert repr(blind).endswith(f", fundamental with {blind.inliers.sum()} inliers)")
    assert "fundamental with" in blind.one_line() and "\n  F  [[" in blind.summary()
    assert blind.model_summary.endswith(f" {blind.inliers.sum()} of {blind.count} kept matches agree.")


def test_a_named_model_is_not_called_evidence(pair, turned):
    plane = match_photos(pair.image0, pair.image1, pruner="mutual+ratio", model="homography", focal=1000)
    assert plane.model_summary.startswith("A homography was estimated, nothing else: it holds for a plane")
    strict = match_photos(
        pair.image0, pair.image1, pruner="mutual+ratio", model="homography", estimator="poselib@threshold=0.3"
    )
    depth = " Most kept matches disagree with it, as in a scene with depth."
    assert depth in strict.model_summary and depth not in plane.model_summary
    assert plane.pose_summary == "No pose: only a homography was estimated."
    assert "pose       none: only a homography was estimated" in plane.summary()
    for images, focal, model in (
        ((turned.image0, turned.image1), None, "fundamental"),
        ((pair.image0, pair.image1), 1000, "essential"),
    ):
        found = match_photos(*images, pruner="mutual+ratio", model=model, focal=focal)
        assert found.model_summary.startswith("Epipolar geometry was estimated, nothing else: it gives")
        assert ("it is arbitrary" in found.model_summary) == (model == "fundamental")


def test_photos_of_a_camera_that_turned(turned):
    found = match_photos(turned.image0, turned.image1, pruner="mutual+ratio")
    assert found.model == "homography" and found.epipolar_matrix is None and "\n  H  [[" in found.summary()
    assert "a plane, or a camera that only turned" in found.model_summary
    known = match_photos(turned.image0, turned.image1, pruner="mutual+ratio", K0=turned.K0, K1=turned.K1)
    assert known.model == "homography" and known.rotation_only and known.pose is not None
    assert known.model_summary.startswith("A homography explains the matches: a camera that only turned.")
    # A focal length that was found is no evidence: a wrong one makes a turn look like a plane.
    guessed = match_photos(turned.image0, turned.image1, pruner="mutual+ratio", focal="auto")
    assert guessed.model == "homography" and "the two cannot be told apart. It says little of" in guessed.model_summary
    assert guessed.pose is not None and guessed.epipolar_matrix is None
    with pytest.raises(InputError, match="model: epipolar lines need epipolar geometry, got none. A homography"):
        known.draw_epipolar_lines()


def test_models_are_in_the_photos_own_pixels(pair, turned):
    for images, name in (((pair.image0, pair.image1), "fundamental"), ((turned.image0, turned.image1), "homography")):
        large = [cv2.resize(image, None, fx=1.5, fy=1.5) for image in images]
        found = match_photos(*large, pruner="mutual+ratio", longest_side=600)
        assert found.model == name
        points = [torch.from_numpy(points[found.inliers]).double() for points in found.matches.numpy_points()]
        if name == "fundamental":
            distance = epipolar_distance(*points, torch.from_numpy(found.epipolar_matrix))
        else:
            distance = homography_distance(*points, torch.from_numpy(found.homography.H))
        assert distance.median() < 1
        tensors = [torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1) for image in large]
        again = match_photos(*tensors, pruner="mutual+ratio", longest_side=600)
        assert isinstance(getattr(again, name).inliers, torch.Tensor)


def test_the_focal_length_can_be_found(pair, blind):
    found = match_photos(pair.image0, pair.image1, pruner="mutual+ratio", focal="auto")
    assert found.cameras.source == "found" and found.model == "essential" and found.pose is not None
    focal = found.cameras.K0[0, 0]
    assert focal == found.cameras.K1[0, 0] and 370 <= focal <= 2300
    assert f"focal length {focal:.0f} px, found from the matches" in found.summary()
    assert found.pose_summary.endswith(f" Focal length found from the matches: {focal:.0f} px.")
    assert found.to_dict()["cameras"]["source"] == "found" and "focal" in found.milliseconds
    given = match_photos(pair.image0, pair.image1, pruner="mutual+ratio", focal=focal)
    np.testing.assert_allclose(given.pose.R, found.pose.R, atol=1e-2)
    with pytest.raises(InputError, match="focal: expected a number of pixels or auto, got 'wide'"):
        match_photos(pair.image0, pair.image1, pruner="ratio", focal="wide")
    with pytest.raises(InputError, match="focal: expected either focal or K0 and K1, got both"):
        match_photos(pair.image0, pair.image1, pruner="ratio", focal="auto", K0=pair.K0, K1=pair.K1)


def test_nothing_kept_has_words(pair):
    nothing = match_photos(pair.image0, pair.image1, pruner="ratio@threshold=0.001", focal="auto")
    assert nothing.model is None and nothing.inliers is None and nothing.cameras.source is None
    assert nothing.model_summary == "No geometry was found: too few matches agree on one." and nothing.covered == 0
    assert nothing.pose_summary == "No pose: nothing was kept."
    with pytest.raises(InputError, match="model: a warped photo needs a homography, got none"):
        nothing.warp(images=(pair.image0, pair.image1))


def test_a_named_pose_without_a_focal_length(pair):
    images = (pair.image0, pair.image1)
    with pytest.raises(InputError, match="model: essential needs K0 and K1 or a focal length, which may be auto"):
        match_photos(*images, pruner="mutual+ratio", model="essential")
    nothing = match_photos(*images, pruner="ratio@threshold=0.001", focal="auto", model="essential")
    assert nothing.model is None and nothing.pose is None and nothing.cameras.source is None


def test_photos_apart_have_no_geometry_to_trust(pair):
    other = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    other = cv2.resize(other, (640, 480), interpolation=cv2.INTER_CUBIC)
    found = match_photos(pair.image0, other, pruner="mutual", focal="auto")
    assert not found.overlap.found and found.model is not None
    assert found.model_summary.startswith("Do not trust this geometry: the photos do not seem to show the same scene.")
    assert "has depth" not in found.model_summary and "px, found from the matches, not to be trusted" in found.summary()
    assert "geometry   none: No geometry was found" in replace(found, model=None).summary()


def test_matches_in_a_corner_are_not_to_be_trusted_elsewhere(turned):
    image = turned.image0
    black = np.zeros_like(image)
    height, width = image.shape[0] // 6, image.shape[1] // 6
    black[:height, :width] = image[2 * height : 3 * height, 2 * width : 3 * width]
    found = match_photos(image, black, pruner="mutual+ratio")
    assert found.covered < 0.05 and "% of a photo: do not trust the geometry elsewhere." in found.model_summary


def test_the_first_photo_warped_onto_the_second(turned, tmp_path):
    paths = [tmp_path / name for name in ("a.png", "b.png")]
    for path, image in zip(paths, (turned.image0, turned.image1), strict=True):
        cv2.imwrite(str(path), image)
    found = match_photos(*paths, pruner="mutual+ratio", use_exif=False)
    picture = found.warp(tmp_path / "warped.png")
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "warped.png")), picture)
    assert picture.shape[:2] == turned.image1.shape[:2]
    covered = picture.any(axis=2)
    inside = cv2.erode(covered.astype(np.uint8), np.ones((9, 9))) > 0
    second = cv2.imread(str(paths[1])).astype(float)
    assert inside.mean() > 0.5 and np.abs(picture - second)[inside].mean() < 10
    with pytest.raises(InputError, match="is an input and would be overwritten"):
        found.warp(paths[0])
    np.testing.assert_array_equal(found.warp(images=(turned.image0, turned.image1)), picture)
    arrays = match_photos(turned.image0, turned.image1, pruner="mutual+ratio")
    with pytest.raises(InputError, match="images: expected both photos, since they were not given as files"):
        arrays.warp()


def test_nothing_beyond_the_horizon_is_warped():
    image = np.full((100, 200, 3), 255, np.uint8)
    # The plane's horizon is the column 150: what is right of it lies behind the camera.
    H = np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 150, 0, 1]])
    near = np.random.default_rng(0).uniform(0, 100, (20, 2))
    for one in (image, image[..., 0]):
        for sign in (1, -1):
            cut = without_far_side(one, sign * H, near)
            assert (cut[:, :150] == 255).all() and not cut[:, 151:].any() and (one == 255).all()
        assert without_far_side(one, TILTED, near) is one and without_far_side(one, H, near[:0])[0, 0].all()


def test_epipolar_lines_are_drawn(pair, blind, tmp_path):
    picture = blind.draw_epipolar_lines(tmp_path / "lines.png", count=5)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "lines.png")), picture)
    assert picture.shape[:2] == blind.draw().shape[:2]
    changed = (picture != blind.draw_epipolar_lines(count=1)).any(axis=2)
    assert changed.mean() > 0.005
    with pytest.raises(InputError, match="count: expected a whole number of at least 1, got 0"):
        blind.draw_epipolar_lines(count=0)


def test_geometry_is_saved(blind, tmp_path):
    blind.save(tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as stored:
        assert str(stored["model"]) == "fundamental" and stored["inliers"].sum() == blind.inliers.sum()
        np.testing.assert_array_equal(stored["F"], blind.epipolar_matrix)
        np.testing.assert_array_equal(stored["H"], blind.homography.H)
