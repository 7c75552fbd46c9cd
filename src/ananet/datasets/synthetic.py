"""Synthetic two-view problems with labels, made on the fly in torch, on any device.

What is drawn for each pair, in this order:

1. two cameras, a motion between them, and sometimes independently moving bodies;
2. keypoints in the first image, clustered as texture is, some twice at one place (SIFT's second orientation);
3. a scene: regions of the first image, each a plane, a corner, clutter, ground or sky. Inverse depth along a ray
   (x, y, 1) is linear for a plane, `1 / depth = a . (x, y, 1)`, so no intersections are computed;
4. right matches: keypoints that the second image sees, with whole regions better than others;
5. for the rest, mistakes as nearest neighbours make them (see `_wrong_targets`);
6. ratio and mutual flag, distributed as for SIFT (see `_side_information`).

Ranges and shares marked "measured" come from 210 SIFT pairs of 35 photographed scenes with known cameras (2000
keypoints, nearest neighbour, no ratio test); the others are estimates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ananet._util.checks import Settings, check_share
from ananet._util.defaults import INLIER_DISTANCE
from ananet.core import geometry
from ananet.datasets.augment import Draw
from ananet.datasets.base import Batch
from ananet.errors import InputError

# Measured: 1 - ratio of wrong matches is exponential with this mean, whatever the scene.
RATIO_GAP = 0.057
# Limits of depth, in median depths.
MIN_DEPTH, MAX_DEPTH = 0.15, 100.0


@dataclass(frozen=True)
class SyntheticSettings(Settings):
    """Settings of synthetic problems. Pairs of numbers are ranges, single ones below 1 are probabilities."""

    matches: int = 2000
    min_matches: int | None = None
    """If given, each problem has a random number of matches from this to `matches`, and padding."""
    inlier_ratio: tuple[float, float] = (0.02, 0.95)
    """Share of right matches, skewed to the lower end, as measured."""
    baseline: tuple[float, float] = (0.01, 1.0)
    """Distance of the cameras in median depths (measured: 0.01 to 0.7)."""
    still: float = 0.05
    """How often the baseline is a hundredth of that: almost a pure rotation."""
    noise: tuple[float, float] = (0.15, 1.8)
    """Typical error of right matches in pixels, one per problem."""
    focal: tuple[float, float] = (0.45, 4.0)
    """Focal length over longest side (measured: 0.46 to 5)."""
    longest_side: tuple[float, float] = (600.0, 1600.0)
    """Of the images, in pixels."""
    unequal_cameras: float = 0.3
    """How often the two cameras differ in focal length and shape."""
    large_roll: float = 0.12
    """How often one camera is turned around its axis by any angle."""
    near_planar: float = 0.15
    """How often the scene is nearly one plane."""
    moving: float = 0.5
    """How often there are independently moving bodies."""
    bodies: int = 3
    """Largest number of them."""
    regions: int = 16
    """Surfaces of a scene."""
    duplicates: float = 0.17
    """Keypoints at the place of another one (measured: 0.07 to 0.22)."""

    def check(self) -> None:
        for name in ("inlier_ratio", "baseline", "noise", "focal", "longest_side"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise InputError(f"{name}: expected a range of positive numbers, got {(low, high)}")
        if self.inlier_ratio[1] > 1:
            raise InputError(f"inlier_ratio: expected at most 1, got {self.inlier_ratio}")
        for name in ("still", "unequal_cameras", "large_roll", "near_planar", "moving", "duplicates"):
            check_share(name, getattr(self, name))
        for name, least in (("matches", 1), ("bodies", 1), ("regions", self.bodies + 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}: expected at least {least}, got {getattr(self, name)!r}")
        if self.min_matches is not None and not 1 <= self.min_matches <= self.matches:
            raise InputError(f"min_matches: expected 1 to {self.matches}, got {self.min_matches!r}")


@dataclass(frozen=True, eq=False)
class SyntheticBatch(Batch):
    """B problems with more ground truth than photos have.

    `distance` of a correct match is to the motion of its body, of others to that of the static scene, as R and t.
    """

    correct: Tensor
    """[B x N] bool: whether the match is right, not only near the epipolar line."""
    body: Tensor
    """[B x N] int64: body of the first point; 0 is the static scene."""
    focal0: Tensor
    """[B] focal lengths in pixels."""
    focal1: Tensor


def synthesize(
    batch_size: int,
    generator: torch.Generator,
    settings: SyntheticSettings | None = None,
    inlier_distance: float = INLIER_DISTANCE,
) -> SyntheticBatch:
    """Return a batch of problems on the generator's device, determined by its state.

    The label is a squared symmetric epipolar distance below `inlier_distance`.

    >>> batch = synthesize(2, torch.Generator().manual_seed(0), SyntheticSettings(matches=100))
    >>> batch.matches.shape, batch.inlier.dtype
    (torch.Size([2, 100, 4]), torch.bool)
    >>> bool((batch.inlier == (batch.distance < 1e-4)).all())
    True
    """
    if batch_size < 1:
        raise InputError(f"batch_size: expected at least 1, got {batch_size!r}")
    settings = settings or SyntheticSettings()
    draw = Draw(generator, batch_size)
    count = settings.matches

    low, high = settings.inlier_ratio
    inlier_ratio = low + (high - low) * draw.uniform() ** 1.6
    camera0, camera1 = _cameras(draw, settings)
    R, t = _camera_motion(draw, settings, inlier_ratio)
    scene = _scene(draw, settings, camera0)
    R, t, body_of_region = _body_motions(draw, settings, scene.seeds, R, t)

    rays0 = camera0.rays(_texture(draw, count))
    region = torch.cdist(rays0, scene.seeds).argmin(-1)
    body = body_of_region.gather(1, region)
    inverse_depth = scene.inverse_depth(rays0, region, clutter=draw.normal(count))
    true1, visible = _transfer(rays0, inverse_depth, R, t, body, camera1)
    true1 = true1 + _localisation_error(draw, settings, count) / camera1.focal[:, None, None]

    # A keypoint with two orientations comes twice, at one place in both images.
    twice = draw.chance(settings.duplicates, count)
    place = (torch.arange(count, device=generator.device) - twice.long()).clamp_min(0)
    rays0, true1 = (points.gather(1, place[..., None].expand_as(points)) for points in (rays0, true1))
    region, body, visible = (values.gather(1, place) for values in (region, body, visible))

    mask = _mask(draw, settings)
    quality = draw.uniform(settings.regions).gather(1, region) + draw.uniform(count)
    correct = _best_share(quality, visible & mask, inlier_ratio[:, None] * mask.sum(1, keepdim=True))
    wrong1, target, ratio_gap = _wrong_targets(draw, scene, rays0, true1, visible, correct, region, body, R, t, camera1)
    points1 = torch.where(correct[..., None], true1, wrong1)
    ratio, mutual = _side_information(draw, correct, target, ratio_gap, inlier_ratio)

    E = geometry.essential_from_pose(R, t)
    distance = geometry.symmetric_epipolar_distance_squared(rays0[:, None], points1[:, None], E)
    distance = distance.gather(1, (body * correct)[:, None]).squeeze(1) * mask
    unknown = torch.full_like(rays0, math.nan)
    inlier = (distance < inlier_distance) & mask
    return SyntheticBatch(
        matches=torch.cat([rays0, points1], dim=-1) * mask[..., None],
        inlier=inlier,
        target=inlier.float(),
        weight=mask.float(),
        correct=correct,
        distance=distance,
        ratio=ratio * mask,
        mutual=mutual & mask,
        sizes=unknown,
        angles=unknown,
        mask=mask,
        body=body * mask,
        R=R[:, 0],
        t=t[:, 0] / t[:, 0].norm(dim=-1, keepdim=True),
        E=E[:, 0],
        share=unknown[:, 0, 0],
        focal0=camera0.focal,
        focal1=camera1.focal,
    )


@cache
def _constants(device: torch.device, *values: float) -> Tensor:
    """[len(values)] tensor, cached: copying it to a GPU for each batch would make the CPU wait."""
    return torch.tensor(values, device=device)


@dataclass(frozen=True, eq=False)
class _Camera:
    """An image in calibrated coordinates: |p - centre| <= half."""

    half: Tensor
    """[B x 2]"""
    centre: Tensor
    """[B x 2] off zero by the principal point."""
    focal: Tensor
    """[B] in pixels."""

    def rays(self, places: Tensor) -> Tensor:
        """[B x N x 2] places in [-1, 1]^2 to calibrated points."""
        return self.centre[:, None] + self.half[:, None] * places

    def sees(self, points: Tensor) -> Tensor:
        return ((points - self.centre[:, None]).abs() <= self.half[:, None]).all(-1)

    def fold(self, points: Tensor) -> Tensor:
        """Mirror points outside the image back into it."""
        return self.rays(_fold((points - self.centre[:, None]) / self.half[:, None]))


def _fold(places: Tensor) -> Tensor:
    """Mirror values outside [-1, 1] at its ends until they lie inside."""
    return 1 - (torch.remainder(places + 1, 4) - 2).abs()


def _cameras(draw: Draw, settings: SyntheticSettings) -> tuple[_Camera, _Camera]:
    """Draw one camera for both images or, sometimes, two."""
    low, high = settings.focal
    focal = (0.95 * (0.45 * draw.normal(2)).exp()).clamp(low, high)  # measured median
    side = draw.log_uniform(*settings.longest_side, 2)
    shape = draw.uniform(2, low=0.55, high=0.8)  # 16:9 to 5:4
    portrait = draw.chance(0.25, 2)
    half = torch.stack([torch.where(portrait, shape, 1.0), torch.where(portrait, 1.0, shape)], dim=-1)
    half = half / (2 * focal[..., None])
    centre_offset = 0.01 * half * draw.normal(2, 2)
    second = draw.chance(settings.unequal_cameras).long()
    rows = torch.arange(draw.batch_size, device=focal.device)
    places = (rows, torch.zeros_like(second)), (rows, second)
    first, other = (_Camera(half[place], centre_offset[place], (focal * side)[place]) for place in places)
    return first, other


def _rotation(axis_angle: Tensor) -> Tensor:
    """[... x 3] axis times angle to the [... x 3 x 3] rotation (Rodrigues)."""
    angle = axis_angle.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    cross = geometry.cross_matrix(axis_angle / angle)
    sine, cosine = angle.sin()[..., None], angle.cos()[..., None]
    return torch.eye(3, device=axis_angle.device) + sine * cross + (1 - cosine) * (cross @ cross)


def _camera_motion(draw: Draw, settings: SyntheticSettings, inlier_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """[B x 3 x 3] and [B x 3]: the second camera steps aside and mostly turns back to what the first one saw.

    As in photos, problems with many inliers have small motions: log(baseline) falls by 3 from none to all.
    """
    low, high = settings.baseline
    baseline = (math.log(0.2) - 3 * (inlier_ratio - 0.2) + 0.9 * draw.normal()).exp().clamp(low, high)
    # Measured: steps are mostly sideways, |t_z| is 0.2 in the median; some go straight ahead.
    spread = _constants(baseline.device, 1.0, 0.6, 0.35)
    ahead = _constants(baseline.device, 0.3, 0.2, 1.0)
    direction = draw.normal(3) * torch.where(draw.chance(0.12)[:, None], ahead, spread)
    centre = baseline[:, None] * direction / direction.norm(dim=-1, keepdim=True).clamp_min(1e-6)

    # To look at a point straight ahead of the first camera, turn by -x / z about y, and y / z about x.
    share = draw.uniform(low=0.3, high=1.1)
    depth = 1 - centre[:, 2].clamp_max(0.8)
    gaze = torch.stack([centre[:, 1].atan2(depth), -centre[:, 0].atan2(depth), torch.zeros_like(depth)], dim=-1)
    wobble = draw.normal(3) * (0.15 * baseline.sqrt())[:, None]
    roll = torch.where(draw.chance(settings.large_roll), draw.uniform(low=-math.pi, high=math.pi), 0.04 * draw.normal())
    axis = _constants(baseline.device, 0.0, 0.0, 1.0)
    R = _rotation(roll[:, None] * axis) @ _rotation(wobble) @ _rotation(share[:, None] * gaze).mT
    centre = torch.where(draw.chance(settings.still)[:, None], 0.01 * centre, centre)
    return R, -(R @ centre[..., None])[..., 0]


@dataclass(frozen=True, eq=False)
class _Scene:
    """S surfaces, one per Voronoi region of the seeds in the first image. The median depth is about 1."""

    seeds: Tensor
    """[B x S x 2] calibrated."""
    planes: Tensor
    """[B x S x 2 x 3]: inverse depth = the smaller or larger of the two a . (x, y, 1)."""
    convex: Tensor
    """[B x S] bool: a corner that points at the camera is behind both of its planes."""
    clutter: Tensor
    """[B x S] relative scatter of inverse depth."""

    def inverse_depth(self, rays: Tensor, region: Tensor, clutter: Tensor | float = 0.0) -> Tensor:
        """[B x N] for rays [B x N x 2] that lie on the given regions [B x N]."""
        planes = self.planes.flatten(2).gather(1, region[..., None].expand(-1, -1, 6)).unflatten(-1, (2, 3))
        first, second = (planes[..., :2] * rays[..., None, :]).sum(-1).add(planes[..., 2]).unbind(-1)
        convex = self.convex.gather(1, region)
        inverse = torch.where(convex, torch.minimum(first, second), torch.maximum(first, second))
        inverse = inverse * (1 + clutter * self.clutter.gather(1, region))
        return inverse.clamp(1 / MAX_DEPTH, 1 / MIN_DEPTH)


def _scene(draw: Draw, settings: SyntheticSettings, camera: _Camera) -> _Scene:
    """Surfaces of six kinds, in other proportions for each scene."""
    regions = settings.regions
    seeds = camera.rays(draw.uniform(regions, 2, low=-1.0, high=1.0))

    def plane_through(inverse: Tensor, slope: Tensor) -> Tensor:
        """[B x S x 3] planes with the given inverse depths at the seeds, and slopes [B x S x 2]."""
        return torch.cat([slope, (inverse - (slope * seeds).sum(-1))[..., None]], dim=-1)

    # Measured: the 95th percentile of depth is 1.1 to 14 times the 5th, 1.5 in the median.
    relief = draw.log_uniform(0.03, 1.0, 1)
    inverse = (relief * draw.normal(regions)).exp()
    slope = inverse[..., None] * 0.7 * draw.normal(regions, 2)
    own = plane_through(inverse, slope)
    other_face = plane_through(inverse, inverse[..., None] * 1.2 * draw.normal(regions, 2))
    main = geometry.homogeneous(0.4 * draw.normal(1, 2)).expand_as(own)
    # The ground's inverse depth grows downwards from the horizon; further up it meets the main plane.
    steepness, horizon = draw.log_uniform(0.7, 3.0, 1), draw.uniform(1, low=-0.5, high=0.1)
    ground = torch.stack([0.1 * draw.normal(1), steepness, -steepness * horizon * camera.half[:, 1:]], dim=-1)
    far = plane_through(draw.log_uniform(1 / MAX_DEPTH, 0.1, regions), torch.zeros_like(slope))

    # Gumbel's trick: the largest of log share + noise is a draw with those shares. The first noise is per scene.
    shares = _constants(seeds.device, 0.37, 0.14, 0.2, 0.15, 0.11, 0.03)  # as listed below
    noise = -draw.exponential(1, 6).clamp_min(1e-9).log() - draw.exponential(regions, 6).clamp_min(1e-9).log()
    kind = (shares.log() + noise).argmax(-1)
    kind[:, 0] = 0  # a scene of sky alone would be a pure rotation
    faces = torch.stack([main, ground.expand_as(own), own, own, own, far], dim=2)
    first = faces.gather(2, kind[..., None, None].expand(-1, -1, 1, 3)).squeeze(2)
    second = torch.where((kind == 3)[..., None], other_face, torch.where((kind == 1)[..., None], main, first))
    convex = draw.chance(0.7, regions) & (kind != 1)
    clutter = torch.where(kind == 4, draw.log_uniform(0.05, 0.5, regions), 0.003)

    planar = draw.chance(settings.near_planar, 1)
    flat = main + 0.01 * draw.normal(regions, 3)
    first, second = (torch.where(planar[..., None], flat, faces) for faces in (first, second))
    return _Scene(seeds, torch.stack([first, second], dim=2), convex, clutter * ~planar)


def _body_motions(
    draw: Draw, settings: SyntheticSettings, seeds: Tensor, R: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotations and translations [B x 1 + bodies x ...], the static scene's first, and bodies [B x S]."""
    bodies = settings.bodies
    moving = draw.chance(settings.moving, 1)
    present = moving & (torch.arange(bodies, device=seeds.device) <= draw.integers(bodies, 1))
    # A body is the regions around one of the seeds.
    centres = seeds[:, -bodies:]
    size = seeds.std(1).norm(dim=-1)[:, None] * draw.log_uniform(0.2, 1.0, bodies)
    near = (torch.cdist(seeds, centres) < size[:, None]) & present[:, None]
    body = (near * torch.arange(1, bodies + 1, device=seeds.device)).amax(-1)
    body[:, 0] = 0  # something always stands still

    # X -> turn (X - pivot) + pivot + shift in the first camera's frame, then the camera moves.
    turn = _rotation(draw.normal(bodies, 3) * draw.log_uniform(0.02, 0.7, bodies, 1))
    pivot = geometry.homogeneous(centres)
    shift = draw.normal(bodies, 3) * draw.log_uniform(0.02, 0.3, bodies, 1)
    offset = pivot - (turn @ pivot[..., None])[..., 0] + shift
    rotations = torch.cat([R[:, None], R[:, None] @ turn], dim=1)
    translations = torch.cat([t[:, None], (R[:, None] @ offset[..., None])[..., 0] + t[:, None]], dim=1)
    return rotations, translations, body


