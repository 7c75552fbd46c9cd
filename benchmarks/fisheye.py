"""What wide lenses cost: photos as a fisheye lens would show them, up to the edge of its view.

    python benchmarks/fisheye.py SCENES [--pairs N] [--tilts DEGREES ...] [--pruner NAME]

SCENES are photos of pinhole cameras with known poses. Each photo becomes what an equidistant fisheye lens of the same
focal length (radius = focal length x angle, 180 degrees) sees whose axis is tilted away from the photo's, both photos
of a pair by the same angle in the same direction. Keypoints are detected in the fisheye photos, and their matches
pruned and turned into poses in four ways:

- pixels, no camera: as they are, with image sizes only; the pose takes the fisheye for a pinhole of its focal length;
- undistorted: as `ananet colmap` does where COLMAP has a fisheye model; what lies 90 degrees or more beside the axis
  is left out, and networks remove what lies beyond 63 degrees;
- turned to the scene: rays, turned so that the axis passes through the middle of the keypoints, as if the fisheye photo
  had been cut into pinhole views;
- the photos themselves, without a fisheye.

Labels are those of the photos, so that all rows find the same matches right (squared symmetric epipolar distance below
1e-4). Recall counts what was left out as not found.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet import Correspondences
from ananet._util.tables import format_table
from ananet.core import geometry
from ananet.core.cameras import calibrate, camera_matrix, mean_focal, project, undistort_points
from ananet.core.metrics import pose_auc, precision_recall_f1
from ananet.datasets.base import PosedImage, PosedPair
from ananet.datasets.photos import read_posed_image
from ananet.datasets.sources import open_posed_photos
from ananet.errors import InputError
from ananet.estimators import Estimator, load_estimator
from ananet.features import Detector, Features, load_detector, match
from ananet.networks.input import MAX_COORDINATE
from ananet.pruners import Pruner, load

LABEL = 1e-4
# Keypoints this close to the edge of the photo within the fisheye photo are those of the edge.
BORDER = 8
# Precision, recall, F1 and pose error in degrees.
Row = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Fisheye:
    """Keypoints of a photo that a fisheye lens took, and where they are in the photo."""

    features: Features
    K: np.ndarray
    """[3 x 3] of the fisheye lens."""
    turn: np.ndarray
    """[3 x 3] from the photo's axes to those of the lens."""
    rays: np.ndarray
    """[N x 2] calibrated points of the photo."""


def from_fisheye(pixels: np.ndarray, K: np.ndarray) -> np.ndarray:
    """[N x 3] unit rays of pixels of an equidistant fisheye lens."""
    bent = calibrate(pixels, K)
    angle = np.linalg.norm(bent, axis=1, keepdims=True)
    return np.hstack([bent * np.sinc(angle / np.pi), np.cos(angle)])


def tilted(degrees: float, direction: float) -> np.ndarray:
    """[3 x 3] turn by which a lens looks away, in a direction around the axis."""
    axis = np.array([np.cos(direction), np.sin(direction), 0.0])
    return cv2.Rodrigues(np.radians(degrees) * axis)[0]


def take(image: PosedImage, turn: np.ndarray, detector: Detector) -> Fisheye:
    """The photo as the lens sees it; only the part of the fisheye photo that shows something is made."""
    photo = read_posed_image(image)
    height, width = photo.shape[:2]
    focal = mean_focal(image.K, image.K)
    side = round(np.pi * focal)
    K = camera_matrix(focal, focal, (side - 1) / 2, (side - 1) / 2)
    edge = np.linspace(0, 1, 50)
    outline = [(x, y) for s in edge for x, y in ((s, 0), (s, 1), (0, s), (1, s))] * np.array([width - 1, height - 1])
    rays = np.hstack([calibrate(outline, image.K), np.ones((len(outline), 1))]) @ turn.T
    angle = np.arctan2(np.linalg.norm(rays[:, :2], axis=1), rays[:, 2])[:, None]
    seen = project(angle * rays[:, :2] / np.linalg.norm(rays[:, :2], axis=1, keepdims=True).clip(1e-9), K)
    left, top = np.floor(seen.min(axis=0)).astype(int)
    right, bottom = np.ceil(seen.max(axis=0)).astype(int)
    grid = np.stack(np.meshgrid(np.arange(left, right + 1), np.arange(top, bottom + 1)), axis=-1)

    def in_photo(pixels: np.ndarray) -> np.ndarray:
        rays = from_fisheye(pixels, K) @ turn
        with np.errstate(divide="ignore", invalid="ignore"):
            points = project(rays[:, :2] / rays[:, 2:], image.K)
        return np.where(rays[:, 2:] > 0, points, -1e6)

    places = in_photo(grid.reshape(-1, 2).astype(np.float64)).reshape(*grid.shape).astype(np.float32)
    picture = cv2.remap(photo, places, None, cv2.INTER_CUBIC)
    found = detector.detect(picture)
    pixels = found.points.astype(np.float64) + np.array([left, top])
    points = in_photo(pixels)
    inside = ((points >= BORDER) & (points <= np.array([width, height]) - 1 - BORDER)).all(axis=1)
    features = Features(pixels, found.descriptors, (side, side), found.sizes, found.angles)[inside]
    return Fisheye(features, K, turn, calibrate(points[inside], image.K))


