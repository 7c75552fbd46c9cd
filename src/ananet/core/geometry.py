"""Two-view geometry on tensors: epipolar distances, essential matrices, poses and their errors.

Conventions: a pose (R, t) maps points of the first camera to the second, X1 = R X0 + t. Then
E = [t]x R, and corresponding calibrated points satisfy p1^T E p0 = 0. The same functions serve
pixels with a fundamental matrix in place of E. Leading dimensions are batch dimensions.
"""

import math

import torch
from torch import Tensor

# Powers of an inverse: enough to separate eigenvalues that differ by a thousandth.
SQUARINGS = 14
# Of a homography of norm 1: below this, its last number is noise.
MIN_LAST = 1e-9
# Eigenvalues nearer than this, as a share of their sum, have no slope of their own.
MIN_GAP = 1e-7


def homogeneous(points: Tensor) -> Tensor:
    """[... x N x 2] to [... x N x 3] with a last coordinate of 1."""
    return torch.cat([points, torch.ones_like(points[..., :1])], dim=-1)


def cross_matrix(t: Tensor) -> Tensor:
    """[... x 3] to the matrix [t]x of the cross product, [... x 3 x 3].

    >>> cross_matrix(torch.tensor([1.0, 2.0, 3.0])) @ torch.tensor([1.0, 2.0, 3.0])
    tensor([0., 0., 0.])
    """
    x, y, z = t.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))


def relative_pose(R0: Tensor, t0: Tensor, R1: Tensor, t1: Tensor) -> tuple[Tensor, Tensor]:
    """The pose (R, t) from the first camera to the second, from two world-to-camera poses."""
    R = R1 @ R0.mT
    return R, t1 - (R @ t0[..., None])[..., 0]


def essential_from_pose(R: Tensor, t: Tensor) -> Tensor:
    """E = [t]x R, [... x 3 x 3]."""
    return cross_matrix(t) @ R


def fundamental_from_essential(E: Tensor, K0: Tensor, K1: Tensor) -> Tensor:
    """F = K1^-T E K0^-1, so that it applies to pixels."""
    return torch.linalg.inv(K1).mT @ E @ torch.linalg.inv(K0)


def essential_from_fundamental(F: Tensor, K0: Tensor, K1: Tensor) -> Tensor:
    """E = K1^T F K0, the inverse of `fundamental_from_essential`."""
    return K1.mT @ F @ K0


