"""`ananet demo`: prune the matches of a photo pair whose geometry is known, and show the result.

The pair is Middlebury's motorcycle (Scharstein et al., GCPR 2014), which comes with scikit-image together with
measured disparities. A rectified pair is too easy, so the right camera is turned by a known rotation.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.defaults import ESTIMATOR
from ananet.cli.arguments import add_json, add_pruner, print_json
from ananet.errors import MissingExtraError

# Calibration of the pair as scikit-image documents it, in pixels. Poses have no scale, so the baseline is left out.
FOCAL, CENTRE_X, CENTRE_Y, CENTRE_SHIFT = 994.978, 311.193, 254.877, 31.086
# How the right camera is turned: pitch, yaw and roll in degrees. The zoom leaves no empty corners.
TURN = (4.0, -6.0, 15.0)
ZOOM = 1.45
RUNS = 21
# A match is right if it ends within this many pixels of where the measured disparity says.
CORRECT_WITHIN = 3.0
# Estimators that find the pose, and the beginning of their names in the result: the default, and the paper's.
ESTIMATORS = {ESTIMATOR: "", "ransac": "ransac_"}


@dataclass(frozen=True, eq=False)
class MeasuredPair:
    """Two photos, their cameras, the motion between them, and the ground truth of matches."""

    image0: np.ndarray
    image1: np.ndarray
    K0: np.ndarray
    K1: np.ndarray
    R: np.ndarray
    t: np.ndarray
    disparity: np.ndarray
    """[H x W] how far each pixel moved to the left before the right camera was turned; NaN where not measured."""
    turning: np.ndarray
    """[3 x 3] homography from the right photo as taken to the turned one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=Path("demo.png"), help="picture (default: demo.png)")
    add_pruner(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet._util.tables import format_table
    from ananet.io.images import check_picture, save_picture

    check_picture(arguments.output)
    pair = motorcycle()

    from ananet.pruners import load
    from ananet.twoview import match_photos
    from ananet.twoview.drawing import draw_right_wrong, stack

    pruner = load(arguments.pruner, device=arguments.device)
    found = match_photos(pair.image0, pair.image1, pruner=pruner, K0=pair.K0, K1=pair.K1)
    points0, points1 = found.matches.numpy_points()
    error = match_errors(pair, points0, points1)
    kept = {"all putative matches": load("all")(found.matches), f"kept by {found.pruner}": found.kept}
    scores = {title: quality(pair, found.matches, one, error) for title, one in kept.items()}
    pictures = []
    for title, one in kept.items():
        # Matches without ground truth are neither drawn nor counted; poses use all, as a user's would.
        shown = one.mask & ~np.isnan(error)
        caption = f"{title}: {scores[title]['precision']:.0%} of {scores[title]['measured']} right"
        right = error[shown] < CORRECT_WITHIN
        pictures.append(draw_right_wrong(pair.image0, pair.image1, points0[shown], points1[shown], right, caption))
    save_picture(arguments.output, stack(*pictures))
    if arguments.json:
        before, after = scores.values()
        print_json({"pruner": found.pruner, "before": before, "after": after, "picture": str(arguments.output)})
        return 0
    print(f"Middlebury motorcycle, right camera turned by {TURN[0]:g}, {TURN[1]:g}, {TURN[2]:g} degrees; SIFT matches.")
    print(f"A match is right within {CORRECT_WITHIN:g} px of its ground truth; 'measured' counts those that have one.")

    def table(columns: dict[str, str]) -> str:
        rows = [{"": title} | {column: row[key] for column, key in columns.items()} for title, row in scores.items()]
        return format_table(rows)

    kinds = [(*one, kind) for one in ESTIMATORS.items() for kind in ("rotation", "translation")]
    print(f"\n{table({name: name for name in ('matches', 'measured', 'precision', 'recall', 'f1')})}\n")
    print(f"Pose errors in degrees, median of {RUNS} runs over shuffled matches; estimators with their defaults.\n")
    print(table({f"{name} {kind}": f"{prefix}{kind}_error" for name, prefix, kind in kinds}))
    print(f"\nPicture: {arguments.output} (above all matches, below the kept ones; green right, red wrong)")
    return 0


def motorcycle() -> MeasuredPair:
    try:
        from skimage.data import stereo_motorcycle
    except ImportError:
        raise MissingExtraError("scikit-image", "demo") from None
    import cv2

    from ananet.core.cameras import camera_matrix, centred_camera

    left, right, disparity = stereo_motorcycle()
    K0 = camera_matrix(FOCAL, FOCAL, CENTRE_X, CENTRE_Y)
    K_right = camera_matrix(FOCAL, FOCAL, CENTRE_X + CENTRE_SHIFT, CENTRE_Y)
    R = rotation(*TURN)
    height, width = left.shape[:2]
    K1 = centred_camera(ZOOM * FOCAL, (width, height))
    # Shift the lens so that the turned camera has the same thing in its middle as the right one had.
    middle = K1 @ R @ np.linalg.inv(K_right) @ [(width - 1) / 2, (height - 1) / 2, 1]
    K1[:2, 2] += K1[:2, 2] - middle[:2] / middle[2]
    H = K1 @ R @ np.linalg.inv(K_right)
    turned = cv2.warpPerspective(right, H, (width, height), flags=cv2.INTER_CUBIC)
    image0, image1 = (np.ascontiguousarray(image[..., ::-1]) for image in (left, turned))
    t, disparity = R @ np.array([-1.0, 0, 0]), np.where(np.isfinite(disparity), disparity, np.nan)
    return MeasuredPair(image0, image1, K0, K1, R, t, disparity, turning=H)


def rotation(pitch: float, yaw: float, roll: float) -> np.ndarray:
    """Rotation by angles in degrees about x, then y, then z."""
    import cv2

    R = np.eye(3)
    for axis, angle in zip(np.eye(3), (pitch, yaw, roll), strict=True):
        R = cv2.Rodrigues(axis * np.radians(angle))[0] @ R
    return R


def match_errors(pair: MeasuredPair, points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
    """[N] distance in pixels to the true place; NaN where the truth was not measured."""
    height, width = pair.disparity.shape
    column, row = points0.round().astype(int).clip(0, (width - 1, height - 1)).T
    x, y = points0.T
    target = np.stack([x - pair.disparity[row, column], y, np.ones_like(x)], axis=1) @ pair.turning.T
    return np.linalg.norm(points1 - target[:, :2] / target[:, 2:], axis=1)


def quality(pair: MeasuredPair, matches: Any, kept: Any, error: np.ndarray) -> dict[str, Any]:
    import torch

    from ananet.core.geometry import rotation_error, translation_error
    from ananet.estimators import load_estimator

    mask, correct = kept.mask, error < CORRECT_WITHIN
    hits = int((mask & correct).sum())
    precision, recall = hits / max((mask & ~np.isnan(error)).sum(), 1), hits / max(correct.sum(), 1)
    R, t = torch.from_numpy(pair.R), torch.from_numpy(pair.t)
    errors: dict[str, float | None] = {}
    for name, prefix in ESTIMATORS.items():
        # A single run is a matter of luck, and the order of the matches decides it.
        rng = np.random.default_rng(0)
        estimator = load_estimator(name)
        taken = np.flatnonzero(estimator.taken(matches, kept))
        poses = [estimator.pose(matches[rng.permutation(taken)]) for _ in range(RUNS)]
        found = [pose for pose in poses if pose is not None]
        rotations = [rotation_error(torch.as_tensor(pose.R), R).item() for pose in found]
        translations = [translation_error(torch.as_tensor(pose.t), t).item() for pose in found]
        errors[f"{prefix}rotation_error"] = float(np.median(rotations)) if found else None
        errors[f"{prefix}translation_error"] = float(np.median(translations)) if found else None
    return {
        "matches": int(mask.sum()),
        "measured": int((mask & ~np.isnan(error)).sum()),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(2 * precision * recall / max(precision + recall, 1e-12)),
        **errors,
    }
