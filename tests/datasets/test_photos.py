from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.core.cameras import rotate_axes, rotate_camera, undistort_points
from ananet.datasets.base import LabelledPair, PosedImage, PosedPair
from ananet.datasets.photos import photo_features, read_posed_image
from ananet.errors import InputError
from ananet.features import Features, ImageDetector, load_detector, match

K = np.array([[300.0, 0, 161], [0, 310, 118], [0, 0, 1]])
R, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.1]))
T = np.array([0.5, 0.1, -0.1])
SIZE = (320, 240)


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
    return PosedPair(posed[0], posed[1], "0.png-1.png", turns)


def labelled(pair: PosedPair, **options: object) -> LabelledPair:
    """The pair matched and labelled, as evaluation does it."""
    detector = load_detector("sift", max_keypoints=300)
    first, second = (
        photo_features(image, detector, turns=turns, **options)
        for image, turns in zip((pair.image0, pair.image1), pair.rotations, strict=True)
    )
    matches = match(first.features, second.features, K0=first.K, K1=second.K)
    return LabelledPair.from_pose(pair.name, matches, *pair.relative_pose())


def right_among_the_sure(pair: LabelledPair) -> float:
    """Share of inliers among matches that are mutual and pass the ratio test, of which there must be some."""
    assert pair.matches.ratio is not None and pair.matches.mutual is not None
    sure = pair.matches.mutual & (pair.matches.ratio < 0.8)
    assert sure.sum() > 50
    return float(pair.inlier[sure].float().mean())


class Corners(ImageDetector):
    """Keypoints at fixed places of whatever image it gets."""

    name = "corners"

    def extract(self, image: np.ndarray) -> Features:
        height, width = image.shape[:2]
        points = np.array([[0, 0], [width - 1, 0], [0, height - 1]], np.float32)
        numbers = np.arange(3, dtype=np.float32)
        return Features(points, np.eye(3, dtype=np.float32), (width, height), 4 + numbers, numbers, numbers)


@pytest.mark.parametrize("turns", [(0, 0), (1, 0), (2, 3)])
def test_turned_photos_keep_their_geometry(tmp_path: Path, turns: tuple[int, int]) -> None:
    pair = labelled(make_pair(tmp_path, turns))
    assert pair.R is not None and pair.t is not None
    torch.testing.assert_close(pair.R, torch.from_numpy(R))
    assert geometry.translation_error(pair.t, torch.from_numpy(T)) < 1e-4
    assert right_among_the_sure(pair) > 0.95
    assert pair.matches.image_size0 == SIZE


def test_scaled_photos_keep_their_geometry(tmp_path: Path) -> None:
    pair = labelled(make_pair(tmp_path), longest_side=640)
    assert pair.matches.image_size0 == (640, 480)
    assert pair.matches.K0 is not None
    # The corner (-0.5, -0.5) stays where it is.
    np.testing.assert_allclose(pair.matches.K0[:2, 2] + 0.5, 2 * (K[:2, 2] + 0.5), rtol=1e-6)
    assert right_among_the_sure(pair) > 0.95
    again = labelled(make_pair(tmp_path), scale=2.0)
    assert np.array_equal(again.matches.points0, pair.matches.points0)


def test_points_of_scaled_photos_may_count_in_original_pixels(tmp_path: Path) -> None:
    image = make_pair(tmp_path).image0
    scaled = photo_features(image, Corners(), scale=0.5)
    original = photo_features(image, Corners(), scale=0.5, original_pixels=True)
    assert scaled.features.image_size == (160, 120) and original.features.image_size == SIZE
    np.testing.assert_array_equal(original.K, K)
    np.testing.assert_allclose(original.features.points, [[0.5, 0.5], [318.5, 0.5], [0.5, 238.5]])
    np.testing.assert_allclose(original.features.sizes, 2 * scaled.features.sizes)
    np.testing.assert_allclose(original.rays(), scaled.rays(), atol=1e-6)
    pair = labelled(make_pair(tmp_path), scale=0.8, original_pixels=True)
    assert pair.matches.image_size0 == SIZE and right_among_the_sure(pair) > 0.95


def test_points_are_freed_from_distortion(tmp_path: Path) -> None:
    image = make_pair(tmp_path).image0
    lens = ("SIMPLE_RADIAL", (0.1,))
    plain = photo_features(image, Corners()).features.points
    bent = replace(image, distortion=lens)
    np.testing.assert_allclose(
        photo_features(bent, Corners()).features.points, undistort_points(plain, K, lens), rtol=1e-6
    )
    with pytest.raises(InputError, match="undistorted photo"):
        photo_features(bent, Corners(), turns=1)


def test_points_that_no_pinhole_sees_are_left_out(tmp_path: Path) -> None:
    image = replace(make_pair(tmp_path).image0, distortion=("SIMPLE_FISHEYE", ()))
    wide = replace(image, K=np.array([[100.0, 0, 0], [0, 100, 0], [0, 0, 1]]))
    found = photo_features(wide, Corners())
    # Three hundred pixels from the centre are three radians, behind the camera.
    assert len(found.features) == 1 and found.features.sizes.tolist() == [4]
    assert len(found.features.descriptors) == 1


def test_photos_without_features(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    cv2.imwrite(str(pair.image0.path), np.zeros((SIZE[1], SIZE[0]), np.uint8))
    assert len(labelled(pair).matches) == 0


def test_the_strongest_keypoints_come_first(tmp_path: Path) -> None:
    found = photo_features(make_pair(tmp_path).image0, load_detector("sift", max_keypoints=100))
    assert found.strongest(1) is found
    few = found.strongest(0.25)
    np.testing.assert_array_equal(few.features.points, found.features.points[:25])
    assert few.features.scores.min() >= found.features.scores[25:].max()
    assert len(found.strongest(1e-9).features) == 1


def test_photos_are_read_in_the_orientation_of_their_camera(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = make_pair(tmp_path).image0
    exif = pillow.Exif()
    exif[0x0112] = 6
    pillow.open(image.path).save(image.path, exif=exif)
    assert read_posed_image(image).shape == (320, 240, 3), "without a size, as viewers show it"
    assert read_posed_image(replace(image, size=(240, 320))).shape == (320, 240, 3)
    assert read_posed_image(replace(image, size=SIZE)).shape == (240, 320, 3)
    with pytest.raises(InputError, match=r"its camera is for \(10, 10\) pixels"):
        read_posed_image(replace(image, size=(10, 10)))


def test_stored_features_stand_in_for_a_detector(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    detector = load_detector("sift", max_keypoints=100)
    found = photo_features(pair.image0, detector).features
    np.savez(tmp_path / "0.npz", points=found.points, descriptors=found.descriptors)
    stored = load_detector("stored", path=tmp_path)
    np.testing.assert_array_equal(photo_features(pair.image0, stored).features.points, found.points)
    small = photo_features(pair.image0, stored, longest_side=160)
    np.testing.assert_allclose(small.rays(), photo_features(pair.image0, stored).rays(), atol=1e-5)
    with pytest.raises(InputError, match=r"0\.png: expected an upright photo for stored features"):
        photo_features(pair.image0, stored, turns=1)
