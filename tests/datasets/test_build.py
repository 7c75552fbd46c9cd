import multiprocessing
import os
import random
import subprocess
import sys
import time
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.datasets import build
from ananet.datasets.base import PosedPair
from ananet.datasets.build import BuildSettings, build_pairs, spread_over_shares
from ananet.datasets.formats.colmap import read_posed_scene
from ananet.datasets.formats.shards import INDEX, PairShards, read_index
from ananet.datasets.photos import photo_features
from ananet.features import load_detector, match
from ananet.io.files import only_process
from ananet.io.images import read_image
from tests.datasets.scenes import write_scene

SETTINGS = BuildSettings(max_keypoints=400, min_parallax=0.5)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_scene(folder / "walls", images=4, seed=0)
    write_scene(folder / "other", images=3, seed=7, pairs=[("000.png", "001.png"), ("002.png", "000.png")])
    return folder


@pytest.fixture(scope="module")
def pairs(scenes, tmp_path_factory) -> PairShards:
    out = tmp_path_factory.mktemp("out") / "pairs"
    build_pairs(scenes, out, SETTINGS, progress=False)
    return PairShards(out)


def test_labels_come_out_right(pairs):
    for pair in pairs:
        sure = pair.matches.mutual & (pair.matches.ratio < 0.7)
        assert sure.sum() > 20
        assert pair.inlier[sure].float().mean() > 0.9, pair.name


def test_both_directions_and_prescribed_pairs(pairs):
    names = [pair.name for pair in pairs]
    assert names[:2] == ["other/000.png-001.png", "other/002.png-000.png"]
    walls = {name.removeprefix("walls/") for name in names[2:]}
    assert walls == {"-".join(reversed(name.split("-"))) for name in walls}
    assert len(walls) >= 6


