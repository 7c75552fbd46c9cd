# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels for everything in ANA-Net that acts on every match by itself, fused between two attentions.

A program takes a few matches through a whole chain of layers; between layers they stay on the chip. Weights come
as one flat array a kernel, [in x out] matrices in the order of use, and so do the single-precision vectors.
"""

import triton
import triton.language as tl


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
