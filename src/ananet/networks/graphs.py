"""Graphs of neighbouring matches, and the smoothest functions on them: what LMCNet and LMF call motion coherence.

A smooth field over matches is a sum of eigenvectors of the graph's Laplacian with small eigenvalues (Liu et al.,
CVPR 2021). Its authors find 32 of them for every pair on the CPU before training: `eigenvector_basis`. `subspace_basis`
does a whole batch on its device, by subspace iteration with Chebyshev polynomials (Zhou et al., 2006): products with a
sparse matrix and decompositions of small ones. Since smoothing needs the space that the eigenvectors span and not each
of them, a few iterations are enough: what is left out lies at the upper end of the 32, where eigenvalues are close to
the next ones. Motion comes out within a percent from 300 matches on, within five below.

Matches are [B x N x 4], masks [B x N] with True for real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

# Degree of the polynomial in each round: so low that smooth functions do not drown the others in single precision.
DEGREES = (12, 12, 12)
# Extra vectors, since the last ones of a block converge slowly.
SURPLUS = 24
# Where smooth and rough part: in the first round as eigenvalues grow, by this times the share of vectors among matches;
# afterwards the block itself tells.
FIRST_CUT = 3.0
CUTS = (1e-3, 0.5)
# Above every eigenvalue of a normalised Laplacian.
ROUGHER_THAN_ALL = 4.0
# Squared length of directions that rounding alone has made.
MIN_DIRECTION = 1e-11
# Matches of a pair up to which a GPU holds whole matrices.
MAX_DENSE = 4096
# Lengths of the waves that iterations start from, in focal lengths.
MAX_WAVE, MIN_WAVE = 4.0, 0.1


class Neighbours(NamedTuple):
    numbers: Tensor
    """[B x N x k] of the nearest matches."""
    distance: Tensor
    """[B x N x k] squared."""
    real: Tensor
    """[B x N x k] bool: False where a pair has not so many, or the match is padding; the number is its own."""


class Basis(NamedTuple):
    vectors: Tensor
    """[B x N x V] of length 1, orthogonal; 0 at padding, and about 0 where a graph has fewer."""
    values: Tensor
    """[B x V] eigenvalues."""

    def smooth(self, fields: Tensor, eta: Tensor | float) -> Tensor:
        """U (1 + eta Lambda)^-1 U^T f for fields [B x N x C]: near the field, but smooth, eta saying how smooth."""
        return self.vectors @ ((self.vectors.mT @ fields) / (1 + eta * self.values[..., None]))


def nearest_matches(matches: Tensor, k: int, mask: Tensor | None = None) -> Neighbours:
    """The k nearest real matches of every match by their four coordinates, nearest first, itself not among them."""
    points = matches[..., :4]
    count = points.shape[1]
    # One coordinate after another: of only four, and without the rounding of inner products.
    distance = torch.zeros((), dtype=points.dtype, device=points.device)
    for one in points.unbind(-1):
        distance = distance + (one[:, :, None] - one[:, None, :]).square()
    itself = torch.eye(count, dtype=torch.bool, device=points.device)
    distance = distance.masked_fill(itself, math.inf)
    if mask is not None:
        distance = distance.masked_fill(~(mask[:, None, :] & mask[:, :, None]), math.inf)
    found, index = distance.topk(min(k, count), dim=-1, largest=False)
    real = found.isfinite()
    index = torch.where(real, index, torch.arange(count, device=points.device)[:, None])
    return Neighbours(index, found.masked_fill(~real, 0.0), real)


def with_itself(near: Neighbours, mask: Tensor | None = None) -> Neighbours:
    """The same number of neighbours, every match itself being the first of its own."""
    index, distance, real = near
    own = torch.arange(index.shape[1], device=index.device)[:, None].expand_as(index[..., :1])
    there = torch.ones_like(real[..., :1]) if mask is None else mask[..., None]
    return Neighbours(
        torch.cat([own, index[..., :-1]], dim=-1),
        torch.cat([torch.zeros_like(distance[..., :1]), distance[..., :-1]], dim=-1),
        torch.cat([there, real[..., :-1]], dim=-1),
    )


def edge_weights(near: Neighbours, sigma: float, floor: float) -> Tensor:
    """[B x N x k] weights of the edges to neighbours, normalised by the degrees of both ends."""
    weights = (near.distance / -(sigma**2)).exp().clamp_min(floor) * near.real
    # An edge counts half from each of its ends.
    degree = _spread(near, torch.ones_like(weights[..., :1]), weights / 2)[..., 0]
    root = degree.clamp_min(torch.finfo(degree.dtype).tiny).rsqrt()
    at_neighbours = root.gather(1, near.numbers.flatten(1)).view_as(weights)
    return weights / 2 * root[..., None] * at_neighbours


def _spread(near: Neighbours, fields: Tensor, weights: Tensor) -> Tensor:
    """[B x N x C] the symmetric adjacency, of `weights` along every edge both ways, times fields."""
    pairs, count, k = near.numbers.shape
    first = count * torch.arange(pairs, device=fields.device)[:, None, None]
    rows = (near.numbers + first).flatten()
    flat = fields.flatten(0, 1)
    arrived = torch.bmm(weights.flatten(0, 1)[:, None], flat.index_select(0, rows).view(-1, k, flat.shape[-1]))[:, 0]
    sent = (flat[:, None] * weights.flatten(0, 1)[..., None]).flatten(0, 1)
    return arrived.index_add(0, rows, sent).view_as(fields)


def _adjacency(near: Neighbours, weights: Tensor) -> Tensor:
    """[B x N x N] the symmetric adjacency, of `weights` along every edge both ways."""
    pairs, count, _ = near.numbers.shape
    one_way = weights.new_zeros(pairs, count, count).scatter_add_(2, near.numbers, weights)
    return one_way + one_way.mT


@torch.no_grad()
def eigenvector_basis(
    matches: Tensor, near: Neighbours, vectors: int, sigma: float, floor: float, mask: Tensor | None = None
) -> Basis:
    """The smoothest functions on a graph of neighbours: eigenvectors of L = D(A) - A, A being the normalised adjacency.

    By decomposing the whole [N x N] matrix of each pair in double precision on the CPU, in time cubic in N. Columns of
    0 fill up where there are fewer matches than `vectors`. Edges have a weight of at least `floor`, and 1 / e at a
    distance of `sigma`.
    """
    with torch.autocast(matches.device.type, enabled=False):
        adjacency = _adjacency(near, edge_weights(near, sigma, floor)).double().cpu()
        pairs, count, _ = adjacency.shape
        basis = Basis(adjacency.new_zeros(pairs, count, vectors), adjacency.new_zeros(pairs, vectors))
        real = torch.ones(pairs, count, dtype=torch.bool) if mask is None else mask.cpu()
        for pair, graph, own in zip(range(pairs), adjacency, real, strict=True):
            among = graph[own][:, own]
            values, found = torch.linalg.eigh(among.sum(-1).diag() - among)
            basis.vectors[pair, own, : len(values)] = found[:, :vectors]
            basis.values[pair, : len(values)] = values[:vectors].clamp_min(0)
        return Basis(*(part.to(matches) for part in basis))


@torch.no_grad()
def subspace_basis(
    matches: Tensor, near: Neighbours, vectors: int, sigma: float, floor: float, mask: Tensor | None = None
) -> Basis:
    """`eigenvector_basis`, nearly, for many pairs at once on any device.

    It starts from functions of the matches [B x N x 4], so their order has no part. Columns of about 0 fill up where
    there are fewer matches than `vectors`. Not for compiled graphs, since decompositions make the host wait for the
    device.
    """
    with torch.autocast(matches.device.type, enabled=False):
        weights = edge_weights(near, sigma, floor)
        degree = _spread(near, torch.ones_like(matches[..., :1]), weights)
        largest = 2 * degree.amax(1, keepdim=True).clamp_min(1)
        # One large product is one kernel; a sparse one is many small ones, and a GPU spends its time between them.
        dense = _adjacency(near, weights) if matches.is_cuda and matches.shape[1] <= MAX_DENSE else None

        def laplacian(fields: Tensor) -> Tensor:
            return degree * fields - (_spread(near, fields, weights) if dense is None else dense @ fields)

        block = _waves(matches[..., :4], vectors + SURPLUS)
        count = torch.full_like(largest, matches.shape[1])
        if mask is not None:
            block = block * mask[..., None]
            count = mask.sum(1)[:, None, None].to(count.dtype)
        cut = (FIRST_CUT * block.shape[-1] / count.clamp_min(1)).clamp(*CUTS)
        for degree_of_round in DEGREES:
            block = _orthogonal(_chebyshev(laplacian, block, cut, largest, degree_of_round))
            inner = _within(block, laplacian(block))
            # The roughest of the block is about what its roughest column is.
            cut = inner.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None, None].to(block.dtype).clamp(*CUTS)
        # A GPU decomposes so small matrices one after another: the host is faster.
        values, turn = (found.to(block.device) for found in torch.linalg.eigh(inner.cpu()))
        return Basis(block @ turn[..., :vectors].to(block.dtype), values[:, :vectors].to(block.dtype).clamp_min(0))


@cache
def _frequencies(count: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[4 x count] waves over matches in many directions, from long to short, and their phases [count]."""
    draw = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(4, count, generator=draw), dim=0)
    lengths = MAX_WAVE * (MIN_WAVE / MAX_WAVE) ** torch.linspace(0, 1, count)
    phases = 2 * math.pi * torch.rand(count, generator=draw)
    return (2 * math.pi / lengths * directions).to(device, dtype), phases.to(device, dtype)


