"""Subpixel refinement: the photos make kept matches more precise than their keypoints.

A detector places each keypoint by itself, some tenths of a pixel off. Here the patch around the first point is compared
with the one around the second, and the second point moves to where the two agree best: an affine alignment by the
inverse compositional algorithm (Baker and Matthews, Lucas-Kanade 20 years on, 2004), all matches of a pair at once.
How well the patches agree in the end tells how precise a match is.

A frame is an affine map [2 x 3] from the patch's coordinates, [-1, 1] in both directions, to pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ananet._util.checks import check_whole_number
from ananet._util.devices import choose_device
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.features.base import check_image

# Samples along a side of a patch: one a pixel. Fewer lose precision, 25 gain nothing worth their time.
PATCH_SIDE = 21
# Half the side of every patch in pixels, in the photo that shows it smaller.
FINE_HALF = 10.0
# Large keypoints may be off by more: they are first aligned in a patch of so many keypoint sizes to each side, up to a
# limit in pixels, where that is larger by this factor.
PATCH_PER_SIZE, MAX_HALF, LARGER = 2.0, 40.0, 1.25
# The middle of a patch counts most: deviation of the weights, in half sides.
WINDOW = 0.6
STEPS = 6
# Steps below this many half sides, for every match, are the end.
CONVERGED = 1e-3
# Relative to the diagonal of the Hessian: keeps patches with edges of one direction from sliding along them.
DAMPING = 1e-3
# A match that moved by more half sides of its first patch, or whose patch grew or shrank by more, went astray.
MAX_MOVE, MAX_CHANGE_OF_AREA = 0.5, 4.0
# Patches whose grey values deviate less have nothing to align by.
MIN_CONTRAST = 0.5
# Neighbours that tell the local motion where keypoints have no size or angle, and how far off they may be, in pixels.
NEIGHBOURS, NEIGHBOUR_DEVIATION = 10, 3.0
# Rows of the matrix of distances that are held at once.
ROWS_AT_ONCE = 1024
# A photo's smallest copy has at least so many pixels on its shorter side.
MIN_COPY = 32
# Keypoints of many pairs: looks of lower correlation do not count, staying counts as so many looks, looks that differ
# from the rest by this many pixels count half, and who would move farther stays.
MIN_CORRELATION, STAYING, DISAGREEMENT, MAX_SHIFT = 0.8, 0.2, 1.0, 4.0
ROUNDS = 40


@dataclass(frozen=True, eq=False)
class Refined:
    """Refined matches; arrays are tensors on the points' device if the points were tensors, else numpy."""

    matches: Correspondences
    """The matches, in the same order, with corrected second points."""
    correlation: Any
    """[N] float32 in [-1, 1] of the aligned patches, or of the patches as they were for a match that stayed.
    0 where there is nothing to compare: in flat patches, and where a patch leaves its photo."""
    aligned: Any
    """[N] bool: matches whose second points were corrected. The others diverged and are unchanged."""

    def __repr__(self) -> str:
        return f"Refined({int(self.aligned.sum())} of {len(self.aligned)} matches aligned)"


@torch.no_grad()
def refine(
    image0: np.ndarray, image1: np.ndarray, matches: Correspondences, *, device: str | torch.device = "auto"
) -> Refined:
    """Moves second points of matches to where the photos agree best around both points.

    Args:
        image0, image1: the photos the points belong to, [H x W] or [H x W x 3] (BGR) uint8.
        matches: kept ones, since a wrong match is aligned to whatever resembles it. Sizes and angles of the keypoints
            give scale and rotation of the patches; without them, the motion of neighbouring matches does.
        device: where patches are aligned.

    Matches whose patches are flat, leave their photo or do not agree better afterwards are unchanged.
    """
    _check_input(image0, image1, matches)
    looked = _Look(image0, image1, matches.to(choose_device(device)))
    back = matches.points1.device
    moved = matches.replace(points1=matches.points1 + looked.shift.to(matches.points1))
    correlation, aligned = looked.correlation.to(back), looked.aligned.to(back)
    if matches.given_as_numpy:
        return Refined(moved, correlation.cpu().numpy(), aligned.cpu().numpy())
    return Refined(moved, correlation, aligned)


