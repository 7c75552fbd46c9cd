"""Subpixel refinement of kept matches.

The patch around the first point is aligned with the photo around the second by the inverse compositional algorithm
(Baker and Matthews, Lucas-Kanade 20 years on, 2004), with an affine model and all matches of a pair at once.

A frame is an affine map [2 x 3] from patch coordinates, [-1, 1] in both directions, to pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ananet._util.devices import choose_device
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.estimators.base import checked_matches
from ananet.features.base import check_image
from ananet.io.images import to_grey

# Samples along a side of a patch, one per pixel, since fewer lose precision and 25 gain little; and half its side in
# pixels, in the photo where it is smaller.
PATCH_SIDE, FINE_HALF = 21, 10.0
# Large keypoints, which may be off by more, are first aligned in a larger patch: half its side in keypoint sizes, its
# limit in pixels, and the factor by which it must be larger.
PATCH_PER_SIZE, MAX_HALF, LARGER = 2.0, 40.0, 1.25
# Standard deviation of the Gaussian weights, in half sides.
WINDOW = 0.6
# Largest number of iterations; they end when all steps are smaller, in half sides.
STEPS, CONVERGED = 6, 1e-3
# Relative to the diagonal of the Hessian: keeps patches from sliding along edges.
DAMPING = 1e-3
# Alignments that move by more half sides, or change the area by a larger factor, have diverged.
MAX_MOVE, MAX_CHANGE_OF_AREA = 0.5, 4.0
# Patches with a smaller standard deviation of grey values are flat.
MIN_CONTRAST = 0.5
# Neighbours for the local motion of keypoints without size or angle, and their standard deviation in pixels.
NEIGHBOURS, NEIGHBOUR_DEVIATION = 10, 3.0
# Rows of the distance matrix held at once.
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Refined:
    """Refined matches; arrays are tensors on the points' device if the points were tensors, else numpy."""

    matches: Correspondences
    """The matches, in the same order, with corrected second points."""
    correlation: np.ndarray | Tensor
    """[N] float32 in [-1, 1] of the patches after alignment; 0 if they are flat or leave the photo."""
    aligned: np.ndarray | Tensor
    """[N] bool: matches with corrected second points. The others are unchanged."""

    def __repr__(self) -> str:
        return f"Refined({int(self.aligned.sum())} of {len(self.aligned)} matches aligned)"


@torch.no_grad()
def refine(
    image0: np.ndarray, image1: np.ndarray, matches: Correspondences, *, device: str | torch.device = "auto"
) -> Refined:
    """Move the second points of matches to where the photos agree best around both points.

    Args:
        image0, image1: the photos the points belong to, [H x W] or [H x W x 3] (BGR) uint8.
        matches: kept ones, since a wrong match is aligned to anything similar. Sizes and angles of the keypoints give
            scale and rotation of the patches; without them, the motion of neighbouring matches does.
        device: where patches are aligned.

    Matches with patches that are flat, leave their photo or do not agree better afterwards are unchanged.
    """
    check_input(image0, image1, matches)
    found = Alignment(image0, image1, matches.to(choose_device(device)))
    points1 = torch.as_tensor(matches.points1)
    moved = matches.replace(points1=points1 + found.shift.to(points1))
    return Refined(moved, matches._as_given(found.correlation), matches._as_given(found.aligned))


