"""The energy sum_j w_ij^2 of the second-order map W = A^T A, which the cubic form (Eq. 1) needs.

Two ways, both without an N x N matrix in memory: exactly, from panels of the columns of A in O(N^3); or as an
unbiased estimate from random signs z in O(N^2), since E[(W z)_i^2] = sum_j w_ij^2.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ananet.attention.blocked import as_maps, for_heads, map_blocks, softmax_backward

# Columns of A in memory at once: wide enough that the O(N^3) product outweighs building them.
PANEL = 512


@torch.library.custom_op("ananet::column_energy", mutates_args=())
def column_energy(query: Tensor, key: Tensor, mask: Tensor | None, log_sum: Tensor | None) -> Tensor:
    """sum_j w_ij^2, [B x H x N], exactly; in at least single precision.

    Args:
        query, key: [B x H x N x D].
        mask: [B x N], True where a match is real; None if all are.
        log_sum: [B x H x N] row log-sums, if the fused backend left them: panels are then built by its kernel.
    """
    panels = Panels(query, key, mask, log_sum)
    energy = panels.q.new_zeros(panels.q.shape[:2])
    # Panels in half precision multiply many times faster on a GPU; sums of squares stay in single.
    dtype = panels.q.dtype if log_sum is None else query.dtype
    for left, A_left in panels.built(dtype):
        for right, A_right in panels.built(dtype, left.start):
            square = (A_left.mT @ A_right).to(energy.dtype).square_()
            energy[:, left] += square.sum(2)
            if right != left:
                energy[:, right] += square.sum(1)
    return energy.view(query.shape[:3])


@column_energy.register_fake
def _(query: Tensor, key: Tensor, mask: Tensor | None, log_sum: Tensor | None) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))


@torch.library.custom_op("ananet::column_energy_backward", mutates_args=())
def column_energy_backward(
    grad: Tensor, query: Tensor, key: Tensor, mask: Tensor | None, log_sum: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of query and key: dA = 2 A M with m_ij = (g_i + g_j) w_ij, then the softmax."""
    panels = Panels(query, key, mask, log_sum)
    q, k = panels.q, panels.k
    g = grad.to(q.dtype).reshape(q.shape[:2])
    delta = q.new_zeros(q.shape[:2])
    grad_q, grad_k = torch.zeros_like(q), torch.zeros_like(k)
    attended = torch.zeros_like(q)  # A K, to take delta out of the query's gradient at the end
    for left, A_left in panels.built(q.dtype):
        grad_A = torch.zeros_like(A_left)
        for right, A_right in panels.built(q.dtype):
            M = (A_right.mT @ A_left).mul_(g[:, right, None] + g[:, None, left])
            grad_A.baddbmm_(A_right, M, alpha=2)
        delta += torch.linalg.vecdot(A_left, grad_A)
        grad_A *= A_left
        grad_q.baddbmm_(grad_A, k[:, left])
        attended.baddbmm_(A_left, k[:, left])
        grad_k[:, left].baddbmm_(grad_A.mT, q)
    weighted_q = delta[..., None] * q
    for left, A_left in panels.built(q.dtype):
        grad_k[:, left].baddbmm_(A_left.mT, weighted_q, alpha=-1)
    grad_q -= delta[..., None] * attended
    scale = 1 / math.sqrt(query.shape[-1])
    return (
        (grad_q * scale).to(query.dtype).view(query.shape),
        (grad_k * scale).to(key.dtype).view(key.shape),
    )


@column_energy_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, mask: Tensor | None, log_sum: Tensor | None) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    return *column_energy_backward(grad, *ctx.saved_tensors), None, None


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


column_energy.register_autograd(_backward, setup_context=_save)


