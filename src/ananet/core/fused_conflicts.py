# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""`penalize_conflicts` in two Triton kernels: a hash table of points at either end finds the best match of each.

A point takes the first free place from where its hash points on. Next to it stands the best match so far: logit and
number in one integer, so that the largest of all is the highest logit, and of equals the first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Matches of a program, one a thread.
BLOCK = 128
# No point of finite coordinates has these bits, so that 0 can stand for a free place.
UNUSED: tl.constexpr = tl.constexpr(0x7FFFFFFF7FFFFFFF)


def lower_conflicting(
    logits: Tensor,
    matches: Tensor,
    apart: float,
    doubt: float,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """[B x N] logits less the doubt at every match that lies apart from the best at one of its ends.

    Args:
        matches: [B x N x 4 or more].
        mask: [B x N] True where a match is real; None if all are.
        lengths: [B] how many are real, the first ones; None if all are. The others are left as they are.
    """
    batch, length, channels = matches.shape
    doubted = logits.contiguous().clone()
    if doubted.numel() == 0:
        return doubted
    matches = matches.float().contiguous()
    mask = None if mask is None else mask.contiguous()
    places = 2 * triton.next_power_of_2(length)
    # Points, and what is best there, of both ends.
    points, best = torch.zeros(2, batch, 2, places, dtype=torch.int64, device=logits.device)
    found = torch.empty(batch, 2, length, dtype=torch.int32, device=logits.device)
    blocks = triton.cdiv(length, BLOCK)
    with torch.cuda.device_of(doubted):
        _find_best[(blocks, batch, 2)](
            doubted, matches, mask, lengths, points, best, found, length, places, CHANNELS=channels, BLOCK=BLOCK
        )
        _lower[(blocks, batch)](
            doubted, matches, best, found, length, places, apart, doubt, CHANNELS=channels, BLOCK=BLOCK
        )
    return doubted


@triton.jit
def _find_best(
    LOGITS, MATCHES, MASK, LENGTHS, POINTS, BEST, FOUND, N, places, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    pair = tl.program_id(1).to(tl.int64)
    end = tl.program_id(2)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < N
    real = inside
    if LENGTHS is not None:
        real &= row < tl.load(LENGTHS + pair)
    if MASK is not None:
        real &= tl.load(MASK + pair * N + row, mask=inside, other=0) != 0
    pointers = MATCHES + (pair * N + row) * CHANNELS + end * 2
    x = _bits(tl.load(pointers, mask=real, other=0.0))
    y = _bits(tl.load(pointers + 1, mask=real, other=0.0))
    key = ((x.to(tl.int64) << 32) | (y.to(tl.int64) & 0xFFFFFFFF)) ^ UNUSED
    mixed = x.to(tl.uint32, bitcast=True) * 0x9E3779B1 + y.to(tl.uint32, bitcast=True)
    mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE3D
    place = (mixed ^ (mixed >> 16)).to(tl.int32, bitcast=True) & (places - 1)
    POINTS += (pair * 2 + end) * places
    BEST += (pair * 2 + end) * places
    # No program writes a 1, so padding finds no free place and changes nothing.
    free = tl.where(real, 0, 1).to(tl.int64)
    searching = real
    left = tl.sum(searching.to(tl.int32))
    tries = 0
    # There are twice as many places as points, so a free one is found; the bound is for a compiler's mistake.
    while (left > 0) & (tries < places):
        there = tl.atomic_cas(POINTS + place, free, key, sem="relaxed")
        searching = searching & (there != 0) & (there != key)
        place = tl.where(searching, (place + 1) & (places - 1), place)
        left = tl.sum(searching.to(tl.int32))
        tries += 1
    logit = _bits(tl.load(LOGITS + pair * N + row, mask=real, other=0.0))
    # Negative floats rise as their bits fall.
    rank = (logit ^ ((logit >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648
    tl.atomic_max(BEST + place, (rank << 31) | (0x7FFFFFFF - row).to(tl.int64), mask=real, sem="relaxed")
    tl.store(FOUND + (pair * 2 + end) * N + row, tl.where(real, place, -1), mask=inside)


@triton.jit
def _lower(DOUBTED, MATCHES, BEST, FOUND, N, places, apart, doubt, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    MATCHES += pair * N * CHANNELS
    far = row < 0
    for end in tl.static_range(2):
        place = tl.load(FOUND + (pair * 2 + end) * N + row, mask=row < N, other=-1)
        real = place >= 0
        best = 0x7FFFFFFF - (tl.load(BEST + (pair * 2 + end) * places + place, mask=real, other=0) & 0x7FFFFFFF)
        mine, other = MATCHES + row * CHANNELS + 2 * (1 - end), MATCHES + best * CHANNELS + 2 * (1 - end)
        dx = tl.load(mine, mask=real, other=0.0) - tl.load(other, mask=real, other=0.0)
        dy = tl.load(mine + 1, mask=real, other=0.0) - tl.load(other + 1, mask=real, other=0.0)
        far = far | (real & (tl.sqrt(dx * dx + dy * dy) > apart))
    logits = tl.load(DOUBTED + pair * N + row, mask=far, other=0.0)
    tl.store(DOUBTED + pair * N + row, logits - doubt, mask=far)


@triton.jit
def _bits(x):
    """Of a float32, the same for numbers that are equal: there are two zeros, and many that are none."""
    x = tl.where(x == 0.0, 0.0, x)
    return tl.where(x == x, x.to(tl.int32, bitcast=True), 0x7FC00000)
