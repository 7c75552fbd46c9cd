import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ananet import InputError
from ananet.datasets.base import PairTable, join
from ananet.datasets.formats.shards import (
    FORMAT,
    INDEX,
    NEW_IN_3,
    VERSION,
    PairShards,
    nbytes,
    read_index,
    read_table,
    write_index,
    write_table,
)


def table_of(images: int, pairs: int, keypoints: int, seed: int = 0, known: bool = True) -> PairTable:
    rng = np.random.default_rng(seed)
    unknown = torch.full((images * keypoints,), float("nan"), dtype=torch.float16)
    depth_known = torch.from_numpy(rng.random(pairs * keypoints) < 0.6)
    return PairTable(
        points=torch.from_numpy(rng.uniform(0, 500, (images * keypoints, 2)).astype(np.float32)),
        sizes=torch.from_numpy(rng.uniform(2, 40, images * keypoints).astype(np.float16)) if known else unknown,
        angles=torch.from_numpy(rng.uniform(0, 6, images * keypoints).astype(np.float16)) if known else unknown,
        image_start=torch.arange(images + 1) * keypoints,
        image_camera=torch.tensor([500.0, 510, 320, 240]).repeat(images, 1),
        image_size=torch.tensor([640.0, 480]).repeat(images, 1),
        pair_images=torch.stack([torch.arange(pairs) % images, (torch.arange(pairs) + 1) % images], dim=1),
        pair_start=torch.arange(pairs + 1) * keypoints,
        pair_rotation=torch.eye(3).repeat(pairs, 1, 1),
        pair_translation=torch.tensor([0.6, 0.0, 0.8]).repeat(pairs, 1),
        index=torch.from_numpy(rng.integers(0, keypoints, pairs * keypoints).astype(np.int32)),
        ratio=torch.from_numpy(rng.integers(0, 256, pairs * keypoints).astype(np.uint8)),
        mutual=torch.from_numpy(rng.random(pairs * keypoints) < 0.5),
        known=depth_known,
        right=depth_known & torch.from_numpy(rng.random(pairs * keypoints) < 0.5),
        pair_share=torch.from_numpy(rng.random(pairs).astype(np.float32)),
    )


def scene(name: str, table: PairTable) -> dict[str, object]:
    return {
        "name": name,
        "pairs": table.pairs,
        "images": [f"{n}.jpg" for n in range(table.images)],
        "source": "/photos",
    }


@pytest.fixture
def folder(tmp_path):
    """Two shards; mutual flags of the pairs do not begin at whole bytes."""
    tables = [table_of(3, 4, 13, seed=1), table_of(2, 1, 21, seed=2, known=False), table_of(2, 2, 5, seed=3)]
    write_table(tmp_path / "pairs-000.safetensors", join(tables[:2]))
    write_table(tmp_path / "pairs-001.safetensors", tables[2])
    scenes = [scene(name, table) for name, table in zip("abc", tables, strict=True)]
    write_index(tmp_path, {"shards": ["pairs-000.safetensors", "pairs-001.safetensors"], "scenes": scenes})
    return tmp_path


def test_a_pair_alone_is_what_the_table_holds(folder):
    pairs = PairShards(folder)
    table = pairs.table()
    table.check("joined")
    assert len(pairs) == table.pairs == 7 and pairs.scenes == ["a", "b", "c"]
    assert pairs.pair_scene.tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert pairs.scene_of_pairs() == [pair.scene for pair in pairs] == list("aaaabcc")
    for number, pair in enumerate(pairs):
        rows = slice(*table.pair_start[number : number + 2].tolist())
        first, second = table.image_start[table.pair_images[number]].tolist()
        index = table.index[rows].long()
        count = len(index)
        assert np.array_equal(pair.matches.points0, table.points[first : first + count])
        assert np.array_equal(pair.matches.points1, table.points[second + index])
        assert np.array_equal(pair.matches.mutual, table.mutual[rows])
        np.testing.assert_allclose(pair.matches.ratio, table.ratio[rows].float() / 255, rtol=1e-6)
        assert np.array_equal(pair.matches.indices, torch.stack([torch.arange(count), index], dim=1))
        if number == 4:
            assert pair.matches.keypoint_sizes0 is None and pair.matches.angles1 is None
        else:
            assert np.array_equal(pair.matches.keypoint_sizes0, table.sizes[first : first + count].float())
            assert np.array_equal(pair.matches.angles1, table.angles[second + index].float())
        assert pair.matches.image_size1 == (640, 480) and pair.matches.K0[1, 1] == 510


def test_pairs_know_their_names_and_photos(folder):
    pairs = PairShards(folder)
    assert [pairs[number].name for number in (0, 2, 4, 6)] == [
        "a/0.jpg-1.jpg", "a/2.jpg-0.jpg", "b/0.jpg-1.jpg", "c/1.jpg-0.jpg",
    ]  # fmt: skip
    assert [str(path) for path in pairs[6].paths] == ["/photos/1.jpg", "/photos/0.jpg"]
    for number in (7, -1):
        with pytest.raises(IndexError):
            pairs[number]


