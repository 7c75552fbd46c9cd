# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels before and after the network of a call: raw matches to its input, its logits to masks.

References in plain PyTorch: `networks.input` and `pruners.base.as_result`.
"""

import triton
import triton.language as tl

from ananet.inference import calls
from ananet.networks.input import MAX_COORDINATE

LIMIT: tl.constexpr = tl.constexpr(MAX_COORDINATE)
VIEW0: tl.constexpr = tl.constexpr(calls.VIEW0_AT)
VIEW1: tl.constexpr = tl.constexpr(calls.VIEW1_AT)
SINGLE_POINTS: tl.constexpr = tl.constexpr(calls.SINGLE_POINTS_AT)
SINGLE_CAMERAS: tl.constexpr = tl.constexpr(calls.SINGLE_CAMERAS_AT)
LIMITS: tl.constexpr = tl.constexpr(calls.LIMITS_AT)
# The largest number below 1, and the largest of all, in single precision.
BELOW_ONE: tl.constexpr = tl.constexpr(1 - 2.0**-24)
MAX_FLOAT: tl.constexpr = tl.constexpr(3.4028234663852886e38)


@triton.jit
def gather(
    CAMERAS, ADDRESSES, START, SIDE_NUMBERS, SIDE, MATCHES, PLACE, LENGTHS, BAD, N,
    ROW: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalise the matches of a pair, and move those within view to the front. One program a pair.

    Args:
        CAMERAS: [B x ROW] float64: K0 and K1, where they are not elsewhere; least coordinate, most x and most y in
            pixels of either image; four addresses; whether points and cameras are in single precision; least and most
            of each side number, NaN where it is not known.
        ADDRESSES: the same memory as int64, from the addresses on: of K0, K1, and the points in either image.
        START: [B + 1] int64, where the matches of each pair begin.
        SIDE_NUMBERS: [side x BN] float64, as they came.
        SIDE: [BN x side] float32, what the network reads of these.
        MATCHES: [B x N x (4 + side)] float32, written.
        PLACE: [S] int32, written: where each match went, -1 if nowhere.
        LENGTHS: [B] int32, written: how many went.
        BAD: [B] int32, written: 1 where a value of a match or camera is invalid.
    """
    pair = tl.program_id(0).to(tl.int64)
    start = tl.load(START + pair)
    count = (tl.load(START + pair + 1) - start).to(tl.int32)
    capacity = tl.num_programs(0).to(tl.int64) * N
    row = CAMERAS + pair * ROW
    some = count > 0  # else the addresses lead nowhere
    single_points = tl.load(row + SINGLE_POINTS) != 0
    single_cameras = tl.load(row + SINGLE_CAMERAS) != 0
    addresses = ADDRESSES + pair * ROW
    fx0, skew0, cx0, fy0, cy0, bad0 = _camera(tl.load(addresses), single_cameras, some)
    fx1, skew1, cx1, fy1, cy1, bad1 = _camera(tl.load(addresses + 1), single_cameras, some)
    points0 = tl.load(addresses + 2)
    points1 = tl.load(addresses + 3)
    bad = bad0 | bad1
    placed = 0
    for first in range(0, count, BLOCK):
        n = first + tl.arange(0, BLOCK)
        inside = n < count
        x0, y0, seen0, finite0 = _point(points0, single_points, n, inside, fx0, skew0, cx0, fy0, cy0, row + VIEW0)
        x1, y1, seen1, finite1 = _point(points1, single_points, n, inside, fx1, skew1, cx1, fy1, cy1, row + VIEW1)
        seen = inside & seen0 & seen1
        wrong = (~(finite0 & finite1)).to(tl.int32)
        place = placed + tl.cumsum(seen.to(tl.int32), 0) - 1
        to = MATCHES + (pair * N + place) * CHANNELS
        tl.store(to, x0, mask=seen)
        tl.store(to + 1, y0, mask=seen)
        tl.store(to + 2, x1, mask=seen)
        tl.store(to + 3, y1, mask=seen)
        for side in tl.static_range(CHANNELS - 4):
            number = tl.load(SIDE_NUMBERS + side * capacity + start + n, mask=inside, other=0.0)
            least = tl.load(row + LIMITS + 2 * side)
            most = tl.load(row + LIMITS + 2 * side + 1)
            known = tl.where(least == least, 1, 0)
            wrong = wrong | (~((number >= least) & (number <= most))).to(tl.int32) * known
            tl.store(
                to + 4 + side, tl.load(SIDE + (start + n) * (CHANNELS - 4) + side, mask=seen, other=0.0), mask=seen
            )
        tl.store(PLACE + start + n, tl.where(seen, place, -1), mask=inside)
        bad = bad | tl.max(inside.to(tl.int32) * wrong, 0)
        placed += tl.sum(seen.to(tl.int32), 0)
    tl.store(LENGTHS + pair, placed)
    tl.store(BAD + pair, bad)


