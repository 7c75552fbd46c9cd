# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels before and after the network of a call: raw matches to its input, its logits to verdicts.

`networks.input` and `pruners.base.answer` are the plain references.
"""

import triton
import triton.language as tl

from ananet.networks.input import LARGEST_COORDINATE

LARGEST: tl.constexpr = tl.constexpr(LARGEST_COORDINATE)
# The largest number below 1, and the largest of all, in single precision.
BELOW_ONE: tl.constexpr = tl.constexpr(1 - 2.0**-24)
LARGEST_FLOAT: tl.constexpr = tl.constexpr(3.4028234663852886e38)


@triton.jit
def gather(
    CAMERAS, START, NUMBERS, SIDE, MATCHES, PLACE, LENGTHS, BAD, N,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalise the matches of a pair, and move those within view to the front. One program a pair.

    Args:
        CAMERAS: [B x (24 + 2 side)] float64: K0 and K1; least coordinate, most x and most y in pixels of either image;
            least and most of each side number, NaN where it is not known.
        START: [B + 1] int64, where the matches of each pair begin.
        NUMBERS: float64: pixels [2 x BN x 2] of either image, then raw side numbers [side x BN].
        SIDE: [BN x side] float32, what the network reads of these.
        MATCHES: [B x N x (4 + side)] float32, written.
        PLACE: [S] int32, written: where each match went, -1 if nowhere.
        LENGTHS: [B] int32, written: how many went.
        BAD: [B] int32, written: 1 where some value is none that a match or camera can have.
    """
    pair = tl.program_id(0).to(tl.int64)
    start = tl.load(START + pair)
    count = (tl.load(START + pair + 1) - start).to(tl.int32)
    capacity = tl.num_programs(0).to(tl.int64) * N
    K0 = CAMERAS + pair * (24 + 2 * (CHANNELS - 4))
    bad = _bad_camera(K0) | _bad_camera(K0 + 9)
    placed = 0
    for first in range(0, count, BLOCK):
        n = first + tl.arange(0, BLOCK)
        inside = n < count
        points = NUMBERS + (start + n) * 2
        x0, y0, seen0, finite0 = _point(points, K0, K0 + 18, inside)
        x1, y1, seen1, finite1 = _point(points + 2 * capacity, K0 + 9, K0 + 21, inside)
        seen = inside & seen0 & seen1
        wrong = (~(finite0 & finite1)).to(tl.int32)
        place = placed + tl.cumsum(seen.to(tl.int32), 0) - 1
        to = MATCHES + (pair * N + place) * CHANNELS
        tl.store(to, x0, mask=seen)
        tl.store(to + 1, y0, mask=seen)
        tl.store(to + 2, x1, mask=seen)
        tl.store(to + 3, y1, mask=seen)
        for side in tl.static_range(CHANNELS - 4):
            number = tl.load(NUMBERS + (4 + side) * capacity + start + n, mask=inside, other=0.0)
            least = tl.load(K0 + 24 + 2 * side)
            most = tl.load(K0 + 25 + 2 * side)
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
def _bad_camera(K):
    """1 unless [[fx s cx] [0 fy cy] [0 0 1]] with positive fx and fy, all finite; comparisons with NaN are False."""
    fx, skew, cx = tl.load(K), tl.load(K + 1), tl.load(K + 2)
    fy, cy = tl.load(K + 4), tl.load(K + 5)
    finite = (tl.abs(skew) < float("inf")) & (tl.abs(cx) < float("inf")) & (tl.abs(cy) < float("inf"))
    positive = (fx > 0) & (fx < float("inf")) & (fy > 0) & (fy < float("inf"))
    last = (tl.load(K + 3) == 0) & (tl.load(K + 6) == 0) & (tl.load(K + 7) == 0) & (tl.load(K + 8) == 1)
    return tl.where(finite & positive & last, 0, 1)


@triton.jit
def _point(NUMBERS, K, VIEW, inside):
    """Normalised x and y of some pixels, whether they may be seen at all, and whether they are finite."""
    u = tl.load(NUMBERS, mask=inside, other=0.0)
    v = tl.load(NUMBERS + 1, mask=inside, other=0.0)
    y = (v - tl.load(K + 5)) / tl.load(K + 4)
    x = (u - tl.load(K + 2) - tl.load(K + 1) * y) / tl.load(K)
    x, y = x.to(tl.float32), y.to(tl.float32)
    least = tl.load(VIEW)
    seen = (u >= least) & (v >= least) & (u <= tl.load(VIEW + 1)) & (v <= tl.load(VIEW + 2))
    seen = seen & (tl.abs(x) <= LARGEST) & (tl.abs(y) <= LARGEST)
    return x, y, seen, (tl.abs(u) < float("inf")) & (tl.abs(v) < float("inf"))


@triton.jit
def decide(LOGITS, START, PLACE, ANSWERS, SCORES, MASK, N, unseen, decision, BLOCK: tl.constexpr):
    """Logits [B x N] of what was seen to those [S] of all matches, probabilities and verdicts.

    Args:
        unseen: the logit of matches out of view.
        decision: the logit above which a match is kept, and that of what is no number.
        ANSWERS, SCORES: [S] float32, written.
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
    logits = tl.minimum(tl.maximum(logits, -LARGEST_FLOAT), LARGEST_FLOAT)
    tl.store(ANSWERS + start + n, logits, mask=inside)
    tl.store(SCORES + start + n, tl.minimum(tl.sigmoid(logits), BELOW_ONE), mask=inside)
    tl.store(MASK + start + n, (logits > decision).to(tl.uint8), mask=inside)