def _waves(points: Tensor, count: int) -> Tensor:
    """[B x N x count] functions of the coordinates: a constant, and waves."""
    frequencies, phases = _frequencies(count - 1, points.device, points.dtype)
    return torch.cat([torch.ones_like(points[..., :1]), (points @ frequencies + phases).cos()], dim=-1)


def _chebyshev(
    laplacian: Callable[[Tensor], Tensor], block: Tensor, cut: Tensor, largest: Tensor, degree: int
) -> Tensor:
    """A polynomial of the Laplacian that is large below the cut and within -1 and 1 from there to the largest."""
    half, centre = (largest - cut) / 2, (largest + cut) / 2
    before, now = block, (laplacian(block) - centre * block) / half
    for _ in range(degree - 1):
        before, now = now, 2 * (laplacian(now) - centre * now) / half - before
    return now


def _orthogonal(block: Tensor) -> Tensor:
    """An orthonormal basis of what columns span, by Cholesky; columns near 0 in place of those that others make up."""
    block = torch.nn.functional.normalize(block, dim=1)
    # Squares of condition numbers: in double precision.
    exact = block.double()
    unit = torch.eye(block.shape[-1], dtype=exact.dtype, device=block.device)
    lower, _ = torch.linalg.cholesky_ex(exact.mT @ exact + MIN_DIRECTION * unit)
    return torch.linalg.solve_triangular(lower.mT, exact, upper=True, left=False).to(block.dtype)


def _within(block: Tensor, moved: Tensor) -> Tensor:
    """[B x V x V] the Laplacian within a basis. Columns of 0 count as rougher than all others."""
    exact = block.double()
    inner = exact.mT @ moved.double()
    unit = torch.eye(block.shape[-1], dtype=exact.dtype, device=block.device)
    return (inner + inner.mT) / 2 + ROUGHER_THAN_ALL * (unit - exact.mT @ exact)
