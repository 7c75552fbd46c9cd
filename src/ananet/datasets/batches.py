"""Training batches out of a pair table: drawn and augmented where the table lies, CPU or GPU.

Batch k of a seed is always the same, whoever draws it: in a DataLoader, `DataLoader(batches, batch_size=None,
num_workers=w)` gives the same batches for any w. With the table on a GPU nothing touches the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ananet import geometry
from ananet.correspondences import FOCAL_GUESS
from ananet.datasets.base import INLIER_DISTANCE, Batch
from ananet.datasets.shards import PairSet
from ananet.errors import InputError


@dataclass(frozen=True)
class BatchSettings:
    """How batches are drawn. Single numbers below 1 are probabilities; 0 switches a change off."""

    batch_size: int = 32
    matches: int = 2000
    """Matches of a problem, sampled from those of the pair. Where a pair has fewer they come several times, which the
    network hardly sees: attention to all matches twice is attention to all. Batches without padding train faster."""
    swap: float = 0.5
    """How often the two images change places."""
    roll: float = 0.1
    """How often each camera is turned around its axis, by any angle."""
    mirror: float = 0.5
    """How often both images are mirrored."""
    uncalibrated: float = 0.3
    """How often points are normalised by image size instead of by the cameras."""
    focal_change: float = 0.2
    """Largest change of scale of the coordinates, as log; the same for both images, as if the focal length were off."""
    jitter: float = 0.3
    """Typical noise on points, in pixels."""
    outliers: float = 0.3
    """How often some matches are given wrong partners; up to half of them."""
    dropped_inliers: float = 0.3
    """How often some of the inliers are left out; up to four fifths of them."""
    dropped_outliers: float = 0.1
    """How often most of the outliers are left out, from four fifths to all of them: matches may come clean already."""
    second_motion: float = 0.15
    """How often a part of the first image shows what another pair of the batch has there: two motions in one problem,
    the inliers of both being inliers. R and t are those of the first."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "matches"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in self.changes():
            expected, most = ("at least 0", math.inf) if name in ("focal_change", "jitter") else ("a probability", 1.0)
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"{name}: expected {expected}, got {getattr(self, name)}")

    @classmethod
    def changes(cls) -> list[str]:
        """Names of all that changes pairs; 0 switches each of them off."""
        return [field.name for field in fields(cls) if field.name not in ("batch_size", "matches")]

    @classmethod
    def plain(cls, batch_size: int = 32, matches: int = 2000) -> BatchSettings:
        """Batches without any change, as for validation."""
        return cls(batch_size, matches, **dict.fromkeys(cls.changes(), 0.0))


