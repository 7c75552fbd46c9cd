# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Groups of matches on the GPU: Triton kernels for their means, and for the nearest one.

Sums over groups are products with the [m x N] membership, built tile by tile and never written: tensor cores do them,
and unlike atomic additions they give the same sum every time. Pairs are cut into parts, whose sums are added in a fixed
order.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ananet.attention.fused import _cut, _dot, _load


class Cut(NamedTuple):
    """How sums are shared out: matches of a part, groups of a program, its warps."""

    part: int
    groups: int
    warps: int


class Sums(NamedTuple):
    """Sums over the members of each group [B x parts x m x C] and how many there are [B x parts x m]."""

    sums: Tensor
    members: Tensor


def cut_for(filled: int) -> Cut:
    """The cut for so many matches in all pairs: short parts where few matches must occupy all of the GPU.

    The sums of all parts are read again, so there are at most 128.
    """
    power = triton.next_power_of_2(filled)
    part = max(128, min(1024, power // 16), power // 128)
    # Every tile of groups reads all matches.
    return Cut(part, 64, 4) if filled <= 16_384 else Cut(part, 128, 8)


def mean_groups(
    x: Tensor, group: Tensor, count: int, lengths: Tensor, filled: int | None = None
) -> tuple[Tensor, Tensor]:
    """Means of groups [B x m x C], in the type of x, and how many matches each has, [B x m] single precision.

    Args:
        x: [B x N x C].
        group: [B x N] int32.
        count: the number of groups, m.
        lengths: [B] how many matches are real.
        filled: sums are cut for so many matches in all pairs together; None for those that there are.
    """
    batch, width = x.shape[0], x.shape[2]
    sums = _sums(x, group, count, lengths, filled)
    means = x.new_empty(batch, count, width)
    weights = x.new_empty(batch, count, dtype=torch.float32)
    _mean_of_parts[(triton.cdiv(count, 16), batch)](*sums, means, weights, count, GROUPS=16, **_read(sums, 16))
    return means, weights


def project_groups(
    x: Tensor,
    group: Tensor,
    count: int,
    lengths: Tensor,
    matrices: Tensor,
    biases: Tensor,
    filled: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear maps of the means of groups [B x m x P x C], and how many matches each group has.

    These are the means of what the maps make of all matches, for much less.

    Args:
        matrices: P times [C x C], inputs in rows, in the type of x. C is a power of two.
        biases: P times [C], single precision.

    Other arguments as of `mean_groups`.
    """
    batch, width = x.shape[0], x.shape[2]
    sums = _sums(x, group, count, lengths, filled)
    maps = biases.numel() // width
    projected = x.new_empty(batch, count, maps, width)
    weights = x.new_empty(batch, count, dtype=torch.float32)
    # With many parts there are few pairs, and so few groups.
    groups = 16 if sums.members.shape[1] > 4 else 64
    _project_means[(triton.cdiv(count, groups), maps, batch)](
        *sums, matrices, biases, projected, weights, count, GROUPS=groups, MAPS=maps, PRECISION=_cut(x)["PRECISION"],
        **_read(sums, groups), num_warps=8,
    )  # fmt: skip
    return projected, weights


def move_to_nearest(x: Tensor, means: Tensor, weights: Tensor, group: Tensor, lengths: Tensor) -> None:
    """Write to `group` which mean [B x m x C] is nearest to each match, [B x N x C], unless there is a group for each.

    Other arguments as of `mean_groups`, and as it returns them.
    """
    batch, length, _ = x.shape
    _move_to_nearest[(triton.cdiv(length, 64), batch)](
        x, means, weights, group, lengths, x.stride(0), x.stride(1), length, means.shape[1],
        ROWS=64, GROUPS=64, **_cut(x),
    )  # fmt: skip


def _sums(x: Tensor, group: Tensor, count: int, lengths: Tensor, filled: int | None) -> Sums:
    batch, length, width = x.shape
    cut = cut_for(batch * length if filled is None else filled)
    parts = triton.cdiv(length, cut.part)
    sums = Sums(
        x.new_empty(batch, parts, count, width, dtype=torch.float32),
        x.new_empty(batch, parts, count, dtype=torch.float32),
    )
    padded = max(16, triton.next_power_of_2(width))
    # All columns at once, since the membership is built anew for every tile of columns.
    columns = min(padded, 32 if x.dtype == torch.float32 else 128)
    _sum_groups[(triton.cdiv(count, cut.groups), triton.cdiv(width, columns), batch * parts)](
        x, group, *sums, lengths, x.stride(0), x.stride(1), length, count,
        PARTS=parts, PART=cut.part, ROWS=64, GROUPS=cut.groups, COLUMNS=columns, WIDTH=width,
        PRECISION=_cut(x)["PRECISION"], num_warps=cut.warps,
    )  # fmt: skip
    return sums


def _read(sums: Sums, groups: int) -> dict[str, Any]:
    """How programs for so many groups read the sums: of several parts at once, which hides how long each read takes."""
    parts, width = sums.sums.shape[1], sums.sums.shape[3]
    padded = max(16, triton.next_power_of_2(width))
    together = min(triton.next_power_of_2(parts), max(1, 16_384 // (groups * padded)))
    return {"PARTS": parts, "TOGETHER": together, "WIDTH": width, "PADDED": padded}


@triton.jit
def _sum_groups(
    X, GROUP, SUMS, MEMBERS, LENGTHS, stride_b, stride_n, N, M,
    PARTS: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(2).to(tl.int64)
    batch, part = pid // PARTS, pid % PARTS
    groups = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    left = tl.program_id(1) * COLUMNS
    length = tl.load(LENGTHS + batch)
    end = tl.minimum(length, (part + 1) * PART).to(tl.int32)
    columns = left + tl.arange(0, COLUMNS)
    X += batch * stride_b
    sums = tl.zeros([GROUPS, COLUMNS], tl.float32)
    members = tl.zeros([GROUPS], tl.float32)
    for start in range((part * PART).to(tl.int32), end, ROWS):
        row = start + tl.arange(0, ROWS)
        group = tl.load(GROUP + batch * N + row, mask=row < end, other=-1)
        belongs = group[None, :] == groups[:, None]
        inside = (row < end)[:, None] & (columns < WIDTH)[None, :]
        x = tl.load(X + row.to(tl.int64)[:, None] * stride_n + columns[None, :], mask=inside, other=0.0)
        sums = _dot(belongs.to(x.dtype), x, sums, PRECISION)
        members += tl.sum(belongs.to(tl.float32), 1)
    inside = (groups < M)[:, None] & (columns < WIDTH)[None, :]
    tl.store(SUMS + (pid * M + groups[:, None]) * WIDTH + columns[None, :], sums, mask=inside)
    if left == 0:
        tl.store(MEMBERS + pid * M + groups, members, mask=groups < M)


@triton.jit
def _means(
    SUMS, MEMBERS, batch, groups, M,
    GROUPS: tl.constexpr, PARTS: tl.constexpr, TOGETHER: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Means of some groups [GROUPS x PADDED], zero where a group is empty, and how many matches each has."""
    columns = tl.arange(0, PADDED)
    sums = tl.zeros([GROUPS, PADDED], tl.float32)
    members = tl.zeros([GROUPS], tl.float32)
    for first in range(0, PARTS, TOGETHER):
        part = first + tl.arange(0, TOGETHER)
        row = (batch * PARTS + part)[:, None] * M + groups[None, :]
        inside = (part < PARTS)[:, None] & (groups < M)[None, :]
        members += tl.sum(tl.load(MEMBERS + row, mask=inside, other=0.0), 0)
        pointers = SUMS + row[:, :, None] * WIDTH + columns[None, None, :]
        within = inside[:, :, None] & (columns < WIDTH)[None, None, :]
        sums += tl.sum(tl.load(pointers, mask=within, other=0.0), 0)
    return sums / tl.maximum(members, 1.0)[:, None], members


@triton.jit
def _mean_of_parts(
    SUMS, MEMBERS, MEANS, WEIGHTS, M, GROUPS: tl.constexpr, PARTS: tl.constexpr, TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    groups = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    columns = tl.arange(0, PADDED)
    means, members = _means(SUMS, MEMBERS, batch, groups, M, GROUPS, PARTS, TOGETHER, WIDTH, PADDED)
    inside = (groups < M)[:, None] & (columns < WIDTH)[None, :]
    pointers = MEANS + (batch * M + groups[:, None]) * WIDTH + columns[None, :]
    tl.store(pointers, means.to(MEANS.dtype.element_ty), mask=inside)
    tl.store(WEIGHTS + batch * M + groups, members, mask=groups < M)


@triton.jit
def _project_means(
    SUMS, MEMBERS, MATRICES, BIASES, PROJECTED, WEIGHTS, M, GROUPS: tl.constexpr, MAPS: tl.constexpr,
    PARTS: tl.constexpr, TOGETHER: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    chosen = tl.program_id(1)
    groups = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    means, members = _means(SUMS, MEMBERS, batch, groups, M, GROUPS, PARTS, TOGETHER, WIDTH, PADDED)
    o = tl.arange(0, WIDTH)
    matrix = tl.load(MATRICES + (chosen * WIDTH + o[:, None]) * WIDTH + o[None, :])
    y = _dot(means.to(matrix.dtype), matrix, None, PRECISION) + tl.load(BIASES + chosen * WIDTH + o)[None, :]
    pointers = PROJECTED + ((batch * M + groups[:, None]) * MAPS + chosen) * WIDTH + o[None, :]
    tl.store(pointers, y.to(PROJECTED.dtype.element_ty), mask=(groups < M)[:, None])
    if chosen == 0:
        tl.store(WEIGHTS + batch * M + groups, members, mask=groups < M)


@triton.jit
def _move_to_nearest(
    X, MEANS, WEIGHTS, GROUP, LENGTHS, stride_b, stride_n, N, M,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    top = tl.program_id(0) * ROWS
    rows = top + tl.arange(0, ROWS)
    length = tl.load(LENGTHS + batch)
    x = _load(X + batch * stride_b, top, stride_n, length, ROWS, WIDTH, PADDED, False)
    least = tl.full([ROWS], float("inf"), tl.float32)
    nearest = tl.zeros([ROWS], tl.int32)
    groups_to_visit = M
    if (top >= length) | (length <= M):
        groups_to_visit = 0
    for start in range(0, groups_to_visit, GROUPS):
        groups = start + tl.arange(0, GROUPS)
        means = _load(MEANS + batch * M * WIDTH, start, WIDTH, M, GROUPS, WIDTH, PADDED, False)
        weights = tl.load(WEIGHTS + batch * M + groups, mask=groups < M, other=0.0)
        norm = tl.sum(means.to(tl.float32) * means.to(tl.float32), 1)
        # What is added to the products of empty groups is infinite.
        offset = tl.where(weights > 0, norm, float("inf"))
        distance = offset[None, :] - 2 * _dot(x, tl.trans(means), None, PRECISION)
        here = tl.min(distance, 1)
        # Of equally near ones the first.
        place = tl.min(tl.where(distance == here[:, None], groups[None, :], M), 1)
        nearest = tl.where(here < least, place, nearest)
        least = tl.minimum(here, least)
    if groups_to_visit > 0:
        tl.store(GROUP + batch * N + rows, nearest, mask=rows < length)