class Alignment:
    """Where second points belong if the first ones stay."""

    def __init__(self, image0: np.ndarray, image1: np.ndarray, matches: Correspondences) -> None:
        device = matches.points0.device
        self.shift = torch.zeros(len(matches), 2, device=device)
        """[N x 2] of the second points, 0 where not aligned."""
        self.motion = self.shift.new_zeros(len(matches), 2, 2)
        """[N x 2 x 2] linear map from the first to the second patch."""
        self.correlation = self.shift.new_zeros(len(matches))
        self.aligned = self.correlation.bool()
        if len(matches) == 0:
            return
        frames0, frames1 = _patch_frames(matches)
        photo0, photo1 = _Pyramid(image0, device), _Pyramid(image1, device)
        half = torch.minimum(_area(frames0), _area(frames1)).sqrt()
        shrink = (FINE_HALF / half).clamp(max=1)
        found = frames1.clone()
        large = (shrink * LARGER < 1) & photo0.holds(frames0) & photo1.holds(frames1)
        if large.any():
            found[large] = _align(photo0, photo1, frames0[large], frames1[large])[0]
            lost = ~_near(found, frames1) | ~photo1.holds(found)
            found[lost] = frames1[lost]
        # The same centres, with smaller patches.
        fine0, fine1, start = (
            torch.cat([frames[..., :2] * shrink[:, None, None], frames[..., 2:]], dim=-1)
            for frames in (frames0, found, frames1)
        )
        seen = photo0.holds(fine0) & photo1.holds(fine1) & photo1.holds(start)
        if seen.any():
            better, after, before = _align(photo0, photo1, fine0[seen], fine1[seen], start[seen])
            good = (after > before) & _near(better, start[seen], shrink[seen]) & photo1.holds(better)
            found[seen] = better
            self.correlation[seen], self.aligned[seen] = after.where(good, before), good
        self.shift = (found - frames1)[..., 2].where(self.aligned[:, None], 0)
        self.motion = frames1[..., :2] @ torch.linalg.inv_ex(frames0[..., :2]).inverse


def check_input(image0: Any, image1: Any, matches: Any) -> None:
    sizes = checked_matches(matches).image_size0, matches.image_size1
    for name, image, size in zip(("image0", "image1"), (image0, image1), sizes, strict=True):
        try:
            check_image(image)
        except InputError as error:
            raise InputError(f"{name}: {str(error).removeprefix('image: ')}") from None
        height, width = image.shape[:2]
        if size is not None and (width, height) != tuple(size):
            raise InputError(
                f"{name}: expected the photo that the matches belong to, of {size[0]:g} x {size[1]:g} pixels, "
                f"got {width} x {height}"
            )


def _area(frames: Tensor) -> Tensor:
    """[N] area of a frame's unit square, in square pixels."""
    (a, b), (c, d) = frames[..., 0, :2].unbind(-1), frames[..., 1, :2].unbind(-1)
    return (a * d - b * c).abs()


def _near(found: Tensor, start: Tensor, shrink: Tensor | float = 1.0) -> Tensor:
    """[N] whether an alignment stayed near its start; `shrink`: scale of the patches relative to the keypoints'."""
    # In coordinates of the start, so that limits in half sides hold at every scale.
    inverse = torch.linalg.inv_ex(start[..., :2]).inverse
    move = (inverse @ (found - start)[..., 2:])[..., 0].norm(dim=-1) * shrink
    change = _area(found) / _area(start)
    return (move < MAX_MOVE) & (change < MAX_CHANGE_OF_AREA) & (change > 1 / MAX_CHANGE_OF_AREA)


