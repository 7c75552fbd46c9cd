"""Fit many fundamental matrices to weighted matches at once.

A fit minimises f^T M f, where M is the weighted sum of the outer products of the rows of the eight-point algorithm. The
matrices M of all fits are one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Upper half of a symmetric 9 x 9 matrix.
UPPER = np.triu_indices(9)
# Keeps divisions finite if all points of a fit coincide, or a line has no direction.
TINY = 1e-18
# Cyclic shift of rows or columns.
TURNED = np.array([1, 2, 0])
# Newton steps towards determinant 0.
RANK_STEPS = 2


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the eight-point algorithm for N matches."""

    points0: np.ndarray
    """[N x 3] homogeneous."""
    points1: np.ndarray
    rows: np.ndarray
    """[N x 9] p1 p0^T, flattened."""
    products: np.ndarray
    """[N x 45] upper halves of the rows' outer products."""

    @classmethod
    def of(cls, points0: np.ndarray, points1: np.ndarray) -> Rows:
        """From [N x 2] points."""
        first, second = (np.column_stack([points, np.ones(len(points))]) for points in (points0, points1))
        rows = (second[:, :, None] * first[:, None, :]).reshape(-1, 9)
        return cls(first, second, rows, rows[:, UPPER[0]] * rows[:, UPPER[1]])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: np.ndarray) -> Rows:
        return Rows(self.points0[chosen], self.points1[chosen], self.rows[chosen], self.products[chosen])


def fit_fundamental(rows: Rows, weights: np.ndarray) -> np.ndarray:
    """[L x 3 x 3] matrices of rank 2 and norm 1 by the normalised eight-point algorithm, from weights [L x N]."""
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), TINY)
    sums = weights @ rows.products
    moments = np.empty((len(weights), 9, 9))
    moments[:, UPPER[0], UPPER[1]] = sums
    moments[:, UPPER[1], UPPER[0]] = sums
    # The last row and column of p1 p0^T are the points, so moments contain their means and squares.
    T0 = _centring(moments[:, [6, 7], 8], moments[:, [6, 7], [6, 7]])
    T1 = _centring(moments[:, [2, 5], 8], moments[:, [2, 5], [2, 5]])
    change = (T1[:, :, None, :, None] * T0[:, None, :, None, :]).reshape(-1, 9, 9)
    F = T1.transpose(0, 2, 1) @ _of_rank_two(change @ moments @ change.transpose(0, 2, 1)) @ T0
    return F / np.linalg.norm(F, axis=(1, 2), keepdims=True)


def _of_rank_two(moments: np.ndarray) -> np.ndarray:
    """[L x 3 x 3] approximate minima of f^T M f with norm 1 and determinant 0.

    Optimal rank correction of the unconstrained minimum (Kanatani and Sugaya, Compact fundamental matrix computation,
    2010). Zeroing a singular value instead fails for motions that are nearly planar.
    """
    values, vectors = np.linalg.eigh(moments)
    start, directions = vectors[:, :, 0], vectors[:, :, 1:]
    freedom = 1 / np.maximum(values[:, 1:], 1e-10 * values[:, -1:] + TINY)
    f = start
    for _ in range(RANK_STEPS):
        F = f.reshape(-1, 3, 3)
        following, last = F[:, TURNED], F[:, TURNED[TURNED]]
        slope = following[..., TURNED] * last[..., TURNED[TURNED]] - following[..., TURNED[TURNED]] * last[..., TURNED]
        determinant = (F[:, 0] * slope[:, 0]).sum(axis=1)
        slope = slope.reshape(-1, 9)
        along = (slope[:, None] @ directions)[:, 0]
        step = (directions @ (freedom * along)[..., None])[..., 0]
        missing = ((start - f) * slope).sum(axis=1) + determinant
        f = start - step * (missing / np.maximum((freedom * along**2).sum(axis=1), TINY))[:, None]
        f = f / np.linalg.norm(f, axis=1, keepdims=True)
    U, values, Vt = np.linalg.svd(f.reshape(-1, 3, 3))
    values[:, 2] = 0
    return (U * values[:, None]) @ Vt


def _centring(mean: np.ndarray, square: np.ndarray) -> np.ndarray:
    """[L x 3 x 3] transforms that bring points to mean 0 and mean squared norm 2 (Hartley 1997)."""
    scale = np.sqrt(2 / np.maximum((square - mean**2).sum(axis=1), 1e-9))
    T = np.zeros((len(mean), 3, 3))
    T[:, 0, 0] = T[:, 1, 1] = scale
    T[:, :2, 2] = -scale[:, None] * mean
    T[:, 2, 2] = 1
    return T


def squared_sampson(rows: Rows, F: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[L x N] squared Sampson distances to L matrices, and the squared gradients they are divided by."""
    count = len(F)
    residual = F.reshape(count, 9) @ rows.rows.T
    lines1 = (F[:, :2].reshape(-1, 3) @ rows.points0.T).reshape(count, 2, -1)
    lines0 = (F[:, :, :2].transpose(0, 2, 1).reshape(-1, 3) @ rows.points1.T).reshape(count, 2, -1)
    gradient = np.einsum("lin,lin->ln", lines0, lines0)
    gradient += np.einsum("lin,lin->ln", lines1, lines1)
    np.maximum(gradient, TINY, out=gradient)
    return residual**2 / gradient, gradient


def refit(rows: Rows, F: np.ndarray, members: np.ndarray, scale: float, rounds: int) -> np.ndarray:
    """Refine matrices by reweighted least squares of Sampson distances (Student's t-distribution).

    Args:
        F: [L x 3 x 3] initial matrices.
        members: [L x N] weight of each match for each matrix.
        scale: of the distances of right matches.
    """
    for _ in range(rounds):
        squared, gradient = squared_sampson(rows, F)
        F = fit_fundamental(rows, members / (gradient * (1 + squared / (2 * scale**2))))
    return F