class PairBatches(Dataset[Batch]):
    """An endless sequence of batches: `batches[k]` is the k-th. Every scene is drawn equally often."""

    def __init__(
        self,
        pairs: PairSet,
        settings: BatchSettings,
        seed: int = 0,
        device: str | torch.device = "cpu",
        without: Sequence[str] = (),
    ) -> None:
        """Batches of all scenes but those named in `without`."""
        unknown = sorted(set(without) - set(pairs.scenes))
        if unknown:
            raise InputError(f"without: no scene {', '.join(unknown)}, expected some of {', '.join(pairs.scenes)}")
        counts = torch.bincount(pairs.pair_scene, minlength=len(pairs.scenes))
        wanted = torch.tensor([name not in without for name in pairs.scenes], dtype=torch.bool) & (counts > 0)
        if not wanted.any():
            but = f" beside those of {', '.join(without)}, which are left out" if without else ""
            raise InputError(f"pairs: expected at least one pair{but}, got none")
        self.settings, self.seed, self.device = settings, seed, torch.device(device)
        self.table = pairs.table.to(device)
        self.scene_start = (counts.cumsum(0) - counts)[wanted].to(device)
        self.scene_count = counts[wanted].to(device)
        self.longest = int(pairs.table.pair_start.diff().max())
        self.matches = min(settings.matches, self.longest)
        """Of every problem: no more than the largest pair has."""

    def __getitem__(self, number: int) -> Batch:
        draw = _Draw(self.seed, number, self.settings.batch_size, self.device)
        scene = draw.integer(torch.full_like(draw.ones, len(self.scene_count)))
        pair = self.scene_start[scene] + draw.integer(self.scene_count[scene])
        return self._change(draw, _gather(self, pair))

    def _change(self, draw: _Draw, raw: _RawBatch) -> Batch:
        settings = self.settings
        points0, points1, R, t, mask = raw.points0, raw.points1, raw.R, raw.t, raw.mask
        if settings.jitter:
            points0 = points0 + settings.jitter * draw.normal_like(points0)
            points1 = points1 + settings.jitter * draw.normal_like(points1)
        rays0, rays1 = raw.rays(0, points0), raw.rays(1, points1)
        distance = _distance(rays0, rays1, R, t)

        keep = mask
        if settings.dropped_inliers:
            share = 0.8 * draw.uniform() * draw.chance(settings.dropped_inliers)
            keep = mask & ~((distance < INLIER_DISTANCE) & (draw.uniform_like(distance) < share[:, None]))
        if settings.dropped_outliers:
            share = (0.8 + 0.25 * draw.uniform()) * draw.chance(settings.dropped_outliers)
            clean = keep & ~((distance >= INLIER_DISTANCE) & (draw.uniform_like(distance) < share[:, None]))
            # Where there are no inliers something must be left.
            keep = clean.where(clean.any(1, keepdim=True), keep)
        # A random order with the kept ones first; its head is the sample, from the beginning again where it ends.
        order = (draw.uniform_like(distance) - keep.to(distance.dtype)).argsort(dim=1)
        number = torch.arange(self.matches, device=order.device)
        order = order.gather(1, number % keep.sum(1, keepdim=True).clamp_min(1))

        def pick(values: Tensor) -> Tensor:
            index = order if values.dim() == 2 else order[..., None].expand(-1, -1, values.shape[-1])
            return values.gather(1, index)

        mask, distance = pick(keep), pick(distance)
        points0, points1, rays0, rays1 = pick(points0), pick(points1), pick(rays0), pick(rays1)
        ratio, mutual = pick(raw.ratio), pick(raw.mutual)

        if settings.outliers:
            share = 0.5 * draw.uniform() * draw.chance(settings.outliers)
            wrong = (draw.uniform_like(distance) < share[:, None]) & mask
            # A wrong partner is another match's: it lies on a keypoint, as wrong matches do.
            other = draw.integer(mask.sum(1).clamp_min(1)[:, None].expand_as(distance))
            points1, rays1 = (x.where(~wrong[..., None], _take(x, other)) for x in (points1, rays1))
            ratio = ratio.where(~wrong, 1 - 0.06 * draw.exponential_like(ratio)).clamp(0, 1)
            mutual = mutual & ~(wrong & (draw.uniform_like(distance) < 0.8))
            distance = _distance(rays0, rays1, R, t)

        seen0, seen1 = rays0, rays1
        if settings.uncalibrated:
            sized = draw.chance(settings.uncalibrated)[:, None, None] > 0
            seen0 = torch.where(sized, raw.scaled_by_size(0, points0), rays0)
            seen1 = torch.where(sized, raw.scaled_by_size(1, points1), rays1)
        if settings.focal_change:
            factor = (settings.focal_change * (2 * draw.uniform() - 1)).exp()[:, None, None]
            seen0, seen1 = seen0 * factor, seen1 * factor
        if settings.roll:
            turn0, turn1 = (_roll(2 * math.pi * draw.uniform() * draw.chance(settings.roll)) for _ in range(2))
            seen0, seen1 = seen0 @ turn0[:, :2, :2].mT, seen1 @ turn1[:, :2, :2].mT
            R, t = turn1 @ R @ turn0.mT, (turn1 @ t[..., None])[..., 0]
        if settings.mirror:
            sign = 1 - 2 * draw.chance(settings.mirror)
            flip = torch.stack([sign, torch.ones_like(sign), torch.ones_like(sign)], dim=-1)
            seen0, seen1 = seen0 * flip[:, None, :2], seen1 * flip[:, None, :2]
            R, t = flip[:, :, None] * R * flip[:, None, :], flip * t
        if settings.swap:
            swap = draw.chance(settings.swap) > 0
            seen0, seen1 = (torch.where(swap[:, None, None], a, b) for a, b in ((seen1, seen0), (seen0, seen1)))
            back = -(R.mT @ t[..., None])[..., 0]
            R, t = torch.where(swap[:, None, None], R.mT, R), torch.where(swap[:, None], back, t)

        real = mask.to(rays0.dtype)
        batch = Batch(
            matches=torch.cat([seen0, seen1], dim=-1) * real[..., None],
            inlier=(distance < INLIER_DISTANCE) & mask,
            distance=distance * real,
            ratio=ratio * real,
            mutual=mutual & mask,
            mask=mask,
            R=R,
            t=t,
        )
        return _second_motion(draw, batch, settings.second_motion) if settings.second_motion else batch


