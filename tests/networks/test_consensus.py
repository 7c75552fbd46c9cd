"""The geometry that believed matches agree on."""

import pytest
import torch

from ananet.core import geometry
from ananet.networks.consensus import distance_to_consensus


def problems(
    count: int = 20, matches: int = 300, wrong: float = 0.3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[B x N x 4] matches of random motions with a noise of a fifth of a pixel, which are wrong, and the true E."""
    torch.manual_seed(0)
    points = torch.rand(count, matches, 3, dtype=torch.float64) * 2 - 1
    points[..., 2] += 4
    R = torch.linalg.matrix_exp(geometry.cross_matrix(0.1 * torch.randn(count, 3, dtype=torch.float64)))
    t = torch.nn.functional.normalize(torch.randn(count, 3, dtype=torch.float64), dim=-1)
    moved = points @ R.mT + t[:, None]
    both = torch.cat([points[..., :2] / points[..., 2:], moved[..., :2] / moved[..., 2:]], dim=-1)
    both = both + 2e-4 * torch.randn_like(both)
    outlier = torch.rand(count, matches) < wrong
    both[outlier] = torch.rand(int(outlier.sum()), 4, dtype=torch.float64) - 0.5
    return both, outlier, geometry.essential_from_pose(R, t)


def test_the_true_geometry_is_found_among_wrong_matches():
    matches, outlier, E = problems()
    distance = distance_to_consensus(matches, torch.where(outlier, 0.3, 0.95))
    true = geometry.symmetric_epipolar_distance_squared(matches[..., :2], matches[..., 2:], E)
    agree = ((distance < 1e-4) == (true < 1e-4)).float().mean(1)
    assert agree.median() > 0.99 and agree.min() > 0.9


def test_padding_has_no_part():
    matches, outlier, _ = problems(count=3)
    belief = torch.where(outlier, 0.3, 0.95)
    padded = torch.cat([matches, torch.randn(3, 50, 4, dtype=torch.float64)], dim=1)
    padding = torch.zeros(3, 50)
    found = distance_to_consensus(padded, torch.cat([belief, padding], dim=1))[:, :300]
    torch.testing.assert_close(found, distance_to_consensus(matches, belief), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("belief", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["random", "same"])
def test_degenerate_input_gives_finite_distances(count, belief, kind):
    matches = torch.rand(2, count, 4) if kind == "random" else torch.full((2, count, 4), 0.25)
    distance = distance_to_consensus(matches, torch.full((2, count), belief))
    assert (
        distance.shape == (2, count) and distance.isfinite().all() and (distance >= 0).all() and (distance <= 1).all()
    )
    assert not distance.requires_grad
