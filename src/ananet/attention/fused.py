# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Second-order attention on the GPU: Triton kernels that never write the attention map.

Forward, two passes. The first walks along rows as flash attention does (Dao, 2023) and keeps the logarithm of
every row's sum; with it the second walks down columns, builds each a_ki once more and adds up the moments
sum_k a_ki and sum_k a_ki^2. Both moments cost what one costs.

Backward, two passes over the map built anew, with d a_ki = dO_k . V_i + g1_i + 2 a_ki g2_i. The softmax needs
delta_k = sum_i a_ki d a_ki before any of its gradients; the pass along rows collects it while it adds up the
query's gradient, and takes it out at the end: dQ_k = sum_i a_ki d a_ki K_i - delta_k sum_i a_ki K_i. What is
known of delta beforehand, dO_k . O_k and the mean of g1, is taken out at once, so that little cancels.

Maps may be rectangular: M queries, N keys. Both may have weights w: a key counts as w equal ones in the sums of rows,
which adds log w to its scores, and a query as w rows in those of columns, so d a_ki = dO_k . V_i + w_k (g1_i + 2 a_ki
g2_i). Padding: a row that pads, or finds no key that is real, has a log-sum of +inf, which makes its a_ki =
exp(s_ki - inf) = 0 in every later pass.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(math.log2(math.e))
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


class Tile(NamedTuple):
    """How one kernel is cut: rows and keys of the map at once, warps of a program, loads in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


class Real(NamedTuple):
    """Which queries or keys are real: those before the lengths [B] where the mask [B x N] is True; None for all.

    The weights [B x N], single precision, say how many each stands for; None for one.
    """

    lengths: Tensor | None = None
    mask: Tensor | None = None
    weights: Tensor | None = None


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    moments: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B x H x M x V], row log-sums [B x H x M], column moments [moments x B x H x N].

    Args:
        query: [B x H x M x D].
        key: [B x H x N x D].
        value: [B x H x N x V], V being D, or 0 where no output is wanted; the key where it is None.
        query_weight, key_weight: [B x M] and [B x N], how many matches each stands for, or a mask; both None if each
            stands for itself.
        moments: 0, 1 or 2.
    """
    query, key, value = (_rows_contiguous(x) for x in (query, key, value))
    queries, keys = _real_matches(query_weight, key_weight)
    output = _empty_rows(query, query.shape[3] if value is None else value.shape[3])
    log_sum = query.new_empty(query.shape[:3], dtype=torch.float32)
    columns = query.new_empty(moments, *key.shape[:3], dtype=torch.float32)
    if query.numel():
        attend(query, key, value, output if output.shape[3] else None, log_sum, queries, keys)
    if moments and key.numel():
        sum_columns(query, key, log_sum, columns, queries, keys)
    return output, log_sum, columns