def test_stored_pairs_are_what_matching_gives(pairs, scenes):
    pair, detector = pairs[0], load_detector("sift", max_keypoints=400)
    first, second = (detector.detect(read_image(scenes / "other/images" / n)) for n in ("000.png", "001.png"))
    fresh = match(first, second, K0=pair.matches.K0, K1=pair.matches.K1)
    np.testing.assert_array_equal(pair.matches.points1, fresh.points1)
    np.testing.assert_allclose(pair.matches.ratio, fresh.ratio, atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(pair.matches.mutual, fresh.mutual)
    for name in ("keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1"):
        torch.testing.assert_close(getattr(pair.matches, name), getattr(fresh, name), rtol=1e-3, atol=1e-3)
    assert np.array_equal(pair.matches.indices, fresh.indices)
    assert pair.paths[0].exists()


def test_every_scale_adds_pairs_of_its_own(pairs, scenes, tmp_path):
    settings = replace(SETTINGS, scales=(1.0, 0.6))
    index = build_pairs(scenes, tmp_path, settings, progress=False)
    both = PairShards(tmp_path)
    assert index["images"] == 7
    of_other = [pair for pair in both if pair.name.startswith("other/")]
    assert [pair.name for pair in of_other] == ["other/000.png-001.png", "other/002.png-000.png"] * 2
    full, small = of_other[0], of_other[2]
    assert np.array_equal(full.matches.points0, pairs[0].matches.points0)
    assert not np.array_equal(full.matches.points0, small.matches.points0[: len(full.matches)])
    # Cameras and sizes stay those of the photo, and small photos have the same geometry.
    assert np.array_equal(full.matches.K0, small.matches.K0)
    assert full.matches.image_size0 == small.matches.image_size0
    sure = small.matches.mutual & (small.matches.ratio < 0.7)
    assert sure.sum() > 20 and small.inlier[sure].float().mean() > 0.9
    assert build_pairs(scenes, tmp_path, settings, progress=False) == read_index(tmp_path)  # complete already


def test_building_again_gives_the_same_bytes(scenes, tmp_path):
    for name, workers in (("a", 1), ("b", 3)):
        build_pairs(scenes, tmp_path / name, SETTINGS, progress=False, workers=workers)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == [INDEX, "pairs-000.safetensors"]
    assert (tmp_path / "a" / files[1]).read_bytes() == (tmp_path / "b" / files[1]).read_bytes()


def test_an_interrupted_build_goes_on(scenes, tmp_path, monkeypatch):
    real = build._build_scene
    built = []

    def stops_at_second(name, *rest):
        if built:
            raise KeyboardInterrupt
        built.append(name)
        real(name, *rest)

    monkeypatch.setattr(build, "_build_scene", stops_at_second)
    with pytest.raises(KeyboardInterrupt):
        build_pairs(scenes, tmp_path / "out", SETTINGS, progress=False)
    assert {p.name for p in (tmp_path / "out").iterdir()} - {".lock"} == {build.STAGING}
    assert (tmp_path / "out" / build.STAGING / "00000.json").exists()
    with pytest.raises(InputError, match="no training pairs here"):
        PairShards(tmp_path / "out")

    again = []
    monkeypatch.setattr(build, "_build_scene", lambda name, *rest: (again.append(name), real(name, *rest)))
    index = build_pairs(scenes, tmp_path / "out", SETTINGS, progress=False)
    assert built == ["other"] and again == ["walls"]
    assert index["pairs"] == len(PairShards(tmp_path / "out"))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [INDEX, "pairs-000.safetensors"]


def test_an_unfinished_build_with_other_settings_is_not_mixed_in(scenes, tmp_path, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(build, "_build_scene", stops)
        build_pairs(scenes, tmp_path, SETTINGS, progress=False)
    with pytest.raises(InputError, match="an unfinished build with other scenes or settings is here"):
        build_pairs(scenes, tmp_path, replace(SETTINGS, seed=1), progress=False)


def test_two_builds_do_not_write_to_one_folder(scenes, tmp_path):
    with only_process(tmp_path), pytest.raises(InputError, match="another process is writing here"):
        build_pairs(scenes / "other", tmp_path, SETTINGS, progress=False)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom ananet.io.files import only_process\n"
        f"with only_process(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another process is writing here"):
            build_pairs(scenes / "other", tmp_path, SETTINGS, progress=False)
        other.kill()
    assert build_pairs(scenes / "other", tmp_path, SETTINGS, progress=False)["pairs"] == 2


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="processes start slowly here")
def test_a_build_that_is_killed_at_any_moment_does_not_block_the_next(scenes, tmp_path):
    source = scenes / "other"
    expected = build_pairs(source, tmp_path / "whole", SETTINGS, progress=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ananet.datasets.build"])
    draw = random.Random(0)
    # Most of them early: a build that has its folder, its lock or its first file alone.
    for number, latest in enumerate((0.0, 0.01, 0.03, 0.1, 0.5, 1.5)):
        out = tmp_path / str(number)
        killed = context.Process(target=build_pairs, args=(source, out, SETTINGS), kwargs={"progress": False})
        killed.start()
        end = time.monotonic() + 60
        while number and not out.exists() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, latest))
        killed.kill()
        killed.join()
        again = build_pairs(source, out, SETTINGS, progress=False)
        assert again["scenes"] == expected["scenes"]
        assert sorted(path.name for path in out.iterdir()) == [INDEX, "pairs-000.safetensors"]
        for name in again["shards"]:
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_a_killed_build_was_writing_is_removed(scenes, tmp_path):
    (tmp_path / ".pairs-000-0123abcd.safetensors").write_bytes(b"half")
    build_pairs(scenes / "other", tmp_path, SETTINGS, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX, "pairs-000.safetensors"]


def test_the_index_says_what_the_pairs_were_made_of(pairs, scenes):
    assert pairs.index["source"] == str(scenes) and pairs.index["scene_names"] == pairs.scenes == ["other", "walls"]
    assert pairs.index["settings"]["max_keypoints"] == 400 and pairs.index["settings"]["scales"] == [1.0]
    assert pairs.index["scenes"][1]["images"] == [f"{number:03d}.png" for number in range(4)]