def plain(image: PosedImage, detector: Detector) -> Fisheye:
    """The photo itself."""
    features = detector.detect(read_posed_image(image))
    return Fisheye(features, image.K, np.eye(3), calibrate(features.points.astype(np.float64), image.K))


def towards(rays: np.ndarray) -> np.ndarray:
    """[3 x 3] turn that brings the middle of unit rays to the axis."""
    middle = rays.mean(axis=0) / np.linalg.norm(rays.mean(axis=0))
    axis = np.cross(middle, (0, 0, 1))
    length = np.linalg.norm(axis)
    return np.eye(3) if length < 1e-9 else cv2.Rodrigues(axis / length * np.arctan2(length, middle[2]))[0]


@dataclass(frozen=True, eq=False)
class Way:
    """One way to give the matches of fisheye photos to a pruner and an estimator."""

    name: str
    matches: Correspondences
    """All matches, as the pruner sees them."""
    posed: Correspondences
    """The same, as the estimator sees them."""
    shown: np.ndarray
    """[N] bool: those that have a place at all."""
    turns: tuple[np.ndarray, np.ndarray]
    """[3 x 3] each, from the axes of the photos to those that the pose is for."""


def ways(one: Fisheye, two: Fisheye, matches: Correspondences) -> list[Way]:
    """The three ways for fisheye photos, in the order of the table."""
    both, everything = (one, two), np.ones(len(matches), bool)
    lens = (one.turn, two.turn)
    pixels = [view.features.points.astype(np.float64) for view in both]
    chosen = torch.as_tensor(matches.indices).numpy().T

    def known(*points: np.ndarray) -> Correspondences:
        """The matches at other places, with cameras."""
        first, second = (part[which].astype(np.float32) for part, which in zip(points, chosen, strict=True))
        return matches.replace(points0=first, points1=second, K0=one.K, K1=two.K, image_size0=None, image_size1=None)

    flat = [undistort_points(part, view.K, ("FISHEYE", ())) for part, view in zip(pixels, both, strict=True)]
    in_front = [np.isfinite(part).all(axis=1)[which] for part, which in zip(flat, chosen, strict=True)]
    undistorted = known(*map(np.nan_to_num, flat))
    facing, cut = [], []
    for part, view in zip(pixels, both, strict=True):
        rays = from_fisheye(part, view.K)
        facing.append(towards(rays))
        rays = rays @ facing[-1].T
        cut.append(project(rays[:, :2] / rays[:, 2:].clip(1e-3), view.K))
    towards_scene = known(*cut)
    turned = (facing[0] @ one.turn, facing[1] @ two.turn)
    return [
        Way("pixels, no camera", matches, known(*pixels), everything, lens),
        Way("undistorted", undistorted, undistorted, in_front[0] & in_front[1], lens),
        Way("turned to the scene", towards_scene, towards_scene, everything, turned),
    ]


def score(way: Way, right: np.ndarray, truth: tuple[Any, Any], pruner: Pruner, estimator: Estimator) -> Row:
    """Precision, recall and F1 over all matches, and the error of the pose of what was kept."""
    kept = pruner(way.matches[torch.from_numpy(way.shown)])
    mask = np.zeros(len(right), bool)
    mask[way.shown] = kept.mask
    pose, worse = estimator.pose(way.posed[torch.from_numpy(way.shown)], kept), np.inf
    if pose is not None:
        first, second = map(torch.from_numpy, way.turns)
        R, t = torch.as_tensor(pose.R).double(), torch.as_tensor(pose.t).double()
        errors = (
            geometry.rotation_error(second.T @ R @ first, truth[0]),
            geometry.translation_error(second.T @ t, truth[1]),
        )
        worse = max(map(float, errors))
    return (*precision_recall_f1(mask, right), worse)