def _align(
    photo0: _Pyramid, photo1: _Pyramid, frames0: Tensor, frames1: Tensor, reference: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Second frames [N x 2 x 3] where patches agree best, their correlation, and that of `reference` frames, [N].

    The first patch is the template, so derivatives and Hessian are computed once. Patches are normalised to mean 0 and
    deviation 1, against changes of light.
    """
    grid, weights = _grid(frames0.device)
    level1 = photo1.level(frames1)
    template, steepest = _template(photo0, frames0, weights)
    weighted = steepest * weights
    hessian = weighted @ steepest.mT
    hessian = hessian + torch.diag_embed(DAMPING * hessian.diagonal(dim1=1, dim2=2) + 1e-6)
    # [N x 6 x P]: maps differences of grey values to a step.
    solution = torch.linalg.solve_ex(hessian, weighted).result

    def patch(frames: Tensor) -> Tensor:
        return _normalized(photo1.sample(frames, level1, grid), weights)[0]

    def correlation(values: Tensor) -> Tensor:
        return (values * template * weights).sum(dim=1).clamp(-1, 1)

    before = correlation(patch(frames1 if reference is None else reference))
    for _ in range(STEPS):
        # A step is the map u -> (I + D) u + b, as b, then D row by row. Compose the frames with its inverse.
        step = (solution @ (patch(frames1) - template)[..., None])[..., 0]
        motion = torch.eye(2, device=step.device) + step[:, 2:].unflatten(1, (2, 2))
        linear = frames1[..., :2] @ torch.linalg.inv_ex(motion).inverse
        frames1 = torch.cat([linear, frames1[..., 2:] - linear @ step[:, :2, None]], dim=-1)
        if (step[:, :2].abs() < CONVERGED).all():
            break
    return frames1, correlation(patch(frames1)), before


def _grid(device: torch.device, margin: int = 0) -> tuple[Tensor, Tensor]:
    """Patch coordinates [P x 3], homogeneous, row by row, and their weights [P] of sum 1."""
    last = 1 + margin * 2 / (PATCH_SIDE - 1)
    line = torch.linspace(-last, last, PATCH_SIDE + 2 * margin, device=device)
    y, x = torch.meshgrid(line, line, indexing="ij")
    weights = torch.exp(-(x.square() + y.square()) / (2 * WINDOW**2)).flatten()
    return torch.stack([x.flatten(), y.flatten(), torch.ones_like(weights)], dim=1), weights / weights.sum()


def _template(photo: _Pyramid, frames: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised first patches [N x P], and their derivatives by the six parameters of a step [N x 6 x P]."""
    side = PATCH_SIDE + 2
    wide = photo.sample(frames, photo.level(frames), _grid(frames.device, margin=1)[0]).unflatten(1, (side, side))
    spacing = 2 / (PATCH_SIDE - 1)
    dx = (wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]).flatten(1) / (2 * spacing)
    dy = (wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1]).flatten(1) / (2 * spacing)
    template, contrast = _normalized(wide[:, 1:-1, 1:-1].flatten(1), weights)
    x, y, _ = _grid(frames.device)[0].unbind(1)
    steepest = torch.stack([dx, dy, dx * x, dx * y, dy * x, dy * y], dim=1) / contrast[..., None]
    # Remove changes of mean and contrast, which the next normalisation undoes.
    steepest = steepest - (steepest @ weights)[..., None]
    along = (steepest @ (template * weights)[..., None]) * template[:, None]
    return template, steepest - along


