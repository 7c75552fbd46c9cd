from dataclasses import replace

import numpy as np
import pytest
import torch

import ananet.features
from ananet import Correspondences, InputError
from ananet.core.cameras import pixel_scaling
from ananet.datasets.base import LabelledPair
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.sources import open_source
from ananet.evaluation.pairs import (
    MatchSettings,
    Pairs,
    PhotoPairs,
    StoredMatches,
    open_pairs,
    rescaled,
    with_fewer_outliers,
    with_hidden_cameras,
)
from tests.conftest import make_problem
from tests.datasets.depth_pairs import pair_with_depth, write_pairs
from tests.datasets.formats.test_labelled import write_case
from tests.datasets.planes import STEP, write_planes


def pairs_of(path, feature_folder=None, image_folder=None, **settings) -> Pairs:
    return open_pairs(open_source(path, image_folder=image_folder), MatchSettings(**settings), feature_folder)


def test_scenes(world, tmp_path):
    source = pairs_of(world.folder, tmp_path, max_keypoints=300)
    assert isinstance(source, PhotoPairs) and source.title == "scenes"
    assert (source.kind, len(source), source.photos) == ("posed scenes", 3, 3)
    for number in range(source.photos):
        source.prepare(number)
    assert len(list(tmp_path.iterdir())) == 3
    pair = source[0]
    assert (pair.name, pair.scene) == ("room/0.png-1.png", "room")
    assert pair.paths == tuple(world.folder / "room" / "images" / name for name in ("0.png", "1.png"))
    assert 200 < len(pair.matches) <= 300 and 0.3 < pair.inlier.float().mean() < 1
    anew = pairs_of(world.folder / "room", max_keypoints=300)[0]
    assert np.array_equal(anew.matches.points1, pair.matches.points1), "features are the same from the folder and anew"
    assert "300 keypoints, photos at original size" in source.matching()


def test_without_a_pair_list_any_two_photos_are_a_pair(world, tmp_path):
    scene = tmp_path / "room"
    scene.mkdir()
    (scene / "images").symlink_to(world.folder / "room" / "images")
    (scene / "sparse").symlink_to(world.folder / "room" / "sparse")
    names = [pair.name for _, pair in pairs_of(scene).pairs]
    assert names == ["0.png-1.png", "0.png-2.png", "1.png-2.png"]


def test_only_pairs_of_some_scenes(tmp_path):
    write_pairs(
        tmp_path, {"a": [pair_with_depth()], "b": [pair_with_depth(seed=1)] * 2, "c": [pair_with_depth(seed=2)]}
    )
    assert [pair.scene for pair in pairs_of(tmp_path, scenes=("a", "b"))] == ["a", "b", "b"]
    assert [pair.scene for pair in pairs_of(tmp_path, scenes=("b",), limit=1)] == ["b"]
    with pytest.raises(InputError, match="scenes: expected some of a, b, c, got d"):
        pairs_of(tmp_path, scenes=("a", "d"))


def test_limit_spreads_over_the_source(world):
    source = pairs_of(world.folder, max_keypoints=50, limit=2)
    assert len(source) == 2 and source.photos == 0
    assert [source[n].name for n in range(2)] == ["room/0.png-1.png", "room/1.png-2.png"]
    with pytest.raises(IndexError):
        source[2]


def test_wrong_matches_are_thinned(world):
    whole = pairs_of(world.folder, max_keypoints=300)[0]
    for share in (0.0, 0.1, 0.99):
        pair, again = (pairs_of(world.folder, max_keypoints=300, outlier_share=share)[0] for _ in "ab")
        assert pair.inlier.sum() == whole.inlier.sum()
        assert (~pair.inlier).sum() == min(int(share / (1 - share) * whole.inlier.sum()), (~whole.inlier).sum())
        assert torch.equal(pair.inlier, pair.distance < 1e-4)
        assert np.array_equal(pair.matches.points0, again.matches.points0)
    assert len(pair.matches) == len(whole.matches)


