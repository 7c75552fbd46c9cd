"""Augmentation of training pairs, one function per change, for all problems of a batch at once.

Changes of matches in pixels (`Problems`) come first, then changes of the network's input (`Batch`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ananet.core import geometry
from ananet.core.cameras import FOCAL_GUESS, calibrate, scale_by_size
from ananet.datasets.base import Batch
from ananet.datasets.labels import LabelRule

# Pixels within which two keypoints are one place: beyond, no match that was right still is.
SAME_PLACE = 8.0


class Draw:
    """Random numbers for a batch: every draw has shape [B x shape]."""

    def __init__(self, generator: torch.Generator, batch_size: int) -> None:
        self.generator, self.batch_size = generator, batch_size

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        numbers = torch.rand(self.batch_size, *shape, generator=self.generator, device=self.generator.device)
        return low + (high - low) * numbers

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.batch_size, *shape, generator=self.generator, device=self.generator.device)

    def exponential(self, *shape: int) -> Tensor:
        return -torch.log1p(-self.uniform(*shape))

    def chance(self, probability: float | Tensor, *shape: int) -> Tensor:
        return self.uniform(*shape) < probability

    def integers(self, high: int | Tensor, *shape: int) -> Tensor:
        """Whole numbers from 0 to high - 1."""
        return (self.uniform(*shape) * high).long().clamp_max(high - 1)

    def sign(self, *shape: int) -> Tensor:
        return torch.where(self.chance(0.5, *shape), 1.0, -1.0)


@dataclass(frozen=True, eq=False)
class Problems:
    """Matches of B pairs in pixels, padded to the longest pair."""

    points0: Tensor
    """[B x N x 2]"""
    points1: Tensor
    sizes: Tensor
    """[B x N x 2] of both keypoints, in pixels; NaN if unknown."""
    angles: Tensor
    """[B x N x 2] of both keypoints, in radians; NaN if unknown."""
    ratio: Tensor
    mutual: Tensor
    known: Tensor
    """[B x N] bool: where depth tells whether a match is right."""
    right: Tensor
    """[B x N] bool."""
    mask: Tensor
    """[B x N] which matches exist."""
    K0: Tensor
    K1: Tensor
    image_size0: Tensor
    image_size1: Tensor
    R: Tensor
    t: Tensor
    share: Tensor
    """[B] share of the common view; 0 if there is none, NaN if unknown."""

    def distance(self) -> Tensor:
        """[B x N] squared symmetric epipolar distance, calibrated."""
        rays0, rays1 = calibrate(self.points0, self.K0), calibrate(self.points1, self.K1)
        return geometry.symmetric_epipolar_distance_squared(rays0, rays1, geometry.essential_from_pose(self.R, self.t))

    def pick(self, order: Tensor) -> Problems:
        """Return the matches at indices [B x M]."""
        per_match = ("points0", "points1", "sizes", "angles", "ratio", "mutual", "known", "right", "mask")
        return replace(self, **{name: take(getattr(self, name), order) for name in per_match})

    def labels(self, rule: LabelRule, distance: Tensor) -> tuple[Tensor, Tensor]:
        """[B x N] targets and weights of matches at the given distances."""
        return rule.of_matches(distance, self.known, self.right, self.mutual, self.share)


def take(values: Tensor, index: Tensor) -> Tensor:
    """Rows [B x M] of values [B x N] or [B x N x C]."""
    return values.gather(1, index if values.dim() == 2 else index[..., None].expand(-1, -1, values.shape[-1]))


def jitter(draw: Draw, problems: Problems, pixels: float) -> Problems:
    """Add noise to all points."""
    noise0, noise1 = (pixels * draw.normal(*problems.points0.shape[1:]) for _ in range(2))
    return replace(problems, points0=problems.points0 + noise0, points1=problems.points1 + noise1)


def drop_inliers(draw: Draw, inlier: Tensor, keep: Tensor, probability: float) -> Tensor:
    """[B x N] bool mask that leaves out up to four fifths of the inliers, in some problems."""
    share = 0.8 * draw.uniform() * draw.chance(probability)
    return keep & ~(inlier & draw.chance(share[:, None], keep.shape[1]))


def drop_outliers(draw: Draw, inlier: Tensor, keep: Tensor, probability: float) -> Tensor:
    """[B x N] bool mask that leaves out four fifths to all of the outliers, in some problems."""
    share = (0.8 + 0.25 * draw.uniform()) * draw.chance(probability)
    clean = keep & ~(~inlier & draw.chance(share[:, None], keep.shape[1]))
    # Problems without inliers stay as they are.
    return clean.where(clean.any(1, keepdim=True), keep)


def sample(draw: Draw, problems: Problems, keep: Tensor, count: int) -> Problems:
    """Sample matches of every problem at random, repeated if there are fewer."""
    # A random order, kept matches first.
    order = (draw.uniform(keep.shape[1]) - keep.to(problems.ratio.dtype)).argsort(dim=1)
    number = torch.arange(count, device=order.device)
    order = order.gather(1, number % keep.sum(1, keepdim=True).clamp_min(1))
    return replace(problems, mask=keep).pick(order)


def shorten(draw: Draw, problems: Problems, min_matches: int) -> Problems:
    """Keep a log-uniform random number of matches of every problem; the rest becomes padding."""
    most = problems.mask.shape[1]
    count = min_matches * (most / min_matches) ** draw.uniform()
    within = torch.arange(most, device=count.device) < count.round()[:, None]
    return replace(problems, mask=problems.mask & within)


def wrong_partners(draw: Draw, problems: Problems, probability: float) -> Problems:
    """Give up to half of the matches the second keypoint of another match, in some problems."""
    mask, count = problems.mask, problems.mask.shape[1]
    share = 0.5 * draw.uniform() * draw.chance(probability)
    wrong = draw.chance(share[:, None], count) & mask
    other = draw.integers(mask.sum(1, keepdim=True).clamp_min(1), count)

    def second_of_other(values: Tensor) -> Tensor:
        return torch.stack([values[..., 0], values[..., 1].where(~wrong, take(values[..., 1], other))], dim=-1)

    points1 = problems.points1.where(~wrong[..., None], take(problems.points1, other))
    # A partner may be another keypoint of the same place, or the own one.
    moved = (points1 - problems.points1).norm(dim=-1) > SAME_PLACE
    return replace(
        problems,
        points1=points1,
        known=problems.known | moved,
        right=problems.right & ~moved,
        sizes=second_of_other(problems.sizes),
        angles=second_of_other(problems.angles),
        ratio=problems.ratio.where(~wrong, 1 - 0.06 * draw.exponential(count)).clamp(0, 1),
        mutual=problems.mutual & ~(wrong & draw.chance(0.8, count)),
    )


def far_points(draw: Draw, problems: Problems, probability: float) -> Problems:
    """Move up to a tenth of the second points out of the image, up to one image away, in some problems."""
    share = 0.1 * draw.uniform() * draw.chance(probability)
    count, size = problems.mask.shape[1], problems.image_size1[:, None]
    far = (draw.chance(share[:, None], count) & problems.mask)[..., None]
    anywhere = size * (3 * draw.uniform(count, 2) - 1)
    inside = ((anywhere >= 0) & (anywhere < size)).all(-1, keepdim=True)
    moved = far & ~inside
    return replace(
        problems,
        points1=torch.where(moved, anywhere, problems.points1),
        known=problems.known | moved[..., 0],
        right=problems.right & ~moved[..., 0],
    )


def as_batch(draw: Draw, problems: Problems, rule: LabelRule, uncalibrated: float) -> Batch:
    """Normalise the problems: by cameras, or in some problems by image size."""
    p, distance = problems, problems.distance()
    by_size = draw.chance(uncalibrated)[:, None, None]
    matches, sizes, to_rays = [], [], []
    for n, (points, K, image_size) in enumerate(((p.points0, p.K0, p.image_size0), (p.points1, p.K1, p.image_size1))):
        matches.append(torch.where(by_size, scale_by_size(points, image_size), calibrate(points, K)))
        focal = K.diagonal(dim1=-2, dim2=-1)[:, :2].mean(-1)
        focal = torch.where(by_size[:, 0, 0], FOCAL_GUESS * image_size.amax(-1), focal)
        sizes.append(p.sizes[..., n] / focal[:, None])
        to_rays.append(torch.where(by_size, _rays_of_scaled(K, image_size), torch.eye(3, device=K.device)))
    real = p.mask.to(distance.dtype)
    target, weight = p.labels(rule, distance)
    return Batch(
        matches=torch.cat(matches, dim=-1) * real[..., None],
        inlier=(target > 0.5) & p.mask,
        target=target * real,
        weight=weight * real,
        distance=distance * real,
        ratio=p.ratio * real,
        mutual=p.mutual & p.mask,
        sizes=torch.stack(sizes, dim=-1),
        angles=p.angles,
        mask=p.mask,
        R=p.R,
        t=p.t,
        E=to_rays[1].mT @ geometry.essential_from_pose(p.R, p.t) @ to_rays[0],
        share=p.share,
    )


def _rays_of_scaled(K: Tensor, image_size: Tensor) -> Tensor:
    """[B x 3 x 3] from homogeneous points scaled by `scale_by_size` to rays."""
    centre, scale = image_size / 2, FOCAL_GUESS * image_size.amax(-1, keepdim=True)
    axes = torch.eye(3, device=K.device)[:, 1:]
    origin, right, down = geometry.homogeneous(calibrate(centre[:, None] + scale[:, None] * axes, K)).unbind(1)
    return torch.stack([right - origin, down - origin, origin], dim=-1)


def focal_change(draw: Draw, batch: Batch, largest: float) -> Batch:
    """Scale the coordinates of both images, as a wrong focal length would."""
    factor = (largest * (2 * draw.uniform() - 1)).exp()[:, None, None]
    back = torch.cat([1 / factor, 1 / factor, torch.ones_like(factor)], dim=-1)
    E = back.mT * batch.E * back
    return replace(batch, matches=batch.matches * factor, sizes=batch.sizes * factor, E=E)


def roll(draw: Draw, batch: Batch, probability: float) -> Batch:
    """Turn each camera around its axis by any angle, in some problems."""
    angles = [2 * math.pi * draw.uniform() * draw.chance(probability) for _ in range(2)]
    turn0, turn1 = map(_around_axis, angles)
    points0, points1 = batch.matches[..., :2] @ turn0[:, :2, :2].mT, batch.matches[..., 2:] @ turn1[:, :2, :2].mT
    return replace(
        batch,
        matches=torch.cat([points0, points1], dim=-1),
        angles=batch.angles + torch.stack(angles, dim=-1)[:, None],
        R=turn1 @ batch.R @ turn0.mT,
        t=(turn1 @ batch.t[..., None])[..., 0],
        E=turn1 @ batch.E @ turn0.mT,
    )


def _around_axis(angle: Tensor) -> Tensor:
    """[B] angles to [B x 3 x 3] rotations around the viewing axis."""
    sine, cosine, zero, one = angle.sin(), angle.cos(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([cosine, -sine, zero, sine, cosine, zero, zero, zero, one], dim=-1).unflatten(-1, (3, 3))


def mirror(draw: Draw, batch: Batch, probability: float) -> Batch:
    """Mirror both images left to right, in some problems."""
    mirrored = draw.chance(probability)
    sign = 1 - 2 * mirrored.float()
    one = torch.ones_like(sign)
    flip = torch.stack([sign, one, one], dim=-1)
    return replace(
        batch,
        matches=batch.matches * torch.stack([sign, one, sign, one], dim=-1)[:, None],
        angles=torch.where(mirrored[:, None, None], math.pi - batch.angles, batch.angles),
        R=flip[:, :, None] * batch.R * flip[:, None, :],
        t=flip * batch.t,
        E=flip[:, :, None] * batch.E * flip[:, None, :],
    )


def swap(draw: Draw, batch: Batch, probability: float) -> Batch:
    """Swap the two images in some problems."""
    swapped = draw.chance(probability)
    of_matches = swapped[:, None, None]
    back = -(batch.R.mT @ batch.t[..., None])[..., 0]
    return replace(
        batch,
        matches=torch.where(of_matches, batch.matches.roll(2, dims=-1), batch.matches),
        sizes=torch.where(of_matches, batch.sizes.flip(-1), batch.sizes),
        angles=torch.where(of_matches, batch.angles.flip(-1), batch.angles),
        R=torch.where(of_matches, batch.R.mT, batch.R),
        t=torch.where(swapped[:, None], back, batch.t),
        E=torch.where(of_matches, batch.E.mT, batch.E),
    )


def second_motion(draw: Draw, batch: Batch, probability: float) -> Batch:
    """Replace, in a disc of the first image, matches by those of the next pair of the batch, in some problems.

    Pairs that show nothing in common keep their matches, all wrong.
    """
    count = batch.mask.sum(1)
    first = batch.matches[..., :2]
    partner = first.roll(1, 0)
    # The disc is centred at a match of the partner and contains a tenth to six tenths of its matches.
    centre = take(partner, draw.integers(count.roll(1, 0).clamp_min(1))[:, None])
    distance = (partner - centre).norm(dim=-1).masked_fill(~batch.mask.roll(1, 0), math.inf)
    share = (0.1 + 0.5 * draw.uniform()) * (draw.chance(probability) & (batch.share != 0))
    taken = (share * count.roll(1, 0)).long()[:, None]
    order = distance.argsort(dim=1)
    radius = distance.gather(1, order).gather(1, (taken - 1).clamp_min(0))
    # Own matches in the disc are replaced first.
    own_order = ((first - centre).norm(dim=-1) > radius).to(torch.uint8).argsort(dim=1, stable=True)
    theirs = torch.arange(order.shape[1], device=order.device) < taken

    def merged(values: Tensor) -> Tensor:
        chosen = theirs if values.dim() == 2 else theirs[..., None]
        return torch.where(chosen, take(values.roll(1, 0), order), take(values, own_order))

    names = [f.name for f in fields(Batch) if f.name not in ("R", "t", "E", "share")]
    return replace(batch, **{name: merged(getattr(batch, name)) for name in names})
