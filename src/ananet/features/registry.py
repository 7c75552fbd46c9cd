"""Images to keypoints with descriptors, and keypoints to putative matches.

A new detector is one file with a subclass of `Detector`, and one line here; so is a new `Matcher`.
"""

from __future__ import annotations

from typing import Any

import torch

from ananet._util.defaults import DETECTOR
from ananet._util.devices import choose_device
from ananet._util.names import Registry
from ananet.errors import InputError
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
        "superpoint": "ananet.features.learned:SuperPoint",
        "stored": "ananet.features.stored:StoredFeatures",
    },
)
"""Detectors by name; `@DETECTORS.add` adds one."""
MATCHERS: Registry[Matcher] = Registry(
    "matcher",
    {
        "nearest": "ananet.features.matching:Nearest",
        "lightglue": "ananet.features.kornia:LightGlue",
        "lighterglue": "ananet.features.kornia:LighterGlue",
    },
)
"""Matchers by name; `@MATCHERS.add` adds one."""


def load_detector(
    detector: str = DETECTOR,
    *,
    device: str | torch.device = "auto",
    max_keypoints: int | None = None,
    **options: Any,
) -> Detector:
    """Load a detector.

    Args:
        detector: a name, with options if needed: "sift@contrast_threshold=0.01".
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... OpenCV's detectors ignore it.
        max_keypoints: number of keypoints to keep, the strongest ones; None leaves it to the detector.
        options: other settings of the detector.

    >>> load_detector("orb", max_keypoints=500)
    <detector orb@max_keypoints=500>
    """
    if max_keypoints is not None:
        options["max_keypoints"] = max_keypoints
    return DETECTORS.make(detector, options=options, device=choose_device(device))


def load_matcher(
    matcher: str = "nearest",
    *,
    detector: str = DETECTOR,
    device: str | torch.device = "auto",
    neighbours: int = 1,
    **options: Any,
) -> Matcher:
    """Load a matcher of the features of two images.

    Args:
        matcher: a name, with options if needed: "lightglue@threshold=0.2".
        detector: name of the detector of the keypoints; trained matchers support few.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... Nearest neighbours ignore it.
        neighbours: nearest neighbours per keypoint; trained matchers propose one match at most.
        options: settings of the matcher.

    >>> load_matcher("nearest", neighbours=2)
    <matcher nearest@neighbours=2>
    """
    if not isinstance(detector, str):
        raise InputError(f"detector: expected a name, got {detector!r}")
    if neighbours != 1:
        options["neighbours"] = neighbours
    return MATCHERS.make(matcher, options=options, device=choose_device(device), detector=detector.partition("@")[0])