def test_pair_lists_are_built_as_well(scenes, tmp_path):
    images = read_posed_scene(scenes / "other").images
    rows = []
    for first, second in (("000.png", "001.png"), ("000.png", "002.png")):
        R, t = PosedPair(images[first], images[second]).relative_pose()
        pose = np.vstack([np.column_stack([R, t]), [0, 0, 0, 1]])
        numbers = " ".join(repr(float(v)) for a in (images[first].K, images[second].K, pose) for v in a.ravel())
        rows.append(f"images/{first} images/{second} {numbers}\n")
    (tmp_path / "list.txt").write_text("".join(rows))
    (tmp_path / "images").symlink_to(scenes / "other" / "images")
    index = build_pairs(tmp_path / "list.txt", tmp_path / "out", SETTINGS, progress=False)
    assert index["scene_names"] == ["images"] and index["images"] == 3
    built = PairShards(tmp_path / "out")
    assert [pair.name for pair in built] == ["images/000.png-001.png", "images/000.png-002.png"]
    for pair in built:
        sure = pair.matches.mutual & (pair.matches.ratio < 0.7)
        assert sure.sum() > 20 and pair.inlier[sure].float().mean() > 0.9
        assert pair.paths[0].exists()


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> PairShards:
    """A scene with photos enough for depth, and look-alikes behind the camera."""
    folder = tmp_path_factory.mktemp("deep")
    write_scene(folder / "walls", images=6, behind=4)
    build_pairs(folder, folder / "out", replace(SETTINGS, empty_pairs=0.3), progress=False)
    return PairShards(folder / "out")


def test_depth_tells_right_from_accidental(deep):
    """The walls' depths are known exactly: what the labels say must be so."""
    usual = [pair for pair in deep if pair.share]
    known = right = wrong = accidental = 0
    for pair in usual:
        sure = pair.inlier.numpy() & pair.matches.mutual & (pair.matches.ratio < 0.7)
        assert pair.right[sure].float().mean() > 0.6
        assert not (pair.right & ~pair.known).any()
        error = true_error(pair)
        known += int((pair.known & pair.inlier).sum())
        right += int(pair.right.sum())
        wrong += int((pair.right & (error > 5)).sum())
        accidental += int((pair.known & ~pair.right & (error < 1)).sum())
    assert known > 0.6 * sum(int(pair.inlier.sum()) for pair in usual)
    assert right > 1000 and wrong < 0.01 * right and accidental < 0.02 * right


def true_error(pair) -> torch.Tensor:
    """Pixels from the second point to where either wall would have the first; the nearer of the two."""
    first, second = (int(path.stem) for path in pair.paths)
    poses = list(read_posed_scene(pair.paths[0].parent.parent).images.values())
    R, t = PosedPair(poses[first], poses[second]).relative_pose()
    K, matches = torch.from_numpy(poses[0].K), pair.matches._as_tensors()
    rays = torch.cat([matches.points0, torch.ones(len(matches), 1)], dim=1).double() @ torch.linalg.inv(K).T
    own = torch.from_numpy(poses[first].R), torch.from_numpy(poses[first].t)
    errors = []
    for depth in (4.0, 6.0):
        sign = -1 if first >= 6 else 1
        # The wall z = depth in the world: n . X = d, seen from the first camera.
        normal, distance = own[0][:, 2], sign * depth + (own[0][:, 2] * own[1]).sum()
        points = rays * (distance / (rays @ normal))[:, None]
        seen = (points @ R.T + t) @ K.T
        errors.append((seen[:, :2] / seen[:, 2:] - matches.points1).norm(dim=1))
    return torch.minimum(*errors)


def test_pairs_without_common_view_are_all_wrong(deep):
    empty = [pair for pair in deep if pair.share == 0]
    assert empty and deep.index["scenes"][0]["empty_pairs"] == len(empty)
    for pair in empty:
        first, second = (int(path.stem) for path in pair.paths)
        assert (first < 6) != (second < 6), "one from each side"
        assert pair.known.all() and not pair.right.any()
        assert (pair.matches.mutual & (pair.matches.ratio < 0.7)).sum() > 50, "they look alike"


