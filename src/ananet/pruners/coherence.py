"""Pruners by motion coherence: right matches move as their neighbours do, wrong ones at random."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_probability, check_share, check_whole_number
from ananet.core.cameras import FOCAL_GUESS
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.networks.graphs import nearest_matches, subspace_basis
from ananet.pruners.base import MAX_LOGIT, PossibleMatchesPruner, margin

CELLS = 20
# Without image sizes, points this many times the extent of most of them away do not stretch the grid.
MAX_REACH = 5.0
SCALES = (1.0, 1 / 2, 1 / np.sqrt(2), np.sqrt(2), 2.0)
SHIFTS = ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5))
# The eight neighbours of a cell, clockwise from the top left, and the cell itself last.
RING = ((-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0))
# Which neighbour faces which when the second image is turned by 0, 45, ... 315 degrees.
ROTATIONS = [[*np.roll(np.arange(8), -turn).tolist(), 8] for turn in range(8)]


class GMS(PossibleMatchesPruner):
    """Keeps matches whose neighbourhood moves with them.

    Grid-based motion statistics (Bian et al., CVPR 2017). Each cell of a grid on the first image votes for the cell of
    the second where most of its matches go; the vote counts if enough matches of the eight neighbouring cells do
    likewise. Of eight rotations and five scales the combination that keeps most wins. Four grids, shifted by half a
    cell, treat matches at cell borders. Agrees match for match with OpenCV's contributed matchGMS.

    Args:
        rotation, scale: whether images may be turned or scaled against each other.
        threshold: how many neighbours must agree; higher keeps fewer matches.

    Without image sizes the extent of the points stands in for them.
    """

    name = "gms"

    def __init__(self, rotation: bool = True, scale: bool = True, threshold: float = 6.0) -> None:
        self.threshold = check_positive("threshold", threshold)
        self.scales = SCALES if scale else SCALES[:1]
        self.rotations = ROTATIONS if rotation else ROTATIONS[:1]

    def _logits(self, matches: Correspondences) -> Tensor:
        points0, points1 = matches.numpy_points()
        unit0 = _to_unit_square(points0, matches.image_size0)
        unit1 = _to_unit_square(points1, matches.image_size1)
        best = np.full(len(points0), 0.0)
        most_kept = -1
        for scale in self.scales:
            for support in self._support(unit0, unit1, round(CELLS * scale)):
                kept = int((support >= 1).sum())
                if kept > most_kept:
                    best, most_kept = support, kept
        # A vote stands at `support >= 1`; the smallest step above keeps it on the positive side of 0.
        logits = np.log(np.maximum(best, np.exp(-MAX_LOGIT))) + np.where(best >= 1, 1e-6, 0.0)
        return torch.from_numpy(np.minimum(logits, MAX_LOGIT))

    def _support(self, unit0: np.ndarray, unit1: np.ndarray, cells1: int) -> np.ndarray:
        """[rotations x N] support of each match over what it needs; 0 where its cell voted otherwise."""
        best = np.zeros((len(self.rotations), len(unit0)))
        cell1 = _cell_index(unit1, cells1, (0.0, 0.0))
        neighbours0, neighbours1 = _neighbours(CELLS), _neighbours(cells1)
        for shift in SHIFTS:
            cell0 = _cell_index(unit0, CELLS, shift)
            inside = (cell0 >= 0) & (cell1 >= 0)
            flat = cell0[inside] * cells1**2 + cell1[inside]
            votes = np.bincount(flat, minlength=CELLS**2 * cells1**2).reshape(CELLS**2, cells1**2)
            population = votes.sum(axis=1)
            winner = votes.argmax(axis=1)
            for index, rotation in enumerate(self.rotations):
                from0, to1 = neighbours0, neighbours1[winner][:, rotation]
                present = (from0 >= 0) & (to1 >= 0)
                support = (votes[from0, to1] * present).sum(axis=1)
                crowd = (population[from0] * present).sum(axis=1) / present.sum(axis=1)
                needed = self.threshold * np.sqrt(crowd)
                strength = np.divide(support, needed, out=np.zeros(len(needed)), where=needed > 0)
                agrees = inside & (winner[cell0] == cell1) & (population[cell0] > 0)
                best[index] = np.maximum(best[index], np.where(agrees, strength[cell0], 0.0))
        return best


def _to_unit_square(points: np.ndarray, size: tuple[float, float] | None) -> np.ndarray:
    """Points over the image size, in OpenCV's single precision: whole pixels often fall on cell borders."""
    if size is not None:
        return (points / np.array(size)).astype(np.float32)
    low, high = _extent(points)
    # One pixel more than the extent, so that the largest coordinate falls inside the last cell.
    return ((points - low) / (high - low + 1)).astype(np.float32)


