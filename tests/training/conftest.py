"""Small training pairs of two scenes, and validation pairs of a third."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ananet.datasets.batches import BatchSettings
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.formats.shards import PairShards, write_table
from ananet.networks import ANANetSettings
from ananet.training.settings import TrainSettings
from tests.datasets.scenes import write_scene

SMALL = ANANetSettings(blocks=1, width=16, heads=2)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    build = BuildSettings(max_keypoints=200, min_consistent=15, min_parallax=0.5)
    for name, seed in (("a", 0), ("b", 20)):
        write_scene(folder / "train" / name, images=3, seed=seed)
    write_scene(folder / "val", images=2, seed=40)
    build_pairs(folder / "train", folder / "pairs", build, progress=False)
    build_pairs(folder / "val", folder / "validation", build, progress=False)
    return folder


def write_depth(pairs: Path) -> None:
    """Give stored pairs labels by depth: some right, accidental and unknown; the last pair has nothing in common."""
    stored = PairShards(pairs)
    (path,), table = stored.shards, stored.table()
    near = torch.cat([pair.inlier for pair in stored])
    number = torch.arange(len(near))
    known, right = number % 3 > 0, near & (number % 3 == 1)
    share, last = torch.full((table.pairs,), 0.6), table.pair_start[-2]
    known[last:], right[last:], share[-1] = True, False, 0.0
    write_table(path, replace(table, known=known, right=right, pair_share=share))


@pytest.fixture(scope="session")
def depth_data(data, tmp_path_factory) -> Path:
    """The same pairs with labels by depth."""
    folder = tmp_path_factory.mktemp("depth")
    for name in ("pairs", "validation"):
        shutil.copytree(data / name, folder / name)
    write_depth(folder / "pairs")
    return folder


@pytest.fixture
def settings(data) -> TrainSettings:
    return TrainSettings(
        pairs=str(data / "pairs"),
        validation=str(data / "validation"),
        calibration_scenes=("b",),
        steps=8,
        warmup=2,
        validate_every=4,
        checkpoint_every=3,
        log_every=2,
        synthetic_share=0.5,
        network=SMALL,
        batches=BatchSettings(batch_size=4, matches=128),
    )