def test_shares_of_common_view(deep):
    usual = {tuple(int(path.stem) for path in pair.paths): pair.share for pair in deep if pair.share}
    assert all((a < 6) == (b < 6) and usual[b, a] == share for (a, b), share in usual.items())
    assert usual[0, 1] > usual[0, 3] > usual[0, 5] > 0.1
    facts = deep.index["scenes"][0]
    assert sum(facts["pairs_by_share"]) == len(usual)
    assert 0 < facts["accidental"] < facts["known"] < facts["near_line"]


def test_lists_of_pairs(scenes, tmp_path):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "other.txt").write_text("001.png 002.png\n")
    settings = replace(SETTINGS, pair_lists=str(tmp_path / "lists"))
    build_pairs(scenes / "other", tmp_path / "a", settings, progress=False)
    assert [pair.name for pair in PairShards(tmp_path / "a")] == ["other/001.png-002.png"]
    assert build_pairs(scenes, tmp_path / "b", settings, progress=False)["scene_names"] == ["other"]
    with pytest.raises(InputError, match="pair_lists: expected a list for at least one scene"):
        build_pairs(scenes / "walls", tmp_path / "b", settings, progress=False)
    build_pairs(scenes / "other", tmp_path / "c", replace(SETTINGS, pair_lists="none"), progress=False)
    assert len(PairShards(tmp_path / "c")) == 6
    with pytest.raises(InputError, match="pair_lists: expected a folder"):
        replace(SETTINGS, pair_lists=str(tmp_path / "nowhere"))


def test_other_settings_do_not_mix(scenes, tmp_path):
    build_pairs(scenes / "other", tmp_path / "out", SETTINGS, progress=False)
    lines = []
    build_pairs(scenes / "other", tmp_path / "out", SETTINGS, progress=False, log=lines.append)
    assert "complete already" in lines[0]
    with pytest.raises(InputError, match="other scenes or settings"):
        build_pairs(scenes / "other", tmp_path / "out", BuildSettings(), progress=False)


def test_unreadable_photos_are_skipped_counted_and_named(tmp_path):
    folder = write_scene(tmp_path / "scene", images=4)
    (folder / "images" / "001.png").write_bytes(b"broken")
    cv2.imwrite(str(folder / "images" / "003.png"), np.zeros((240, 320, 3), np.uint8))
    lines = []
    index = build_pairs(folder, tmp_path / "out", SETTINGS, progress=False, log=lines.append)
    assert list(index["scenes"][0]["unreadable"]) == ["001.png"]
    assert "1 photo skipped" in lines[0] and "001.png" in lines[0] and "depth unknown" in lines[0]
    # A photo without keypoints is no error; it just has no pairs.
    assert index["scenes"][0]["photos"] == 4 and index["scenes"][0]["images"] == ["000.png", "002.png"]
    assert all("003" not in pair.name for pair in PairShards(tmp_path / "out"))