def _texture(draw: Draw, count: int, blobs: int = 48) -> Tensor:
    """[B x N x 2] places in [-1, 1]^2: clusters of very different size and weight, and a quarter uniform.

    In a third of the images most of the texture is in one part, as of an object before a plain wall.
    """
    window = torch.where(draw.chance(0.35, 1, 1), draw.uniform(1, 2, low=0.2, high=0.9), 1.0)
    corner = (1 - window) * draw.uniform(1, 2, low=-1.0, high=1.0)
    centre = corner + window * draw.uniform(blobs, 2, low=-1.0, high=1.0)
    spread = draw.log_uniform(0.04, 0.4, blobs, 1) * draw.log_uniform(0.5, 1.0, blobs, 2)
    blob = (blobs * draw.uniform(count) ** 1.7).long().clamp_max(blobs - 1)[..., None].expand(-1, -1, 2)
    clustered = centre.gather(1, blob) + spread.gather(1, blob) * draw.normal(count, 2)
    anywhere = draw.uniform(count, 2, low=-1.0, high=1.0)
    loose = 0.25 * window.prod(-1)
    places = torch.where(draw.chance(loose, count)[..., None], anywhere, clustered)
    return _fold(places)


def _transfer(
    rays: Tensor, inverse_depth: Tensor, R: Tensor, t: Tensor, body: Tensor, camera: _Camera
) -> tuple[Tensor, Tensor]:
    """Project points on rays of the first camera to the second: [B x N x 2], and whether they are visible [B x N].

    R X + t is parallel to R (x, y, 1) + t / depth, which holds at infinity too.
    """
    pose = torch.cat([R.flatten(2), t], dim=-1).gather(1, body[..., None].expand(-1, -1, 12))
    R, t = pose[..., :9].unflatten(-1, (3, 3)), pose[..., 9:]
    x, y, z = ((R[..., :2] * rays[..., None, :]).sum(-1) + R[..., 2] + inverse_depth[..., None] * t).unbind(-1)
    points = torch.stack([x, y], dim=-1) / z.clamp_min(0.05)[..., None]
    return points, (z > 0.05) & camera.sees(points)


