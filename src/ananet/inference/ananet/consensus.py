# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels for `networks.consensus.distance_to_consensus`: nothing waits for the host, so CUDA graphs hold them.

Programs share the matches of a pair. Each step sums equations over a part of them; the next one adds the sums of all
parts up and solves them, every program for itself, since asking another would take longer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ananet.core import geometry
from ananet.networks import consensus

MIN_WEIGHT: tl.constexpr = tl.constexpr(consensus.MIN_WEIGHT)
SQUARINGS: tl.constexpr = tl.constexpr(geometry.SQUARINGS)
# So many squarings leave a trace of 1 well within double precision.
UNSCALED_SQUARINGS: tl.constexpr = tl.constexpr(2)
assert geometry.SQUARINGS % 2 == 0 and consensus.SHARPNESS == 8

# Matches that a program takes at a time, in one warp's registers.
BLOCK = 32
# Matches of a part, and most parts of a pair: every program reads the sums of all.
PART = 128
MAX_PARTS = 32


def find_distances(matches: Tensor, logits: Tensor, lengths: Tensor) -> Tensor:
    """[B x N] squared symmetric epipolar distance of every match to what the believed ones agree on.

    Args:
        matches: [B x N x channels], x0 y0 x1 y1 first.
        logits: [B x N] of being believed.
        lengths: [B] how many matches of each pair are real, the first ones.
    """
    batch, length, channels = matches.shape
    parts = min(-(-length // PART), MAX_PARTS)
    moments = matches.new_empty(batch, parts, 8, dtype=torch.float64)
    equations = matches.new_empty(len(consensus.SCALES) + 1, batch, parts, 256, dtype=torch.float64)
    distances = torch.empty_like(logits)
    given = {"CHANNELS": channels, "PARTS": parts, "BLOCK": BLOCK, "num_warps": 1}
    grid = (batch, parts)
    _sum_moments[grid](matches, logits, lengths, moments, length, **given)
    before = equations[0]  # not read by the first step
    for step, after in enumerate(equations):
        scale = consensus.SCALES[step - 1] if step else 0.0
        _sum_equations[grid](
            matches, logits, lengths, moments, before, after, length, scale, FIRST=step == 0, **given
        )  # fmt: skip
        before = after
    _measure[grid](matches, lengths, moments, before, distances, length, **given)
    return distances


@triton.jit
def _part_of(length, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Where the matches of this program begin and end: whole blocks."""
    blocks = tl.cdiv(tl.cdiv(length, BLOCK), PARTS)
    first = tl.program_id(1) * blocks * BLOCK
    return first, tl.minimum(first + blocks * BLOCK, length)


@triton.jit
def _points(MATCHES, pair, start, length, N, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Coordinates of some matches of a pair in double precision."""
    n = start + tl.arange(0, BLOCK)
    inside = n < length
    pointers = MATCHES + (pair * N + n) * CHANNELS
    x0 = tl.load(pointers, mask=inside, other=0.0).to(tl.float64)
    y0 = tl.load(pointers + 1, mask=inside, other=0.0).to(tl.float64)
    x1 = tl.load(pointers + 2, mask=inside, other=0.0).to(tl.float64)
    y1 = tl.load(pointers + 3, mask=inside, other=0.0).to(tl.float64)
    return x0, y0, x1, y1


@triton.jit
def _prior(LOGITS, pair, start, length, N, BLOCK: tl.constexpr):
    """Weights of some matches by what is believed: the eighth power."""
    n = start + tl.arange(0, BLOCK)
    inside = n < length
    belief = tl.sigmoid(tl.load(LOGITS + pair * N + n, mask=inside, other=0.0)).to(tl.float64)
    squared = belief * belief
    fourth = squared * squared
    return tl.where(inside, fourth * fourth + MIN_WEIGHT, 0.0)


@triton.jit
def _sum_moments(
    MATCHES, LOGITS, LENGTHS, MOMENTS, N, CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """[B x PARTS x 8] sums of weights, of weighted coordinates, and of weighted squares in both images."""
    pair = tl.program_id(0).to(tl.int64)
    length = tl.load(LENGTHS + pair)
    first, last = _part_of(length, BLOCK, PARTS)
    total = tl.zeros([BLOCK], tl.float64)
    mx0, my0, mx1, my1, q0, q1 = total, total, total, total, total, total
    for start in range(first, last, BLOCK):
        x0, y0, x1, y1 = _points(MATCHES, pair, start, length, N, CHANNELS, BLOCK)
        weight = _prior(LOGITS, pair, start, length, N, BLOCK)
        total += weight
        mx0 += weight * x0
        my0 += weight * y0
        mx1 += weight * x1
        my1 += weight * y1
        q0 += weight * (x0 * x0 + y0 * y0)
        q1 += weight * (x1 * x1 + y1 * y1)
    sums = MOMENTS + (pair * PARTS + tl.program_id(1)) * 8
    tl.store(sums, tl.sum(total))
    tl.store(sums + 1, tl.sum(mx0))
    tl.store(sums + 2, tl.sum(my0))
    tl.store(sums + 3, tl.sum(mx1))
    tl.store(sums + 4, tl.sum(my1))
    tl.store(sums + 5, tl.sum(q0))
    tl.store(sums + 6, tl.sum(q1))


@triton.jit
def _sum_of_parts(MOMENTS, pair, k, PARTS: tl.constexpr):
    part = tl.arange(0, 32)
    return tl.sum(tl.load(MOMENTS + (pair * PARTS + part) * 8 + k, mask=part < PARTS, other=0.0))


@triton.jit
def _normalisation(MOMENTS, pair, PARTS: tl.constexpr):
    """Hartley's, by weights: centre and scale in both images."""
    total = tl.maximum(_sum_of_parts(MOMENTS, pair, 0, PARTS), MIN_WEIGHT)
    cx0, cy0 = _sum_of_parts(MOMENTS, pair, 1, PARTS) / total, _sum_of_parts(MOMENTS, pair, 2, PARTS) / total
    cx1, cy1 = _sum_of_parts(MOMENTS, pair, 3, PARTS) / total, _sum_of_parts(MOMENTS, pair, 4, PARTS) / total
    q0, q1 = _sum_of_parts(MOMENTS, pair, 5, PARTS) / total, _sum_of_parts(MOMENTS, pair, 6, PARTS) / total
    s0 = tl.sqrt(2 / tl.maximum(q0 - cx0 * cx0 - cy0 * cy0, 1e-12))
    s1 = tl.sqrt(2 / tl.maximum(q1 - cx1 * cx1 - cy1 * cy1, 1e-12))
    return cx0, cy0, s0, cx1, cy1, s1


@triton.jit
def _coordinate(x, y, k):
    """[BLOCK x 16] homogeneous coordinate k, [1 x 16], of every point."""
    return tl.where(k == 0, x[:, None], tl.where(k == 1, y[:, None], 1.0))


@triton.jit
def _sum_equations(
    MATCHES, LOGITS, LENGTHS, MOMENTS, BEFORE, AFTER, N, scale,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """[B x PARTS x 16 x 16] weighted products of equations; all but the FIRST reweighted by the solution before."""
    pair = tl.program_id(0).to(tl.int64)
    length = tl.load(LENGTHS + pair)
    first, last = _part_of(length, BLOCK, PARTS)
    cx0, cy0, s0, cx1, cy1, s1 = _normalisation(MOMENTS, pair, PARTS)
    if not FIRST:
        e00, e01, e02, e10, e11, e12, e20, e21, e22 = _solve(BEFORE, MOMENTS, pair, PARTS)
    j = tl.arange(0, 16)[None, :]
    sums = tl.zeros([16, 16], tl.float64)
    for start in range(first, last, BLOCK):
        x0, y0, x1, y1 = _points(MATCHES, pair, start, length, N, CHANNELS, BLOCK)
        weight = _prior(LOGITS, pair, start, length, N, BLOCK)
        if not FIRST:
            residual, normal0, normal1 = _residual(x0, y0, x1, y1, e00, e01, e02, e10, e11, e12, e20, e21, e22)
            residual = residual / scale
            weight = weight / tl.maximum(normal0 + normal1 + residual * residual, 1e-300)
        # Equation 3 i + k is p1_i p0_k; there are nine.
        a = _coordinate((x1 - cx1) * s1, (y1 - cy1) * s1, j // 3) * _coordinate((x0 - cx0) * s0, (y0 - cy0) * s0, j % 3)
        a = tl.where(j < 9, a, 0.0)
        sums = tl.dot(tl.trans(a * weight[:, None]), a, sums, out_dtype=tl.float64)
    i = tl.arange(0, 16)[:, None]
    tl.store(AFTER + (pair * PARTS + tl.program_id(1)) * 256 + i * 16 + j, sums)


@triton.jit
def _measure(
    MATCHES, LENGTHS, MOMENTS, EQUATIONS, DISTANCES, N,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Squared symmetric distance of every match from the last solution, at most 1."""
    pair = tl.program_id(0).to(tl.int64)
    length = tl.load(LENGTHS + pair)
    first, last = _part_of(length, BLOCK, PARTS)
    e00, e01, e02, e10, e11, e12, e20, e21, e22 = _solve(EQUATIONS, MOMENTS, pair, PARTS)
    for start in range(first, last, BLOCK):
        x0, y0, x1, y1 = _points(MATCHES, pair, start, length, N, CHANNELS, BLOCK)
        residual, normal0, normal1 = _residual(x0, y0, x1, y1, e00, e01, e02, e10, e11, e12, e20, e21, e22)
        distance = residual * residual * (1 / tl.maximum(normal0, 1e-150) + 1 / tl.maximum(normal1, 1e-150))
        n = start + tl.arange(0, BLOCK)
        tl.store(DISTANCES + pair * N + n, tl.minimum(distance, 1.0).to(tl.float32), mask=n < length)


@triton.jit
def _solve(EQUATIONS, MOMENTS, pair, PARTS: tl.constexpr):
    """E as nine numbers, from the sums of all parts."""
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    A = tl.zeros([16, 16], tl.float64)
    for part in range(PARTS):
        A += tl.load(EQUATIONS + (pair * PARTS + part) * 256 + i * 16 + j)
    v = _least_eigenvector(A)
    cx0, cy0, s0, cx1, cy1, s1 = _normalisation(MOMENTS, pair, PARTS)
    # E = T1^T V T0 with T = [s 0 -s cx; 0 s -s cy; 0 0 1].
    v00, v01, v02 = _entry(v, 0) * s0, _entry(v, 1) * s0, _entry(v, 2)
    v10, v11, v12 = _entry(v, 3) * s0, _entry(v, 4) * s0, _entry(v, 5)
    v20, v21, v22 = _entry(v, 6) * s0, _entry(v, 7) * s0, _entry(v, 8)
    v02 -= v00 * cx0 + v01 * cy0
    v12 -= v10 * cx0 + v11 * cy0
    v22 -= v20 * cx0 + v21 * cy0
    e00, e01, e02 = v00 * s1, v01 * s1, v02 * s1
    e10, e11, e12 = v10 * s1, v11 * s1, v12 * s1
    e20 = v20 - e00 * cx1 - e10 * cy1
    e21 = v21 - e01 * cx1 - e11 * cy1
    e22 = v22 - e02 * cx1 - e12 * cy1
    return e00, e01, e02, e10, e11, e12, e20, e21, e22


@triton.jit
def _entry(vector, k):
    """One entry of a vector of 16."""
    return tl.sum(tl.where(tl.arange(0, 16) == k, vector, 0.0))


@triton.jit
def _least_eigenvector(A):
    """`geometry.smallest_eigenvector` of the 9 x 9 corner of a 16 x 16 matrix that is 0 elsewhere."""
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    inner = (i < 9) & (i == j)
    A = A / tl.maximum(_trace(A), 1e-30)
    A += tl.where(inner, 256 * 2.220446049250313e-16, 0.0)
    # Sweeping one column after another leaves the negative inverse.
    for k in range(9):
        column = tl.sum(tl.where(j == k, A, 0.0), 1)
        row = tl.sum(tl.where(i == k, A, 0.0), 0)
        u = column[:, None] - tl.where(i == k, 1.0, 0.0)
        v = row[None, :] - tl.where(j == k, 1.0, 0.0)
        A = A - u * v * (1 / _entry(column, k)) - tl.where((i == k) & (j == k), 2.0, 0.0)
    for _ in range(SQUARINGS // UNSCALED_SQUARINGS):
        A = A * (1 / _trace(A))
        for _ in tl.static_range(UNSCALED_SQUARINGS):
            A = tl.dot(A, A, out_dtype=tl.float64)
    diagonal = tl.sum(tl.where(inner, A, 0.0), 1)
    longest = tl.argmax(diagonal, 0)
    vector = tl.sum(tl.where(j == longest, A, 0.0), 1)
    return vector / tl.sqrt(tl.sum(vector * vector))


@triton.jit
def _trace(A):
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    return tl.sum(tl.sum(tl.where(i == j, A, 0.0), 1))


@triton.jit
def _residual(x0, y0, x1, y1, e00, e01, e02, e10, e11, e12, e20, e21, e22):
    """p1^T E p0, and the squared normal lengths of the epipolar lines in both images."""
    lx1, ly1, lw1 = e00 * x0 + e01 * y0 + e02, e10 * x0 + e11 * y0 + e12, e20 * x0 + e21 * y0 + e22
    lx0, ly0 = e00 * x1 + e10 * y1 + e20, e01 * x1 + e11 * y1 + e21
    return x1 * lx1 + y1 * ly1 + lw1, lx0 * lx0 + ly0 * ly0, lx1 * lx1 + ly1 * ly1