def backward(
    grad_output: Tensor,
    grad_columns: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of query, key and value (added to that of the key where the value is None)."""
    query, key, value, output = (_rows_contiguous(x) for x in (query, key, value, output))
    grad_output = _rows_contiguous(grad_output.to(query.dtype))
    queries, keys = _real_matches(query_weight, key_weight)
    grad_columns = _centered(grad_columns.float(), key_weight)
    delta = torch.empty_like(log_sum)
    grad_query, grad_key = _empty_rows(query), _empty_rows(key)
    grad_value = None if value is None else _empty_rows(value)
    batch, heads, height, width = query.shape
    length = key.shape[2]
    values, grad_values = (key, grad_key) if grad_value is None or value is None else (value, grad_value)
    shared = dict(
        _cut(query), HEADS=heads, MOMENTS=grad_columns.shape[0], OUTPUT=output.shape[3] > 0, SHARED=value is None,
        M=height, N=length,
    )  # fmt: skip
    if query.numel():
        tile = tile_for("query_gradient", query)
        _query_gradient[(triton.cdiv(height, tile.rows), batch * heads)](
            query, key, values, output, grad_output, log_sum, grad_columns, grad_query, delta,
            queries.lengths, queries.weights, *keys,
            *_strides(query), *_strides(key), *_strides(values), *_strides(output),
            *_strides(grad_output), *_strides(grad_query), grad_columns[:1].numel(), 1 / math.sqrt(width),
            ROWS=tile.rows, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
    if key.numel():
        tile = tile_for("key_gradient", key)
        _key_gradient[(triton.cdiv(length, tile.keys), batch * heads)](
            query, key, values, grad_output, log_sum, delta, grad_columns, grad_key, grad_values,
            queries.lengths, queries.weights, *keys, *_strides(query), *_strides(key), *_strides(values),
            *_strides(grad_output), *_strides(grad_key), *_strides(grad_values),
            grad_columns[:1].numel(), 1 / math.sqrt(width),
            ROWS=tile.rows, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
    return grad_query, grad_key, grad_value


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    output: Tensor | None,
    log_sum: Tensor,
    queries: Real,
    keys: Real,
    filled: int | None = None,
) -> None:
    """Write the attention output, if there is any, and the row log-sums: the pass along rows.

    Args:
        filled: as for `tile_for`.
    """
    batch, heads, height, width = query.shape
    tile = tile_for("attend", query, filled)
    values, written = key if value is None else value, query if output is None else output
    _attend[(triton.cdiv(height, tile.rows), batch * heads)](
        query, key, values, written, log_sum, queries.lengths, queries.mask, *keys,
        *_strides(query), *_strides(key), *_strides(values), *_strides(written), 1 / math.sqrt(width),
        M=height, N=key.shape[2], HEADS=heads, OUTPUT=output is not None, SHARED=value is None,
        ROWS=tile.rows, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages, **_cut(query),
    )  # fmt: skip


def sum_columns(
    query: Tensor,
    key: Tensor,
    log_sum: Tensor,
    columns: Tensor,
    queries: Real,
    keys: Real,
    filled: int | None = None,
) -> None:
    """Write the column moments: the pass down columns. `filled` as for `tile_for`."""
    batch, heads, length, width = key.shape
    tile = tile_for("sum_columns", key, filled)
    _sum_columns[(triton.cdiv(length, tile.keys), batch * heads)](
        query, key, log_sum, columns, queries.lengths, queries.weights, *keys,
        *_strides(query), *_strides(key), columns[:1].numel(), 1 / math.sqrt(width),
        M=query.shape[2], N=length, HEADS=heads, MOMENTS=columns.shape[0], ROWS=tile.rows, KEYS=tile.keys,
        num_warps=tile.warps, num_stages=tile.stages, **_cut(query),
    )  # fmt: skip


def panel(
    query: Tensor, key: Tensor, log_sum: Tensor, mask: Tensor | None, columns: slice, dtype: torch.dtype
) -> Tensor:
    """Some columns of the attention maps, [BH x N x columns]: the one piece of it that is ever written."""
    query, key = _rows_contiguous(query), _rows_contiguous(key)
    batch, heads, length, width = query.shape
    count = columns.stop - columns.start
    written = query.new_empty(batch * heads, length, count, dtype=dtype)
    tile = Tile(64, 64, 4, 1)
    _write_panel[(triton.cdiv(length, tile.rows), batch * heads, triton.cdiv(count, tile.keys))](
        query, key, log_sum, written, mask, *_strides(query), *_strides(key), 1 / math.sqrt(width),
        columns.start, count, N=length, HEADS=heads, ROWS=tile.rows, KEYS=tile.keys,
        num_warps=tile.warps, num_stages=tile.stages, **_cut(query),
    )  # fmt: skip
    return written


# Best of a sweep on an H200: half precision with few rows in all maps together, and with many; anything wider.
TILES: dict[str, dict[str, Tile]] = {
    "attend": {"few": Tile(64, 128, 4, 3), "half": Tile(64, 64, 4, 3), "single": Tile(64, 32, 4, 2)},
    "sum_columns": {"few": Tile(128, 64, 4, 3), "half": Tile(128, 64, 4, 3), "single": Tile(32, 64, 4, 2)},
    "query_gradient": {"few": Tile(64, 64, 4, 3), "half": Tile(64, 64, 4, 3), "single": Tile(32, 32, 4, 1)},
    "key_gradient": {"few": Tile(64, 64, 4, 2), "half": Tile(64, 64, 4, 2), "single": Tile(32, 32, 4, 1)},
}
FEW_ROWS = 16_384


def tile_for(kernel: str, shared_out: Tensor, filled: int | None = None) -> Tile:
    """The best tile for programs that share out these queries or keys.

    Args:
        filled: for so many matches in all pairs together; None for those that there are.
    """
    batch, heads, length, width = shared_out.shape
    if shared_out.dtype == torch.float32 or width > 64:
        return TILES[kernel]["single"]
    matches = batch * length if filled is None else filled
    return TILES[kernel]["few" if matches * heads < FEW_ROWS else "half"]


def _cut(query: Tensor) -> dict[str, object]:
    width = query.shape[-1]
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 and query.dtype == torch.float32 else "ieee"
    return {"WIDTH": width, "PADDED": max(16, triton.next_power_of_2(width)), "PRECISION": precision}


def _rows_contiguous(x):
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _empty_rows(like: Tensor, width: int | None = None) -> Tensor:
    """[B x H x N x D] laid out as [B x N x H x D], so that joining the heads copies nothing."""
    batch, heads, length, same = like.shape
    return like.new_empty(batch, length, heads, same if width is None else width).transpose(1, 2)


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _real_matches(query_weight: Tensor | None, key_weight: Tensor | None) -> tuple[Real, Real]:
    if query_weight is None or key_weight is None:
        return Real(), Real()
    queries = _real_of(query_weight)
    return queries, queries if key_weight is query_weight else _real_of(key_weight)


def _real_of(weight: Tensor) -> Real:
    """From weights or a mask."""
    mask = weight > 0
    return Real(_lengths(mask), mask, None if weight.dtype == torch.bool else weight.float().contiguous())


def _lengths(mask: Tensor) -> Tensor:
    """[B] where the padding at the end of each pair begins: no pass needs to look beyond."""
    position = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=torch.int32)
    return (mask * position).amax(1) if mask.shape[1] else mask.sum(1, dtype=torch.int32)


def _centered(grad_columns: Tensor, key_weight: Tensor | None) -> Tensor:
    """Take the mean out of the gradient of the column sums: rows of A sum to one, so it changes nothing else."""
    grad_columns = grad_columns.contiguous()
    if grad_columns.shape[0] == 0 or grad_columns.numel() == 0:
        return grad_columns
    first = grad_columns[0]
    if key_weight is None:
        mean = first.mean(-1, keepdim=True)
    else:
        real = key_weight[:, None, :] > 0
        mean = (first * real).sum(-1, keepdim=True) / real.sum(-1, keepdim=True).clamp_min(1)
    return torch.cat([(first - mean)[None], grad_columns[1:]])


@triton.jit
def _load(
    base, start, stride, limit, COUNT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, WHOLE: tl.constexpr
):
    """[COUNT x PADDED] rows of a matrix from `start` on; zero beyond the limit and beyond the width."""
    row = tl.arange(0, COUNT)
    feature = tl.arange(0, PADDED)
    pointers = base + tl.cast(start, tl.int64) * stride + row[:, None] * stride + feature[None, :]
    if WHOLE and WIDTH == PADDED:
        return tl.load(pointers)
    return tl.load(pointers, mask=(start + row < limit)[:, None] & (feature < WIDTH)[None, :], other=0.0)


@triton.jit
def _store(base, start, stride, limit, x, COUNT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    row = tl.arange(0, COUNT)
    feature = tl.arange(0, PADDED)
    pointers = base + tl.cast(start, tl.int64) * stride + row[:, None] * stride + feature[None, :]
    inside = (start + row < limit)[:, None] & (feature < WIDTH)[None, :]
    tl.store(pointers, x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _dot(a, b, accumulated, PRECISION: tl.constexpr):
    """accumulated + a b. Tensor cores cut float32 off at tf32's last bit; half a bit more beforehand rounds instead."""
    if PRECISION == "tf32":
        a = (a.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        b = (b.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return tl.dot(a, b, accumulated, input_precision=PRECISION)


@triton.jit
def _place(HEADS: tl.constexpr, QUERY_LENGTHS, KEY_LENGTHS, M, N):
    """Which pair and head this program works on, and how many queries and keys the pair has."""
    pid = tl.program_id(1)
    batch = (pid // HEADS).to(tl.int64)
    head = (pid % HEADS).to(tl.int64)
    height = M
    length = N
    if QUERY_LENGTHS is not None:
        height = tl.load(QUERY_LENGTHS + batch)
    if KEY_LENGTHS is not None:
        length = tl.load(KEY_LENGTHS + batch)
    return batch, head, pid.to(tl.int64), height, length


@triton.jit
def _real(MASK, batch, index, length, N):
    """Which of these matches are real."""
    real = index < length
    if MASK is not None:
        real &= tl.load(MASK + batch * N + index, mask=real, other=0) != 0
    return real


@triton.jit
def _weight(WEIGHTS, batch, index, length, N):
    """How many matches each of these stands for; 1 beyond the end."""
    # Not two returns: Triton 3.6 compiles what follows the first.
    weights = tl.full(index.shape, 1.0, tl.float32)
    if WEIGHTS is not None:
        weights = tl.load(WEIGHTS + batch * N + index, mask=index < length, other=1.0)
    return weights


@triton.jit
def _attend_tile(
    q, K, V, stride_k, stride_v, start, length, N, MASK, WEIGHTS, batch, scale, total, largest, accumulated,
    OUTPUT: tl.constexpr, SHARED: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One tile of the online softmax. `scale` includes log2(e), so that exp2 does for exp."""
    index = start + tl.arange(0, KEYS)
    k = _load(K, start, stride_k, length, KEYS, WIDTH, PADDED, WHOLE)
    scores = _dot(q, tl.trans(k), None, PRECISION) * scale
    if WEIGHTS is not None:
        scores += tl.log2(_weight(WEIGHTS, batch, index, length, N))[None, :]
    if not WHOLE or MASK is not None:
        scores = tl.where(_real(MASK, batch, index, length, N)[None, :], scores, -float("inf"))
    larger = tl.maximum(largest, tl.max(scores, 1))
    p = tl.exp2(scores - larger[:, None])
    shrink = tl.exp2(largest - larger)
    total = total * shrink + tl.sum(p, 1)
    if OUTPUT:
        v = k
        if not SHARED:
            v = _load(V, start, stride_v, length, KEYS, WIDTH, PADDED, WHOLE)
        accumulated = _dot(p.to(v.dtype), v, accumulated * shrink[:, None], PRECISION)
    return total, larger, accumulated


@triton.jit
def _attend(
    Q, K, V, OUT, LOG_SUM, QUERY_LENGTHS, QUERY_MASK, KEY_LENGTHS, KEY_MASK, KEY_WEIGHTS,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, scale, M, N,
    HEADS: tl.constexpr, OUTPUT: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch, head, map, height, length = _place(HEADS, QUERY_LENGTHS, KEY_LENGTHS, M, N)
    top = tl.program_id(0) * ROWS
    rows = top + tl.arange(0, ROWS)
    K += batch * stride_kb + head * stride_kh
    V += batch * stride_vb + head * stride_vh
    q = _load(Q + batch * stride_qb + head * stride_qh, top, stride_qn, height, ROWS, WIDTH, PADDED, False)
    total = tl.zeros([ROWS], tl.float32)
    largest = tl.full([ROWS], LOWEST, tl.float32)
    accumulated = tl.zeros([ROWS, PADDED], tl.float32)
    keys_to_visit = length
    if top >= height:
        keys_to_visit = 0
    whole = keys_to_visit // KEYS * KEYS
    for start in range(0, whole, KEYS):
        total, largest, accumulated = _attend_tile(
            q, K, V, stride_kn, stride_vn, start, length, N, KEY_MASK, KEY_WEIGHTS, batch, scale * LOG2E, total,
            largest, accumulated, OUTPUT, SHARED, KEYS, WIDTH, PADDED, PRECISION, True,
        )  # fmt: skip
    if whole < keys_to_visit:
        total, largest, accumulated = _attend_tile(
            q, K, V, stride_kn, stride_vn, whole, length, N, KEY_MASK, KEY_WEIGHTS, batch, scale * LOG2E, total,
            largest, accumulated, OUTPUT, SHARED, KEYS, WIDTH, PADDED, PRECISION, False,
        )  # fmt: skip
    # A row that finds no real key gives nothing, as one that pads.
    real = _real(QUERY_MASK, batch, rows, height, M) & (length > 0)
    total = tl.where(real, total, 1.0)
    if OUTPUT:
        output = tl.where(real[:, None], accumulated / total[:, None], 0.0)
        _store(OUT + batch * stride_ob + head * stride_oh, top, stride_on, M, output, ROWS, WIDTH, PADDED)
    log_sum = tl.where(real, (largest + tl.log2(total)) / LOG2E, float("inf"))
    tl.store(LOG_SUM + map * M + rows, log_sum, mask=rows < M)


@triton.jit
def _sum_columns(
    Q, K, LOG_SUM, COLUMNS, QUERY_LENGTHS, QUERY_WEIGHTS, KEY_LENGTHS, KEY_MASK, KEY_WEIGHTS,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_moment, scale, M, N,
    HEADS: tl.constexpr, MOMENTS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch, head, map, height, length = _place(HEADS, QUERY_LENGTHS, KEY_LENGTHS, M, N)
    left = tl.program_id(0) * KEYS
    keys = left + tl.arange(0, KEYS)
    Q += batch * stride_qb + head * stride_qh
    k = _load(K + batch * stride_kb + head * stride_kh, left, stride_kn, length, KEYS, WIDTH, PADDED, False)
    log_weight = tl.log2(_weight(KEY_WEIGHTS, batch, keys, length, N))
    first = tl.zeros([KEYS], tl.float32)
    second = tl.zeros([KEYS], tl.float32)
    rows_to_visit = height
    if left >= length:
        rows_to_visit = 0
    for start in range(0, rows_to_visit, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = _load(Q, start, stride_qn, height, ROWS, WIDTH, PADDED, False)
        log_sum = tl.load(LOG_SUM + map * M + rows, mask=rows < height, other=float("inf")) * LOG2E
        scores = _dot(k, tl.trans(q), None, PRECISION) * (scale * LOG2E) + log_weight[:, None]
        a = tl.exp2(scores - log_sum[None, :])
        weight = _weight(QUERY_WEIGHTS, batch, rows, height, M)[None, :]
        first += tl.sum(a * weight, 1)
        if MOMENTS == 2:
            second += tl.sum(a * a * weight, 1)
    real = _real(KEY_MASK, batch, keys, length, N)
    pointers = COLUMNS + map * N + keys
    tl.store(pointers, tl.where(real, first, 0.0), mask=keys < N)
    if MOMENTS == 2:
        tl.store(pointers + stride_moment, tl.where(real, second, 0.0), mask=keys < N)


@triton.jit
def _write_panel(
    Q, K, LOG_SUM, PANEL, MASK, stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    scale, first, count, N,
    HEADS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch, head, map, _, length = _place(HEADS, None, None, N, N)
    top = tl.program_id(0) * ROWS
    left = tl.program_id(2) * KEYS
    rows = top + tl.arange(0, ROWS)
    columns = left + tl.arange(0, KEYS)
    q = _load(Q + batch * stride_qb + head * stride_qh, top, stride_qn, N, ROWS, WIDTH, PADDED, False)
    k = _load(K + batch * stride_kb + head * stride_kh, first + left, stride_kn, N, KEYS, WIDTH, PADDED, False)
    log_sum = tl.load(LOG_SUM + map * N + rows, mask=rows < N, other=float("inf")) * LOG2E
    a = tl.exp2(_dot(q, tl.trans(k), None, PRECISION) * (scale * LOG2E) - log_sum[:, None])
    real = _real(MASK, batch, rows, length, N)[:, None] & _real(MASK, batch, first + columns, length, N)[None, :]
    a = tl.where(real, a, 0.0)
    pointers = PANEL + (map * N + rows)[:, None] * count + columns[None, :]
    tl.store(pointers, a.to(PANEL.dtype.element_ty), mask=(rows < N)[:, None] & (columns < count)[None, :])


@triton.jit
def _query_gradient(
    Q, K, V, OUT, GRAD_O, LOG_SUM, GRAD_COLUMNS, GRAD_Q, DELTA,
    QUERY_LENGTHS, QUERY_WEIGHTS, KEY_LENGTHS, KEY_MASK, KEY_WEIGHTS,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, stride_gb, stride_gh, stride_gn, stride_db, stride_dh, stride_dn,
    stride_moment, scale, M, N,
    HEADS: tl.constexpr, MOMENTS: tl.constexpr, OUTPUT: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch, head, map, height, length = _place(HEADS, QUERY_LENGTHS, KEY_LENGTHS, M, N)
    top = tl.program_id(0) * ROWS
    rows = top + tl.arange(0, ROWS)
    K += batch * stride_kb + head * stride_kh
    V += batch * stride_vb + head * stride_vh
    GRAD_COLUMNS += map * N
    q = _load(Q + batch * stride_qb + head * stride_qh, top, stride_qn, height, ROWS, WIDTH, PADDED, False)
    log_sum = tl.load(LOG_SUM + map * M + rows, mask=rows < height, other=float("inf")) * LOG2E
    known = tl.zeros([ROWS], tl.float32)
    if OUTPUT:
        GRAD_O += batch * stride_gb + head * stride_gh
        o = _load(OUT + batch * stride_ob + head * stride_oh, top, stride_on, height, ROWS, WIDTH, PADDED, False)
        grad_o = _load(GRAD_O, top, stride_gn, height, ROWS, WIDTH, PADDED, False)
        known = tl.sum(o.to(tl.float32) * grad_o.to(tl.float32), 1)
    weight = _weight(QUERY_WEIGHTS, batch, rows, height, M)[:, None]
    rest = tl.zeros([ROWS], tl.float32)
    accumulated = tl.zeros([ROWS, PADDED], tl.float32)
    attended = tl.zeros([ROWS, PADDED], tl.float32)
    keys_to_visit = length
    if top >= height:
        keys_to_visit = 0
    for start in range(0, keys_to_visit, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _load(K, start, stride_kn, length, KEYS, WIDTH, PADDED, False)
        v = k
        if OUTPUT and not SHARED:
            v = _load(V, start, stride_vn, length, KEYS, WIDTH, PADDED, False)
        scores = _dot(q, tl.trans(k), None, PRECISION) * (scale * LOG2E)
        if KEY_WEIGHTS is not None:
            scores += tl.log2(_weight(KEY_WEIGHTS, batch, keys, length, N))[None, :]
        a = tl.exp2(scores - log_sum[:, None])
        grad_a = tl.zeros([ROWS, KEYS], tl.float32)
        if OUTPUT:
            grad_a = _dot(grad_o, tl.trans(v), None, PRECISION) - known[:, None]
        real = _real(KEY_MASK, batch, keys, length, N)
        if MOMENTS >= 1:
            grad_a += weight * tl.load(GRAD_COLUMNS + keys, mask=real, other=0.0)[None, :]
        if MOMENTS == 2:
            second = 2 * tl.load(GRAD_COLUMNS + stride_moment + keys, mask=real, other=0.0)
            grad_a += weight * a * second[None, :]
        # Keys beyond the end are zero vectors and add nothing to the products, but would to the sum.
        weighted = tl.where(real[None, :], a * grad_a, 0.0)
        accumulated = _dot(weighted.to(k.dtype), k, accumulated, PRECISION)
        if MOMENTS >= 1:
            rest += tl.sum(weighted, 1)
            if not SHARED:
                a = tl.where(real[None, :], a, 0.0)
                attended = _dot(a.to(k.dtype), k, attended, PRECISION)
    if SHARED:
        attended = o.to(tl.float32)
    grad_q = scale * (accumulated - rest[:, None] * attended)
    _store(GRAD_Q + batch * stride_db + head * stride_dh, top, stride_dn, M, grad_q, ROWS, WIDTH, PADDED)
    tl.store(DELTA + map * M + rows, known + rest, mask=rows < M)


@triton.jit
def _key_gradient(
    Q, K, V, GRAD_O, LOG_SUM, DELTA, GRAD_COLUMNS, GRAD_K, GRAD_V,
    QUERY_LENGTHS, QUERY_WEIGHTS, KEY_LENGTHS, KEY_MASK, KEY_WEIGHTS,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    stride_moment, scale, M, N,
    HEADS: tl.constexpr, MOMENTS: tl.constexpr, OUTPUT: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch, head, map, height, length = _place(HEADS, QUERY_LENGTHS, KEY_LENGTHS, M, N)
    left = tl.program_id(0) * KEYS
    keys = left + tl.arange(0, KEYS)
    Q += batch * stride_qb + head * stride_qh
    GRAD_O += batch * stride_gb + head * stride_gh
    k = _load(K + batch * stride_kb + head * stride_kh, left, stride_kn, length, KEYS, WIDTH, PADDED, False)
    v = k
    if OUTPUT and not SHARED:
        v = _load(V + batch * stride_vb + head * stride_vh, left, stride_vn, length, KEYS, WIDTH, PADDED, False)
    real = _real(KEY_MASK, batch, keys, length, N)
    first = tl.zeros([KEYS], tl.float32)
    second = tl.zeros([KEYS], tl.float32)
    if MOMENTS >= 1:
        first = tl.load(GRAD_COLUMNS + map * N + keys, mask=real, other=0.0)
    if MOMENTS == 2:
        second = 2 * tl.load(GRAD_COLUMNS + stride_moment + map * N + keys, mask=real, other=0.0)
    log_weight = tl.log2(_weight(KEY_WEIGHTS, batch, keys, length, N))
    grad_k = tl.zeros([KEYS, PADDED], tl.float32)
    grad_v = tl.zeros([KEYS, PADDED], tl.float32)
    rows_to_visit = height
    if left >= length:
        rows_to_visit = 0
    for start in range(0, rows_to_visit, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = _load(Q, start, stride_qn, height, ROWS, WIDTH, PADDED, False)
        if OUTPUT:
            grad_o = _load(GRAD_O, start, stride_gn, height, ROWS, WIDTH, PADDED, False)
        log_sum = tl.load(LOG_SUM + map * M + rows, mask=rows < height, other=float("inf")) * LOG2E
        delta = tl.load(DELTA + map * M + rows, mask=rows < height, other=0.0)
        scores = _dot(k, tl.trans(q), None, PRECISION) * (scale * LOG2E) + log_weight[:, None]
        a = tl.exp2(scores - log_sum[None, :])
        grad_a = tl.zeros([KEYS, ROWS], tl.float32)
        if OUTPUT:
            grad_v = _dot(a.to(grad_o.dtype), grad_o, grad_v, PRECISION)
            grad_a = _dot(v, tl.trans(grad_o), None, PRECISION)
        grad_a -= delta[None, :]
        weight = _weight(QUERY_WEIGHTS, batch, rows, height, M)[None, :]
        if MOMENTS >= 1:
            grad_a += weight * first[:, None]
        if MOMENTS == 2:
            grad_a += weight * a * second[:, None]
        grad_k = _dot((a * grad_a).to(q.dtype), q, grad_k, PRECISION)
    grad_k = grad_k * scale
    if SHARED:
        grad_k += grad_v
    elif OUTPUT:
        grad_v = tl.where(real[:, None], grad_v, 0.0)
        _store(GRAD_V + batch * stride_dvb + head * stride_dvh, left, stride_dvn, N, grad_v, KEYS, WIDTH, PADDED)
    grad_k = tl.where(real[:, None], grad_k, 0.0)
    _store(GRAD_K + batch * stride_dkb + head * stride_dkh, left, stride_dkn, N, grad_k, KEYS, WIDTH, PADDED)