def _normalized(patches: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """[N x P] grey values with weighted mean 0 and deviation 1, zeros for flat patches; and deviations [N x 1]."""
    centred = patches - (patches @ weights)[:, None]
    contrast = (centred.square() @ weights).sqrt()[:, None]
    return torch.where(contrast > MIN_CONTRAST, centred / contrast, 0), contrast.clamp_min(MIN_CONTRAST)


class _Pyramid:
    """Levels of a photo of size 1, 1/2, 1/4, ... in one image, so that one call samples from all of them."""

    def __init__(self, image: np.ndarray, device: torch.device) -> None:
        grey = to_grey(image)
        levels = [grey.astype(np.float32)]
        while min(levels[-1].shape) >= 64:
            # Pixel x of a level is at 2 x of the one before: `pyrDown` keeps the centre of the first pixel.
            levels.append(cv2.pyrDown(levels[-1]))
        height, width = grey.shape
        beside = levels[1].shape[1] if len(levels) > 1 else 0
        picture = np.zeros((height + 1, width + beside + 1), np.float32)
        corners, top = [], 0
        for number, level in enumerate(levels):
            left = width if number else 0
            top = 0 if number < 2 else top + levels[number - 1].shape[0]
            picture[top : top + level.shape[0], left : left + level.shape[1]] = level
            corners.append((left, top))
        self.picture = torch.from_numpy(picture).to(device)
        self.corners = torch.tensor(corners, dtype=torch.float32, device=device)
        self.last = torch.tensor([width - 1, height - 1], dtype=torch.float32, device=device)

    def holds(self, frames: Tensor) -> Tensor:
        """[N] whether all of a patch lies in the photo; False for frames with NaN."""
        reach, centre = frames[..., :2].abs().sum(dim=-1), frames[..., 2]
        return ((centre - reach >= 0) & (centre + reach <= self.last)).all(dim=-1)

    def level(self, frames: Tensor) -> Tensor:
        """[N] level with about one pixel between the samples of a patch, against aliasing."""
        spacing = _area(frames).sqrt() * 2 / (PATCH_SIDE - 1)
        return spacing.log2().round().clamp(0, len(self.corners) - 1).long()

    def sample(self, frames: Tensor, level: Tensor, grid: Tensor) -> Tensor:
        """[N x P] grey values at the points of the grid."""
        maps = frames * torch.exp2(-level.float())[:, None, None]
        maps = torch.cat([maps[..., :2], maps[..., 2:] + self.corners[level][..., None]], dim=-1)
        # `grid_sample` takes coordinates in [-1, 1].
        height, width = self.picture.shape
        scale = maps.new_tensor([[2 / (width - 1)], [2 / (height - 1)]])
        places = grid @ (maps * scale - maps.new_tensor([0, 0, 1])).mT
        options: dict[str, Any] = {"mode": "bilinear", "padding_mode": "border", "align_corners": True}
        return functional.grid_sample(self.picture[None, None], places[None], **options)[0, 0]


def _patch_frames(matches: Correspondences) -> tuple[Tensor, Tensor]:
    """Frames [N x 2 x 3] of the patches in both photos, from keypoint sizes and angles or else the local motion."""
    points0, points1 = matches.points0.float(), matches.points1.float()
    sizes0, sizes1, angles = matches.keypoint_sizes0, matches.keypoint_sizes1, matches.angles()
    half = torch.full_like(points0[:, 0], FINE_HALF)
    if sizes0 is not None and sizes1 is not None:
        # In the photo where the patch is smaller.
        half = (PATCH_PER_SIZE * torch.minimum(sizes0, sizes1)).clamp(FINE_HALF, MAX_HALF)
        half = half * (sizes0 / sizes1).clamp_min(1)
    if sizes0 is not None and sizes1 is not None and angles is not None:
        linear0 = _rotation(angles[:, 0]) * half[:, None, None]
        linear1 = _rotation(angles[:, 1]) * (half * sizes1 / sizes0)[:, None, None]
    else:
        linear0 = torch.eye(2, device=half.device) * half[:, None, None]
        linear1 = _local_motion(points0, points1) @ linear0
    return torch.cat([linear0, points0[..., None]], dim=-1), torch.cat([linear1, points1[..., None]], dim=-1)


def _rotation(angle: Tensor) -> Tensor:
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([cosine, -sine, sine, cosine], dim=-1).unflatten(-1, (2, 2))


def _local_motion(points0: Tensor, points1: Tensor) -> Tensor:
    """[N x 2 x 2] affine fit to the nearest neighbours of each match; its prior is the fit to all matches."""
    both = (points0, points1)
    identity = torch.eye(2, device=points0.device)[None]
    overall = _fit_linear(identity, *((points - points.median(dim=0).values)[None] for points in both))
    # Each point is among its own neighbours.
    count, rows = min(NEIGHBOURS + 1, len(points0)), points0.split(ROWS_AT_ONCE)
    nearest = torch.cat([torch.cdist(some, points0).topk(count, largest=False).indices for some in rows])
    return _fit_linear(overall, *(points[nearest] - points[:, None] for points in both))


def _fit_linear(prior: Tensor, offsets0: Tensor, offsets1: Tensor) -> Tensor:
    """[B x 2 x 2] linear maps from [B x k x 2] offsets to others, by reweighted least squares near a prior."""
    weights = torch.ones_like(offsets0[..., :1])
    linear = prior.expand(len(offsets0), 2, 2)
    # Equivalent to one observation of the prior per axis, at a distance of one deviation.
    trust = NEIGHBOUR_DEVIATION**2 * torch.eye(2, device=prior.device)
    for _ in range(5):
        weighted = offsets0 * weights
        normal = weighted.mT @ offsets0 + trust
        linear = torch.linalg.solve_ex(normal, weighted.mT @ offsets1 + trust @ prior.mT).result.mT
        residual = (offsets0 @ linear.mT - offsets1).square().sum(dim=-1, keepdim=True)
        weights = 1 / (1 + residual / NEIGHBOUR_DEVIATION**2).square()
    return linear