def _second_motion(draw: _Draw, batch: Batch, probability: float) -> Batch:
    """Gives some pairs, within a disc of the first image, the matches that their neighbour in the batch has there."""
    count = batch.mask.sum(1)
    first = batch.matches[..., :2]
    partner = first.roll(1, 0)
    # The disc lies around a match of the partner and holds a tenth to six tenths of its matches.
    centre = _take(partner, draw.integer(count.roll(1, 0).clamp_min(1))[:, None])
    distance = (partner - centre).norm(dim=-1).masked_fill(~batch.mask.roll(1, 0), math.inf)
    share = (0.1 + 0.5 * draw.uniform()) * draw.chance(probability)
    taken = (share * count.roll(1, 0)).long()[:, None]
    order = distance.argsort(dim=1)
    radius = distance.gather(1, order).gather(1, (taken - 1).clamp_min(0))
    # What the pair itself has there makes room first.
    own_order = ((first - centre).norm(dim=-1) > radius).to(torch.uint8).argsort(dim=1, stable=True)
    theirs = torch.arange(order.shape[1], device=order.device) < taken

    def merged(values: Tensor) -> Tensor:
        if values.dim() == 3:
            return torch.where(theirs[..., None], _take(values.roll(1, 0), order), _take(values, own_order))
        return torch.where(theirs, values.roll(1, 0).gather(1, order), values.gather(1, own_order))

    names = ("matches", "inlier", "distance", "ratio", "mutual", "mask")
    return replace(batch, **{name: merged(getattr(batch, name)) for name in names})


@dataclass(frozen=True, eq=False)
class _RawBatch:
    """All matches of some pairs as they lie in the table, padded to the longest pair of all."""

    points0: Tensor
    points1: Tensor
    ratio: Tensor
    mutual: Tensor
    mask: Tensor
    camera: Tensor
    """[B x 2 x 4] fx, fy, cx, cy of both images."""
    size: Tensor
    """[B x 2 x 2]."""
    R: Tensor
    t: Tensor

    def rays(self, image: int, points: Tensor) -> Tensor:
        camera = self.camera[:, image, None]
        return (points - camera[..., 2:]) / camera[..., :2]

    def scaled_by_size(self, image: int, points: Tensor) -> Tensor:
        size = self.size[:, image, None]
        return (points - size / 2) / (FOCAL_GUESS * size.amax(-1, keepdim=True))


def _gather(batches: PairBatches, pair: Tensor) -> _RawBatch:
    table = batches.table
    images = table.pair_images[pair]
    start, end = table.pair_start[pair], table.pair_start[pair + 1]
    number = torch.arange(batches.longest, device=pair.device)
    mask = number < (end - start)[:, None]
    # Padding reads match 0 of its pair and is masked out.
    number = number * mask
    flat = start[:, None] + number
    keypoint0 = table.image_start[images[:, 0]][:, None] + number
    keypoint1 = table.image_start[images[:, 1]][:, None] + table.index[flat]
    return _RawBatch(
        points0=table.points[keypoint0],
        points1=table.points[keypoint1],
        ratio=table.ratio[flat].float() / 255,
        mutual=table.mutual[flat],
        mask=mask,
        camera=table.image_camera[images],
        size=table.image_size[images],
        R=table.pair_rotation[pair],
        t=table.pair_translation[pair],
    )


def _distance(rays0: Tensor, rays1: Tensor, R: Tensor, t: Tensor) -> Tensor:
    return geometry.symmetric_epipolar_distance_squared(rays0, rays1, geometry.essential_from_pose(R, t))


def _take(values: Tensor, number: Tensor) -> Tensor:
    return values.gather(1, number[..., None].expand(-1, -1, values.shape[-1]))


def _roll(angle: Tensor) -> Tensor:
    """[B] angles to [B x 3 x 3] rotations around the viewing axis."""
    sine, cosine, zero, one = angle.sin(), angle.cos(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([cosine, -sine, zero, sine, cosine, zero, zero, zero, one], dim=-1).unflatten(-1, (3, 3))


class _Draw:
    """Random numbers for one batch, from a generator that its number alone determines."""

    def __init__(self, seed: int, number: int, batch_size: int, device: torch.device) -> None:
        # Any odd multiplier far from a power of two keeps batches of neighbouring seeds apart.
        self.generator = torch.Generator(device).manual_seed((seed * 0x9E3779B1 + number) % 2**63)
        self.ones = torch.ones(batch_size, device=device)

    def uniform(self) -> Tensor:
        return self.uniform_like(self.ones)

    def uniform_like(self, values: Tensor) -> Tensor:
        return torch.rand(values.shape, generator=self.generator, device=values.device)

    def normal_like(self, values: Tensor) -> Tensor:
        return torch.randn(values.shape, generator=self.generator, device=values.device)

    def exponential_like(self, values: Tensor) -> Tensor:
        return -torch.log1p(-self.uniform_like(values))

    def integer(self, below: Tensor) -> Tensor:
        """Whole numbers from 0 to below - 1."""
        return torch.minimum((self.uniform_like(below) * below).long(), below.long() - 1)

    def chance(self, probability: float) -> Tensor:
        """[B] 1 with the given probability, else 0."""
        return (self.uniform() < probability).to(self.ones.dtype)
