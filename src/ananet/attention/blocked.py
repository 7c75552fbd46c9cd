"""Second-order attention on the CPU: rows of the attention map in blocks that stay in cache.

A block holds whole rows, so its softmax needs nothing from other blocks. It leaves behind its part of the
output and of the column sums and is overwritten by the next. The backward pass builds the same blocks again.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ananet.attention.reference import log_weight

# Bytes of the map in memory at once, for each thread: with a part of the keys and values they stay in the second-level
# cache of a core, which other processes do not evict.
BLOCK_BYTES = 2 * 2**20
# A block has at least so many rows, or it would not be worth reading all keys for.
MIN_ROWS = 64


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    moments: int,
) -> tuple[Tensor, Tensor]:
    """Output [B x H x M x V] and column moments sum_k w_k a_ki^p, p = 1 .. moments, [moments x B x H x N].

    Args:
        query: [B x H x M x D].
        key: [B x H x N x D].
        value: [B x H x N x V]; the key where it is None.
        query_weight, key_weight: [B x M] and [B x N], how many matches each stands for, or a mask; None if each
            stands for itself.
        moments: 0, 1 or 2.
    """
    q, k = as_maps(query), as_maps(key)
    v = k if value is None else as_maps(value)
    output = v.new_empty(*q.shape[:2], v.shape[2])
    columns = q.new_zeros(moments, k.shape[0], 1, k.shape[1])
    weights = row_weights(q, query_weight)
    for maps, rows, A in map_blocks(q, k, key_weight):
        torch.bmm(A, v[maps], out=output[maps, rows])
        # A product, even with ones, adds columns up in half the time of a sum.
        for moment in range(moments):
            columns[moment, maps].baddbmm_(weights[maps, :, rows], A if moment == 0 else A.square_())
    clear_padding(output, columns, query_weight, key_weight)
    return output.to(query.dtype).view(*query.shape[:3], v.shape[2]), columns.view(moments, *key.shape[:3])


def backward(
    grad_output: Tensor,
    grad_columns: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of query, key and value (added to that of the key where the value is None).

    d a_ki = dO_k . V_i + w_k (g1_i + 2 a_ki g2_i), where g1 and g2 are the gradients of the column moments.
    """
    q, k, grad_out = as_maps(query), as_maps(key), as_maps(grad_output)
    v = k if value is None else as_maps(value)
    moments = grad_columns.shape[0]
    g = grad_columns.to(q.dtype).reshape(moments, len(k), 1, k.shape[1])
    if query_weight is not None or key_weight is not None:
        grad_out, g = grad_out.clone(), g.clone()
        clear_padding(grad_out, g, query_weight, key_weight)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    weights = row_weights(q, query_weight)
    for maps, rows, A in map_blocks(q, k, key_weight):
        grad_A = torch.bmm(grad_out[maps, rows], v[maps].mT)
        if moments >= 1:
            weight = weights[maps, :, rows].mT
            grad_A.addcmul_(weight, g[0, maps])
            if moments >= 2:
                grad_A.addcmul_(A * weight, g[1, maps], value=2)
        grad_v[maps].baddbmm_(A.mT, grad_out[maps, rows])
        grad_scores = softmax_backward(A, grad_A)
        torch.bmm(grad_scores, k[maps], out=grad_q[maps, rows])
        grad_k[maps].baddbmm_(grad_scores.mT, q[maps, rows])
    scale = 1 / math.sqrt(query.shape[-1])
    grad_q, grad_k = grad_q.mul_(scale), grad_k.mul_(scale)
    if value is None:
        grad_k += grad_v
    return (
        grad_q.to(query.dtype).view(query.shape),
        grad_k.to(key.dtype).view(key.shape),
        None if value is None else grad_v.to(value.dtype).view(value.shape),
    )