@triton.jit
def _number(address, offset, single, inside):
    """The numbers at an address, in either precision."""
    if single:
        number = tl.load(address.to(tl.pointer_type(tl.float32)) + offset, mask=inside, other=0.0).to(tl.float64)
    else:
        number = tl.load(address.to(tl.pointer_type(tl.float64)) + offset, mask=inside, other=0.0)
    return number


@triton.jit
def _camera(K, single, some):
    """fx, skew, cx, fy and cy of a camera matrix, and 1 if it is invalid, else 0.

    Valid is [[fx s cx] [0 fy cy] [0 0 1]] with positive fx and fy, all finite: comparisons with NaN are False.
    """
    fx, skew, cx = _number(K, 0, single, some), _number(K, 1, single, some), _number(K, 2, single, some)
    fy, cy = _number(K, 4, single, some), _number(K, 5, single, some)
    finite = (tl.abs(skew) < float("inf")) & (tl.abs(cx) < float("inf")) & (tl.abs(cy) < float("inf"))
    positive = (fx > 0) & (fx < float("inf")) & (fy > 0) & (fy < float("inf"))
    zeros = (_number(K, 3, single, some) == 0) & (_number(K, 6, single, some) == 0) & (_number(K, 7, single, some) == 0)
    good = finite & positive & zeros & (_number(K, 8, single, some) == 1)
    return fx, skew, cx, fy, cy, tl.where(good | ~some, 0, 1)


@triton.jit
def _point(points, single, n, inside, fx, skew, cx, fy, cy, VIEW):
    """Normalised x and y of some pixels, whether they may be seen at all, and whether they are finite."""
    u = _number(points, 2 * n, single, inside)
    v = _number(points, 2 * n + 1, single, inside)
    y = (v - cy) / fy
    x = (u - cx - skew * y) / fx
    x, y = x.to(tl.float32), y.to(tl.float32)
    least = tl.load(VIEW)
    seen = (u >= least) & (v >= least) & (u <= tl.load(VIEW + 1)) & (v <= tl.load(VIEW + 2))
    seen = seen & (tl.abs(x) <= LIMIT) & (tl.abs(y) <= LIMIT)
    return x, y, seen, (tl.abs(u) < float("inf")) & (tl.abs(v) < float("inf"))


@triton.jit
def decide(LOGITS, START, PLACE, RESULTS, SCORES, MASK, N, unseen, decision, BLOCK: tl.constexpr):
    """Logits [B x N] of matches in view to logits, scores and mask [S] of all matches.

    Args:
        unseen: the logit of matches out of view.
        decision: the logit above which a match is kept, and that of NaN.
        RESULTS, SCORES: [S] float32, written.
        MASK: [S] uint8, written.
    """
    pair = tl.program_id(1).to(tl.int64)
    start = tl.load(START + pair)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < tl.load(START + pair + 1) - start
    place = tl.load(PLACE + start + n, mask=inside, other=-1)
    seen = place >= 0
    logits = tl.load(LOGITS + pair * N + place, mask=seen, other=0.0)
    logits = tl.where(seen, logits, unseen)
    logits = tl.where(logits == logits, logits, decision)
    logits = tl.minimum(tl.maximum(logits, -MAX_FLOAT), MAX_FLOAT)
    tl.store(RESULTS + start + n, logits, mask=inside)
    tl.store(SCORES + start + n, tl.minimum(tl.sigmoid(logits), BELOW_ONE), mask=inside)
    tl.store(MASK + start + n, (logits > decision).to(tl.uint8), mask=inside)
