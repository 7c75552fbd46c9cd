# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""`doubt_conflicting` in one Triton kernel: on a GPU its thirty small ones took longer than the network.

Every match looks at all others: far less work than one head's attention, and no sorting.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Matches of a program, and those it looks at together.
ROWS, COLUMNS = 32, 64


def lower_conflicting(logits: Tensor, ranking: Tensor, matches: Tensor, apart: float, doubt: float) -> Tensor:
    """[B x N] logits less the doubt at every match that lies apart from the best at one of its ends.

    Args:
        ranking: [B x N] logits, minus infinity at what conflicts with nothing.
        matches: [B x N x 4 or more].
    """
    batch, length, channels = matches.shape
    doubted = logits.contiguous().clone()
    if doubted.numel():
        with torch.cuda.device_of(doubted):
            _lower_conflicting[(triton.cdiv(length, ROWS), batch)](
                doubted, ranking.contiguous(), matches.float().contiguous(), length, apart, doubt,
                CHANNELS=channels, ROWS=ROWS, COLUMNS=COLUMNS,
            )  # fmt: skip
    return doubted


@triton.jit
def _lower_conflicting(
    DOUBTED, RANKING, MATCHES, N, apart, doubt,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    DOUBTED += pair * N
    RANKING += pair * N
    MATCHES += pair * N * CHANNELS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < N
    x0 = tl.load(MATCHES + row * CHANNELS, mask=inside, other=0.0)
    y0 = tl.load(MATCHES + row * CHANNELS + 1, mask=inside, other=0.0)
    x1 = tl.load(MATCHES + row * CHANNELS + 2, mask=inside, other=0.0)
    y1 = tl.load(MATCHES + row * CHANNELS + 3, mask=inside, other=0.0)
    # The best match from here, the best that ends there: itself until a better one is found.
    best_from, best_to = row, row
    rank_from = tl.full([ROWS], float("-inf"), tl.float32)
    rank_to = tl.full([ROWS], float("-inf"), tl.float32)
    for start in range(0, N, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        within = column < N
        rank = tl.load(RANKING + column, mask=within, other=float("-inf"))
        u0 = tl.load(MATCHES + column * CHANNELS, mask=within, other=0.0)
        v0 = tl.load(MATCHES + column * CHANNELS + 1, mask=within, other=0.0)
        u1 = tl.load(MATCHES + column * CHANNELS + 2, mask=within, other=0.0)
        v1 = tl.load(MATCHES + column * CHANNELS + 3, mask=within, other=0.0)
        best_from, rank_from = _better(best_from, rank_from, x0, y0, u0, v0, rank, column, N)
        best_to, rank_to = _better(best_to, rank_to, x1, y1, u1, v1, rank, column, N)
    far = _apart(x1, y1, MATCHES + best_from * CHANNELS + 2, inside, apart)
    far |= _apart(x0, y0, MATCHES + best_to * CHANNELS, inside, apart)
    logits = tl.load(DOUBTED + row, mask=inside, other=0.0)
    tl.store(DOUBTED + row, tl.where(far, logits - doubt, logits), mask=inside)


@triton.jit
def _better(best, best_rank, x, y, u, v, rank, column, N):
    """Which match at the same point ranks highest so far, the first of equals, and its rank."""
    shared = (x[:, None] == u[None, :]) & (y[:, None] == v[None, :])
    candidates = tl.where(shared, rank[None, :], float("-inf"))
    highest = tl.max(candidates, 1)
    first = tl.min(tl.where(candidates == highest[:, None], column[None, :], N), 1)
    better = highest > best_rank
    return tl.where(better, first, best), tl.where(better, highest, best_rank)


@triton.jit
def _apart(x, y, other, inside, apart):
    dx = x - tl.load(other, mask=inside, other=0.0)
    dy = y - tl.load(other + 1, mask=inside, other=0.0)
    return tl.sqrt(dx * dx + dy * dy) > apart
