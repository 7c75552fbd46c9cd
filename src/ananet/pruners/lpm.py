"""Locality preserving matching (Ma et al., IJCV 2019): neighbours stay neighbours.

For each match, its K nearest matches in the first image are compared with those in the second. The cost counts
neighbours lost, and those kept that do not move like the match itself. A first round over all matches finds
likely inliers; a second round looks for neighbours among these alone, where outliers no longer disturb.
"""

import numpy as np
import torch
from torch import Tensor

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.pruners.base import Pruner, logits_of_possible, margin

# FLANN's single k-d tree, which searches exactly; OpenCV has no name for it.
EXACT_TREE = 4


class LPM(Pruner):
    """Keeps matches that preserve their neighbourhood.

    Args:
        neighbours: neighbourhood sizes; costs are averaged over them.
        agreement: how alike two motions must be, 0 (opposite) to 1 (the same); the paper's tau.
        limits: an inlier costs less than this, in the first and in the second round; the paper's lambda.
    """

    name = "lpm"

    def __init__(
        self,
        neighbours: tuple[int, ...] = (4, 6, 8),
        agreement: float = 0.2,
        limits: tuple[float, float] = (0.8, 0.5),
    ) -> None:
        if len(neighbours) == 0 or min(neighbours) < 1:
            raise InputError(f"neighbours: expected sizes of at least 1, got {neighbours!r}")
        if not all(0 < limit <= 1 for limit in limits):
            raise InputError(f"limits: expected two numbers in (0, 1], got {limits!r}")
        self.neighbours, self.agreement, self.limits = neighbours, agreement, limits

    def logits(self, matches: Correspondences) -> Tensor:
        return logits_of_possible(matches, self._logits)

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
