"""Data: photos with known cameras, labelled pairs, and training batches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ananet.datasets.base import Batch, HomographyPair, LabelledPair, PosedImage, PosedPair, PosedScene
    from ananet.datasets.batches import BatchSettings, PairBatches
    from ananet.datasets.build import BuildSettings, build_pairs
    from ananet.datasets.labels import LabelRule
    from ananet.datasets.sfm import Reconstruction, reconstruct
    from ananet.datasets.sources import SOURCES, HomographyPhotos, PosedPhotos, Source, StoredPairs, open_source
    from ananet.datasets.synthetic import SyntheticBatch, SyntheticSettings, synthesize

__all__ = [
    "SOURCES", "Batch", "BatchSettings", "BuildSettings", "HomographyPair", "HomographyPhotos", "LabelRule",
    "LabelledPair", "PairBatches", "PosedImage", "PosedPair", "PosedPhotos", "PosedScene", "Reconstruction", "Source",
    "StoredPairs", "SyntheticBatch", "SyntheticSettings", "build_pairs", "open_source", "reconstruct", "synthesize",
]  # fmt: skip

_MODULES = ("base", "labels", "batches", "sources", "synthetic", "build", "sfm")


def __getattr__(name: str) -> Any:
    """Import on first use: training needs neither OpenCV nor tqdm, which building pairs does."""
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"ananet.datasets.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module 'ananet.datasets' has no attribute {name!r}")