def test_it_travels_to_another_process(folder):
    pairs = PairShards(folder)
    before = pairs[5]
    assert np.array_equal(pickle.loads(pickle.dumps(pairs))[5].matches.points1, before.matches.points1)


def test_sizes_on_disk(tmp_path):
    """At most 7 KB a pair at 2000 matches, and 24 KB an image."""
    n = 2000
    table, more_pairs, more_images = table_of(2, 1, n), table_of(2, 11, n), table_of(12, 1, n)
    assert (nbytes(more_pairs) - nbytes(table)) / 10 <= 7_000
    assert (nbytes(more_images) - nbytes(table)) / 10 <= 24 * 1024
    write_table(tmp_path / "a.safetensors", table)
    assert (tmp_path / "a.safetensors").stat().st_size < nbytes(table) + 4096


def test_large_indices_survive_storage(tmp_path):
    table = table_of(1, 2, 60_001)
    assert table.index.max() > 2**15
    write_table(tmp_path / "a.safetensors", table)
    back = read_table(tmp_path / "a.safetensors")
    for field in fields(PairTable):
        was, now = getattr(table, field.name), getattr(back, field.name)
        assert torch.equal(was, now) and was.dtype == now.dtype, field.name


def test_the_same_pairs_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / name, table_of(2, 3, 10))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_pairs_of_before_depth_are_still_read(folder):
    """Version 2: without the columns of depth."""
    before, index = PairShards(folder).table(), read_index(folder)
    for name in index["shards"]:
        tensors = {key: value.clone() for key, value in load_file(folder / name).items() if key not in NEW_IN_3}
        save_file(tensors, folder / name, {"format": f"{FORMAT} 2"})
    write_index(folder, index | {"version": 2})
    pairs = PairShards(folder)
    table = pairs.table()
    assert not table.known.any() and not table.right.any() and table.pair_share.isnan().all()
    assert torch.equal(table.points, before.points) and torch.equal(table.index, before.index)
    assert all(pair.known is None and pair.right is None and pair.share is None for pair in pairs)


def test_labels_by_depth_are_those_of_the_table(folder):
    pairs = PairShards(folder)
    table = pairs.table()
    assert torch.equal(torch.cat([pair.known for pair in pairs]), table.known)
    assert torch.equal(torch.cat([pair.right for pair in pairs]), table.right)
    assert [pair.share for pair in pairs] == table.pair_share.tolist()


def test_wrong_indices(tmp_path):
    with pytest.raises(InputError, match="no training pairs here"):
        PairShards(tmp_path)
    assert read_index(tmp_path) is None
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(InputError, match="not a JSON file"):
        PairShards(tmp_path)
    good = {"format": FORMAT, "version": VERSION, "shards": [], "scenes": []}
    for wrong, message in (
        ([], "expected format"),
        ({"format": "else"}, "expected format"),
        (good | {"version": 1}, "version 2 or 3; build the pairs again"),
        (good | {"shards": [3]}, "expected scenes with names"),
        (good | {"scenes": None}, "expected scenes with names"),
        (good | {"scenes": [{"name": "a", "pairs": "many", "images": []}]}, "expected scenes with names"),
        (good | {"scenes": [{"name": "a", "pairs": 1, "images": [1]}]}, "expected scenes with names"),
        (good | {"scenes": [{"name": "a", "pairs": -1, "images": []}]}, "expected scenes with names"),
        (good | {"scenes": [{"name": "a", "pairs": True, "images": []}]}, "expected scenes with names"),
    ):
        (tmp_path / INDEX).write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=message):
            PairShards(tmp_path)


def test_wrong_shards(folder):
    path = folder / "pairs-001.safetensors"
    whole = path.read_bytes()
    index = read_index(folder)
    for broken, message in ((b"no", "not a shard"), (whole[:-5], "not a shard")):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=message):
            PairShards(folder)
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        PairShards(folder)
    path.write_bytes(whole)
    write_index(folder, index | {"scenes": index["scenes"][:2]})
    with pytest.raises(InputError, match="counts 5 pairs, the shards hold 7"):
        PairShards(folder)


def test_damaged_numbers_are_told(folder):
    table = read_table(folder / "pairs-001.safetensors")
    write_table(folder / "pairs-001.safetensors", replace(table, index=table.index + 3))
    pairs = PairShards(folder)
    assert len(pairs[0].matches) == 13, "the others can be read"
    with pytest.raises(InputError, match="matches refer to keypoints that are not there"):
        pairs[5]
    with pytest.raises(InputError, match="matches refer to keypoints that are not there"):
        pairs.table()


def test_index_and_shards_count_the_same_images(folder):
    index = read_index(folder)
    index["scenes"][1]["images"].append("more.jpg")
    write_index(folder, index)
    with pytest.raises(InputError, match="names 8 images, the shards hold 7"):
        PairShards(folder)


