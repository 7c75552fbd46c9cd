"""Group matches by motion.

>>> import ananet
>>> motions = ananet.group_motions(ananet.Correspondences([], []))
>>> len(motions), motions.labels
(0, array([], dtype=int64))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import poselib
import torch
from torch import Tensor

from ananet._util.checks import check_whole_number
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.core.correspondences import Array, Correspondences
from ananet.errors import InputError
from ananet.estimators.base import PruningResult, check_kept, checked_matches
from ananet.twoview.motion_search import MIN_SCALE, MIN_SUPPORT, Rows, Search, State, student
from ananet.twoview.overlap import log10_false_alarms

# A match agrees with a motion within this many scales.
NEAR = 3.0
# The camera is static if this share of matches stays in place, within STILL times MIN_SCALE, and few others move less
# than CLEARLY times that.
STILL_SHARE, STILL, CLEARLY, FEW = 0.2, 3.0, 3.0, 0.1


@dataclass(frozen=True, eq=False)
class Motion:
    """Matches that move like one rigid object."""

    kind: Literal["fundamental", "essential", "homography"]
    """Kind of the model: p1^T F p0 = 0 for pixels; p1^T E p0 = 0 for rays, if cameras are given; or p1 ~ H p0 for
    pixels, if a plane or a camera that only turned explains all matches, so that no other model is determined."""
    model: np.ndarray | Tensor
    """[3 x 3] float64 of norm 1."""
    support: int
    """Number of its matches."""
    confidence: float
    """Mean probability of its matches to belong to it rather than to another motion or none."""


@dataclass(frozen=True, eq=False)
class Motions:
    """The motions of a pair; tensors on the points' device if the points were tensors, else numpy arrays."""

    labels: np.ndarray | Tensor
    """[N] int64: number of the motion of each match; -1 for none, and for matches that were not kept."""
    motions: tuple[Motion, ...]
    """The largest first."""

    def __len__(self) -> int:
        return len(self.motions)

    def __repr__(self) -> str:
        supports = ", ".join(str(motion.support) for motion in self.motions)
        return f"Motions({len(self)} of {len(self.labels)} matches" + (f": {supports})" if self.motions else ")")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON, without the labels."""
        return {
            "count": len(self),
            "none": int((self.labels < 0).sum()),
            "motions": [
                vars(motion) | {"model": motion.model.tolist(), "confidence": round(motion.confidence, 4)}
                for motion in self.motions
            ],
        }


def in_words(motions: dict[str, Any]) -> str:
    """Describe `Motions.to_dict` in one line.

    >>> in_words({"count": 1, "none": 0, "motions": [{"kind": "essential", "support": 90}]})
    '1: 90 matches (essential)'
    """
    if not motions["count"]:
        return "none found"
    return f"{motions['count']}: " + ", ".join(
        f"{motion['support']} matches ({motion['kind']})" for motion in motions["motions"]
    )


def group_motions(
    matches: Correspondences, kept: PruningResult | None = None, *, mask: Array | None = None, seed: int = 0
) -> Motions:
    """Find which of the kept matches move together, and how many motions there are.

    A rigid scene is one motion, even with many planes; objects that move on their own are others. A motion has at least
    8 matches, since a fundamental matrix explains any seven.

    Args:
        matches: of one pair; camera matrices only decide the kind of the models.
        kept: a pruner's result on them; its probabilities are used. None uses all matches.
        mask: [N] bool, instead of `kept`.
        seed: of the random starts of the search; the same seed gives the same result.
    """
    matches = checked_matches(matches)
    check_whole_number("seed", seed, 0)
    chosen, probability = _checked(kept, mask, len(matches))
    points0, points1 = (points[chosen] for points in matches.numpy_points())
    labels = np.full(len(matches), -1, np.int64)
    if chosen.sum() < MIN_SUPPORT:
        return Motions(matches._as_given(torch.from_numpy(labels)), ())
    groups = _grouped(points0, points1, probability[chosen], np.random.default_rng(seed))
    indices = np.flatnonzero(chosen)
    motions = []
    for number, group in enumerate(sorted(groups, key=lambda group: -len(group.members))):
        members = indices[group.members]
        labels[members] = number
        kind, model = _model(matches, members, group)
        model = np.asarray(model, np.float64) / np.linalg.norm(model)
        motions.append(Motion(kind, matches._as_given(torch.from_numpy(model)), len(members), group.confidence))
    return Motions(matches._as_given(torch.from_numpy(labels)), tuple(motions))


def _checked(kept: PruningResult | None, mask: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """[N] bool of the matches to use, and [N] probabilities of being right."""
    name, probability = "mask" if kept is None else "kept", np.full(count, 0.9)
    if kept is not None:
        if mask is not None:
            raise InputError("mask: expected either kept or mask, got both")
        check_kept(kept, "; pass a bool array as mask")
        logits = torch.as_tensor(kept.logits).detach().double().cpu()
        if logits.shape != (count,):
            raise InputError(f"kept: expected {count} logits, got shape {tuple(logits.shape)}")
        mask, probability = kept.mask, logits.sigmoid().numpy()
    if mask is None:
        return np.ones(count, bool), probability
    try:
        array = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    except (TypeError, ValueError, NotImplementedError):
        # Lists of uneven lengths, sparse tensors, tensors without data.
        raise InputError(f"{name}: expected {count} bool, got {type(mask).__name__}") from None
    if array.shape != (count,) or (array.dtype != bool and count):
        raise InputError(f"{name}: expected {count} bool, got {array.dtype} of shape {array.shape}")
    return array.astype(bool), probability


@dataclass(frozen=True, eq=False)
class _Group:
    """A motion, as indices into the kept matches."""

    members: np.ndarray
    confidence: float
    scale: float
    """Scale of distances in pixels."""
    fundamental: np.ndarray | None
    """For pixels; None for matches that stay in place."""


def _grouped(
    points0: np.ndarray, points1: np.ndarray, probability: np.ndarray, random: np.random.Generator
) -> list[_Group]:
    middle0, middle1 = points0.mean(axis=0), points1.mean(axis=0)
    spread = ((points0 - middle0) ** 2).sum(axis=1).mean() + ((points1 - middle1) ** 2).sum(axis=1).mean()
    # Three RMS distances from the centre: about the image's diagonal.
    extent = 3.0 * float(np.sqrt(spread / 2))
    if extent == 0 or not np.isfinite(extent):
        return []
    still = _standing_still(points0, points1, MIN_SCALE * extent)
    groups = []
    if still.any():
        groups.append(_Group(np.flatnonzero(still), float(probability[still].mean()), MIN_SCALE * extent, None))
    rest = np.flatnonzero(~still)
    if len(rest) < MIN_SUPPORT:
        return groups
    rows = Rows((points0[rest] - middle0) / extent, (points1[rest] - middle1) / extent)
    search = Search(rows, probability[rest])
    state = search.run(random)
    to_unit0, to_unit1 = (np.array([[1, 0, -x], [0, 1, -y], [0, 0, extent]]) for x, y in (middle0, middle1))
    for number in _significant(search, state):
        members = np.flatnonzero(state.labels == number)
        confidence = float(state.members[members, number].mean())
        F = to_unit1.T @ state.models[number] @ to_unit0
        groups.append(_Group(rest[members], confidence, state.scale * extent, F))
    return groups


def _standing_still(points0: np.ndarray, points1: np.ndarray, scale: float) -> np.ndarray:
    """[N] bool: matches that stay in place if the camera is static; none if it moves.

    They satisfy the epipolar geometry of any translation, and would be merged with it.
    """
    shift = np.linalg.norm(points1 - points0, axis=1)
    still = shift < STILL * scale
    between = ~still & (shift < CLEARLY * STILL * scale)
    count = int(still.sum())
    enough = count >= max(MIN_SUPPORT, STILL_SHARE * len(shift)) and between.sum() <= FEW * count
    return still if enough else np.zeros_like(still)


def _significant(search: Search, state: State) -> list[int]:
    """Motions with more matches than chance explains, the largest first."""
    found, tested = [], len(search.rows)
    # Probability of a random point to lie in the band around a line, in units of the image's extent.
    chance = min(1.0, 2 * NEAR * state.scale)
    limit = student(np.array((NEAR * state.scale) ** 2), state.scale)
    near = state.costs[:, :-1] - search.right[:, None] < limit
    for number in np.argsort(-state.sizes, kind="stable"):
        members = state.labels == number
        agree = int((members & near[:, number]).sum())
        if members.sum() >= MIN_SUPPORT and log10_false_alarms(tested, agree, chance) < 0:
            found.append(int(number))
            tested -= int(members.sum())
    return found


def _model(
    matches: Correspondences, chosen: np.ndarray, group: _Group
) -> tuple[Literal["fundamental", "essential", "homography"], np.ndarray]:
    """The model of a motion, of the simplest kind that explains it."""
    if group.fundamental is None:
        return "homography", np.eye(3)
    members = matches[chosen]
    if (H := _homography(members, group)) is not None:
        return "homography", H
    if members.K0 is None or members.K1 is None:
        return "fundamental", group.fundamental
    # Projected from the fundamental matrix, then refined.
    K0, K1 = members.K0.double().cpu(), members.K1.double().cpu()
    focal = mean_focal(K0, K1)
    rays = members.normalized().double().cpu()
    E = K1.mT @ torch.from_numpy(group.fundamental) @ K0
    R, t, _ = geometry.recover_pose(E, rays[:, :2], rays[:, 2:])
    camera = {"model": "SIMPLE_PINHOLE", "width": 1, "height": 1, "params": [focal, 0.0, 0.0]}
    pixels0, pixels1 = (focal * rays[:, :2]).numpy(), (focal * rays[:, 2:]).numpy()
    pose = poselib.CameraPose()
    pose.R, pose.t = R.numpy(), t.numpy()
    loss = {"loss_type": "CAUCHY", "loss_scale": group.scale}
    pose, _ = poselib.refine_relative_pose(pixels0, pixels1, pose, camera, camera, loss)
    E = geometry.essential_from_pose(torch.from_numpy(np.array(pose.R)), torch.from_numpy(np.array(pose.t)))
    return "essential", E.numpy()


def _homography(members: Correspondences, group: _Group) -> np.ndarray | None:
    """[3 x 3] H if Torr's GRIC (IJCV 2002) prefers it to F, else None."""
    points0, points1 = members.numpy_points()
    near = np.arange(len(points0))
    for _ in range(3):
        H, _ = cv2.findHomography(points0[near], points1[near])
        if H is None:
            return None
        moved = np.column_stack([points0, np.ones(len(points0))]) @ H.T
        with np.errstate(divide="ignore", invalid="ignore"):
            error = ((moved[:, :2] / moved[:, 2:] - points1) ** 2).sum(axis=1) / 2  # noise in both images
        near = error.argsort(kind="stable")[: max(4, round(0.8 * len(error)))]
    F = torch.from_numpy(group.fundamental)
    sampson = geometry.sampson_distance(members.points0.double().cpu(), members.points1.double().cpu(), F).numpy()

    def gric(squared: np.ndarray, dimensions: int, parameters: int) -> float:
        worst = 2 * (4 - dimensions)
        misfit = np.minimum(np.nan_to_num(squared / group.scale**2, nan=worst, posinf=worst), worst).sum()
        count = len(squared)
        return float(misfit + np.log(4) * dimensions * count + np.log(4 * count) * parameters)

    return H if gric(error, 2, 8) < gric(sampson**2, 3, 7) else None
