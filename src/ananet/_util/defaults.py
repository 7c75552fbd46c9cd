"""Numbers and names that several modules share, each defined once. Imports nothing, so that `--help` stays quick."""

PRUNER = "auto"
# For reconstructions: wrong matches near the epipolar line hardly change the pose of a pair, but spoil tracks.
RECONSTRUCTION_PRUNER = "auto@threshold=0.9"
DETECTOR = "sift"
ESTIMATOR = "poselib"
# What evaluation reports: the paper's, and the default.
REPORTED_ESTIMATORS = ("ransac", ESTIMATOR)

# The paper's features: 2000 keypoints of an image.
MAX_KEYPOINTS = 2000
# Larger photos are scaled down to this before keypoints are detected (docs/keypoints.md says what was measured).
LONGEST_SIDE = 1600
# Files that matches of two photos can be saved in.
MATCH_FILES = (".npz", ".csv")
# The paper's label: a match is right below this squared symmetric epipolar distance, on calibrated points.
INLIER_DISTANCE = 1e-4
# Mutual matches below this ratio of descriptor distances are called distinctive; in most photos most of them are right.
DISTINCTIVE_RATIO = 0.8
# Inlier threshold of estimators that have no other, in pixels.
THRESHOLD_PIXELS = 1.0
# COLMAP's default for the fewest matches of a pair.
COLMAP_MIN_MATCHES = 15
# Of `ananet bulk`.
PAIRS_PER_PART = 512