def test_photos_are_scaled(world):
    pair = pairs_of(world.folder, max_keypoints=100, longest_side=640)[0]
    assert pair.matches.image_size0 == (640, 480)
    assert pair.matches.K0[0, 0] == pytest.approx(600)


def test_shards(world, tmp_path):
    build_pairs(world.folder, tmp_path / "pairs", BuildSettings(max_keypoints=300), progress=False)
    source = pairs_of(tmp_path / "pairs")
    assert isinstance(source, StoredMatches) and source.photos == 0
    assert (source.kind, len(source)) == ("training pairs", 3)
    assert source.matching() == "stored matches, pixels at original size"
    photos = pairs_of(world.folder, max_keypoints=300)
    assert torch.equal(source[1].inlier, photos[1].inlier)
    scaled = pairs_of(tmp_path / "pairs", longest_side=640)[1]
    assert scaled.matches.K0[0, 0] == pytest.approx(600) and torch.equal(scaled.inlier, source[1].inlier)


def test_labels_by_depth_are_kept(tmp_path):
    given = [pair_with_depth(0.5, seed=1), pair_with_depth(0.5, right=6, unknown=4), pair_with_depth(0)]
    folder = write_pairs(tmp_path, {"a": given})
    pairs = pairs_of(folder, longest_side=320, limit=2)
    assert [pair.share for pair in pairs] == [0.5, 0.5] and [pair.hard for pair in pairs] == [False, True]
    for pair, was in zip(pairs, given[:2], strict=True):
        assert torch.equal(pair.known, was.known) and torch.equal(pair.right, was.right)
    thinned = list(pairs_of(folder, outlier_share=0.0))
    assert [pair.hard for pair in thinned] == [False, True, False], "hardness is that of all matches"
    assert thinned[1].right.sum() == 6 and len(thinned[1].matches) == 50
    assert len(thinned[2].matches) == 0, "all matches of an empty pair are wrong"


def test_oanet_dump(tmp_path):
    pytest.importorskip("h5py")
    from tests.datasets.oanet_dumps import write_oanet_dump

    problem = make_problem()
    pair = LabelledPair.from_pose("0", problem.matches, problem.R, problem.t)
    write_oanet_dump(tmp_path / "test.hdf5", [pair, pair])
    source = pairs_of(tmp_path / "test.hdf5", longest_side=1281)
    assert (source.kind, len(source)) == ("OANet dump", 2)
    # No size is stored: the principal point at 320 stands for a width of 641.
    assert source[1].matches.K0[0, 0] == pytest.approx(500 * 1281 / 641, rel=1e-4)


def test_pair_list(world, tmp_path):
    K = "300 0 159.5 0 300 119.5 0 0 1"
    images = world.folder / "room" / "images"
    moved, still = "1 0 0 0.5 0 1 0 0 0 0 1 0 0 0 0 1", "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1"
    (tmp_path / "pairs.txt").write_text(f"0.png 1.png 0 0 {K} {K} {moved}\n0.png 1.png 0 0 {K} {K} {still}\n")
    source = pairs_of(tmp_path / "pairs.txt", image_folder=images, max_keypoints=50)
    assert (source.kind, len(source)) == ("pair list", 1), "a pair without a baseline is left out"
    assert len(source[0].matches) > 0


def test_multi(tmp_path):
    write_case(tmp_path / "part-x" / "case1")
    source = pairs_of(tmp_path)
    assert (source.kind, len(source), source.models) == ("MULTI", 1, ())
    assert source[0].inlier.tolist() == [True, True, False, False]
    assert pairs_of(tmp_path, outlier_share=0.4)[0].inlier.tolist() == [True, True, False]


