# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Groups of matches on the GPU: Triton kernels for their means, and for the nearest one.

Sums over groups are products with the [m x N] membership, built tile by tile and never written: tensor cores do them,
and unlike atomic additions they give the same sum every time. Long pairs are cut into parts, whose sums are added in
a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ananet.attention.fused import _cut, _dot, _load

# Matches whose sums one program adds up.
PART = 4096


def mean_groups(x: Tensor, group: Tensor, count: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Means of groups [B x m x C], in the type of x, and how many matches each has, [B x m] single precision.

    Args:
        x: [B x N x C].
        group: [B x N] int32.
        count: the number of groups, m.
        lengths: [B] how many matches are real.
    """
    batch, length, width = x.shape
    parts = triton.cdiv(length, PART)
    sums = x.new_empty(batch, parts, count, width, dtype=torch.float32)
    members = x.new_empty(batch, parts, count, dtype=torch.float32)
    means, weights = x.new_empty(batch, count, width), members.new_empty(batch, count)
    columns = 32 if x.dtype == torch.float32 else 64
    tiles = triton.cdiv(count, 64), triton.cdiv(width, columns)
    _sum_groups[(*tiles, batch * parts)](
        x, group, sums, members, lengths, x.stride(0), x.stride(1), length, count,
        PARTS=parts, PART=PART, ROWS=64, SEEDS=64, COLUMNS=columns, WIDTH=width,
        PRECISION=_cut(x)["PRECISION"],
    )  # fmt: skip
    _mean_of_parts[(*tiles, batch)](
        sums, members, means, weights, count, PARTS=parts, SEEDS=64, COLUMNS=columns, WIDTH=width
    )
    return means, weights


def move_to_nearest(x: Tensor, means: Tensor, weights: Tensor, group: Tensor, lengths: Tensor) -> None:
    """Write to `group` which mean [B x m x C] is nearest to each match, [B x N x C], unless there is a group for each.

    Other arguments as of `mean_groups`, and as it returns them.
    """
    batch, length, _ = x.shape
    _move_to_nearest[(triton.cdiv(length, 64), batch)](
        x, means, weights, group, lengths, x.stride(0), x.stride(1), length, means.shape[1],
        ROWS=64, SEEDS=64, **_cut(x),
    )  # fmt: skip


@triton.jit
def _sum_groups(
    X, GROUP, SUMS, MEMBERS, LENGTHS, stride_b, stride_n, N, M,
    PARTS: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, SEEDS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(2).to(tl.int64)
    batch, part = pid // PARTS, pid % PARTS
    seeds = tl.program_id(0) * SEEDS + tl.arange(0, SEEDS)
    left = tl.program_id(1) * COLUMNS
    length = tl.load(LENGTHS + batch)
    end = tl.minimum(length, (part + 1) * PART).to(tl.int32)
    columns = left + tl.arange(0, COLUMNS)
    X += batch * stride_b
    sums = tl.zeros([SEEDS, COLUMNS], tl.float32)
    members = tl.zeros([SEEDS], tl.float32)
    for start in range((part * PART).to(tl.int32), end, ROWS):
        row = start + tl.arange(0, ROWS)
        group = tl.load(GROUP + batch * N + row, mask=row < end, other=-1)
        belongs = group[None, :] == seeds[:, None]
        inside = (row < end)[:, None] & (columns < WIDTH)[None, :]
        x = tl.load(X + row.to(tl.int64)[:, None] * stride_n + columns[None, :], mask=inside, other=0.0)
        sums = _dot(belongs.to(x.dtype), x, sums, PRECISION)
        members += tl.sum(belongs.to(tl.float32), 1)
    inside = (seeds < M)[:, None] & (columns < WIDTH)[None, :]
    tl.store(SUMS + (pid * M + seeds[:, None]) * WIDTH + columns[None, :], sums, mask=inside)
    if left == 0:
        tl.store(MEMBERS + pid * M + seeds, members, mask=seeds < M)


@triton.jit
def _mean_of_parts(
    SUMS, MEMBERS, MEANS, WEIGHTS, M, PARTS: tl.constexpr, SEEDS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    seeds = tl.program_id(0) * SEEDS + tl.arange(0, SEEDS)
    left = tl.program_id(1) * COLUMNS
    columns = left + tl.arange(0, COLUMNS)
    inside = (seeds < M)[:, None] & (columns < WIDTH)[None, :]
    sums = tl.zeros([SEEDS, COLUMNS], tl.float32)
    members = tl.zeros([SEEDS], tl.float32)
    for part in range(PARTS):
        place = (batch * PARTS + part) * M
        members += tl.load(MEMBERS + place + seeds, mask=seeds < M, other=0.0)
        sums += tl.load(SUMS + (place + seeds[:, None]) * WIDTH + columns[None, :], mask=inside, other=0.0)
    means = sums / tl.maximum(members, 1.0)[:, None]
    pointers = MEANS + (batch * M + seeds[:, None]) * WIDTH + columns[None, :]
    tl.store(pointers, means.to(MEANS.dtype.element_ty), mask=inside)
    if left == 0:
        tl.store(WEIGHTS + batch * M + seeds, members, mask=seeds < M)


@triton.jit
def _move_to_nearest(
    X, MEANS, WEIGHTS, GROUP, LENGTHS, stride_b, stride_n, N, M,
    ROWS: tl.constexpr, SEEDS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    top = tl.program_id(0) * ROWS
    rows = top + tl.arange(0, ROWS)
    length = tl.load(LENGTHS + batch)
    x = _load(X + batch * stride_b, top, stride_n, length, ROWS, WIDTH, PADDED, False)
    least = tl.full([ROWS], float("inf"), tl.float32)
    nearest = tl.zeros([ROWS], tl.int32)
    seeds_to_visit = M
    if (top >= length) | (length <= M):
        seeds_to_visit = 0
    for start in range(0, seeds_to_visit, SEEDS):
        seeds = start + tl.arange(0, SEEDS)
        means = _load(MEANS + batch * M * WIDTH, start, WIDTH, M, SEEDS, WIDTH, PADDED, False)
        weights = tl.load(WEIGHTS + batch * M + seeds, mask=seeds < M, other=0.0)
        norm = tl.sum(means.to(tl.float32) * means.to(tl.float32), 1)
        distance = norm[None, :] - 2 * _dot(x, tl.trans(means), None, PRECISION)
        distance = tl.where((weights > 0)[None, :], distance, float("inf"))
        here = tl.min(distance, 1)
        # Of equally near ones the first.
        place = tl.min(tl.where(distance == here[:, None], seeds[None, :], M), 1)
        nearest = tl.where(here < least, place, nearest)
        least = tl.minimum(here, least)
    if seeds_to_visit > 0:
        tl.store(GROUP + batch * N + rows, nearest, mask=rows < length)
