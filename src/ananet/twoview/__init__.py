"""Two photos: keypoints, matches, pruning, overlap, refinement, pose, pictures."""

from ananet.twoview.matcher import PhotoMatches, match_photos

__all__ = ["PhotoMatches", "match_photos"]
