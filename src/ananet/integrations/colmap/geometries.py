"""Two-view geometries by PoseLib, on all cores, written as COLMAP's own verification writes them.

Decisions and numbers are those of COLMAP's `EstimateTwoViewGeometry`: a pair is calibrated if the essential matrix
explains nearly as many matches as the fundamental matrix, and planar or panoramic if a homography explains most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import poselib
import torch
from torch import Tensor
from tqdm import tqdm

from ananet._util.defaults import COLMAP_MIN_MATCHES
from ananet._util.workers import worker_threads
from ananet.core import geometry
from ananet.core.cameras import camera_parameters
from ananet.integrations.colmap.database import HALF_PIXEL, Database, Pair, View
from ananet.integrations.colmap.parts import Parts

# Of COLMAP's TwoViewGeometry.
DEGENERATE, CALIBRATED, UNCALIBRATED, PLANAR_OR_PANORAMIC, WATERMARK = 1, 2, 3, 6, 7
MAX_ERROR = 4.0
MIN_ESSENTIAL_SHARE = 0.95
MAX_HOMOGRAPHY_SHARE = 0.8
# A watermark is most of the matches, near the border and shifted alike. The border is a share of the diagonal.
WATERMARK_SHARE, WATERMARK_BORDER = 0.7, 0.1
CONFIDENCE, MAX_ITERATIONS = 0.999, 10_000
# COLMAP tries at least 100 samples, PoseLib 1000; most pruned matches are right, and few samples find that out.
MIN_ITERATIONS = 30
# A homography that would decide explains so many matches that it is found within these.
FEW_ITERATIONS = 100
# Models are found on so many of the matches; all of them are then compared with the model.
SAMPLED = 256
REFINEMENT = {"loss_type": "CAUCHY", "loss_scale": 0.5, "max_iterations": 10}


@dataclass(frozen=True, eq=False)
class TwoViewGeometry:
    """How two images relate; matrices are in OpenCV's pixels, and None where they were not found or not needed."""

    config: int
    inliers: np.ndarray
    """[N] bool mask of the matches."""
    F: Tensor | None = None
    E: Tensor | None = None
    H: Tensor | None = None
    quaternion: np.ndarray | None = None
    """[4] w, x, y, z: the rotation from the first camera to the second, with E."""
    translation: np.ndarray | None = None
    """[3] of length 1, with E."""


class _Model(NamedTuple):
    matrix: Tensor
    inliers: np.ndarray

    @property
    def found(self) -> int:
        return int(self.inliers.sum())


def estimate_geometry(first: View, second: View, indices: np.ndarray) -> TwoViewGeometry:
    """Return the two-view geometry of matches [N x 2] between the keypoints of two images."""
    points0, points1 = first.points[indices[:, 0]], second.points[indices[:, 1]]
    seen = np.isfinite(points0).all(axis=1) & np.isfinite(points1).all(axis=1)
    found = _estimate(points0[seen].astype(np.float64), points1[seen].astype(np.float64), first, second)
    inliers = np.zeros(len(indices), bool)
    inliers[seen] = found.inliers
    return TwoViewGeometry(**(vars(found) | {"inliers": inliers}))


def _estimate(points0: np.ndarray, points1: np.ndarray, first: View, second: View) -> TwoViewGeometry:
    count = len(points0)
    if count < COLMAP_MIN_MATCHES:
        return TwoViewGeometry(DEGENERATE, np.zeros(count, bool))
    # Evenly over all: keypoints come sorted.
    sampled = np.arange(SAMPLED) * count // SAMPLED if count > SAMPLED else np.arange(count)
    given, everything = (points0[sampled], points1[sampled]), (torch.from_numpy(points0), torch.from_numpy(points1))

    def model(matrix: Tensor, distance: Callable[[Tensor, Tensor, Tensor], Tensor]) -> _Model | None:
        if not torch.isfinite(matrix).all():
            return None
        best = _Model(matrix, (distance(*everything, matrix) < MAX_ERROR).numpy())
        return best if best.found >= COLMAP_MIN_MATCHES else None

    known: dict[str, Any] = {}
    epipolar = None
    config = UNCALIBRATED
    if first.K is not None and second.K is not None:
        pose, _ = poselib.estimate_relative_pose(*given, _camera(first.K), _camera(second.K), _sampling(), REFINEMENT)
        E = geometry.essential_from_pose(torch.from_numpy(np.array(pose.R)), torch.from_numpy(np.array(pose.t)))
        F = geometry.fundamental_from_essential(E, torch.from_numpy(first.K), torch.from_numpy(second.K))
        epipolar = model(F, geometry.sampson_distance)
        if epipolar is not None:
            known = {"E": E, "quaternion": np.array(pose.q), "translation": np.array(pose.t)}
            config = CALIBRATED
    # With nearly all matches on the essential matrix there is no need to look for more.
    if epipolar is None or epipolar.found <= MIN_ESSENTIAL_SHARE * count:
        F, _ = poselib.estimate_fundamental(*given, _sampling(), REFINEMENT)
        free = model(torch.from_numpy(np.array(F)), geometry.sampson_distance)
        if free is not None and (epipolar is None or free.found > epipolar.found):
            if epipolar is None or epipolar.found <= MIN_ESSENTIAL_SHARE * free.found:
                config = UNCALIBRATED
            epipolar = free
    few = {} if epipolar is None else {"max_iterations": FEW_ITERATIONS}
    H, _ = poselib.estimate_homography(*given, _sampling("max_reproj_error") | few, REFINEMENT)
    plane = model(torch.from_numpy(np.array(H)), geometry.homography_distance)
    best = epipolar or plane
    if best is None:
        return TwoViewGeometry(DEGENERATE, np.zeros(count, bool))
    if plane is not None and plane.found > MAX_HOMOGRAPHY_SHARE * best.found:
        config = PLANAR_OR_PANORAMIC
        best = plane if plane.found > best.found else best
    if _is_watermark(points0[best.inliers], points1[best.inliers], first, second):
        config = WATERMARK
    known |= {"F": None if epipolar is None else epipolar.matrix, "H": None if plane is None else plane.matrix}
    return TwoViewGeometry(config, best.inliers, **known)


