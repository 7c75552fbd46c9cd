# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels for everything in ANA-Net that acts on every match by itself, fused between two attentions.

A program takes a few matches through a whole chain of layers; between layers they stay on the chip. Weights come
as one flat array a kernel, [in x out] matrices in the order of use, and so do the single-precision vectors.
"""

import triton
import triton.language as tl

from ananet.networks import consensus

LEAST_WEIGHT: tl.constexpr = tl.constexpr(consensus.LEAST_WEIGHT)


@triton.jit
def _layer(x, weights, vectors, INPUT: tl.constexpr, OUTPUT: tl.constexpr):
    """x W + b in single precision, and where the next layer's weights and vectors begin."""
    i = tl.arange(0, INPUT)
    o = tl.arange(0, OUTPUT)
    weight = tl.load(weights + i[:, None] * OUTPUT + o[None, :])
    y = tl.dot(x, weight) + tl.load(vectors + o)[None, :]
    return y, weights + INPUT * OUTPUT, vectors + OUTPUT


@triton.jit
def _first_layer(x, vectors):
    """16 channels to 16 in single precision, where coordinates would lose pixels in half; and the next vectors."""
    c = tl.arange(0, 16)
    weight = tl.load(vectors + c[:, None] * 16 + c[None, :])
    y = tl.dot(x, weight, input_precision="ieee") + tl.load(vectors + 256 + c)[None, :]
    return y, vectors + 256 + 16


@triton.jit
def _rectify(x, like):
    return tl.maximum(x, 0.0).to(like.dtype.element_ty)


@triton.jit
def _layer_norm(x, vectors, eps, WIDTH: tl.constexpr):
    """LayerNorm over the last axis, and where the next vectors begin."""
    o = tl.arange(0, WIDTH)
    mean = tl.sum(x, 1) / WIDTH
    centered = x - mean[:, None]
    deviation = tl.sqrt(tl.sum(centered * centered, 1) / WIDTH + eps)
    y = centered / deviation[:, None] * tl.load(vectors + o)[None, :] + tl.load(vectors + WIDTH + o)[None, :]
    return y, vectors + 2 * WIDTH


@triton.jit
def _project(x, PROJECTED, row, weights, vectors, WIDTH: tl.constexpr, PROJECTIONS: tl.constexpr):
    """Write the next attention's query, key (and value) of these matches, side by side."""
    o = tl.arange(0, WIDTH)
    for projection in tl.static_range(PROJECTIONS):
        y, weights, vectors = _layer(x, weights, vectors, WIDTH, WIDTH)
        pointers = PROJECTED + row[:, None] * (PROJECTIONS * WIDTH) + projection * WIDTH + o[None, :]
        tl.store(pointers, y.to(PROJECTED.dtype.element_ty))


@triton.jit
def encode(
    MATCHES, LENGTHS, FEATURES, PROJECTED, weights, vectors, N,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, PROJECTIONS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Encoder 4-16-32-64-C-C, with side input another S-16-32-C beside it, then the projections of the first block.

    N is a multiple of ROWS.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    length = tl.load(LENGTHS + first // N)
    if first % N >= length:
        return
    row = first + tl.arange(0, ROWS)
    c = tl.arange(0, 16)
    inside = (row % N < length)[:, None] & (c < CHANNELS)[None, :]
    x = tl.load(MATCHES + row[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0)
    y, vectors = _first_layer(x, vectors)
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 16, 32)
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 32, 64)
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 64, WIDTH)
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, WIDTH, WIDTH)
    if CHANNELS > 4:
        side, vectors = _first_layer(x, vectors)
        side, weights, vectors = _layer(_rectify(side, FEATURES), weights, vectors, 16, 32)
        side, weights, vectors = _layer(_rectify(side, FEATURES), weights, vectors, 32, WIDTH)
        y += side
    features = y.to(FEATURES.dtype.element_ty)
    o = tl.arange(0, WIDTH)
    tl.store(FEATURES + row[:, None] * WIDTH + o[None, :], features)
    _project(features, PROJECTED, row, weights, vectors, WIDTH, PROJECTIONS)


