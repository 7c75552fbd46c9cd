"""Two photos to kept matches and a pose, in one call."""

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import ananet
from ananet import InputError, PhotoMatcher, match_photos
from ananet.cli.demo import motorcycle, rotation
from ananet.estimators import load_estimator
from ananet.features import ImageDetector, load_detector, match
from tests.photos import photo


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


@pytest.fixture(scope="module")
def found(pair):
    return match_photos(pair.image0, pair.image1, K0=pair.K0, K1=pair.K1, device="cpu")


def test_a_known_motion_is_found(pair, found):
    assert (found.detector, found.pruner, found.estimator) == ("sift", "ananet", "poselib")
    assert found.overlap.found and 100 < found.kept.mask.sum() < len(found.matches)
    angle = np.degrees(np.arccos((np.trace(found.pose.R @ pair.R.T) - 1) / 2))
    assert angle < 5
    assert len(found.pose.inliers) == len(found.matches) and not found.pose.inliers[~found.kept.mask].any()
    assert list(found.milliseconds) == ["detect", "match", "prune", "verify", "geometry"]


def test_it_is_what_its_steps_give_one_by_one(pair, found):
    detector, pruner = load_detector("sift"), ananet.load("ananet", device="cpu")
    features0, features1 = detector.batch([pair.image0, pair.image1])
    np.testing.assert_array_equal(found.features0.points, features0.points)
    matches = match(features0, features1, K0=pair.K0, K1=pair.K1)
    kept = pruner(matches)
    np.testing.assert_array_equal(found.kept.mask, kept.mask)
    pose = load_estimator("poselib").pose(matches, kept)
    np.testing.assert_array_equal(found.pose.R, pose.R)
    again = match_photos(pair.image0, pair.image1, detector=detector, pruner=pruner, K0=pair.K0, K1=pair.K1)
    np.testing.assert_array_equal(again.kept.logits, found.kept.logits)


def test_refinement(pair, found):
    again = match_photos(pair.image0, pair.image1, K0=pair.K0, K1=pair.K1, refine=True)
    refined = again.refined
    assert refined is not None and len(refined.aligned) == again.kept.mask.sum() and refined.aligned.mean() > 0.7
    moved = np.linalg.norm(again.matches.points1 - found.matches.points1, axis=1)
    assert (moved[~again.kept.mask] == 0).all() and 0 < np.median(moved[again.kept.mask]) < 1
    assert found.refined is None and list(again.milliseconds)[4] == "refine"
    with pytest.raises(InputError, match="refine: needs the photos"):
        match_photos(found.features0, found.features1, refine=True)


def test_matches_point_at_their_keypoints(found):
    first, second = found.matches.indices.T
    np.testing.assert_array_equal(found.features0.points[first], found.matches.points0)
    np.testing.assert_array_equal(found.features1.points[second], found.matches.points1)


def test_files_and_names_with_options(pair, tmp_path):
    for name, image in (("a.png", pair.image0), ("b.png", pair.image1)):
        cv2.imwrite(str(tmp_path / name), image)
    found = match_photos(
        str(tmp_path / "a.png"),
        tmp_path / "b.png",
        detector="orb@max_keypoints=800",
        pruner="mutual+ratio@threshold=0.9",
        estimator="magsac@threshold=2",
        K0=pair.K0,
        K1=pair.K1,
    )
    assert found.detector == "orb@max_keypoints=800" and len(found.features0) == 800
    assert found.pruner == "mutual+ratio@threshold=0.9" and found.estimator == "magsac@threshold=2.0"


def test_without_cameras_there_is_no_pose(pair):
    found = match_photos(pair.image0, pair.image1, pruner="ratio")
    assert found.overlap.found and found.pose is None
    assert "pose" not in found.milliseconds


def test_without_overlap_a_pose_is_not_to_be_trusted(pair):
    found = match_photos(pair.image0, photo(640, 480), pruner="all", K0=pair.K0, K1=pair.K0)
    assert not found.overlap.found and found.pose is not None and "no overlap" in repr(found)
    assert "do not seem to show the same scene" in found.overlap.summary and "Do not trust this" in found.pose_summary


def test_a_photo_without_keypoints_is_named(pair, tmp_path):
    flat = np.zeros((30, 40, 3), np.uint8)
    with pytest.raises(InputError, match="image1: no keypoints found in this image of 40 x 30 pixels"):
        match_photos(pair.image0, flat, pruner="ratio")
    with pytest.raises(InputError, match="left: no keypoints found"):
        match_photos(flat, pair.image0, pruner="ratio", names=("left", "right"))
    cv2.imwrite(str(tmp_path / "flat.png"), flat)
    with pytest.raises(InputError, match=r"flat.png: no keypoints found"):
        match_photos(tmp_path / "flat.png", pair.image0, pruner="ratio")


