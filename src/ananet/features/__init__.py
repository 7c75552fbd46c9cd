"""Images to keypoints with descriptors, and keypoints to putative matches."""

from ananet.features.base import Detector, Features, ImageDetector
from ananet.features.matching import Matcher, NearestNeighbours, match, nearest_neighbours
from ananet.features.registry import DETECTORS, MATCHERS, load_detector, load_matcher

__all__ = [
    "DETECTORS", "MATCHERS", "Detector", "Features", "ImageDetector", "Matcher", "NearestNeighbours", "load_detector",
    "load_matcher", "match", "nearest_neighbours",
]  # fmt: skip