@triton.jit
def merge(
    FEATURES, ATTENDED, COLUMNS, LENGTHS, PROJECTED, LOGITS, weights, vectors, N, stride_moment, context_eps, eps,
    HEADS: tl.constexpr, MOMENTS: tl.constexpr, WIDTH: tl.constexpr, PROJECTIONS: tl.constexpr, HEAD: tl.constexpr,
    LAST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What follows a block's attention: context encoder, merge, and the next block's projections or (HEAD) the logits.

    FEATURES is overwritten but by the LAST block. MOMENTS names the form: none (0), linear (1), quadratic (2) or cubic
    (3, with the energy of W's rows as the third moment).
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    pair = first // N
    length = tl.load(LENGTHS + pair)
    row = first + tl.arange(0, ROWS)
    if first % N >= length:
        if HEAD:
            tl.store(LOGITS + row, tl.zeros([ROWS], tl.float32))
        return
    o = tl.arange(0, WIDTH)
    features = tl.load(FEATURES + row[:, None] * WIDTH + o[None, :])
    if MOMENTS > 0:
        h = tl.arange(0, 16)
        inside = (h < HEADS)[None, :] & (row % N < length)[:, None]
        columns = COLUMNS + (pair * HEADS + h[None, :]) * N + (row % N)[:, None]
        total = tl.load(columns, mask=inside, other=0.0)
        if MOMENTS == 1:
            context = total - total * total / length
        else:
            square = tl.load(columns + stride_moment, mask=inside, other=0.0)
            context = total - square
            if MOMENTS == 3:
                energy = tl.load(columns + 2 * stride_moment, mask=inside, other=0.0)
                context = tl.sqrt(context * context + tl.maximum(energy - square * square, 0.0))
        # sqrt(2), where the form has it, and alpha come multiplied.
        normalized = tl.sigmoid(context * tl.load(vectors + h)[None, :]).to(FEATURES.dtype.element_ty)
        vectors += 16
        y, weights, vectors = _layer(normalized, weights, vectors, 16, 32)
        y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 32, 64)
        y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 64, WIDTH)
        y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, WIDTH, WIDTH)
        y, vectors = _layer_norm(y, vectors, context_eps, WIDTH)
        features = (features + y).to(FEATURES.dtype.element_ty)
    attended = tl.load(ATTENDED + row[:, None] * WIDTH + o[None, :])
    y, weights, vectors = _layer(features, weights, vectors, WIDTH, WIDTH)
    weight = tl.load(weights + o[:, None] * WIDTH + o[None, :])
    y = tl.dot(attended, weight, y)
    weights += WIDTH * WIDTH
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, WIDTH, WIDTH)
    y, vectors = _layer_norm(y, vectors, eps, WIDTH)
    if HEAD:
        logits = tl.sum(y * tl.load(vectors + o)[None, :], 1) + tl.load(vectors + WIDTH)
        tl.store(LOGITS + row, tl.where(row % N < length, logits, 0.0))
    if not LAST:
        features = y.to(FEATURES.dtype.element_ty)
        tl.store(FEATURES + row[:, None] * WIDTH + o[None, :], features)
        if not HEAD:
            _project(features, PROJECTED, row, weights, vectors, WIDTH, PROJECTIONS)


@triton.jit
def tell_distance(
    DISTANCES, LENGTHS, FEATURES, PROJECTED, weights, vectors, N, inlier_distance,
    WIDTH: tl.constexpr, PROJECTIONS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add what the encoder 2-16-32-C makes of the distances to the features, then the last block's projections."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    length = tl.load(LENGTHS + first // N)
    if first % N >= length:
        return
    row = first + tl.arange(0, ROWS)
    distance = tl.load(DISTANCES + row, mask=row % N < length, other=1.0)
    logarithm = tl.log2(tl.minimum(tl.maximum(distance, 1e-8), 1.0)) * (0.30102999566 / 2) + 2.0
    near = tl.exp(-distance / inlier_distance)
    c = tl.arange(0, 16)[None, :]
    x = tl.where(c == 0, logarithm[:, None], tl.where(c == 1, near[:, None], 0.0))
    y, vectors = _first_layer(x, vectors)
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 16, 32)
    y, weights, vectors = _layer(_rectify(y, FEATURES), weights, vectors, 32, WIDTH)
    o = tl.arange(0, WIDTH)
    pointers = FEATURES + row[:, None] * WIDTH + o[None, :]
    features = (tl.load(pointers) + y).to(FEATURES.dtype.element_ty)
    tl.store(pointers, features)
    _project(features, PROJECTED, row, weights, vectors, WIDTH, PROJECTIONS)