def test_features_in_place_of_photos(pair, found):
    features = load_detector("sift").batch([pair.image0, pair.image1])
    again = match_photos(*features, K0=pair.K0, K1=pair.K1, device="cpu")
    assert again.features0 is features[0]
    np.testing.assert_array_equal(again.kept.logits, found.kept.logits)
    with pytest.raises(InputError, match="right: no keypoints found"):
        match_photos(features[0], features[1][:0], pruner="ratio", names=("left", "right"))


def test_the_movement_of_the_camera_shows(found):
    assert found.parallax > 1 and not found.rotation_only


@pytest.mark.parametrize("focal", [500.0, 2000.0])
def test_a_camera_that_only_turned(pair, focal):
    height, width = pair.image0.shape[:2]
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    H = K @ rotation(2, 3, 0) @ np.linalg.inv(K)
    turned = cv2.warpPerspective(pair.image0, H, (width, height), flags=cv2.INTER_CUBIC)
    noise = np.random.default_rng(0).normal(0, 4, turned.shape)
    turned = np.clip(turned + noise, 0, 255).astype(np.uint8)
    found = match_photos(pair.image0, turned, pruner="mutual+ratio", K0=K, K1=K)
    assert found.pose is not None and found.parallax < 0.5 and found.rotation_only


def test_a_camera_of_another_photo_is_doubted(pair, found):
    assert found.camera_doubt is None and "doubtful" not in repr(found)
    K = [[1200, 0, 960], [0, 1200, 540], [0, 0, 1]]
    doubted = match_photos(pair.image0, pair.image1, pruner="ratio", K0=pair.K0, K1=K)
    assert "principal point (960, 540)" in doubted.camera_doubt and repr(doubted).endswith(", camera doubtful)")


def test_without_a_pose_there_is_no_parallax(pair):
    found = match_photos(pair.image0, pair.image1, pruner="ratio")
    assert found.parallax is None and not found.rotation_only


@pytest.mark.parametrize("error", [cv2.error("too large"), MemoryError()])
def test_a_photo_that_a_detector_fails_on_is_named(pair, error):
    class Failing(ImageDetector):
        name = "failing"

        def extract(self, image):
            raise error

    with pytest.raises(InputError, match=r"left: expected a photo that the detector can work on, got 741 x 500 pixels"):
        match_photos(pair.image0, pair.image1, detector=Failing(), pruner="ratio", names=("left", "right"))


def test_wrong_arguments_are_named(pair, tmp_path):
    images = pair.image0, pair.image1
    for arguments, message in (
        ({"detector": "surf"}, "detector: expected one of"),
        ({"pruner": "nonsense"}, "pruner: expected one of"),
        ({"estimator": "lmeds"}, "estimator: expected one of"),
        ({"device": "toaster"}, "device: expected"),
        ({"detector": None}, "detector: expected a name or an instance of Detector, got None"),
        ({"detector": 3}, "detector: expected a name or an instance of Detector, got 3"),
        ({"estimator": None}, "estimator: expected a name or an instance of Estimator, got None"),
        ({"threshold": 0.9, "pruner": ananet.load("ratio")}, "threshold: expected together with the name of a pruner"),
        ({"longest_side": 0}, "longest_side: expected a whole number of at least 32, got 0"),
        ({"K0": pair.K0, "pruner": "ratio"}, "K0 and K1: expected both or neither, K1 is missing"),
    ):
        with pytest.raises(InputError, match=message):
            match_photos(*images, **arguments)
    with pytest.raises(InputError, match="none.jpg: no such file"):
        match_photos(tmp_path / "none.jpg", pair.image1, pruner="ratio")
    with pytest.raises(InputError, match="image1: expected a file path, a numpy array, .* got NoneType"):
        match_photos(pair.image0, None, pruner="ratio")


def test_threads_change_nothing(pair, found):
    detector = load_detector("sift")
    assert detector.threads == 2
    detector.threads = 1
    alone = match_photos(pair.image0, pair.image1, detector=detector, K0=pair.K0, K1=pair.K1, device="cpu")
    for one, other in ((found.features0, alone.features0), (found.features1, alone.features1)):
        np.testing.assert_array_equal(one.points, other.points)
        np.testing.assert_array_equal(one.descriptors, other.descriptors)
    np.testing.assert_array_equal(found.kept.mask, alone.kept.mask)


def test_of_two_wrong_photos_the_first_is_named(tmp_path):
    with pytest.raises(InputError, match=r"a\.png: no such file"):
        match_photos(tmp_path / "a.png", tmp_path / "b.png", device="cpu")


