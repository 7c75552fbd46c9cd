"""Packed pairs: what is rounded, what is kept, and files that are damaged."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.datasets.base import LabelledPair
from ananet.datasets.formats.packed import pack_keypoints, read_columns, read_packed, unpack_keypoints, write_columns
from ananet.datasets.formats.shards import PairShards, write_index, write_table
from ananet.datasets.pack import pack_builds
from tests.datasets.formats.test_shards import scene, table_of


def packed(tmp_path, table):
    (tmp_path / "build").mkdir()
    write_table(tmp_path / "build" / "pairs.safetensors", table)
    write_index(tmp_path / "build", {"shards": ["pairs.safetensors"], "scenes": [scene("hall", table)]})
    pack_builds([tmp_path / "build"], tmp_path / "set")
    return tmp_path / "set" / "build" / "hall.xz"


def near_line(table):
    poses = zip(table.pair_rotation, table.pair_translation, strict=True)
    return torch.cat([LabelledPair.from_pose("", table.matches(n), *pose).inlier for n, pose in enumerate(poses)])


def test_sizes_and_angles_are_rounded_and_the_rest_is_kept(tmp_path):
    table = table_of(images=3, pairs=4, keypoints=200)
    found = read_packed(packed(tmp_path, table))
    assert (found.sizes / table.sizes).float().log2().abs().max() < 1 / 100
    turned = (found.angles - table.angles).float()
    assert torch.atan2(turned.sin(), turned.cos()).abs().max() < np.pi / 1024 + 0.004
    near = near_line(found)
    assert near.any() and not near.all()
    expected = replace(table, known=table.known & near, right=table.right & near)
    rounded = ("sizes", "angles")
    for name in (field.name for field in fields(table) if field.name not in rounded):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_truth_by_depth_is_kept(tmp_path):
    table = table_of(images=2, pairs=3, keypoints=300)
    found = PairShards(packed(tmp_path, table).parent)
    rounded = replace(table, **unpack_keypoints(pack_keypoints(table)))
    for number, pair in enumerate(found):
        pose = rounded.pair_rotation[number], rounded.pair_translation[number]
        expected = LabelledPair.from_pose("", rounded.matches(number), *pose, **rounded.depth_labels(number))
        assert torch.equal(pair.inlier, expected.inlier) and pair.hard == expected.hard
        for ours, theirs in zip(pair.truth(), expected.truth(), strict=True):
            assert torch.equal(ours, theirs)
        assert pair.paths is None


def test_sizes_and_angles_may_be_unknown(tmp_path):
    table = table_of(images=2, pairs=1, keypoints=50, known=False)
    found = read_packed(packed(tmp_path, replace(table, angles=table.angles.clone())))
    assert found.sizes.isnan().all() and found.angles.isnan().all()


def test_rounding_twice_changes_nothing():
    table = table_of(images=2, pairs=1, keypoints=500)
    points = table.points - 250
    once = replace(table, **unpack_keypoints(pack_keypoints(replace(table, points=points))))
    twice = unpack_keypoints(pack_keypoints(once))
    assert all(torch.equal(values, getattr(once, name)) for name, values in twice.items())


def test_damaged_files_are_refused(tmp_path):
    file = packed(tmp_path, table_of(images=2, pairs=1, keypoints=50))
    whole, columns = file.read_bytes(), read_columns(file)
    photos = file.parent.parent / "photos" / file.name
    for content in (whole[:-20], b"nothing", b""):
        file.write_bytes(content)
        with pytest.raises(InputError, match="not a file of packed pairs"):
            PairShards(file.parent)
    for change in (
        {"photo": columns["photo"] + 9},
        {"step": columns["step"] + 1},
        {"index": columns["index"][:, 1:]},
        {"flags": columns["flags"][1:]},
    ):
        write_columns(file, columns | change)
        with pytest.raises(InputError, match="hall.xz"):
            PairShards(file.parent)
    photos.unlink()
    with pytest.raises(InputError, match="no such file"):
        read_packed(file)