class KeypointRefinement:
    """Moves each keypoint once for all its pairs, as structure from motion needs.

    `look` aligns a pair in both directions. `shifts` then moves every keypoint to where the alignments of all its pairs
    place it, given that the other keypoints move too.

    Args:
        counts: keypoints of each photo.
        device: where patches are aligned.

    >>> collection = KeypointRefinement([100, 80], device="cpu")
    >>> [shifts.shape for shifts in collection.shifts()]
    [(100, 2), (80, 2)]
    """

    def __init__(self, counts: Sequence[int], *, device: str | torch.device = "auto") -> None:
        self.counts = [check_whole_number(f"counts[{number}]", count, 0) for number, count in enumerate(counts)]
        self.device = choose_device(device)
        self._first_number = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        self._wishes: list[_Wishes] = []

    @torch.no_grad()
    def look(
        self, photo0: int, photo1: int, image0: np.ndarray, image1: np.ndarray, matches: Correspondences
    ) -> np.ndarray:
        """Align a pair; returns the better of both correlations of each match, [N] float32.

        Args:
            photo0, photo1: which photos these are.
            image0, image1: the photos, [H x W] or [H x W x 3] (BGR) uint8.
            matches: kept ones, with the `indices` of their keypoints.
        """
        _check_input(image0, image1, matches)
        numbers0, numbers1 = self._numbers(photo0, photo1, matches)
        here = matches.to(self.device)
        there, back = _Look(image0, image1, here), _Look(image1, image0, _reversed(here))
        self._wishes += [there.wishes(numbers0, numbers1), back.wishes(numbers1, numbers0)]
        return torch.maximum(there.correlation, back.correlation).cpu().numpy()

    def _numbers(self, photo0: int, photo1: int, matches: Correspondences) -> list[np.ndarray]:
        """Of both keypoints of every match, counted over all photos."""
        if matches.indices is None:
            raise InputError("matches: expected the indices of their keypoints, got none")
        indices = matches.indices.cpu().numpy()
        numbers = []
        for name, photo, of_photo in (("photo0", photo0, indices[:, 0]), ("photo1", photo1, indices[:, 1])):
            photo = check_whole_number(name, photo, 0, len(self.counts) - 1)
            if len(of_photo) and of_photo.max() >= self.counts[photo]:
                raise InputError(
                    f"matches: expected indices below {self.counts[photo]}, the number of keypoints of photo {photo}, "
                    f"got {of_photo.max()}"
                )
            numbers.append(self._first_number[photo] + of_photo)
        return numbers

    def shifts(self) -> list[np.ndarray]:
        """[N x 2] float32 pixels by which the keypoints of each photo move; zeros for those without a match."""
        shifts = np.zeros((self._first_number[-1], 2))
        if self._wishes:
            wishes = _Wishes(*(np.concatenate(parts) for parts in zip(*self._wishes, strict=True)))
            for number in range(ROUNDS):
                # Halfway, or two keypoints that wish for each other's place swap places forever.
                shifts = (shifts + wishes.granted(shifts, trusting=number == 0)) / 2
            shifts[np.linalg.norm(shifts, axis=1) > MAX_SHIFT] = 0
        ends = self._first_number[1:]
        return [shifts[end - count : end].astype(np.float32) for count, end in zip(self.counts, ends, strict=True)]


class _Wishes(NamedTuple):
    """Where keypoints should move, by looks from others."""

    source: np.ndarray
    """[M] numbers of the keypoints that were looked from."""
    target: np.ndarray
    """[M] numbers of those that should move."""
    shift: np.ndarray
    """[M x 2] by how much, if the source stays."""
    motion: np.ndarray
    """[M x 2 x 2] by how much the target follows where the source moves."""

    def granted(self, shifts: np.ndarray, trusting: bool) -> np.ndarray:
        """[K x 2] means of the wishes for each keypoint; unless trusting, those that differ most count least."""
        wished = self.shift + np.einsum("mij,mj->mi", self.motion, shifts[self.source])
        difference = np.linalg.norm(wished - shifts[self.target], axis=1)
        weights = np.ones_like(difference) if trusting else 1 / (1 + (difference / DISAGREEMENT) ** 2)
        count = len(shifts)
        total = STAYING + np.bincount(self.target, weights, minlength=count)
        sums = [np.bincount(self.target, weights * wished[:, axis], minlength=count) for axis in (0, 1)]
        return np.stack(sums, axis=1) / total[:, None]


