"""Laplacian motion fitting: the closed form of motion coherence that LMCNet builds on (Liu et al., CVPR 2021).

Matches that are near each other, in both images at once, form a graph. The smooth motion m' minimises
|m' - m|^2 + eta m'^T L m' with the graph's Laplacian L. In the eigenvectors U of L with the smallest eigenvalues Lambda
it is m' = U (1 + eta Lambda)^-1 U^T m. A right match moves as m' says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_share, check_whole_number
from ananet.core.cameras import FOCAL_GUESS
from ananet.core.correspondences import Correspondences
from ananet.networks.graphs import laplacian_basis, nearest_matches
from ananet.pruners.base import Pruner, logits_of_possible, margin


class LMF(Pruner):
    """Keeps matches that move as a smooth motion of all does.

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

    def logits(self, matches: Correspondences) -> Tensor:
        return logits_of_possible(matches, self._logits)

    def _logits(self, matches: Correspondences) -> Tensor:
        points = in_focal_lengths(matches)[None]
        near = nearest_matches(points, self.neighbours)
        basis = laplacian_basis(points, near, self.vectors, self.sigma, self.floor)
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