def test_without_pairs_there_is_nothing_to_evaluate(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match=r"source: expected at least one pair, .*empty.txt \(pair list\) has none"):
        pairs_of(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "limit: expected a whole number of at least 1, got 0"),
        ({"limit": 2.5}, "limit: expected a whole number, got 2.5"),
        ({"longest_side": 0}, "longest_side: expected a whole number of at least 1, got 0"),
        ({"detector": "surf"}, "detector: expected one of sift, orb, aliked, .*, got 'surf'"),
        ({"detector": "sift@contrast=1"}, "unknown option contrast of detector 'sift'"),
        ({"max_keypoints": 0}, "max_keypoints: "),
        ({"neighbours": 0}, "neighbours: expected a whole number of at least 1, got 0"),
        ({"matcher": "superglue"}, "matcher: expected one of nearest, lightglue, lighterglue, got 'superglue'"),
        ({"outlier_share": 1.0}, "outlier_share: expected a number from 0 to below 1"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        MatchSettings(**settings)


def test_the_photo_of_two_cameras_has_features_for_each(world, tmp_path):
    K, other = "300 0 159.5 0 300 119.5 0 0 1", "310 0 159.5 0 310 119.5 0 0 1"
    pose = "1 0 0 0.5 0 1 0 0 0 0 1 0 0 0 0 1"
    rows = [f"0.png 1.png 0 0 {first} {K} {pose}\n" for first in (K, other, K)]
    rows.append(f"0.png 1.png 1 0 {K} {K} {pose}\n")
    (tmp_path / "pairs.txt").write_text("".join(rows))
    (tmp_path / "features").mkdir()
    images = world.folder / "room" / "images"
    pairs = pairs_of(tmp_path / "pairs.txt", tmp_path / "features", images, max_keypoints=50)
    assert len(pairs) == 4 and pairs.photos == 4, "0.png with two cameras and turned, and 1.png"
    for number in range(pairs.photos):
        pairs.prepare(number)
    assert [pairs[n].matches.K0[0, 0].item() for n in range(3)] == [300, 310, 300]
    assert pairs[3].matches.image_size0 == (240, 320)
    assert len(list((tmp_path / "features").iterdir())) == 4
    few = pairs_of(tmp_path / "pairs.txt", tmp_path / "features", images, max_keypoints=50, limit=1)
    assert few.photos == 2, "of the pairs within the limit"


def test_kept_features_know_all_that_fresh_ones_know(world, tmp_path):
    fresh, kept = (pairs_of(world.folder, folder, max_keypoints=50)[0].matches for folder in (None, tmp_path))
    for name in (
        "points0",
        "points1",
        "ratio",
        "mutual",
        "keypoint_sizes0",
        "keypoint_sizes1",
        "angles0",
        "angles1",
        "indices",
        "K1",
    ):
        assert np.array_equal(getattr(fresh, name), getattr(kept, name)), name
    assert fresh.image_size0 == kept.image_size0 == (320, 240)


def test_matchers(world):
    one, two = (pairs_of(world.folder, max_keypoints=50, **more) for more in ({}, {"neighbours": 2}))
    same = pairs_of(world.folder, max_keypoints=50, matcher="nearest@neighbours=2")
    assert len(two[0].matches) == 2 * len(one[0].matches)
    assert np.array_equal(same[0].matches.indices, two[0].matches.indices)
    assert "matched by" not in one.matching() and "matched by nearest@neighbours=2" in same.matching()


def test_the_device_reaches_detector_and_matcher(world, monkeypatch):
    asked = []

    def noting(load):
        return lambda *names, device, **options: asked.append(device) or load(*names, device="cpu", **options)

    for module, name in (("datasets.photos", "load_detector"), ("evaluation.pairs", "load_matcher")):
        monkeypatch.setattr(f"ananet.{module}.{name}", noting(getattr(ananet.features, name)))
    settings = MatchSettings()
    assert asked == ["cpu", "cpu"], "to check them is nothing for a GPU"
    pairs = open_pairs(open_source(world.folder), settings, device="cuda:1")
    assert pairs.detector and pairs.matcher
    assert asked[2:] == ["cuda:1", "cuda:1"]


def test_thinning_leaves_the_right_matches():
    problem = make_problem(60, 140)
    pair = LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)
    thin = with_fewer_outliers(pair, 0.25, seed=3)
    wrong = int((~thin.inlier).sum())
    assert thin.inlier.sum() == pair.inlier.sum() and wrong == int(pair.inlier.sum()) // 3
    assert torch.equal(thin.inlier, thin.distance < 1e-4) and len(thin.matches) == len(thin.inlier)
    other = with_fewer_outliers(pair, 0.25, seed=4)
    assert not np.array_equal(thin.matches.points0, other.matches.points0)