class _Look:
    """One pair of photos, seen from the first: where second points belong if the first ones stay."""

    def __init__(self, image0: np.ndarray, image1: np.ndarray, matches: Correspondences) -> None:
        device = matches.points0.device
        self.shift = torch.zeros(len(matches), 2, device=device)
        self.motion = self.shift.new_zeros(len(matches), 2, 2)
        self.correlation = self.shift.new_zeros(len(matches))
        self.aligned = self.correlation.bool()
        if len(matches) == 0:
            return
        frames0, frames1 = _patch_frames(matches)
        found, self.correlation, self.aligned = _coarse_to_fine(
            _Pyramid(image0, device), _Pyramid(image1, device), frames0, frames1
        )
        self.shift = (found - frames1)[..., 2].where(self.aligned[:, None], 0)
        self.motion = frames1[..., :2] @ torch.linalg.inv_ex(frames0[..., :2]).inverse

    def wishes(self, source: np.ndarray, target: np.ndarray) -> _Wishes:
        """What the look tells of keypoints of these numbers, [N] each."""
        sure = (self.aligned & (self.correlation > MIN_CORRELATION)).cpu().numpy()
        shift, motion = (values.double().cpu().numpy()[sure] for values in (self.shift, self.motion))
        back = np.linalg.inv(motion)
        # Either of the two may give way. Were it the target alone, looks there and back that contradict each other
        # would push both the same way, on and on.
        return _Wishes(
            np.concatenate([source[sure], target[sure]]),
            np.concatenate([target[sure], source[sure]]),
            np.concatenate([shift, -np.einsum("mij,mj->mi", back, shift)]),
            np.concatenate([motion, back]),
        )


def _reversed(matches: Correspondences) -> Correspondences:
    """The points of the second photo as first ones."""
    names = ("points", "keypoint_sizes", "angles")
    swapped = {f"{name}{n}": getattr(matches, f"{name}{1 - n}") for name in names for n in (0, 1)}
    return matches.replace(**swapped)


def _check_input(image0: Any, image1: Any, matches: Any) -> None:
    if not isinstance(matches, Correspondences):
        raise InputError(f"matches: expected Correspondences, got {type(matches).__name__}")
    _check_photo("image0", image0, matches.image_size0)
    _check_photo("image1", image1, matches.image_size1)


def _check_photo(name: str, image: Any, size: tuple[float, float] | None) -> None:
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