def measure(
    pair: PosedPair, turn: np.ndarray | None, detector: Detector, pruner: Pruner, estimator: Estimator
) -> tuple[dict[str, Row], tuple[float, float]]:
    """What one pair gives in each way, and the shares of its right matches beyond 63 and 90 degrees."""
    images = (pair.image0, pair.image1)
    one, two = (plain(image, detector) if turn is None else take(image, turn, detector) for image in images)
    if min(len(one.features), len(two.features)) < 2:
        return {}, (0.0, 0.0)
    matches = match(one.features, two.features)
    first, second = torch.as_tensor(matches.indices).numpy().T
    truth = pair.relative_pose()
    E = geometry.essential_from_pose(truth[0], truth[1] / truth[1].norm())
    rays = torch.from_numpy(one.rays[first]), torch.from_numpy(two.rays[second])
    right = (geometry.symmetric_epipolar_distance_squared(*rays, E) < LABEL).numpy()
    if turn is None:
        known = matches.replace(K0=one.K, K1=two.K)
        photos = Way("the photos themselves", known, known, np.ones(len(right), bool), (one.turn, two.turn))
        return {photos.name: score(photos, right, truth, pruner, estimator)}, (0.0, 0.0)
    several = ways(one, two, matches)
    flat = several[1]
    near = flat.shown & (np.abs(flat.matches._as_tensors().normalized().numpy()) <= MAX_COORDINATE).all(axis=1)
    far = (1 - near[right].mean(), 1 - flat.shown[right].mean()) if right.any() else (0.0, 0.0)
    return {way.name: score(way, right, truth, pruner, estimator) for way in several}, far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("scenes", type=Path, metavar="SCENES")
    add("--pairs", type=int, default=80, metavar="N", help="evenly spread over all pairs (default: 80)")
    add("--tilts", type=float, nargs="+", default=[0, 30, 50, 70], metavar="DEGREES")
    add("--pruner", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    pairs = [pair for scene in open_posed_photos(arguments.scenes).scenes() for pair in scene.all_pairs()]
    if any(image.distortion is not None for pair in pairs for image in (pair.image0, pair.image1)):
        raise InputError(f"scenes: expected photos of pinhole cameras, {arguments.scenes} has others")
    spread = np.linspace(0, len(pairs) - 1, min(arguments.pairs, len(pairs))).astype(int)
    detector = load_detector("sift@root=false", max_keypoints=2000, longest_side=None)
    pruner, estimator = load(arguments.pruner, device="cpu"), load_estimator()
    rows: defaultdict[tuple[float | None, str], list[Row]] = defaultdict(list)
    far: defaultdict[float | None, list[tuple[float, float]]] = defaultdict(list)
    directions = np.random.default_rng(0).uniform(0, 2 * np.pi, len(pairs))
    for number in tqdm(spread, desc="pairs", disable=None):
        for tilt in (None, *arguments.tilts):
            turn = None if tilt is None else tilted(tilt, directions[number])
            found, beyond = measure(pairs[number], turn, detector, pruner, estimator)
            far[tilt].append(beyond)
            for name, row in found.items():
                rows[tilt, name].append(row)
    table = []
    for tilt in (None, *arguments.tilts):
        beyond = np.mean(far[tilt], axis=0)
        for name in (name for known, name in rows if known == tilt):
            *means, _ = np.mean(rows[tilt, name], axis=0)
            auc = pose_auc([row[3] for row in rows[tilt, name]])
            table.append(
                {"tilt": "" if tilt is None else f"{tilt:g}", "matches": name, "pairs": len(rows[tilt, name])}
                | {"beyond 63": f"{beyond[0]:.0%}", "beyond 90": f"{beyond[1]:.0%}"}
                | dict(zip(("P", "R", "F1"), (f"{mean:.3f}" for mean in means), strict=True))
                | {"AUC@5/10/20": " / ".join(f"{100 * value:.1f}" for value in auc)}
            )
    print(format_table(table))


if __name__ == "__main__":
    main()
