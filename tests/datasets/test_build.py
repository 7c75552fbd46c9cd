import json
import os
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.datasets import build
from ananet.datasets.build import BuildSettings, CandidatePair, build_pairs, spread_over_difficulty
from ananet.datasets.formats.shards import INDEX, PairShards, join, read_index, read_table, write_table
from tests.datasets.scenes import write_scene

SETTINGS = BuildSettings(max_keypoints=400, least_consistent=15, least_parallax=0.5)


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
    from ananet.features import detect, match, read_image

    pair = pairs[0]
    first, second = (detect(read_image(scenes / "other/images" / n), max_keypoints=400) for n in ("000.png", "001.png"))
    fresh = match(first, second, K0=pair.matches.K0, K1=pair.matches.K1)
    np.testing.assert_array_equal(pair.matches.points1.numpy(), fresh.points1.numpy())
    np.testing.assert_allclose(pair.matches.ratio.numpy(), fresh.ratio.numpy(), atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(pair.matches.mutual.numpy(), fresh.mutual.numpy())
    assert pair.paths[0].exists()


def test_every_scale_adds_pairs_of_its_own(pairs, scenes, tmp_path):
    settings = replace(SETTINGS, scales=(1.0, 0.6))
    index = build_pairs(scenes, tmp_path, settings, progress=False)
    both = PairShards(tmp_path)
    assert index["images"] == 7
    of_other = [pair for pair in both if pair.name.startswith("other/")]
    assert [pair.name for pair in of_other] == ["other/000.png-001.png", "other/002.png-000.png"] * 2
    full, small = of_other[0], of_other[2]
    assert torch.equal(full.matches.points0, pairs[0].matches.points0)
    assert not torch.equal(full.matches.points0, small.matches.points0[: len(full.matches)])
    # Cameras and sizes stay those of the photo, and small photos have the same geometry.
    assert torch.equal(full.matches.K0, small.matches.K0)
    assert full.matches.size0 == small.matches.size0
    sure = small.matches.mutual & (small.matches.ratio < 0.7)
    assert sure.sum() > 20 and small.inlier[sure].float().mean() > 0.9
    assert build_pairs(scenes, tmp_path, settings, progress=False) == read_index(tmp_path)  # complete already


def test_sizes_on_disk(tmp_path):
    """At most 7 KB a pair at 2000 matches, and 16 KB an image."""
    n = 2000
    table = join([_table_of(images=2, pairs=1, keypoints=n)])
    more_pairs, more_images = _table_of(2, 11, n), _table_of(12, 1, n)
    assert (more_pairs.nbytes() - table.nbytes()) / 10 <= 7_000
    assert (more_images.nbytes() - table.nbytes()) / 10 <= 16 * 1024
    write_table(tmp_path / "a.safetensors", table)
    assert (tmp_path / "a.safetensors").stat().st_size < table.nbytes() + 4096


def _table_of(images, pairs, keypoints):
    rng = np.random.default_rng(0)
    from ananet.datasets.formats.shards import PairTable

    return PairTable(
        points=torch.rand(images * keypoints, 2),
        image_start=torch.arange(images + 1) * keypoints,
        image_camera=torch.ones(images, 4),
        image_size=torch.ones(images, 2),
        pair_images=torch.zeros(pairs, 2, dtype=torch.int64),
        pair_start=torch.arange(pairs + 1) * keypoints,
        pair_rotation=torch.eye(3).repeat(pairs, 1, 1),
        pair_translation=torch.ones(pairs, 3),
        index=torch.from_numpy(rng.integers(0, 60_000, pairs * keypoints).astype(np.int32)),
        ratio=torch.zeros(pairs * keypoints, dtype=torch.uint8),
        mutual=torch.from_numpy(rng.random(pairs * keypoints) < 0.5),
    )


def test_large_indices_survive_storage(tmp_path):
    table = _table_of(1, 2, 777)
    write_table(tmp_path / "a.safetensors", table)
    back = read_table(tmp_path / "a.safetensors")
    for name in ("index", "mutual", "pair_images", "points"):
        assert torch.equal(getattr(back, name), getattr(table, name)), name


def test_building_again_gives_the_same_bytes(scenes, tmp_path):
    for name, workers in (("a", 1), ("b", 3)):
        build_pairs(scenes, tmp_path / name, SETTINGS, progress=False, workers=workers)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == [INDEX, "pairs-000.safetensors"]
    assert (tmp_path / "a" / files[1]).read_bytes() == (tmp_path / "b" / files[1]).read_bytes()


def test_an_interrupted_build_goes_on(scenes, tmp_path, monkeypatch):
    real = build._build_scene
    built = []

    def stops_at_second(folder, *rest):
        if built:
            raise KeyboardInterrupt
        built.append(folder.name)
        real(folder, *rest)

    monkeypatch.setattr(build, "_build_scene", stops_at_second)
    with pytest.raises(KeyboardInterrupt):
        build_pairs(scenes, tmp_path / "out", SETTINGS, progress=False)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [build.STAGING]
    with pytest.raises(InputError, match="no training pairs here"):
        PairShards(tmp_path / "out")

    again = []
    monkeypatch.setattr(build, "_build_scene", lambda folder, *rest: (again.append(folder.name), real(folder, *rest)))
    index = build_pairs(scenes, tmp_path / "out", SETTINGS, progress=False)
    assert built == ["other"] and again == ["walls"]
    assert index["pairs"] == len(PairShards(tmp_path / "out"))
    assert not (tmp_path / "out" / build.STAGING).exists()


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
    assert "1 photos skipped" in lines[0] and "001.png" in lines[0]
    # A photo without keypoints is no error; it just has no pairs.
    assert "003.png" in index["scenes"][0]["images"]
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
    small = BuildSettings(max_keypoints=400, least_consistent=15, least_parallax=0.5, shard_mib=0.001)
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


def test_difficulty_is_spread():
    def pair(number):
        return CandidatePair((0, 1), None, None, None, consistent=number, parallax=9.0, inlier_ratio=0.5)

    many_easy = [pair(900)] * 100 + [pair(30)] * 5 + [pair(100)] * 5
    chosen = [p.consistent for p in spread_over_difficulty(many_easy, 15, seed=0)]
    assert len(chosen) == 15
    assert chosen.count(30) == 5 and chosen.count(100) == 5 and chosen.count(900) == 5
    assert spread_over_difficulty(many_easy, 1000, 0) == many_easy


def test_wrong_sources_and_settings(tmp_path):
    with pytest.raises(InputError, match="scenes: expected a folder"):
        build_pairs(tmp_path / "none", tmp_path / "out")
    with pytest.raises(InputError, match="found none"):
        build_pairs(tmp_path, tmp_path / "out")
    for wrong in (
        {"detector": "surf"},
        {"max_keypoints": 70_000},
        {"pairs_per_scene": 0},
        {"scales": (1.0, 0.0)},
        {"scales": ()},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            BuildSettings(**wrong)


def test_wrong_shards(tmp_path):
    with pytest.raises(InputError, match="no training pairs here"):
        PairShards(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        PairShards(tmp_path)
    (tmp_path / INDEX).write_text('{"format": "else"}')
    with pytest.raises(InputError, match="expected format"):
        PairShards(tmp_path)
    (tmp_path / INDEX).write_text(
        json.dumps({"format": "ananet-pairs", "version": 1, "shards": ["x.safetensors"], "scenes": []})
    )
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="not a shard"):
        PairShards(tmp_path)


def test_shards_read_without_opencv(pairs, scenes, tmp_path):
    """Training machines have torch, numpy and safetensors alone."""
    build_pairs(scenes / "other", tmp_path / "out", SETTINGS, progress=False)
    code = (
        "import sys\n"
        "for name in ('cv2', 'h5py', 'tqdm', 'matplotlib', 'poselib', 'pycolmap'): sys.modules[name] = None\n"
        "from ananet.datasets.formats.shards import PairShards\n"
        "from ananet.datasets.batches import BatchSettings, PairBatches\n"
        "import ananet.networks, ananet.datasets.synthetic\n"
        f"print(PairBatches(PairShards({str(tmp_path / 'out')!r}), BatchSettings(2, 100))[0].matches.shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([2, 100, 4])" in done.stdout
