"""Builds of the same photos packed together."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.cli.main import main
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.formats.shards import INDEX, PairShards, write_table
from ananet.datasets.pack import pack_builds
from tests.datasets.scenes import write_scene


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """A tiny scene with two inputs: 300 keypoints, and the strongest 200 with plain descriptors."""
    folder = tmp_path_factory.mktemp("builds")
    write_scene(folder / "walls", images=4, pairs=[("000.png", "001.png"), ("002.png", "000.png")])
    build_pairs(folder / "walls", folder / "usual", BuildSettings(max_keypoints=300), progress=False)
    plain = BuildSettings("sift@root=false", max_keypoints=200)
    build_pairs(folder / "walls", folder / "paper", plain, progress=False)
    return folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pair_set_holds_the_pairs_of_its_builds(builds, tmp_path, capsys):
    assert (
        main(["data", "pack", str(builds / "usual"), str(builds / "paper"), "-o", str(tmp_path / "set"), "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["builds"] == ["usual", "paper"]
    assert result["bytes"] == sum(map(len, contents(tmp_path / "set").values()))
    for name in ("usual", "paper"):
        before, after = PairShards(builds / name), PairShards(tmp_path / "set" / name)
        assert len(before) == len(after) == 2
        for one, other in zip(before, after, strict=True):
            assert (one.name, one.scene, one.share) == (other.name, other.scene, other.share)
            assert (one.inlier != other.inlier).float().mean() < 0.02
            assert np.array_equal(one.matches.mutual, other.matches.mutual)
            assert np.array_equal(one.matches.ratio, other.matches.ratio)
            assert np.array_equal(one.matches.indices, other.matches.indices)
            assert torch.equal(one.R, other.R) and torch.equal(one.t, other.t)
    # Nothing of the machine that built it, and keypoints once.
    assert not any(str(builds).encode() in content for content in contents(tmp_path / "set").values())


def test_the_same_builds_give_the_same_bytes(builds, tmp_path):
    for name in ("first", "second"):
        pack_builds([builds / "usual", builds / "paper"], tmp_path / name)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_keypoints_are_stored_once(builds, tmp_path):
    pack_builds([builds / "usual"], tmp_path / "alone")
    pack_builds([builds / "usual", builds / "paper"], tmp_path / "both")
    alone, both = ((tmp_path / name / "photos" / "walls.xz").stat().st_size for name in ("alone", "both"))
    assert both < 1.1 * alone


def test_builds_must_agree_on_cameras(builds, tmp_path):
    (tmp_path / "other").mkdir()
    table = PairShards(builds / "usual").table()
    write_table(tmp_path / "other" / "pairs-000.safetensors", replace(table, image_camera=table.image_camera + 1))
    shutil.copy(builds / "usual" / INDEX, tmp_path / "other")
    with pytest.raises(InputError, match=r"other: expected the camera that photo 00\d\.png of walls has"):
        pack_builds([builds / "usual", tmp_path / "other"], tmp_path / "set")


def test_names_and_places_are_checked(builds, tmp_path):
    with pytest.raises(InputError, match="different names"):
        pack_builds([builds / "usual", builds / "usual"], tmp_path / "set")
    pack_builds([builds / "usual"], tmp_path / "set")
    with pytest.raises(InputError, match="holds a pair set already"):
        pack_builds([builds / "usual"], tmp_path / "set")
