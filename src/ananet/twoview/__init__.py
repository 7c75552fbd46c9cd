"""Two photos: keypoints, matches, pruning, overlap, refinement, pose, pictures."""

from ananet.twoview.cameras import Cameras, choose_cameras
from ananet.twoview.matcher import PhotoMatcher, PreparedPhoto, match_photos
from ananet.twoview.result import PhotoMatches

__all__ = ["Cameras", "PhotoMatcher", "PhotoMatches", "PreparedPhoto", "choose_cameras", "match_photos"]