def _localisation_error(draw: Draw, settings: SyntheticSettings, count: int) -> Tensor:
    """[B x N x 2] in pixels. Measured: the 90th percentile of distances is 5 times the median, not 2.4."""
    scale = draw.log_uniform(*settings.noise, 1) * (0.8 * draw.normal(count)).exp()
    return scale[..., None] * draw.normal(count, 2)


def _mask(draw: Draw, settings: SyntheticSettings) -> Tensor:
    """[B x N] bool mask of the matches that exist, the first ones."""
    fewest = settings.min_matches or settings.matches
    existing = fewest + draw.integers(settings.matches - fewest + 1, 1)
    return torch.arange(settings.matches, device=existing.device) < existing


def _best_share(quality: Tensor, allowed: Tensor, number: Tensor) -> Tensor:
    """[B x N] bool mask of the `number` [B x 1] best of those allowed, or all if there are fewer."""
    ranked = quality.masked_fill(~allowed, -1).sort(dim=1, descending=True).values
    last = (number.round().long() - 1).clamp(0, quality.shape[1] - 1)
    return allowed & (quality >= ranked.gather(1, last))


def _wrong_targets(
    draw: Draw,
    scene: _Scene,
    rays0: Tensor,
    true1: Tensor,
    visible: Tensor,
    correct: Tensor,
    region: Tensor,
    body: Tensor,
    R: Tensor,
    t: Tensor,
    camera: _Camera,
) -> tuple[Tensor, Tensor, Tensor]:
    """Wrong matches as nearest neighbours find them: popular or repeated targets, displaced patches, near misses.

    Returns points [B x N x 2], an identity of each match's target [B x N], equal for equal targets, and the mean of
    1 - ratio [B x N].
    """
    count = rays0.shape[1]
    popular, target = _popular_targets(draw, true1, visible, correct, camera)
    repeated, repeats = _repeated_targets(draw, scene, rays0, region, body, R, t, camera)
    patch = _patch_targets(draw, scene, rays0, region, camera)
    distance = draw.log_uniform(4.0, 40.0, count, 1) / camera.focal[:, None, None]
    near_miss = camera.fold(true1 + distance * draw.normal(count, 2))

    # Shares of the four kinds, drawn for each problem.
    weights = draw.exponential(4) * _constants(rays0.device, 6.0, 1.0, 0.3, 0.5)
    edges = (weights / weights.sum(-1, keepdim=True)).cumsum(-1)[:, None, :3]
    kind = (draw.uniform(count, 1) > edges).sum(-1)
    kind = torch.where((kind == 1) & ~repeats | (kind == 3) & ~visible, 0, kind)
    choice = torch.stack([popular, repeated, patch, near_miss], dim=2)
    points = choice.gather(2, kind[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    gaps = RATIO_GAP * _constants(rays0.device, 1.0, 0.6, 1.0, 2.0)
    every = torch.arange(count, device=rays0.device).expand_as(region)
    return points, torch.where((kind == 0) & ~correct, target, every + count * ~correct), gaps[kind]


def _popular_targets(
    draw: Draw, true1: Tensor, visible: Tensor, correct: Tensor, camera: _Camera
) -> tuple[Tensor, Tensor]:
    """Targets of some popularity: points [B x N x 2], and the number of the keypoint [B x N].

    Popularity is nearly exponential, so the number of matches per target is nearly geometric (measured: half have none,
    1.5 % six or more).
    """
    count = true1.shape[1]
    # The second image's keypoints: the right ones, other true projections, and some that the first does not show.
    detected = visible & (correct | draw.chance(0.5, count))
    keypoints1 = torch.where(detected[..., None], true1, camera.rays(_texture(draw, count)))
    popularity = (draw.exponential(count) ** 1.4).cumsum(1)
    target = torch.searchsorted(popularity, draw.uniform(count) * popularity[:, -1:]).clamp_max(count - 1)
    return keypoints1.gather(1, target[..., None].expand_as(keypoints1)), target


def _repeated_targets(
    draw: Draw, scene: _Scene, rays0: Tensor, region: Tensor, body: Tensor, R: Tensor, t: Tensor, camera: _Camera
) -> tuple[Tensor, Tensor]:
    """Matches to a repeated structure, one or two periods further on the same surface.

    Returns points [B x N x 2], and whether there is a repetition [B x N]. Most matches of a region have the same step
    and so agree with each other.
    """
    count, regions = rays0.shape[1], scene.seeds.shape[1]
    period = draw.normal(regions, 2) * draw.log_uniform(0.05, 0.5, regions, 1) * camera.half[:, None]
    usual_step = draw.sign(regions, 1)
    step = torch.where(draw.chance(0.7, count)[..., None], _of_region(usual_step, region), draw.sign(count, 1))
    step = step * (1 + draw.chance(0.25, count))[..., None]
    beside = rays0 + step * _of_region(period, region)
    repeated, repeats = _transfer(beside, scene.inverse_depth(beside, region), R, t, body, camera)
    return repeated, repeats & _of_region(draw.chance(0.4, regions, 1), region).squeeze(-1)


def _patch_targets(draw: Draw, scene: _Scene, rays0: Tensor, region: Tensor, camera: _Camera) -> Tensor:
    """[B x N x 2] targets of regions that are matched elsewhere as a whole, turned and scaled."""
    regions = scene.seeds.shape[1]
    angle = 0.3 * draw.normal(regions, 1)
    scale = (0.3 * draw.normal(regions, 1)).exp()
    turned = torch.cat([scale * angle.cos(), scale * angle.sin()], dim=-1)
    cosine, sine = _of_region(turned, region).unbind(-1)
    x, y = (rays0 - _of_region(scene.seeds, region)).unbind(-1)
    moved = torch.stack([cosine * x - sine * y, sine * x + cosine * y], dim=-1)
    elsewhere = camera.rays(draw.uniform(regions, 2, low=-1.0, high=1.0))
    return camera.fold(_of_region(elsewhere, region) + moved)


def _of_region(values: Tensor, region: Tensor) -> Tensor:
    """[B x S x C] values of regions to [B x N x C] of the matches in them."""
    return values.gather(1, region[..., None].expand(-1, -1, values.shape[-1]))


def _side_information(
    draw: Draw, correct: Tensor, target: Tensor, ratio_gap: Tensor, inlier_ratio: Tensor
) -> tuple[Tensor, Tensor]:
    """Ratio and mutual flag, [B x N] each, as SIFT gives them.

    Measured, at 15 % inliers the quartiles of a right match's ratio are 0.52, 0.72, 0.89, at 50 % 0.32, 0.47, 0.69:
    Kumaraswamy's law with the parameters below. Wrong matches: 0.92, 0.96, 0.98 everywhere. A right match is mutual
    in 99 % of cases at ratio 0.5, 75 % at 0.85, 45 % at 0.95; a wrong one in 70 %, 40 %, 20 %. Of the matches that
    share a target, one at most is mutual.
    """
    a = (2.4 - 1.4 * inlier_ratio)[:, None]
    b = (0.7 + 2.6 * inlier_ratio)[:, None]
    count = correct.shape[1]
    right = 0.1 + 0.9 * (1 - draw.uniform(count) ** (1 / b)) ** (1 / a)
    wrong = (1 - ratio_gap * draw.exponential(count)).clamp_min(0.2)
    ratio = torch.where(correct, right, wrong)

    best = torch.ones(len(ratio), 2 * count, device=ratio.device).scatter_reduce(1, target, ratio, "amin")
    wins = ratio <= best.gather(1, target)
    chance = torch.where(correct, 1.0, 0.8) - 0.6 * ratio**8
    return ratio, wins & draw.chance(chance, count)
