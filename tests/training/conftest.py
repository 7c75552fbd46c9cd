"""Small training pairs of two scenes, and validation pairs of a third."""

from pathlib import Path

import pytest

from ananet.datasets.batches import BatchSettings
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.networks import ANANetSettings
from ananet.training.settings import TrainSettings
from tests.datasets.depth_pairs import pair_with_depth, write_pairs
from tests.datasets.scenes import write_scene

SMALL = ANANetSettings(blocks=1, width=16, heads=2)
SEEDS = (("a", 0), ("b", 20))


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    build = BuildSettings(max_keypoints=200, min_parallax=0.5)
    for name, seed in SEEDS:
        write_scene(folder / "train" / name, images=3, seed=seed)
    write_scene(folder / "val", images=2, seed=40)
    build_pairs(folder / "train", folder / "pairs", build, progress=False)
    build_pairs(folder / "val", folder / "validation", build, progress=False)
    return folder


@pytest.fixture(scope="session")
def depth_data(tmp_path_factory) -> Path:
    """Pairs of two scenes with labels by depth, one pair of each without a common view."""
    shares = (0.0, 0.3, 0.6)
    scenes = {name: [pair_with_depth(share, seed=seed + n) for n, share in enumerate(shares)] for name, seed in SEEDS}
    return write_pairs(tmp_path_factory.mktemp("depth") / "pairs", scenes)


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
