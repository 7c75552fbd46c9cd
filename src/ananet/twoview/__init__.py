"""Two photos: keypoints, matches, pruning, overlap, refinement, pose, pictures; what many pairs say of each other."""

from ananet.twoview.cameras import Cameras, choose_cameras
from ananet.twoview.collection import Confirmation, confirm_pairs
from ananet.twoview.matcher import PhotoMatcher, PreparedPhoto, match_photos
from ananet.twoview.result import PhotoMatches
from ananet.twoview.same_place import SamePlace, judge_pair, pair_probability

__all__ = [
    "Cameras",
    "Confirmation",
    "PhotoMatcher",
    "PhotoMatches",
    "PreparedPhoto",
    "SamePlace",
    "choose_cameras",
    "confirm_pairs",
    "judge_pair",
    "match_photos",
    "pair_probability",
]