class Panels:
    """The attention map by panels of columns, built anew on every pass.

    Args:
        query, key, mask, log_sum: as for `column_energy`.
    """

    def __init__(self, query: Tensor, key: Tensor, mask: Tensor | None, log_sum: Tensor | None) -> None:
        self.query, self.key, self.mask, self.log_sum = query, key, mask, log_sum
        self.q, self.k = as_maps(query), as_maps(key)
        if log_sum is None:
            self.real = None if mask is None else mask.repeat_interleave(query.shape[1], 0)
            self.row_sums = self._row_sums()

    def built(self, dtype: torch.dtype, start: int = 0) -> Iterator[tuple[slice, Tensor]]:
        """Which columns, and the [BH x N x PANEL] panel of them, from column `start` on."""
        for first in range(start, self.k.shape[1], PANEL):
            columns = slice(first, min(first + PANEL, self.k.shape[1]))
            yield columns, self._panel(columns, dtype)

    def _panel(self, columns: slice, dtype: torch.dtype) -> Tensor:
        if self.log_sum is not None:
            from ananet.attention import fused

            with torch.cuda.device_of(self.query):
                return fused.panel(self.query, self.key, self.log_sum, self.mask, columns, dtype)
        A = self._scores(self.q, self.k[:, columns]).sub_(self.row_sums).exp_()
        if self.real is not None:
            A.masked_fill_(~(self.real[:, :, None] & self.real[:, None, columns]), 0.0)
        return A.to(dtype)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).mul_(1 / math.sqrt(q.shape[-1]))

    def _row_sums(self) -> Tensor:
        """[BH x N x 1] log sum_i exp(s_ki), by blocks of rows."""
        sums = self.q.new_zeros(*self.q.shape[:2], 1)
        for first in range(0, self.q.shape[1], PANEL):
            scores = self._scores(self.q[:, first : first + PANEL], self.k)
            if self.real is not None:
                scores.masked_fill_(~self.real[:, None, :], torch.finfo(scores.dtype).min)
            sums[:, first : first + PANEL] = scores.logsumexp(-1, keepdim=True)
        return sums


def real_blocks(q: Tensor, k: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, slice, Tensor]]:
    """`map_blocks`, with rows of padding zero too."""
    padding = None if mask is None else ~for_heads(mask, q)[..., None]
    for maps, rows, A in map_blocks(q, k, mask):
        yield maps, rows, A if padding is None else A.masked_fill_(padding[maps, rows], 0.0)


@torch.library.custom_op("ananet::project_columns", mutates_args=())
def project_columns(query: Tensor, key: Tensor, mask: Tensor | None, z: Tensor) -> Tensor:
    """W z for vectors z, [BH x N x S] to [BH x N x S]; in at least single precision."""
    q, k = as_maps(query), as_maps(key)
    projected = torch.zeros_like(z)
    for maps, _, A in real_blocks(q, k, mask):
        projected[maps].baddbmm_(A.mT, torch.bmm(A, z[maps]))
    return projected


@project_columns.register_fake
def _(query: Tensor, key: Tensor, mask: Tensor | None, z: Tensor) -> Tensor:
    return torch.empty_like(z)


@torch.library.custom_op("ananet::project_columns_backward", mutates_args=())
def project_columns_backward(
    grad: Tensor, query: Tensor, key: Tensor, mask: Tensor | None, z: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of query and key: dA = A (z g^T + g z^T), then the softmax."""
    q, k = as_maps(query), as_maps(key)
    grad_q, grad_k = torch.zeros_like(q), torch.zeros_like(k)
    for maps, rows, A in real_blocks(q, k, mask):
        grad_A = torch.bmm(A, z[maps]) @ grad[maps].mT
        grad_A.baddbmm_(torch.bmm(A, grad[maps]), z[maps].mT)
        grad_scores = softmax_backward(A, grad_A)
        torch.bmm(grad_scores, k[maps], out=grad_q[maps, rows])
        grad_k[maps].baddbmm_(grad_scores.mT, q[maps, rows])
    scale = 1 / math.sqrt(query.shape[-1])
    return (
        (grad_q * scale).to(query.dtype).view(query.shape),
        (grad_k * scale).to(key.dtype).view(key.shape),
    )


@project_columns_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, mask: Tensor | None, z: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _project_backward(ctx, grad):  # type: ignore[no-untyped-def]
    return *project_columns_backward(grad, *ctx.saved_tensors), None, None


project_columns.register_autograd(_project_backward, setup_context=_save)


def estimated_column_energy(query: Tensor, key: Tensor, mask: Tensor | None, signs: int) -> Tensor:
    """Unbiased estimate of `column_energy` from the given number of random sign vectors, [B x H x N]."""
    batch, heads, length, _ = query.shape
    dtype = torch.promote_types(query.dtype, torch.float32)
    z = torch.randint(0, 2, (batch * heads, length, signs), device=query.device).to(dtype) * 2 - 1
    return project_columns(query, key, mask, z).square().mean(-1).view(batch, heads, length)
