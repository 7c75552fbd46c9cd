"""Trained weights that come with the package: safetensors files, and an index with their checksums."""

from ananet.weights.index import bundled, bundled_path, weight_file

__all__ = ["bundled", "bundled_path", "weight_file"]