def test_rescaling_keeps_rays():
    matches = make_problem().matches
    assert np.allclose(rescaled(matches, 1600).normalized(), matches.normalized(), atol=1e-9)
    keypoints = matches.replace(keypoint_sizes0=torch.full((500,), 4.0), keypoint_sizes1=torch.full((500,), 8.0))
    scaled = rescaled(keypoints, 1600)
    assert scaled.image_size0 == (1600, 1200) and scaled.keypoint_sizes0[0] == 10 and scaled.keypoint_sizes1[0] == 20
    np.testing.assert_allclose(scaled.normalized_sizes(), keypoints.normalized_sizes(), rtol=1e-6)
    with pytest.raises(InputError, match="longest_side: "):
        rescaled(Correspondences([[1, 2]], [[3, 4]]), 1600)


def test_cameras_are_hidden(world):
    settings = {"max_keypoints": 50, "longest_side": 640, "outlier_share": 0.5}
    shown, hidden = (pairs_of(world.folder, hide_cameras=hide, **settings) for hide in (False, True))
    assert "cameras hidden" in hidden.matching() and "cameras" not in shown.matching()
    with_K, without = shown[0], hidden[0]
    assert without.matches.K0 is None and not without.matches.calibrated and without.matches.image_size0 == (640, 480)
    assert np.array_equal(without.matches.points0, with_K.matches.points0)
    assert torch.equal(without.inlier, with_K.inlier), "labels are by the true cameras"
    assert without.cameras is not None and np.array_equal(without.cameras[1], with_K.matches.K1)
    without_size = replace(with_K, matches=with_K.matches.replace(image_size0=None, image_size1=None))
    guessed = with_hidden_cameras(without_size).matches
    assert guessed.image_size0 == pytest.approx((640, 480), abs=1e-3), "the principal point is the centre"
    assert with_hidden_cameras(without) is without


def test_photos_of_a_plane(tmp_path):
    folder = write_planes(tmp_path / "wall")
    pairs = pairs_of(folder, tmp_path, max_keypoints=300)
    assert (pairs.kind, pairs.models, len(pairs), pairs.photos) == ("photos with homographies", ("homography",), 2, 3)
    pair = pairs[0]
    assert (pair.name, pair.scene, pair.R) == ("wall/1-2", "wall", None)
    assert pair.paths is not None and pair.paths[1] == folder / "img2.png"
    assert 0.3 < pair.inlier.float().mean() < 1 and pair.matches.K0 is None and pair.matches.image_size1 == (320, 240)
    mapped = np.c_[pair.matches.points0, np.ones(len(pair.matches))] @ STEP.T
    distance = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - pair.matches.points1, axis=1)
    assert np.array_equal(pair.inlier.numpy(), distance <= 3)
    assert pair.corner_error(STEP) == pytest.approx(0, abs=1e-9) and pair.corner_error(None) == np.inf


def test_homographies_follow_the_size_of_the_photos(tmp_path):
    pair = pairs_of(write_planes(tmp_path / "wall"), max_keypoints=300, longest_side=160)[0]
    assert pair.matches.image_size0 == (160, 120) and pair.inlier.float().mean() > 0.3
    half = pixel_scaling(0.5, 0.5)
    expected = half @ STEP @ np.linalg.inv(half)
    assert pair.corner_error(expected) == pytest.approx(0, abs=1e-9) and pair.corner_error(STEP) > 1