@triton.jit
def _matches_of(MATCHES, LOGITS, pair, start, length, N, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Coordinates of some matches of a pair in double precision, and the weights of their belief."""
    n = start + tl.arange(0, BLOCK)
    inside = n < length
    pointers = MATCHES + (pair * N + n) * CHANNELS
    x0 = tl.load(pointers, mask=inside, other=0.0).to(tl.float64)
    y0 = tl.load(pointers + 1, mask=inside, other=0.0).to(tl.float64)
    x1 = tl.load(pointers + 2, mask=inside, other=0.0).to(tl.float64)
    y1 = tl.load(pointers + 3, mask=inside, other=0.0).to(tl.float64)
    belief = tl.sigmoid(tl.load(LOGITS + pair * N + n, mask=inside, other=0.0)).to(tl.float64)
    squared = belief * belief
    prior = squared * squared
    prior = tl.where(inside, prior * prior + LEAST_WEIGHT, 0.0)
    return x0, y0, x1, y1, prior


@triton.jit
def _entry(vector, k):
    """One entry of a vector of 16."""
    return tl.sum(tl.where(tl.arange(0, 16) == k, vector, 0.0))


@triton.jit
def _products(x, y):
    """[BLOCK x 8]: xx xy x yy y 1 of every point, and two zeros."""
    c = tl.arange(0, 8)[None, :]
    x, y = x[:, None], y[:, None]
    first = tl.where(c == 0, x * x, tl.where(c == 1, x * y, tl.where(c == 2, x, 0.0)))
    return first + tl.where(c == 3, y * y, tl.where(c == 4, y, tl.where(c == 5, 1.0, 0.0)))


@triton.jit
def _product_of(i, k):
    """The place of coordinate i times coordinate k in `_products`."""
    least, most = tl.minimum(i, k), tl.maximum(i, k)
    return tl.where(least == 0, most, tl.where(least == 1, most + 2, 5))


@triton.jit
def _least_eigenvector(A, SQUARINGS: tl.constexpr):
    """`geometry.smallest_eigenvector` of the 9 x 9 corner of a 16 x 16 matrix that is 0 elsewhere."""
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    inner = (i < 9) & (i == j)
    A = A / tl.maximum(tl.sum(tl.sum(tl.where(inner, A, 0.0), 1)), 1e-30)
    A += tl.where(inner, 256 * 2.220446049250313e-16, 0.0)
    # Sweeping one column after another leaves the negative inverse.
    for k in tl.static_range(9):
        column = tl.sum(tl.where(j == k, A, 0.0), 1)
        row = tl.sum(tl.where(i == k, A, 0.0), 0)
        pivot = _entry(column, k)
        u = column[:, None] - tl.where(i == k, 1.0, 0.0)
        v = row[None, :] - tl.where(j == k, 1.0, 0.0)
        A = A - u * v / pivot - tl.where((i == k) & (j == k), 2.0, 0.0)
    for _ in tl.static_range(SQUARINGS):
        A = A / tl.sum(tl.sum(tl.where(inner, A, 0.0), 1))
        A = tl.sum(A[:, :, None] * A[None, :, :], 1)
    diagonal = tl.sum(tl.where(inner, A, 0.0), 1)
    longest = tl.argmax(diagonal, 0)
    vector = tl.sum(tl.where(j == longest, A, 0.0), 1)
    return vector / tl.sqrt(tl.sum(vector * vector))


@triton.jit
def find_consensus(
    MATCHES, LOGITS, LENGTHS, SCRATCH, DISTANCES, N, scale0, scale1, scale2,
    CHANNELS: tl.constexpr, SQUARINGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`networks.consensus.distance_to_consensus`, one program a pair, without a moment on the host.

    Args:
        SCRATCH: [B x 64] float64, through which sums become a matrix.
    """
    pair = tl.program_id(0).to(tl.int64)
    length = tl.load(LENGTHS + pair)
    # Weighted means and spreads of the points of either image, for Hartley's normalisation.
    total = tl.zeros([BLOCK], tl.float64)
    mx0, my0, mx1, my1, q0, q1 = total, total, total, total, total, total
    for start in range(0, length, BLOCK):
        x0, y0, x1, y1, prior = _matches_of(MATCHES, LOGITS, pair, start, length, N, CHANNELS, BLOCK)
        total += prior
        mx0 += prior * x0
        my0 += prior * y0
        mx1 += prior * x1
        my1 += prior * y1
        q0 += prior * (x0 * x0 + y0 * y0)
        q1 += prior * (x1 * x1 + y1 * y1)
    sum_of_weights = tl.maximum(tl.sum(total), LEAST_WEIGHT)
    cx0, cy0 = tl.sum(mx0) / sum_of_weights, tl.sum(my0) / sum_of_weights
    cx1, cy1 = tl.sum(mx1) / sum_of_weights, tl.sum(my1) / sum_of_weights
    s0 = tl.sqrt(2 / tl.maximum(tl.sum(q0) / sum_of_weights - cx0 * cx0 - cy0 * cy0, 1e-12))
    s1 = tl.sqrt(2 / tl.maximum(tl.sum(q1) / sum_of_weights - cx1 * cx1 - cy1 * cy1, 1e-12))
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    corner = (i < 9) & (j < 9)
    # E as nine numbers; at first none, and all matches weigh as they are believed.
    e00, e01, e02, e10, e11, e12, e20, e21, e22 = s0 * 0, s0 * 0, s0 * 0, s0 * 0, s0 * 0, s0 * 0, s0 * 0, s0 * 0, s0 * 0
    for step in tl.static_range(4):
        sums = tl.zeros([8, 8], tl.float64)
        for start in range(0, length, BLOCK):
            x0, y0, x1, y1, weight = _matches_of(MATCHES, LOGITS, pair, start, length, N, CHANNELS, BLOCK)
            if step > 0:
                scale = scale0 if step == 1 else (scale1 if step == 2 else scale2)
                residual, normal0, normal1 = _residual(x0, y0, x1, y1, e00, e01, e02, e10, e11, e12, e20, e21, e22)
                residual = residual / scale
                weight = weight / tl.maximum(normal0 + normal1 + residual * residual, 1e-300)
            a = _products((x0 - cx0) * s0, (y0 - cy0) * s0)
            b = _products((x1 - cx1) * s1, (y1 - cy1) * s1) * weight[:, None]
            sums += tl.sum(b[:, :, None] * a[:, None, :], 0)
        c = tl.arange(0, 8)
        tl.debug_barrier()
        tl.store(SCRATCH + pair * 64 + c[:, None] * 8 + c[None, :], sums)
        tl.debug_barrier()
        # Equation 3 i + k of p1_i p0_k: their products are sums of p1_i p1_j times p0_k p0_l.
        place = _product_of(i // 3, j // 3) * 8 + _product_of(i % 3, j % 3)
        A = tl.load(SCRATCH + pair * 64 + place, mask=corner, other=0.0)
        v = _least_eigenvector(A, SQUARINGS)
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
    for start in range(0, length, BLOCK):
        x0, y0, x1, y1, weight = _matches_of(MATCHES, LOGITS, pair, start, length, N, CHANNELS, BLOCK)
        residual, normal0, normal1 = _residual(x0, y0, x1, y1, e00, e01, e02, e10, e11, e12, e20, e21, e22)
        distance = residual * residual * (1 / tl.maximum(normal0, 1e-150) + 1 / tl.maximum(normal1, 1e-150))
        n = start + tl.arange(0, BLOCK)
        tl.store(DISTANCES + pair * N + n, tl.minimum(distance, 1.0).to(tl.float32), mask=n < length)


@triton.jit
def _residual(x0, y0, x1, y1, e00, e01, e02, e10, e11, e12, e20, e21, e22):
    """p1^T E p0, and the squared normal lengths of the epipolar lines in both images."""
    lx1, ly1, lw1 = e00 * x0 + e01 * y0 + e02, e10 * x0 + e11 * y0 + e12, e20 * x0 + e21 * y0 + e22
    lx0, ly0 = e00 * x1 + e10 * y1 + e20, e01 * x1 + e11 * y1 + e21
    return x1 * lx1 + y1 * ly1 + lw1, lx0 * lx0 + ly0 * ly0, lx1 * lx1 + ly1 * ly1
