import numpy as np
import pytest
import torch

from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.networks.graphs import (
    _adjacency,
    _spread,
    edge_weights,
    eigenvector_basis,
    nearest_matches,
    subspace_basis,
    with_itself,
)
from tests.networks.checks import points

SIGMA, FLOOR = 0.1, 0.05


def test_neighbours_are_the_nearest():
    matches = points(2, 30, 4)
    near = nearest_matches(matches, 5)
    for pair in range(2):
        for n in range(30):
            distance = (matches[pair] - matches[pair, n]).square().sum(1)
            expected = [m for m in distance.argsort().tolist() if m != n][:5]
            assert near.numbers[pair, n].tolist() == expected
            torch.testing.assert_close(near.distance[pair, n], distance[expected])
    own = with_itself(near)
    assert (own.numbers[..., 0] == torch.arange(30)).all() and torch.equal(own.numbers[..., 1:], near.numbers[..., :4])


def test_padding_is_nobodys_neighbour():
    matches = points(2, 12, 4)
    matches[0, 4:] = 0
    mask = torch.arange(12) < torch.tensor([[4], [12]])
    near = nearest_matches(matches, 8, mask)
    assert (near.real.sum(-1) == torch.tensor([[3] * 4 + [0] * 8, [8] * 12])).all()
    assert near.numbers[0, :4].max() < 4
    assert (with_itself(near, mask).real.sum(-1)[0] == torch.tensor([4] * 4 + [0] * 8)).all()
    assert nearest_matches(matches[:, :1], 8).real.sum() == 0


def test_whole_and_sparse_adjacency_agree():
    matches = torch.rand(2, 40, 4, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor([[40], [25]])
    near = nearest_matches(matches, 6, mask)
    weights, fields = edge_weights(near, 0.1, 0.05), torch.rand(2, 40, 3, dtype=torch.float64)
    torch.testing.assert_close(_adjacency(near, weights) @ fields, _spread(near, fields, weights))


def test_laplacian_is_that_of_the_authors():
    """Edge by edge: weights with a floor, symmetrised, normalised by degrees; degrees of the result on the diagonal."""
    matches = points(1, 25, 4)
    x = matches[0].numpy()
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    adjacency = np.zeros((25, 25))
    for n in range(25):
        for m in [m for m in np.argsort(squares[n]) if m != n][:4]:
            adjacency[n, m] = max(np.exp(-squares[n, m] / SIGMA**2), FLOOR)
    adjacency = (adjacency + adjacency.T) / 2
    degree = adjacency.sum(1)
    adjacency = adjacency / np.sqrt(degree[:, None] * degree[None])
    expected = np.linalg.eigvalsh(np.diag(adjacency.sum(1)) - adjacency)
    near = nearest_matches(matches, 4)
    assert (edge_weights(near, SIGMA, FLOOR) > 0).all()
    basis = eigenvector_basis(matches, near, 25, SIGMA, FLOOR)
    np.testing.assert_allclose(basis.values[0].numpy(), expected, atol=1e-10)
    np.testing.assert_allclose(subspace_basis(matches, near, 25, SIGMA, FLOOR).values[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("matches", [300, 1500])
def test_smoothing_is_that_of_exact_eigenvectors(matches):
    drawn = synthesize(2, torch.Generator().manual_seed(0), SyntheticSettings(matches=matches)).matches
    near = nearest_matches(drawn, 8)
    found = subspace_basis(drawn, near, 32, SIGMA, FLOOR)
    exact = eigenvector_basis(drawn, near, 32, SIGMA, FLOOR)
    torch.testing.assert_close(found.values, exact.values, atol=2e-3, rtol=0.02)
    unit = torch.eye(32).expand(2, -1, -1)
    torch.testing.assert_close(found.vectors.mT @ found.vectors, unit, atol=1e-4, rtol=0)
    motion = drawn[..., 2:] - drawn[..., :2]
    for fields, most in (
        (motion, 0.02),
        (torch.randn(2, matches, 8, generator=torch.Generator().manual_seed(1)), 0.06),
    ):
        expected = exact.smooth(fields, 10.0)
        assert (found.smooth(fields, 10.0) - expected).norm() < most * expected.norm()


@pytest.mark.parametrize("find_basis", [eigenvector_basis, subspace_basis])
def test_the_order_and_padding_of_matches_have_no_part(find_basis):
    matches = points(1, 60, 4)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    motion = matches[..., 2:] - matches[..., :2]
    basis = find_basis(matches, nearest_matches(matches, 8), 32, SIGMA, FLOOR)
    smooth = basis.smooth(motion, 10.0)
    turned = find_basis(matches[:, order], nearest_matches(matches[:, order], 8), 32, SIGMA, FLOOR)
    torch.testing.assert_close(turned.smooth(motion[:, order], 10.0), smooth[:, order], atol=1e-6, rtol=1e-5)
    padded = torch.cat([matches, torch.full((1, 9, 4), 5.0, dtype=torch.float64)], dim=1)
    mask = (torch.arange(69) < 60)[None]
    near = nearest_matches(padded, 8, mask)
    masked = find_basis(padded, near, 32, SIGMA, FLOOR, mask)
    assert masked.vectors[0, 60:].abs().sum() == 0
    longer = torch.nn.functional.pad(motion, (0, 0, 0, 9), value=7.0)
    torch.testing.assert_close(masked.smooth(longer, 10.0)[:, :60], smooth, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("find_basis", [eigenvector_basis, subspace_basis])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_identical_matches_have_a_constant_for_a_basis(n, find_basis):
    matches = torch.full((1, n, 4), 0.2)
    basis = find_basis(matches, nearest_matches(matches, 8), 32, SIGMA, FLOOR)
    assert basis.vectors.isfinite().all() and basis.values.isfinite().all()
    torch.testing.assert_close(basis.smooth(matches, 10.0), matches, atol=1e-4, rtol=1e-4)