def residual_and_lines(points0: Tensor, points1: Tensor, E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p1^T E p0, and the squared normal lengths of the epipolar lines in both images."""
    p0, p1 = homogeneous(points0), homogeneous(points1)
    lines1 = p0 @ E.mT
    lines0 = p1 @ E
    residual = (p1 * lines1).sum(-1)
    return residual, lines0[..., :2].square().sum(-1), lines1[..., :2].square().sum(-1)


def map_points(points: Tensor, H: Tensor) -> Tensor:
    """[... x N x 2] points under a homography [... x 3 x 3]; infinite or NaN on its horizon.

    >>> map_points(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 0.0, 5.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    tensor([[7., 4.]])
    """
    mapped = homogeneous(points) @ H.mT
    return mapped[..., :2] / mapped[..., 2:]


def tiny(values: Tensor) -> float:
    return torch.finfo(values.dtype).tiny


def symmetric_epipolar_distance_squared(points0: Tensor, points1: Tensor, E: Tensor) -> Tensor:
    """Sum of the squared distances to the epipolar lines in both images, [... x N].

    The label of the paper: a match is an inlier where this is below 1e-4 on calibrated points.
    """
    residual, normal0, normal1 = residual_and_lines(points0, points1, E)
    # Small enough for any geometry, and its inverse has a slope that is a number.
    least = 16 * math.sqrt(tiny(residual))
    return residual.square() * (1 / normal0.clamp_min(least) + 1 / normal1.clamp_min(least))


def epipolar_distance(points0: Tensor, points1: Tensor, E: Tensor) -> Tensor:
    """Distance of each point of the second image to its epipolar line (one-sided), [... x N]."""
    residual, _, normal1 = residual_and_lines(points0, points1, E)
    return residual.abs() / normal1.clamp_min(tiny(residual)).sqrt()


def sampson_distance(points0: Tensor, points1: Tensor, E: Tensor) -> Tensor:
    """First-order distance of a match to the nearest one that satisfies E exactly, [... x N]."""
    residual, normal0, normal1 = residual_and_lines(points0, points1, E)
    return residual.abs() / (normal0 + normal1).clamp_min(tiny(residual)).sqrt()


def homography_distance(points0: Tensor, points1: Tensor, H: Tensor) -> Tensor:
    """First-order distance of a match to the nearest one that satisfies p1 ~ H p0 exactly, [... x N].

    As Sampson's distance, it is measured in both photos together. Points that H sends through infinity to the other
    side than most of them are infinitely far.
    """
    mapped = homogeneous(points0) @ H.mT
    side = mapped[..., 2:].sign()
    sides = torch.where(side.sum(-2, keepdim=True) < 0, -1.0, 1.0)
    seen = (side == sides)[..., 0]
    w = torch.where(seen[..., None], mapped[..., 2:], sides)
    target = mapped[..., :2] / w
    # The derivative of the mapped point by the point.
    slope = (H[..., None, :2, :2] - target[..., None] * H[..., None, 2:, :2]) / w[..., None]
    # [A, -I] [A, -I]^T of the constraint's derivative A by the first point, -I by the second.
    spread = slope @ slope.mT
    xx, xy, yy = spread[..., 0, 0] + 1, spread[..., 0, 1], spread[..., 1, 1] + 1
    x, y = (target - points1).unbind(-1)
    squared = (x.square() * yy - 2 * x * y * xy + y.square() * xx) / (xx * yy - xy.square())
    distance = squared.clamp_min(0).sqrt()
    return torch.where(seen & distance.isfinite(), distance, torch.inf)


def normalized_homography(H: Tensor) -> Tensor:
    """H with H[2, 2] = 1, as is usual, or of norm 1 if H sends the origin to infinity, [3 x 3]."""
    H = H / torch.linalg.matrix_norm(H)
    return H / H[2, 2] if abs(H[2, 2]) > MIN_LAST else H


def weighted_homography(points0: Tensor, points1: Tensor, weights: Tensor) -> Tensor:
    """The matrix H of norm 1 that minimises sum_i w_i |p1_i x H p0_i|^2 (the direct linear transform), [... x 3 x 3].

    Points are centred and scaled first (Hartley 1997), with the same weights. At least four matches of positive weight,
    no three of them on a line, are needed for a unique solution.
    """
    points0, points1, weights = points0.double(), points1.double(), weights.double()
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(tiny(weights))
    p0, T0 = hartley_normalize(points0, weights)
    p1, T1 = hartley_normalize(points1, weights)
    zero = torch.zeros_like(p0)
    rows = [torch.cat([-p0, zero, p1[..., :1] * p0], -1), torch.cat([zero, -p0, p1[..., 1:2] * p0], -1)]
    first, second = ((row * weights[..., None]).mT @ row for row in rows)
    H = torch.linalg.solve(T1, smallest_eigenvector(first + second).unflatten(-1, (3, 3)) @ T0)
    return H / torch.linalg.matrix_norm(H)[..., None, None].clamp_min(tiny(H))


def weighted_eight_point(
    points0: Tensor, points1: Tensor, weights: Tensor | None = None, *, normalize: bool = True
) -> Tensor:
    """The matrix E of norm 1 that minimises sum_i w_i (p1_i^T E p0_i)^2, differentiable, [... x 3 x 3].

    Points are centred and scaled first (Hartley 1997), with the same weights, unless `normalize` is False. At least
    eight matches of positive weight are needed for a unique solution. Computes in float64: the normal matrix squares
    the condition number, which is too much for float32.
    """
    dtype = points0.dtype
    points0, points1 = points0.double(), points1.double()
    weights = torch.ones_like(points0[..., 0]) if weights is None else weights.double()
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(tiny(weights))
    unit = torch.eye(3, dtype=points0.dtype, device=points0.device)
    (p0, T0), (p1, T1) = (
        hartley_normalize(points, weights) if normalize else (homogeneous(points), unit)
        for points in (points0, points1)
    )
    rows = (p1[..., :, None] * p0[..., None, :]).flatten(-2)
    normal = (rows * weights[..., None]).mT @ rows
    E = T1.mT @ smallest_eigenvector(normal).unflatten(-1, (3, 3)) @ T0
    return (E / torch.linalg.matrix_norm(E)[..., None, None].clamp_min(tiny(E))).to(dtype)


def smallest_eigenvector(matrices: Tensor) -> Tensor:
    """[... x n] a unit eigenvector of the smallest eigenvalue of positive semi-definite matrices [... x n x n].

    For small n and many matrices at once. Its gradient is finite even if that eigenvalue is not unique.
    """
    matrices = matrices / matrices.detach().diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(1e-30)
    exact = matrices.detach()
    unit = torch.eye(exact.shape[-1], dtype=exact.dtype, device=exact.device)
    if exact.device.type == "cpu" and not torch.compiler.is_compiling() and exact.isfinite().all():
        vector = torch.linalg.eigh(exact).eigenvectors[..., 0]
    else:
        vector = _by_powers_of_inverse(exact, unit)
    if not matrices.requires_grad:
        return vector
    # One Newton step of (A - lambda) v = 0 from the solution itself: it leaves the value and has the right slope.
    column = vector[..., None]
    value = column.mT @ exact @ column
    inverse = _inverse_of_positive(exact + column @ column.mT + (MIN_GAP - value) * unit)
    moved = matrices @ column
    return vector - (inverse @ (moved - column * (column.mT @ moved)))[..., 0]


def _by_powers_of_inverse(matrices: Tensor, unit: Tensor) -> Tensor:
    """[... x n] the eigenvector in plain operations.

    Unlike `torch.linalg.eigh` they never make the host wait for a GPU, so that a CUDA graph can hold them, and
    exporters know them.
    """
    # Enough to keep rounding from making it indefinite.
    power = _inverse_of_positive(matrices + 256 * torch.finfo(matrices.dtype).eps * unit)
    for _ in range(SQUARINGS):
        power = power / torch.linalg.matrix_norm(power)[..., None, None]
        power = power @ power
    # All columns are multiples of the vector by now; the longest is the most exact.
    longest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None].expand(*power.shape[:-1], 1)
    return torch.nn.functional.normalize(power.gather(-1, longest)[..., 0], dim=-1)


def _inverse_of_positive(matrices: Tensor) -> Tensor:
    """Gauss-Jordan elimination, which needs no pivots for positive definite matrices."""
    size = matrices.shape[-1]
    unit = torch.eye(size, dtype=matrices.dtype, device=matrices.device)
    work = torch.cat([matrices, unit.expand_as(matrices)], dim=-1)
    for n in range(size):
        row = work[..., n : n + 1, :] / work[..., n, n, None, None].clamp_min(tiny(work))
        work = work - (work[..., n : n + 1] - unit[:, n : n + 1]) * row
    return work[..., size:]


def hartley_normalize(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Homogeneous points with weighted mean 0 and mean squared norm 2, and the transform that does it."""
    mean = (weights[..., None] * points).sum(-2)
    spread = (weights * (points - mean[..., None, :]).square().sum(-1)).sum(-1)
    scale = (2 / spread.clamp_min(1e-12)).sqrt()
    zero, one = torch.zeros_like(scale), torch.ones_like(scale)
    x, y = mean.unbind(-1)
    T = torch.stack([scale, zero, -scale * x, zero, scale, -scale * y, zero, zero, one], dim=-1)
    T = T.unflatten(-1, (3, 3))
    return homogeneous(points) @ T.mT, T


def decompose_essential(E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two rotations and the unit translation (up to sign) that make E."""
    U, _, Vt = torch.linalg.svd(E)
    # Reflections become rotations; E is defined up to sign anyway.
    U = U * torch.linalg.det(U).sign()[..., None, None]
    Vt = Vt * torch.linalg.det(Vt).sign()[..., None, None]
    W = E.new_tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    return U @ W @ Vt, U @ W.mT @ Vt, U[..., :, 2]


def depths(points0: Tensor, points1: Tensor, R: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Depth of each match in both cameras, by least squares along the two rays, [... x N] each."""
    ray0 = homogeneous(points0) @ R.mT
    ray1 = homogeneous(points1)
    t = t[..., None, :].expand_as(ray1)
    normal = torch.linalg.cross(ray1, ray0)
    square = normal.square().sum(-1).clamp_min(tiny(normal))
    depth0 = -(torch.linalg.cross(ray1, t) * normal).sum(-1) / square
    depth1 = -(torch.linalg.cross(ray0, t) * normal).sum(-1) / square
    return depth0, depth1


def recover_pose(E: Tensor, points0: Tensor, points1: Tensor) -> tuple[Tensor, Tensor, int]:
    """The pose (R, t) of an essential matrix [3 x 3] that puts most points in front of both cameras.

    Returns R, t of length 1, and how many points lie in front of both.
    """
    Ra, Rb, t = decompose_essential(E)
    best = (Ra, t, -1)
    for R, sign in ((Ra, 1), (Ra, -1), (Rb, 1), (Rb, -1)):
        depth0, depth1 = depths(points0, points1, R, sign * t)
        in_front = int(((depth0 > 0) & (depth1 > 0)).sum())
        if in_front > best[2]:
            best = (R, sign * t, in_front)
    return best


def rotation_error(R_estimated: Tensor, R_true: Tensor) -> Tensor:
    """Angle in degrees between two rotations; accurate for small angles too, where arccos is not.

    >>> rotation_error(torch.eye(3), torch.diag(torch.tensor([-1.0, -1.0, 1.0])))
    tensor(180.)
    """
    chord = torch.linalg.matrix_norm(R_estimated - R_true)
    return torch.rad2deg(2 * torch.asin((chord / (2 * math.sqrt(2))).clamp(max=1)))


def translation_error(t_estimated: Tensor, t_true: Tensor) -> Tensor:
    """Angle in degrees between two translation directions, 0 to 90: as in all protocols, sign is ignored.

    A zero vector has no direction and counts as 90.

    >>> translation_error(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([-2.0, 0.0, 0.0]))
    tensor(0.)
    """
    cross = torch.linalg.vector_norm(torch.linalg.cross(t_estimated, t_true), dim=-1)
    dot = (t_estimated * t_true).sum(-1).abs()
    angle = torch.rad2deg(torch.atan2(cross, dot))
    return torch.where((cross == 0) & (dot == 0), torch.full_like(angle, 90.0), angle)
