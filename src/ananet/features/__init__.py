"""Images to keypoints with descriptors, and descriptors to nearest-neighbour matches.

A new detector is one file with a subclass of `Detector`, and one line here.
"""

from __future__ import annotations

from typing import Any

import torch

from ananet.defaults import DETECTOR
from ananet.devices import choose_device
from ananet.features.base import Detector, Features
from ananet.features.matching import NearestNeighbours, match, nearest_neighbours
from ananet.names import Registry

DETECTORS: Registry[Detector] = Registry(
    "detector",
    {
        "sift": "ananet.features.opencv:SIFT",
        "orb": "ananet.features.opencv:ORB",
        "aliked": "ananet.features.kornia:ALIKED",
        "disk": "ananet.features.kornia:DISK",
        "xfeat": "ananet.features.kornia:XFeat",
        "superpoint": "ananet.features.superpoint:SuperPoint",
        "stored": "ananet.features.stored:StoredFeatures",
    },
)

__all__ = [
    "DETECTORS",
    "Detector",
    "Features",
    "NearestNeighbours",
    "load_detector",
    "match",
    "nearest_neighbours",
]


def load_detector(detector: str = DETECTOR, *, device: str | torch.device = "auto", **options: Any) -> Detector:
    """A detector, ready to be called.

    Args:
        detector: a name; options may come with it, each after an "@": "sift@contrast_threshold=0.01".
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... OpenCV's detectors ignore it.
        options: settings of the detector, such as `max_keypoints`.

    >>> load_detector("orb", max_keypoints=500)
    <detector orb@max_keypoints=500>
    """
    return DETECTORS.make(detector, options=options, device=choose_device(device))
