"""Learned detectors and matchers to test with: with trained weights where ANANET_WEIGHTS has them, else random ones."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ananet.features import Detector, load_detector
from ananet.features.learned import SuperPointNetwork, find_weights

WEIGHTS_OF = {"aliked": "aliked-n16", "disk": "disk-depth", "xfeat": "xfeat", "superpoint": "superpoint_v1"}


def random_network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "superpoint":
        return SuperPointNetwork()
    feature = pytest.importorskip("kornia.feature")
    return {"aliked": feature.ALIKED, "disk": feature.DISK, "xfeat": lambda: feature.XFeat().net}[name]()


def random_detector(name: str, folder: Path, **options) -> Detector:
    """A detector of the right architecture that takes every maximum of its random map for a keypoint."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        save_file(random_network(name).state_dict(), path)
    return load_detector(name, weights=path, device="cpu", **{"threshold": 0.0} | options)


def random_matcher(keypoints: str, layers: int = 2) -> torch.nn.Module:
    """kornia's LightGlue for these keypoints, with few layers, that takes every match of its random scores."""
    torch.manual_seed(0)
    light_glue = pytest.importorskip("kornia.feature").LightGlue
    settings = light_glue.default_conf | light_glue.features[keypoints]
    settings |= {"weights": None, "n_layers": layers, "filter_threshold": 0.0}
    return light_glue(None, **settings).eval()


def trained_detector(name: str, **options) -> Detector:
    if not os.environ.get("ANANET_WEIGHTS") or find_weights(WEIGHTS_OF[name]) is None:
        pytest.skip(f"ANANET_WEIGHTS has no weights of {name}")
    if name != "superpoint":
        pytest.importorskip("kornia")
    return load_detector(name, device="cpu", **options)


def nearest(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[N x 2] the step from each point to the nearest of the others."""
    steps = others[None] - points[:, None]
    return np.take_along_axis(steps, np.abs(steps).max(2).argmin(1)[:, None, None], axis=1)[:, 0]


def shapes(width: int, height: int, seed: int = 0) -> np.ndarray:
    """A picture full of corners, which trained networks look for."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width, 3), 128, np.uint8)
    for _ in range(120):
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 6)))
        corners = rng.uniform((0, 0), (width, height)) + rng.uniform(20, 70) * np.stack(
            [np.cos(angles), np.sin(angles)], axis=1
        )
        # The last argument says that four bits of the coordinates are behind the point.
        cv2.fillPoly(image, [np.int32(corners * 16)], rng.integers(0, 256, 3).tolist(), cv2.LINE_AA, 4)
    return cv2.GaussianBlur(image, (0, 0), 0.8)