def test_photos_of_many_pairs_are_prepared_once(pair, tmp_path, monkeypatch):
    for name, image in (("a.png", pair.image0), ("b.png", pair.image1), ("c.png", pair.image0)):
        cv2.imwrite(str(tmp_path / name), image)
    a, b, c, none = (tmp_path / f"{name}.png" for name in ("a", "b", "c", "none"))
    for threads in (1, 2):
        matcher = PhotoMatcher(detector="orb@max_keypoints=300", pruner="ratio")
        matcher.detector.threads = threads
        prepared = []

        def prepare(image, name, before=matcher.prepare, prepared=prepared):
            prepared.append(image)
            return before(image, name)

        monkeypatch.setattr(matcher, "prepare", prepare)
        found = list(matcher.match_pairs([(a, b), (a, c), (none, a), (b, c)]))
        assert sorted(prepared) == [a, b, c, none]
        assert [isinstance(one, InputError) for one in found] == [False, False, True, False]
        assert found[0].names == (str(a), str(b)) and "none.png: no such file" in str(found[2])
        alone = match_photos(a, b, detector="orb@max_keypoints=300", pruner="ratio")
        np.testing.assert_array_equal(found[0].kept.mask, alone.kept.mask)
    assert found[0].milliseconds["detect"] > 0


def test_a_prepared_photo_serves_several_pairs(pair):
    matcher = PhotoMatcher(detector="orb@max_keypoints=300", pruner="ratio")
    first = matcher.prepare(pair.image0, "left")
    found = matcher(first, pair.image1)
    assert found.names == ("left", "image1") and found.panels[0] is first.panel
    assert first.panel.pixels.shape == (640, 948, 3), "the photo itself is not kept"


def test_scaled_photos_give_the_same_pose_in_their_own_pixels(pair):
    large = [cv2.resize(image, None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC) for image in (pair.image0, pair.image1)]
    scaling = np.array([[3.0, 0, 1], [0, 3, 1], [0, 0, 1]])
    small = match_photos(pair.image0, pair.image1, pruner="ratio", K0=pair.K0, K1=pair.K1)
    found = match_photos(
        *large, pruner="ratio", K0=scaling @ pair.K0, K1=scaling @ pair.K1, longest_side=741, refine=True, motions=True
    )
    assert found.features0.image_size == found.matches.image_size0 == (2223, 1500)
    np.testing.assert_allclose(found.matches.K0, scaling @ pair.K0, rtol=1e-4)
    angle = np.degrees(np.arccos(np.clip((np.trace(found.pose.R @ small.pose.R.T) - 1) / 2, -1, 1)))
    assert angle < 2 and found.overlap.found and len(found.motions) == 1
    ratio = np.median(found.matches.keypoint_sizes0) / np.median(small.matches.keypoint_sizes0)
    assert ratio == pytest.approx(3, rel=0.1) and np.asarray(found.matches.points0)[:, 0].max() > 2000
    first = np.asarray(found.matches.indices)[:, 0]
    np.testing.assert_allclose(found.features0.points[first], found.matches.points0, atol=1e-3)


def test_photos_of_every_kind_give_the_same_matches(pair, tmp_path):
    images = (pair.image0, pair.image1)
    cv2.imwrite(str(tmp_path / "a.png"), pair.image0)
    rgb = [torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1) for image in images]
    kinds = {
        "uint16": [image.astype(np.uint16) * 257 for image in images],
        "float": [image / 255 for image in images],
        "pillow": [Image.fromarray(image[..., ::-1].copy()) for image in images],
        "tensor": [image.float() / 255 for image in rgb],
        "bytes": rgb,
        "file": [tmp_path / "a.png", pair.image1],
    }
    options = {"detector": "sift@max_keypoints=500", "pruner": "ratio", "K0": pair.K0, "K1": pair.K1}
    expected = match_photos(*images, **options)
    for name, given in kinds.items():
        found = match_photos(*given, **options)
        np.testing.assert_array_equal(np.asarray(found.matches.points1), np.asarray(expected.matches.points1), name)
        np.testing.assert_array_equal(np.asarray(found.kept.mask), expected.kept.mask, name)
        tensors = isinstance(given[0], torch.Tensor)
        assert isinstance(found.kept.mask, torch.Tensor) == tensors
    grey = match_photos(pair.image0[..., 0], pair.image1[..., :1], **options)
    assert grey.overlap.found


def test_focal_lengths_from_exif_are_used(pair, tmp_path):
    for name, image, focal in (("a.jpg", pair.image0, 48), ("b.jpg", pair.image1, 70)):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0xA405] = focal
        Image.fromarray(image[..., ::-1].copy()).save(tmp_path / name, exif=exif, quality=95)
    both = tmp_path / "a.jpg", tmp_path / "b.jpg"
    found = match_photos(*both, pruner="ratio")
    assert found.cameras.source == "exif" and found.pose is not None
    np.testing.assert_array_equal(found.pose.R, match_photos(*both, pruner="ratio").pose.R)
    opened = match_photos(*(Image.open(path) for path in both), pruner="ratio")
    assert opened.cameras.to_dict() == found.cameras.to_dict()
    without = match_photos(*both, pruner="ratio", use_exif=False)
    assert without.cameras.source is None and "the focal length is not known" in without.pose_summary
    one = match_photos(both[0], pair.image1, pruner="ratio", names=["a", "b"])
    assert "the focal length of b (no EXIF) is not known" in one.pose_summary and " of b (no EXIF)" in one.summary()
    assert match_photos(*both, pruner="ratio", focal=900).cameras.K0[0, 0] == 900