def _sampling(error: str = "max_epipolar_error") -> dict[str, Any]:
    limits = {"min_iterations": MIN_ITERATIONS, "max_iterations": MAX_ITERATIONS, "success_prob": CONFIDENCE}
    return {error: MAX_ERROR, **limits}


def _camera(K: np.ndarray) -> dict[str, Any]:
    # PoseLib requires an image size but does not use it.
    return {"model": "PINHOLE", "width": 1, "height": 1, "params": camera_parameters(K).tolist()}


def _is_watermark(points0: np.ndarray, points1: np.ndarray, first: View, second: View) -> bool:
    inside = np.zeros(len(points0), bool)
    for points, view in ((points0, first), (points1, second)):
        border = WATERMARK_BORDER * math.hypot(*view.image_size)
        inside |= ((points >= border) & (points <= np.array(view.image_size) - border)).all(axis=1)
    least = WATERMARK_SHARE * len(points0)
    if len(points0) - inside.sum() < least:
        return False
    shifts = (points1 - points0)[~inside]
    alike = np.linalg.norm(shifts - np.median(shifts, axis=0), axis=1) < MAX_ERROR
    return bool(alike.sum() >= least)


def verify_with_poselib(database: Database, in_parts: bool = False, progress: bool = False) -> int:
    """Write two-view geometries of pairs that have matches and no geometry; return the number of pairs with inliers.

    Call it within a write transaction; with `in_parts` it commits every few seconds.
    """
    numbers = database.connection.execute("SELECT pair_id FROM two_view_geometries")
    verified = {Pair.of(number).in_order for (number,) in numbers}
    # Columns differ between versions of COLMAP.
    columns = {row[1] for row in database.connection.execute("PRAGMA table_info(two_view_geometries)")}

    def unverified() -> Iterator[tuple[Pair, np.ndarray, View, View]]:
        for pair, stored in database.matched_pairs():
            # COLMAP does not find pairs that are stored the other way round.
            indices = stored if pair == pair.in_order else stored[:, ::-1]
            pair = pair.in_order
            if pair not in verified and database.check_indices(pair, indices):
                verified.add(pair)
                yield pair, indices, database.view(pair.first), database.view(pair.second)

    def estimate(given: tuple[Pair, np.ndarray, View, View]) -> tuple[Pair, np.ndarray, TwoViewGeometry]:
        pair, indices, first, second = given
        return pair, indices, estimate_geometry(first, second, indices)

    parts = Parts(database, in_parts)
    total = database.count_matched_pairs() - len(verified)
    with worker_threads() as workers, tqdm(total=total, desc="verify", unit="pair", disable=not progress) as bar:
        for pair, indices, found in workers.map(estimate, unverified()):
            _write(database, columns, pair, indices, found)
            parts.end_of_item()
            bar.update()
    count = database.connection.execute("SELECT count(*) FROM two_view_geometries WHERE rows > 0")
    return int(count.fetchone()[0])


def _write(database: Database, columns: set[str], pair: Pair, indices: np.ndarray, found: TwoViewGeometry) -> None:
    inliers = np.ascontiguousarray(indices[found.inliers], np.uint32)
    # COLMAP's pixels are ours, moved by half a pixel.
    ours = torch.eye(3, dtype=torch.float64)
    ours[:2, 2] = -HALF_PIXEL
    row = {
        "pair_id": pair.number,
        "rows": len(inliers),
        "cols": 2,
        "data": inliers.tobytes() or None,
        "config": found.config,
        "F": None if found.F is None else _blob(ours.mT @ found.F @ ours),
        "E": None if found.E is None else _blob(found.E),
        "H": None if found.H is None else _blob(torch.linalg.inv(ours) @ found.H @ ours),
        "qvec": None if found.quaternion is None else _blob(found.quaternion),
        "tvec": None if found.translation is None else _blob(found.translation),
    }
    row = {name: value for name, value in row.items() if name in columns}
    database.connection.execute(
        f"INSERT OR REPLACE INTO two_view_geometries ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
        tuple(row.values()),
    )


def _blob(values: Any) -> bytes:
    """COLMAP stores matrices row by row."""
    return np.ascontiguousarray(values, np.float64).tobytes()
