"""Numbers and names that several modules share, each defined once. Imports nothing, so that `--help` stays quick."""

PRUNER = "ananet"
# For reconstructions: wrong matches near the epipolar line hardly change the pose of a pair, but spoil tracks.
RECONSTRUCTION_PRUNER = "ananet@threshold=0.5"
DETECTOR = "sift"
ESTIMATOR = "poselib"
# What evaluation reports: the paper's, and the default.
REPORTED_ESTIMATORS = ("ransac", ESTIMATOR)

# Keypoints of a photo of a megapixel or more; `keypoints_for_size` has fewer for smaller ones. Half as many are enough
# for most pairs, but not for the hard ones (docs/keypoints.md).
MAX_KEYPOINTS = 8000
# Of photo collections, where nearest neighbours of every pair take time that grows with the square of this.
RECONSTRUCTION_KEYPOINTS = 4000
# Learned detectors place fewer, and better ones: ALIKED's poses are as good with 1024 as with 2048 (docs/keypoints.md).
LEARNED_KEYPOINTS = 2000
# The input of the paper's protocols.
PAPER_DETECTOR = "sift@root=false"
PAPER_KEYPOINTS = 2000
# Larger photos are scaled down to this before keypoints are detected (docs/keypoints.md says what was measured).
LONGEST_SIDE = 1600
# Files that matches of two photos can be saved in.
MATCH_FILES = (".npz", ".csv")
# The paper's label: a match is right below this squared symmetric epipolar distance, on calibrated points.
INLIER_DISTANCE = 1e-4
# Mutual matches below this ratio of descriptor distances are called distinctive; in most photos most of them are right.
# On 70 validation pairs it keeps 78 % of the right mutual SIFT matches, 86 % of what it keeps is right (plain
# descriptors: 79 %, 81 %), and F1 is highest here with either descriptor.
DISTINCTIVE_RATIO = 0.8
# Inlier threshold of estimators that have no other, in pixels.
THRESHOLD_PIXELS = 1.0
# COLMAP's default for the fewest matches of a pair.
COLMAP_MIN_MATCHES = 15
# Pairs that are less likely to show the same place stay out of reconstructions: of training pairs with at least 15 kept
# matches, whole scenes held out, 2 % of those that do lie below, and 25 % of the look-alikes (docs/pipelines.md).
MIN_OVERLAP = 0.4
# Of `ananet bulk`.
PAIRS_PER_PART = 512
