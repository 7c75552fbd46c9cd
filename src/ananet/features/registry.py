"""Images to keypoints with descriptors, and keypoints to putative matches.

A new detector is one file with a subclass of `Detector`, and one line here; so is a new `Matcher`.
"""

from __future__ import annotations

from typing import Any

import torch

from ananet._util.defaults import DETECTOR
from ananet._util.devices import choose_device
from ananet._util.names import Registry
from ananet.features.base import Detector
from ananet.features.matching import Matcher

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
"""Detectors by name; `@DETECTORS.add` adds one."""
MATCHERS: Registry[Matcher] = Registry(
    "matcher",
    {
        "nearest": "ananet.features.matching:Nearest",
        "lightglue": "ananet.features.lightglue:LightGlue",
        "lighterglue": "ananet.features.lightglue:LighterGlue",
    },
)
"""Matchers by name; `@MATCHERS.add` adds one."""


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


def load_matcher(
    matcher: str = "nearest",
    *,
    detector: str = DETECTOR,
    device: str | torch.device = "auto",
    neighbours: int = 1,
    **options: Any,
) -> Matcher:
    """A matcher, ready to be called with the features of two images.

    Args:
        matcher: a name; options may come with it, each after an "@": "lightglue@threshold=0.2".
        detector: whose keypoints are matched, by its name; a trained matcher knows those of few detectors.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... Nearest neighbours ignore it.
        neighbours: how many nearest neighbours of a keypoint are its matches; trained matchers propose one at most.
        options: settings of the matcher.

    >>> load_matcher("nearest", neighbours=2)
    <matcher nearest@neighbours=2>
    """
    if neighbours != 1:
        options["neighbours"] = neighbours
    return MATCHERS.make(matcher, options=options, device=choose_device(device), detector=detector.partition("@")[0])
