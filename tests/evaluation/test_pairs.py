import numpy as np
import pytest
import torch
from ananet.evaluation.sources import MatchSettings, open_source, rescaled

from ananet import Correspondences, InputError
from ananet.datasets.base import LabelledPair
from ananet.datasets.build import BuildSettings, build_pairs

from ..conftest import make_problem


def test_scenes(world, tmp_path):
    source = open_source(world.folder, MatchSettings(max_keypoints=300), feature_folder=tmp_path)
    assert (source.kind, len(source), source.photos, source.has_poses) == ("posed scenes", 3, 3, True)
    for number in range(source.photos):
        source.prepare(number)
    assert len(list(tmp_path.iterdir())) == 3
    pair = source[0]
    assert (pair.name, pair.scene) == ("room/0.png-1.png", "room")
    assert 200 < len(pair.matches) <= 300 and 0.3 < pair.inlier.float().mean() < 1
    anew = open_source(world.folder / "room", MatchSettings(max_keypoints=300))[0]
    assert torch.equal(anew.matches.points1, pair.matches.points1), "features are the same from the folder and anew"
    assert "300 keypoints, photos at original size" in source.matching()


def test_without_a_pair_list_any_two_photos_are_a_pair(world, tmp_path):
    scene = tmp_path / "room"
    scene.mkdir()
    (scene / "images").symlink_to(world.folder / "room" / "images")
    (scene / "sparse").symlink_to(world.folder / "room" / "sparse")
    names = [pair.name for pair in open_source(scene).pairs]
    assert names == ["room/0.png-1.png", "room/0.png-2.png", "room/1.png-2.png"]


def test_limit_spreads_over_the_source(world):
    source = open_source(world.folder, MatchSettings(max_keypoints=50, limit=2))
    assert len(source) == 2 and source.photos == 0
    assert [source[n].name for n in range(2)] == ["room/0.png-1.png", "room/1.png-2.png"]
    with pytest.raises(IndexError):
        source[2]


def test_wrong_matches_are_thinned(world):
    whole = open_source(world.folder, MatchSettings(max_keypoints=300))[0]
    for share in (0.0, 0.1, 0.99):
        pair, again = (
            open_source(world.folder, MatchSettings(max_keypoints=300, outlier_share=share))[0] for _ in "ab"
        )
        assert pair.inlier.sum() == whole.inlier.sum()
        assert (~pair.inlier).sum() == min(int(share / (1 - share) * whole.inlier.sum()), (~whole.inlier).sum())
        assert torch.equal(pair.inlier, pair.distance < 1e-4)
        assert torch.equal(pair.matches.points0, again.matches.points0)
    assert len(pair.matches) == len(whole.matches)


def test_photos_are_scaled(world):
    pair = open_source(world.folder, MatchSettings(max_keypoints=100, longest_side=640))[0]
    assert pair.matches.size0 == (640, 480)
    assert pair.matches.K0[0, 0] == pytest.approx(600)


def test_shards(world, tmp_path):
    build_pairs(world.folder, tmp_path / "pairs", BuildSettings(max_keypoints=300), progress=False)
    source = open_source(tmp_path / "pairs")
    assert (source.kind, len(source)) == ("training shards", 3)
    photos = open_source(world.folder, MatchSettings(max_keypoints=300))
    assert torch.equal(source[1].inlier, photos[1].inlier)
    scaled = open_source(tmp_path / "pairs", MatchSettings(longest_side=640))[1]
    assert scaled.matches.K0[0, 0] == pytest.approx(600) and torch.equal(scaled.inlier, source[1].inlier)


def test_oanet_dump(tmp_path):
    pytest.importorskip("h5py")
    from ananet.datasets.formats.oanet import write_oanet_dump

    problem = make_problem()
    pair = LabelledPair.from_pose("0", problem.matches, problem.R, problem.t)
    write_oanet_dump(tmp_path / "test.hdf5", [pair, pair])
    source = open_source(tmp_path / "test.hdf5", MatchSettings(longest_side=1281))
    assert (source.kind, len(source)) == ("OANet dump", 2)
    # No size is stored: the principal point at 320 stands for a width of 641.
    assert source[1].matches.K0[0, 0] == pytest.approx(500 * 1281 / 641, rel=1e-4)


def test_pair_list(world, tmp_path):
    K = "300 0 159.5 0 300 119.5 0 0 1"
    images = world.folder / "room" / "images"
    moved, still = "1 0 0 0.5 0 1 0 0 0 0 1 0 0 0 0 1", "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1"
    (tmp_path / "pairs.txt").write_text(f"0.png 1.png 0 0 {K} {K} {moved}\n0.png 1.png 0 0 {K} {K} {still}\n")
    source = open_source(tmp_path / "pairs.txt", MatchSettings(max_keypoints=50), image_folder=images)
    assert (source.kind, len(source)) == ("pair list", 1), "a pair without a baseline is left out"
    assert len(source[0].matches) > 0


def test_multi(tmp_path):
    case = tmp_path / "part-x" / "case1"
    case.mkdir(parents=True)
    import cv2

    for name in ("a.JPG", "b.JPG"):
        cv2.imwrite(str(case / name), np.zeros((40, 60, 3), np.uint8))
    (case / "1key_location.txt").write_text("2\n10 10\n20 20\n")
    (case / "2key_location.txt").write_text("2\n11 10\n30 20\n")
    (case / "match_idx.txt").write_text("0 0\n1 1\n")
    (case / "gt_location.txt").write_text("1\n10 10 11 10\n")
    source = open_source(tmp_path)
    assert (source.kind, len(source), source.has_poses) == ("MULTI", 1, False)
    assert source[0].inlier.tolist() == [True, False]


def test_what_is_no_source(tmp_path):
    with pytest.raises(InputError, match="source: expected a file or folder, there is no"):
        open_source(tmp_path / "nothing")
    with pytest.raises(InputError, match="source: expected posed scenes .* none of these"):
        open_source(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match="none of these"):
        open_source(tmp_path / "a.png")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="source: expected at least one pair"):
        open_source(tmp_path / "empty.txt")
    with pytest.raises(InputError, match="limit: expected at least 1, got 0"):
        MatchSettings(limit=0)
    with pytest.raises(InputError, match="detector: "):
        MatchSettings(detector="surf")


def test_rescaling_keeps_rays():
    matches = make_problem().matches
    assert torch.allclose(rescaled(matches, 1600).normalized(), matches.normalized(), atol=1e-9)
    with pytest.raises(InputError, match="longest_side: "):
        rescaled(Correspondences([[1, 2]], [[3, 4]]), 1600)