def as_maps(x: Tensor) -> Tensor:
    """[B x H x N x D] to [BH x N x D], in at least single precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).flatten(0, 1)


def for_heads(weight: Tensor, maps: Tensor) -> Tensor:
    """[B x N] to [BH x N]."""
    return weight.repeat_interleave(len(maps) // max(len(weight), 1), 0)


def row_weights(q: Tensor, query_weight: Tensor | None) -> Tensor:
    """[BH x 1 x M] how many rows of the map each row stands for."""
    if query_weight is None:
        return q.new_ones(1).expand(len(q), 1, q.shape[1])
    return for_heads(query_weight.to(q.dtype), q)[:, None, :]


def clear_padding(output: Tensor, columns: Tensor, query_weight: Tensor | None, key_weight: Tensor | None) -> None:
    """Set to zero the output [BH x M x V] of padding and of queries without a key, and columns of padding."""
    if query_weight is not None:
        output.masked_fill_(for_heads(query_weight == 0, output)[..., None], 0.0)
    if key_weight is not None:
        padding = for_heads(key_weight == 0, output)
        output.masked_fill_(padding.all(1)[:, None, None], 0.0)
        columns.masked_fill_(padding[:, None, :], 0.0)


def map_blocks(q: Tensor, k: Tensor, key_weight: Tensor | None) -> Iterator[tuple[slice, slice, Tensor]]:
    """The attention map by blocks: (which maps, which rows, [maps x rows x N] block). A block may be overwritten.

    Columns of padding are zero if there is any other; rows of padding hold anything.

    Args:
        q: [BH x M x D].
        k: [BH x N x D].
        key_weight: as of `forward`.
    """
    (count, total_rows, width), length = q.shape, k.shape[1]
    if q.numel() == 0:
        return
    q = q / math.sqrt(width)
    row_bytes, block_bytes = length * q.element_size(), BLOCK_BYTES * torch.get_num_threads()
    # Many maps at once while they are small, which is fewer calls; one when a part of it fills the block.
    at_once = min(count, max(1, block_bytes // (total_rows * row_bytes)))
    height = min(total_rows, max(MIN_ROWS, block_bytes // (at_once * row_bytes)))
    memory = q.new_empty(at_once * height * length)
    bias = None if key_weight is None else for_heads(log_weight(key_weight, q.dtype)[:, 0], q)
    for first in range(0, count, at_once):
        maps = slice(first, min(first + at_once, count))
        for top in range(0, total_rows, height):
            rows = slice(top, min(top + height, total_rows))
            shape = (maps.stop - maps.start, rows.stop - rows.start, length)
            A = memory[: math.prod(shape)].view(shape)
            if bias is None:
                torch.bmm(q[maps, rows], k[maps].mT, out=A)
            else:
                torch.baddbmm(bias[maps], q[maps, rows], k[maps].mT, out=A)
            torch.softmax(A, dim=-1, out=A)
            yield maps, rows, A


def nearest(points: Tensor, means: Tensor, offset: Tensor) -> Tensor:
    """[B x N] which of the means [B x m x C] is nearest to every point [B x N x C], offset being their squared norms.

    Points go through the [N x m] distances in blocks that stay in cache.
    """
    group = torch.zeros(points.shape[:2], dtype=torch.int64, device=points.device)
    height = max(MIN_ROWS, BLOCK_BYTES * torch.get_num_threads() // (max(means.shape[1], 1) * points.element_size()))
    if means.shape[1] == 0:
        return group
    for of_pair, *pair in zip(group, points, means, offset, strict=True):
        at, to, norm = pair
        for top in range(0, len(at), height):
            rows = slice(top, top + height)
            distance = torch.addmm(norm, at[rows], to.T, alpha=-2)
            # numpy is ten times as fast as torch here.
            of_pair[rows] = torch.from_numpy(distance.numpy().argmin(axis=1))
    return group


def softmax_backward(A: Tensor, grad_A: Tensor) -> Tensor:
    """Gradient of the scores: a_ki (d a_ki - sum_j a_kj d a_kj). Overwrites the gradient of A."""
    grad_A -= torch.linalg.vecdot(A, grad_A).unsqueeze(-1)
    return grad_A.mul_(A)