def test_photos_are_read_as_their_camera_was_calibrated(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    folder = write_scene(tmp_path / "scene", images=3)
    # COLMAP reads pixels as they are stored: an orientation tag that turns the photo must not turn it here.
    exif = pillow.Exif()
    exif[0x0112] = 6
    path = folder / "images" / "001.png"
    pillow.open(path).save(path, exif=exif)
    cv2.imwrite(str(folder / "images" / "002.png"), np.zeros((100, 100, 3), np.uint8))
    index = build_pairs(folder, tmp_path / "out", SETTINGS, progress=False)
    assert list(index["scenes"][0]["unreadable"]) == ["002.png"]
    assert "camera is for (320, 240) pixels" in index["scenes"][0]["unreadable"]["002.png"]
    pairs = PairShards(tmp_path / "out")
    assert len(pairs) == 2
    assert pairs[0].inlier[pairs[0].matches.mutual].float().mean() > 0.7


def test_shards_stay_below_their_limit(scenes, tmp_path):
    small = BuildSettings(max_keypoints=400, min_parallax=0.5, shard_mib=0.001)
    index = build_pairs(scenes, tmp_path / "out", small, progress=False)
    assert len(index["shards"]) == 2
    assert len(PairShards(tmp_path / "out")) == index["pairs"]


def test_a_scene_without_overlap_has_no_pairs(tmp_path):
    a, b = write_scene(tmp_path / "a", images=1, seed=3), write_scene(tmp_path / "b", images=2, seed=50)
    # Same cameras, other walls: the second photo shows something else.
    (b / "images" / "000.png").write_bytes((a / "images" / "000.png").read_bytes())
    index = build_pairs(b, tmp_path / "out", SETTINGS, progress=False)
    assert index["pairs"] == 0
    assert len(PairShards(tmp_path / "out")) == 0


def test_pairs_are_spread_over_levels_of_common_view():
    shares = {(0, n): share for n, share in enumerate([0.05] * 9 + [0.2] * 5 + [0.5] * 20 + [0.9] * 100)}
    levels = ((0.1, 1.0), (0.3, 1.0), (0.6, 2.0))

    def chosen(most):
        found = [shares[pair] for pair in spread_over_shares(shares, levels, most, np.random.default_rng(0))]
        return [found.count(share) for share in (0.05, 0.2, 0.5, 0.9)]

    assert chosen(16) == [0, 4, 4, 8]
    assert chosen(65) == [0, 5, 20, 40], "a level that has too few gives its part to the others"
    assert chosen(1000) == [0, 5, 20, 100]
    assert spread_over_shares({}, levels, 10, np.random.default_rng(0)) == []


def test_wrong_sources_and_settings(tmp_path):
    with pytest.raises(InputError, match="source: no such file or folder"):
        build_pairs(tmp_path / "none", tmp_path / "out")
    with pytest.raises(InputError, match="which is none of these"):
        build_pairs(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for wrong in (
        {"detector": "surf"},
        {"max_keypoints": 70_000},
        {"pairs_per_scene": 0},
        {"scales": (1.0, 0.0)},
        {"scales": ()},
        {"shares": ()},
        {"shares": ((0.5, 1), (0.2, 1))},
        {"shares": ((0.5, 0),)},
        {"empty_pairs": 1.5},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            BuildSettings(**wrong)


def test_scenes_keep_their_photos_and_their_names(scenes, tmp_path):
    with pytest.raises(InputError, match="out: expected another folder than that of the photos"):
        build_pairs(scenes / "other", scenes / "other", SETTINGS, progress=False)
    (tmp_path / "linked").mkdir()
    for name in ("a", "b"):
        (tmp_path / "linked" / name).symlink_to(scenes / "other")
    index = build_pairs(tmp_path / "linked", tmp_path / "out", SETTINGS, progress=False)
    assert index["scene_names"] == ["a", "b"], "not the names of what links point to"


def test_stored_features_have_one_scale(tmp_path):
    assert BuildSettings(detector=f"stored@path={tmp_path}").scales == (1.0,)
    with pytest.raises(InputError, match=r"scales: expected 1 with stored features, got \(1.0, 0.5\)"):
        BuildSettings(detector=f"stored@path={tmp_path}", scales=(1.0, 0.5))


def test_several_matches_of_a_keypoint(scenes, tmp_path):
    settings = replace(SETTINGS, neighbours=2)
    build_pairs(scenes / "other", tmp_path / "out", settings, progress=False)
    images, detector = read_posed_scene(scenes / "other").images, load_detector("sift", max_keypoints=400)
    pair = PairShards(tmp_path / "out")[0]
    first, second = (photo_features(images[name], detector).features for name in ("000.png", "001.png"))
    expected = match(first, second, neighbours=2)
    assert len(pair.matches) == len(expected) == 2 * len(first)
    for name in ("points0", "points1", "mutual"):
        torch.testing.assert_close(getattr(pair.matches, name), getattr(expected, name), check_dtype=False)
    torch.testing.assert_close(pair.matches.ratio, expected.ratio, atol=0.5 / 255, rtol=0)
    with pytest.raises(InputError, match="max_keypoints: expected a whole number from 8 to 21845, got 22000"):
        BuildSettings(max_keypoints=22_000, neighbours=3)