def _coarse_to_fine(
    photo0: _Pyramid, photo1: _Pyramid, frames0: Tensor, frames1: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Second frames [N x 2 x 3] after alignment, correlations [N], and whether to believe them [N]."""
    half = torch.minimum(_area(frames0), _area(frames1)).sqrt()
    shrink = (FINE_HALF / half).clamp(max=1)
    found = frames1.clone()
    large = (shrink * LARGER < 1) & photo0.holds(frames0) & photo1.holds(frames1)
    if large.any():
        found[large] = _align(photo0, photo1, frames0[large], frames1[large])[0]
        lost = ~_near(found, frames1) | ~photo1.holds(found)
        found[lost] = frames1[lost]
    correlation = torch.zeros_like(half)
    aligned = torch.zeros_like(large)
    fine0, fine1, start = (_scaled(frames, shrink) for frames in (frames0, found, frames1))
    seen = photo0.holds(fine0) & photo1.holds(fine1) & photo1.holds(start)
    if seen.any():
        better, after, before = _align(photo0, photo1, fine0[seen], fine1[seen], start[seen])
        good = (after > before) & _near(better, start[seen], shrink[seen]) & photo1.holds(better)
        found[seen] = better
        correlation[seen], aligned[seen] = after.where(good, before), good
    return found, correlation, aligned


def _area(frames: Tensor) -> Tensor:
    """[N] of what a frame's unit square covers, in square pixels."""
    (a, b), (c, d) = frames[..., 0, :2].unbind(-1), frames[..., 1, :2].unbind(-1)
    return (a * d - b * c).abs()


def _scaled(frames: Tensor, factor: Tensor) -> Tensor:
    """The same centres, larger or smaller patches."""
    return torch.cat([frames[..., :2] * factor[:, None, None], frames[..., 2:]], dim=-1)


def _near(found: Tensor, start: Tensor, shrink: Tensor | float = 1.0) -> Tensor:
    """[N] whether an alignment stayed near its start; `shrink`: of the patches against those of the keypoints."""
    # In the start's own coordinates, so that a limit in half sides means the same at every scale.
    inverse = torch.linalg.inv_ex(start[..., :2]).inverse
    move = (inverse @ (found - start)[..., 2:])[..., 0].norm(dim=-1) * shrink
    change = _area(found) / _area(start)
    return (move < MAX_MOVE) & (change < MAX_CHANGE_OF_AREA) & (change > 1 / MAX_CHANGE_OF_AREA)


def _align(
    photo0: _Pyramid, photo1: _Pyramid, frames0: Tensor, frames1: Tensor, reference: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Second frames [N x 2 x 3] where patches agree best, their correlation, and that of `reference` frames, [N].

    The first patch is the template: its derivatives and Hessian are those of every step. Patches are compared after
    their mean and contrast are taken out, so a change of light is no difference.
    """
    grid, weights = _grid(frames0.device)
    level1 = photo1.level(frames1)
    template, steepest = _template(photo0, frames0, weights)
    weighted = steepest * weights
    hessian = weighted @ steepest.mT
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    hessian = hessian + torch.diag_embed(DAMPING * diagonal + 1e-6)
    # [N x 6 x P]: from differences of grey values to a step.
    solution = torch.linalg.solve_ex(hessian, weighted).result

    def patch(frames: Tensor) -> Tensor:
        return _normalized(photo1.sample(frames, level1, grid), weights)[0]

    def correlation(values: Tensor) -> Tensor:
        return (values * template * weights).sum(dim=1).clamp(-1, 1)

    before = correlation(patch(frames1 if reference is None else reference))
    for _ in range(STEPS):
        step = (solution @ (patch(frames1) - template)[..., None])[..., 0]
        frames1 = _compose_inverse(frames1, step)
        if (step[:, :2].abs() < CONVERGED).all():
            break
    return frames1, correlation(patch(frames1)), before


def _compose_inverse(frames: Tensor, step: Tensor) -> Tensor:
    """Frames after the inverse of the affine map u -> (I + D) u + b, with b the first two and D the rest of a step."""
    motion = torch.eye(2, device=step.device) + step[:, 2:].unflatten(1, (2, 2))
    linear = frames[..., :2] @ torch.linalg.inv_ex(motion).inverse
    return torch.cat([linear, frames[..., 2:] - linear @ step[:, :2, None]], dim=-1)


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
    # What a step changes of mean and contrast is taken out again by the next normalisation.
    steepest = steepest - (steepest @ weights)[..., None]
    along = (steepest @ (template * weights)[..., None]) * template[:, None]
    return template, steepest - along


def _normalized(patches: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """[N x P] grey values to weighted mean 0 and deviation 1, zeros for flat patches; and their deviations [N x 1]."""
    centred = patches - (patches @ weights)[:, None]
    contrast = (centred.square() @ weights).sqrt()[:, None]
    return torch.where(contrast > MIN_CONTRAST, centred / contrast, 0), contrast.clamp_min(MIN_CONTRAST)


class _Pyramid:
    """A photo at sizes 1, 1/2, 1/4 and so on, side by side in one picture, so that one call samples at all of them."""

    def __init__(self, image: np.ndarray, device: torch.device) -> None:
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
        copies = [grey.astype(np.float32)]
        while min(copies[-1].shape) >= 2 * MIN_COPY:
            # Pixel x of the smaller copy lies at 2 x of the larger one: `pyrDown` keeps the first pixel's centre.
            copies.append(cv2.pyrDown(copies[-1]))
        height, width = grey.shape
        beside = copies[1].shape[1] if len(copies) > 1 else 0
        picture = np.zeros((height + 1, width + beside + 1), np.float32)
        corners, top = [], 0
        for number, copy in enumerate(copies):
            left = width if number else 0
            top = 0 if number < 2 else top + copies[number - 1].shape[0]
            picture[top : top + copy.shape[0], left : left + copy.shape[1]] = copy
            corners.append((left, top))
        self.picture = torch.from_numpy(picture).to(device)
        self.corners = torch.tensor(corners, dtype=torch.float32, device=device)
        self.last = torch.tensor([width - 1, height - 1], dtype=torch.float32, device=device)

    def holds(self, frames: Tensor) -> Tensor:
        """[N] whether all of a patch lies in the photo; False for frames with NaN."""
        reach = frames[..., :2].abs().sum(dim=-1)
        centre = frames[..., 2]
        return ((centre - reach >= 0) & (centre + reach <= self.last)).all(dim=-1)

    def level(self, frames: Tensor) -> Tensor:
        """[N] which copy has about one pixel between the samples of a patch: finer ones would alias."""
        spacing = _area(frames).sqrt() * 2 / (PATCH_SIDE - 1)
        return spacing.log2().round().clamp(0, len(self.corners) - 1).long()

    def sample(self, frames: Tensor, level: Tensor, grid: Tensor) -> Tensor:
        """[N x P] grey values at the grid's points."""
        maps = frames * torch.exp2(-level.float())[:, None, None]
        maps = torch.cat([maps[..., :2], maps[..., 2:] + self.corners[level][..., None]], dim=-1)
        # To [-1, 1] over the picture, as torch counts.
        height, width = self.picture.shape
        scale = maps.new_tensor([[2 / (width - 1)], [2 / (height - 1)]])
        maps = maps * scale - maps.new_tensor([0, 0, 1])
        places = grid @ maps.mT
        values = functional.grid_sample(
            self.picture[None, None], places[None], mode="bilinear", padding_mode="border", align_corners=True
        )
        return values[0, 0]


def _patch_frames(matches: Correspondences) -> tuple[Tensor, Tensor]:
    """Frames [N x 2 x 3] of the patches in both photos, by keypoint or else by local motion."""
    points0, points1 = matches.points0.float(), matches.points1.float()
    keypoint_sizes0, keypoint_sizes1, angles = matches.keypoint_sizes0, matches.keypoint_sizes1, matches.angles()
    if keypoint_sizes0 is None or keypoint_sizes1 is None:
        half = torch.full_like(points0[:, 0], FINE_HALF)
    else:
        # Of the smaller patch: the other photo shows the same, larger.
        half = (PATCH_PER_SIZE * torch.minimum(keypoint_sizes0, keypoint_sizes1)).clamp(FINE_HALF, MAX_HALF)
        half = half * (keypoint_sizes0 / keypoint_sizes1).clamp_min(1)
    if keypoint_sizes0 is not None and keypoint_sizes1 is not None and angles is not None:
        linear0 = _rotation(angles[:, 0]) * half[:, None, None]
        linear1 = _rotation(angles[:, 1]) * (half * keypoint_sizes1 / keypoint_sizes0)[:, None, None]
    else:
        linear0 = torch.eye(2, device=half.device) * half[:, None, None]
        linear1 = _local_motion(points0, points1) @ linear0
    frames = [torch.cat(parts, dim=-1) for parts in ((linear0, points0[..., None]), (linear1, points1[..., None]))]
    return frames[0], frames[1]


def _rotation(angle: Tensor) -> Tensor:
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([cosine, -sine, sine, cosine], dim=-1).unflatten(-1, (2, 2))


def _local_motion(points0: Tensor, points1: Tensor) -> Tensor:
    """[N x 2 x 2] how the surroundings of each match change: an affine fit to its nearest neighbours.

    It leans on the motion of all matches where neighbours leave it open, and that one on no change at all.
    """
    everything = torch.eye(2, device=points0.device)[None]
    offsets = [(points - points.median(dim=0).values)[None] for points in (points0, points1)]
    overall = _fit_linear(offsets[0], offsets[1], everything)
    nearest = _nearest(points0)
    offsets = [points[nearest] - points[:, None] for points in (points0, points1)]
    return _fit_linear(offsets[0], offsets[1], overall)


def _nearest(points: Tensor) -> Tensor:
    """[N x k] indices of the nearest neighbours, each point among its own."""
    count = min(NEIGHBOURS + 1, len(points))
    rows = points.split(ROWS_AT_ONCE)
    return torch.cat([torch.cdist(some, points).topk(count, largest=False).indices for some in rows])


def _fit_linear(offsets0: Tensor, offsets1: Tensor, prior: Tensor) -> Tensor:
    """[B x 2 x 2] linear maps from [B x k x 2] offsets to others, by reweighted least squares near a prior."""
    weights = torch.ones_like(offsets0[..., :1])
    linear = prior.expand(len(offsets0), 2, 2)
    # As if the prior had been seen at a distance of the deviation, in both directions.
    trust = NEIGHBOUR_DEVIATION**2 * torch.eye(2, device=prior.device)
    for _ in range(5):
        weighted = offsets0 * weights
        normal = weighted.mT @ offsets0 + trust
        linear = torch.linalg.solve_ex(normal, weighted.mT @ offsets1 + trust @ prior.mT).result.mT
        residual = (offsets0 @ linear.mT - offsets1).square().sum(dim=-1, keepdim=True)
        weights = 1 / (1 + residual / NEIGHBOUR_DEVIATION**2).square()
    return linear