def rewrite(path, **changed) -> None:
    """The same shard with some columns as they should not be."""
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    save_file(tensors | changed, path, {"format": f"{FORMAT} {VERSION}"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"points": torch.zeros(10, 3)}, r"expected points as F32 of shape \(N, 2\), got F32 of shape \(10, 3\)"),
        ({"points": torch.zeros(10, 2).double()}, "expected points as F32"),
        ({"index": torch.zeros(10, 1, dtype=torch.int16)}, "expected index as I16"),
        ({"image_start": torch.tensor([[0, 5, 10]])}, "expected image_start as I64"),
        ({"more": torch.zeros(1)}, r"beside them: \['more'\]"),
        ({"angles": torch.zeros(9).half()}, "expected 10 entries of angles, got 9"),
        ({"mutual": torch.zeros(3, dtype=torch.uint8)}, "expected 16 entries of mutual, got 24"),
        ({"image_start": torch.tensor([0, 12, 10])}, "image_start does not fit"),
        ({"image_start": torch.tensor([0, -(2**63), 10])}, "image_start does not fit"),
        ({"pair_start": torch.tensor([0, 5, 11])}, "pair_start does not fit"),
        ({"pair_start": torch.tensor([5, 5, 10])}, "pair_start does not fit"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_columns_that_contradict_each_other_are_told_when_a_shard_is_opened(folder, changed, message):
    rewrite(folder / "pairs-001.safetensors", **changed)
    for read in (PairShards, lambda folder: read_table(folder / "pairs-001.safetensors")):
        with pytest.raises(InputError, match=message):
            read(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pair_images": torch.tensor([[-1, 1], [1, 0]], dtype=torch.int32)}, "images that are not there"),
        ({"pair_images": torch.tensor([[0, 2], [1, 0]], dtype=torch.int32)}, "images that are not there"),
        ({"index": torch.full((10,), -1, dtype=torch.int16)}, "keypoints that are not there"),
        ({"index": torch.full((10,), 5, dtype=torch.int16)}, "keypoints that are not there"),
        ({"pair_start": torch.tensor([0, 6, 10])}, "keypoints that are not there"),
        ({"pair_translation": torch.zeros(2, 3)}, "no pose|length 1, got 0"),
        ({"pair_rotation": torch.full((2, 3, 3), float("nan"))}, "no pose|NaN"),
        ({"image_camera": torch.zeros(2, 4)}, "pair 0: K0: expected positive|positive focal lengths"),
        ({"image_size": torch.zeros(2, 2)}, "pair 0: image_size0: expected|positive image_size"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_no_pair_reads_what_is_not_its_own(folder, changed, message):
    rewrite(folder / "pairs-001.safetensors", **changed)
    pairs = PairShards(folder)
    assert len(pairs[0].matches) == 13, "the others can be read"
    with pytest.raises(InputError, match=message):
        pairs[5]
    with pytest.raises(InputError, match=message):
        pairs.table()


def test_a_pair_of_another_scene_is_told(folder):
    images = load_file(folder / "pairs-000.safetensors")["pair_images"].clone()
    images[0, 1] = 4
    rewrite(folder / "pairs-000.safetensors", pair_images=images)
    with pytest.raises(InputError, match="pair 0 refers to images of another scene than 'a'"):
        PairShards(folder)[0]


def test_fingerprints_tell_builds_apart_wherever_they_lie(folder, tmp_path_factory):
    was = PairShards(folder).fingerprint()
    moved = tmp_path_factory.mktemp("elsewhere") / "pairs"
    shutil.copytree(folder, moved)
    index = read_index(moved)
    scenes = index["scenes"]
    write_index(moved, index | {"source": "/else", "scenes": [scene | {"source": "/else"} for scene in scenes]})
    assert PairShards(moved).fingerprint() == was
    other = [scene | {"images": [f"x{name}" for name in scene["images"]]} for scene in scenes]
    for changed in (
        {"settings": {"max_keypoints": 9}},
        {"scenes": [scene | {"matches": 9} for scene in scenes]},
        {"scenes": other},
    ):
        write_index(moved, index | changed)
        assert PairShards(moved).fingerprint() != was


def test_shards_are_read_without_opencv(folder):
    """Training machines have torch, numpy and safetensors alone."""
    code = (
        "import sys\n"
        "for name in ('cv2', 'h5py', 'tqdm', 'matplotlib', 'poselib', 'pycolmap'): sys.modules[name] = None\n"
        "from ananet.datasets.sources import open_stored_pairs\n"
        "from ananet.datasets.batches import BatchSettings, PairBatches\n"
        "import ananet.networks, ananet.datasets.synthetic\n"
        f"print(PairBatches(open_stored_pairs({str(folder)!r}), BatchSettings(2, 10))[0].matches.shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([2, 10, 4])" in done.stdout
