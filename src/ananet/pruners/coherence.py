"""CODE: Coherence Based Decision Boundaries for Feature Correspondence (Lin et al., TPAMI 2017), from its idea.

Right matches gather in the space of position and motion, wrong ones scatter. Two smooth functions of that "bilateral"
space are fitted by non-linear regression, as sums of Gaussians around a hundred centroids:

- a likelihood: 1 at all seeds, the most distinctive matches, with robust (Huber) costs and a price on its roughness.
  Where seeds are many it reaches 1; an isolated seed cannot raise it.
- the motion of likely matches, again with Huber costs. Being a function of position and motion, it may jump where the
  scene does.

A match is kept where the likelihood is high and the motion is as predicted. Both are fitted to few matches and hold for
all of them.

The authors published binaries for Windows only, so this is no copy of their program. What is approximate: they match
A-SIFT features and regress the affine shape of each, where only points are known here; the widths of the Gaussians and
the prices are ours, and the price of a likelihood follows from how many seeds a width would hold if all were scattered;
centroids come from a few rounds of k-means.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_probability, check_whole_number
from ananet.core.correspondences import Correspondences
from ananet.pruners.base import MAX_LOGIT, Pruner, logits_of_possible, margin
from ananet.pruners.lmf import in_focal_lengths

# Least seeds at one place that make a likelihood, whatever the density of all.
MIN_COMPANIONS = 4.0
# The price is this share of the seeds that chance would put at one place, were all of them scattered: most are not.
SHARE_OF_CHANCE = 0.5
# Beyond these residuals costs grow linearly: of a likelihood, and of a motion in focal lengths.
HUBER_LIKELIHOOD, HUBER_MOTION = 0.5, 0.01
# What a motion that is not affine costs.
MOTION_PRICE = 0.1
ROUNDS, KMEANS_ROUNDS = 10, 5


class CODE(Pruner):
    """Keeps matches that lie within boundaries of coherent motion.

    Args:
        likelihood: how likely a kept match must be, 0 to 1.
        deviation: largest difference from the motion of likely matches, in focal lengths.
        centroids: Gaussians that the functions are made of.
        seed_ratio: seeds have a second nearest descriptor this many times as far away as the nearest, both squared.
        fewest_seeds: of distinctive matches, where fewer pass; all matches are seeds where no ratios are known.
        width: of the Gaussians, in focal lengths.
    """

    name = "code"

    def __init__(
        self,
        likelihood: float = 0.6,
        deviation: float = 0.03,
        centroids: int = 100,
        seed_ratio: float = 2.25,
        fewest_seeds: int = 500,
        width: float = 0.1,
    ) -> None:
        self.likelihood = check_probability("likelihood", likelihood)
        self.deviation = check_positive("deviation", deviation)
        self.centroids = check_whole_number("centroids", centroids, 1, 10_000)
        self.seed_ratio = check_positive("seed_ratio", seed_ratio)
        self.fewest_seeds = check_whole_number("fewest_seeds", fewest_seeds, 1)
        self.width = check_positive("width", width)

    def logits(self, matches: Correspondences) -> Tensor:
        return logits_of_possible(matches, self._logits)

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
        return order[: max(passing, min(self.fewest_seeds, len(matches)))]


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