def _extent(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest coordinates, but for a few far from all others, which would leave these a single cell."""
    low = np.percentile(points, 10, axis=0, method="higher")
    high = np.percentile(points, 90, axis=0, method="lower")
    reach = MAX_REACH * np.maximum(high - low, 0) + 1
    near = ((points >= low - reach) & (points <= high + reach)).all(axis=1)
    usual = points[near] if near.any() else points
    return usual.min(axis=0), usual.max(axis=0)


def _cell_index(unit: np.ndarray, cells: int, shift: tuple[float, float]) -> np.ndarray:
    """Index of the cell of each point in a grid moved by a part of a cell; -1 outside."""
    cell = np.floor(unit * np.float32(cells) + np.array(shift, np.float32)).astype(np.int64)
    inside = ((cell >= 0) & (cell < cells)).all(axis=1)
    return np.where(inside, cell[:, 0] + cell[:, 1] * cells, -1)


def _neighbours(cells: int) -> np.ndarray:
    """[cells^2 x 9] indices of the ring around each cell and of the cell itself; -1 beyond the border."""
    y, x = np.divmod(np.arange(cells**2), cells)
    columns = []
    for dx, dy in (*RING, (0, 0)):
        inside = (x + dx >= 0) & (x + dx < cells) & (y + dy >= 0) & (y + dy < cells)
        columns.append(np.where(inside, x + dx + (y + dy) * cells, -1))
    return np.stack(columns, axis=1)


# FLANN's single k-d tree, which searches exactly; OpenCV has no name for it.
EXACT_TREE = 4


class LPM(PossibleMatchesPruner):
    """Keeps matches that preserve their neighbourhood.

    Locality preserving matching (Ma et al., IJCV 2019). The cost of a match counts those of its K nearest matches in
    the first image that are not among the nearest in the second, or do not move like it. A first round over all matches
    finds likely inliers; a second one takes neighbours among these alone.

    Args:
        neighbours: neighbourhood sizes; costs are averaged over them.
        agreement: how alike two motions must be, 0 (opposite) to 1 (the same); the paper's tau.
        limits: an inlier costs less than this, in the first and in the second round; the paper's lambda.
    """

    name = "lpm"

    def __init__(
        self, neighbours: tuple[int, ...] = (4, 6, 8), agreement: float = 0.2, limits: tuple[float, float] = (0.8, 0.5)
    ) -> None:
        if len(neighbours) == 0 or min(neighbours) < 1:
            raise InputError(f"neighbours: expected sizes of at least 1, got {neighbours!r}")
        if not all(0 < limit <= 1 for limit in limits):
            raise InputError(f"limits: expected two numbers in (0, 1], got {limits!r}")
        self.neighbours, self.agreement, self.limits = neighbours, agreement, limits

    def _logits(self, matches: Correspondences) -> Tensor:
        everyone = torch.ones(len(matches), dtype=torch.bool, device=matches.points0.device)
        first = self._cost(matches, everyone)
        second = self._cost(matches, first < self.limits[0])
        return margin(self.limits[1], second)

    def _cost(self, matches: Correspondences, candidates: Tensor) -> Tensor:
        """[N] mean cost, 0 to 1, with neighbours taken among the candidates."""
        size = max(self.neighbours)
        if int(candidates.sum()) <= size:
            # Too few matches for a neighbourhood: keep none.
            return matches.points0.new_ones(len(matches))
        near0 = nearest_candidates(matches.points0, candidates, size)
        near1 = nearest_candidates(matches.points1, candidates, size)
        alike = self._moves_alike(matches.points1 - matches.points0, near0)
        cost = torch.zeros_like(matches.points0[:, 0])
        for k in self.neighbours:
            kept = (near0[:, :k, None] == near1[:, None, :k]).any(-1)
            cost += 1 - (kept & alike[:, :k]).sum(-1) / k
        return cost / len(self.neighbours)

    def _moves_alike(self, motion: Tensor, near: Tensor) -> Tensor:
        """[N x K] whether each neighbour's motion agrees in length and direction with the match's own."""
        length = motion.norm(dim=-1)
        own, other = length[:, None], length[near]
        longer = torch.maximum(own, other)
        cosine = (motion[:, None] * motion[near]).sum(-1) / (own * other).clamp_min(1e-12)
        agreement = torch.minimum(own, other) / longer.clamp_min(1e-12) * cosine
        # Two matches that do not move at all move alike.
        return (agreement >= self.agreement) | (longer < 1e-6)


def nearest_candidates(points: Tensor, candidates: Tensor, k: int) -> Tensor:
    """[N x k] indices of the nearest candidates of every point, itself excluded; there must be more than k."""
    import cv2

    pool = candidates.nonzero()[:, 0].cpu().numpy()
    # Centred, since the tree works in single precision.
    place = (points - points.median(dim=0).values).detach().cpu().numpy().astype(np.float32)
    tree = cv2.flann.Index(place[pool], {"algorithm": EXACT_TREE})
    # One more than k, since a candidate finds itself; if it does not, drop the farthest.
    found, _ = tree.knnSearch(place, k + 1, params={"checks": -1})
    found = pool[found]
    surplus = found == np.arange(len(points))[:, None]
    surplus[~surplus.any(axis=1), -1] = True
    return torch.from_numpy(found[~surplus].reshape(len(points), k)).to(points.device)


class LMF(PossibleMatchesPruner):
    """Keeps matches that agree with a smooth motion fitted to all matches.

    Laplacian motion fitting: the closed form of motion coherence that LMCNet builds on (Liu et al., CVPR 2021). Matches
    that are near each other in both images form a graph. The smooth motion m' minimises |m' - m|^2 + eta m'^T L m' with
    the graph's Laplacian L: m' = U (1 + eta Lambda)^-1 U^T m for its eigenvectors U with the smallest eigenvalues.

    Args:
        threshold: largest difference from the smooth motion, in focal lengths.
        eta: how smooth the motion is. The paper gives neither; these two have the best F1 on 120 pairs of training
            scenes (thresholds .01 to .3, eta 3 to 300).
        neighbours: edges of a match in the graph.
        vectors: eigenvectors that the smooth motion is made of.
        sigma: distance of matches, in focal lengths, at which the weight of an edge has fallen to 1 / e.
        floor: least weight of an edge.

    Without cameras, image sizes stand in for focal lengths; without sizes, the extent of the points.
    """

    name = "lmf"

    def __init__(
        self,
        threshold: float = 0.05,
        eta: float = 30.0,
        neighbours: int = 8,
        vectors: int = 32,
        sigma: float = 0.1,
        floor: float = 0.05,
    ) -> None:
        self.threshold, self.eta = check_positive("threshold", threshold), check_positive("eta", eta)
        self.neighbours = check_whole_number("neighbours", neighbours, 1, 100)
        self.vectors = check_whole_number("vectors", vectors, 1, 256)
        self.sigma = check_positive("sigma", sigma)
        check_share("floor", floor)
        self.floor = floor

    def _logits(self, matches: Correspondences) -> Tensor:
        points = in_focal_lengths(matches)[None]
        near = nearest_matches(points, self.neighbours)
        basis = subspace_basis(points, near, self.vectors, self.sigma, self.floor)
        motion = points[..., 2:] - points[..., :2]
        residual = (basis.smooth(motion, self.eta) - motion).norm(dim=-1)[0]
        return margin(self.threshold, residual)


def in_focal_lengths(matches: Correspondences) -> Tensor:
    """[N x 4] points in double precision: calibrated, or scaled by the image size or, without one, by their extent."""
    if matches.calibrated or (matches.image_size0 is not None and matches.image_size1 is not None):
        return matches.normalized().double()
    scaled = []
    for points in (matches.points0.double(), matches.points1.double()):
        low, high = points.quantile(0.05, dim=0), points.quantile(0.95, dim=0)
        scaled.append((points - (low + high) / 2) / (FOCAL_GUESS * (high - low).amax().clamp_min(1.0)))
    return torch.cat(scaled, dim=1)


# Least seeds at one place that make a likelihood, whatever the density of all.
MIN_COMPANIONS = 4.0
# The price is this share of the seeds that chance would put at one place, were all of them scattered: most are not.
SHARE_OF_CHANCE = 0.5
# Beyond these residuals costs grow linearly: of a likelihood, and of a motion in focal lengths.
HUBER_LIKELIHOOD, HUBER_MOTION = 0.5, 0.01
# What a motion that is not affine costs.
MOTION_PRICE = 0.1
ROUNDS, KMEANS_ROUNDS = 10, 5


class CODE(PossibleMatchesPruner):
    """Keeps matches that lie within boundaries of coherent motion.

    After CODE (Lin et al., TPAMI 2017). Two functions of position and motion are fitted with Huber costs, as sums of
    Gaussians around centroids: a likelihood, 1 at all seeds (the most distinctive matches) with a price on roughness,
    so that isolated seeds cannot raise it; and the motion of likely matches, which may jump where the scene does.
    A match is kept where the likelihood is high and the motion is as predicted.

    The authors published binaries for Windows only. They use A-SIFT features and regress affine shapes, where only
    points are known here; the widths of the Gaussians and the prices are ours, the centroids come from k-means.

    Args:
        likelihood: how likely a kept match must be, 0 to 1.
        deviation: largest difference from the motion of likely matches, in focal lengths.
        centroids: Gaussians that the functions are made of.
        seed_ratio: seeds have a second nearest descriptor this many times as far away as the nearest, both squared.
        min_seeds: of distinctive matches, where fewer pass; all matches are seeds where no ratios are known.
        width: of the Gaussians, in focal lengths.
    """

    name = "code"

    def __init__(
        self,
        likelihood: float = 0.6,
        deviation: float = 0.03,
        centroids: int = 100,
        seed_ratio: float = 2.25,
        min_seeds: int = 500,
        width: float = 0.1,
    ) -> None:
        self.likelihood = check_probability("likelihood", likelihood)
        self.deviation = check_positive("deviation", deviation)
        self.centroids = check_whole_number("centroids", centroids, 1, 10_000)
        self.seed_ratio = check_positive("seed_ratio", seed_ratio)
        self.min_seeds = check_whole_number("min_seeds", min_seeds, 1)
        self.width = check_positive("width", width)

    def _logits(self, matches: Correspondences) -> Tensor:
        points = in_focal_lengths(matches)
        # Position and motion, in widths.
        motion = points[:, 2:] - points[:, :2]
        places = torch.cat([points[:, :2], motion], dim=1) / self.width
        seeds = self._seeds(matches)
        centres = _centroids(places[seeds], self.centroids)
        at_centres, everywhere = _gaussians(centres, centres), _gaussians(places, centres)

        likelihood = everywhere @ _robust_fit(
            everywhere[seeds],
            torch.ones_like(places[seeds][:, :1]),
            at_centres * _price(points / self.width, len(seeds)),
            HUBER_LIKELIHOOD,
        )
        likely = likelihood[:, 0].clamp(0, 1)
        trusted = likely > self.likelihood
        chance = margin(1.0, (1 - likely) / (1 - self.likelihood))
        if int(trusted.sum()) <= places.shape[1]:
            # Too few to tell a motion by.
            return torch.minimum(chance, chance.new_tensor(-MAX_LOGIT))

        # An affine motion, which costs nothing, and what departs from it.
        flat = torch.cat([everywhere, torch.ones_like(points[:, :1]), points[:, :2]], dim=1)
        price = torch.nn.functional.pad(at_centres * MOTION_PRICE, (0, 3, 0, 3))
        predicted = flat @ _robust_fit(flat[trusted], motion[trusted], price, HUBER_MOTION)
        return torch.minimum(chance, margin(self.deviation, (predicted - motion).norm(dim=1)))

    def _seeds(self, matches: Correspondences) -> Tensor:
        """[M] numbers of the most distinctive matches."""
        if matches.ratio is None:
            return torch.arange(len(matches), device=matches.points0.device)
        order = matches.ratio.argsort(stable=True)
        passing = int((matches.ratio.square() * self.seed_ratio <= 1).sum())
        return order[: max(passing, min(self.min_seeds, len(matches)))]


def _price(points: Tensor, seeds: int) -> Tensor:
    """What one unit of roughness costs, in seeds: more where they are so many that chance makes crowds.

    Args:
        points: [N x 4] in both images, in widths: what they cover is where wrong matches may end.
    """
    covered = points.quantile(0.95, dim=0) - points.quantile(0.05, dim=0)
    of_gaussian = math.sqrt(2 * math.pi)
    by_chance = seeds * (of_gaussian / covered.clamp_min(of_gaussian)).prod()
    return (SHARE_OF_CHANCE * by_chance).clamp_min(MIN_COMPANIONS)


def _gaussians(places: Tensor, centres: Tensor) -> Tensor:
    """[N x K] how near places [N x D] are to centres [K x D]."""
    return (torch.cdist(places, centres).square() / -2).exp()


def _centroids(places: Tensor, count: int) -> Tensor:
    """[K x D] centres of clusters of places: k-means from random ones, the same each time."""
    draw = torch.Generator().manual_seed(0)
    centres = places[torch.randperm(len(places), generator=draw)[:count].to(places.device)]
    for _ in range(KMEANS_ROUNDS):
        nearest = torch.cdist(places, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, places)
        counts = nearest.bincount(minlength=len(centres))[:, None]
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres


def _robust_fit(design: Tensor, wanted: Tensor, price: Tensor, huber: float) -> Tensor:
    """[K x C] w that minimises sum_i huber(|design_i w - wanted_i|) + w^T price w, by reweighted least squares."""
    weights = torch.ones_like(wanted[:, :1])
    # What no match determines is left at 0.
    ridge = 1e-6 * torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    found = design.new_zeros(design.shape[1], wanted.shape[1])
    for _ in range(ROUNDS):
        weighted = design * weights
        solved, failed = torch.linalg.solve_ex(weighted.mT @ design + price + ridge, weighted.mT @ wanted)
        if failed:
            break  # singular: what was found so far
        found = solved
        length = (design @ found - wanted).norm(dim=1, keepdim=True)
        weights = (huber / length.clamp_min(huber)).clamp(max=1)
    return found
