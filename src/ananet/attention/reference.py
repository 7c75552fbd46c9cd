"""Second-order attention in plain PyTorch: reads like the paper's equations, keeps the whole map in memory.

Names follow the paper: A is the first-order attention map, a_ij how much match i attends to match j, with
sum_j a_ij = 1. The second-order map W = A^T A compares *columns*: w_ij = sum_k a_ki a_kj is large when the
same matches attend to i and to j. The attention-consistent context h_i is drawn from row i of W.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

Form = Literal["linear", "quadratic", "cubic"]
"""Form of the second-order context: Eq. 5, Eq. 4 or Eq. 1 of the paper."""
FORMS: tuple[Form, ...] = get_args(Form)
"""All forms."""
SEEDED_FORMS: tuple[Form, ...] = ("linear", "quadratic")
"""Forms of the context of seeded attention; the cubic one compares all matches with all."""


def attention_map(
    query: Tensor, key: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """A = softmax(Q K^T / sqrt(d)), [B x H x M x N]; rows and columns of padding are zero.

    Args:
        query: [B x H x M x D].
        key: [B x H x N x D].
        query_mask, key_mask: [B x M] and [B x N], True where a match is real; both None if all are.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if query_mask is None or key_mask is None:
        return scores.softmax(dim=-1)
    real_key = key_mask[:, None, None, :]
    real_query = query_mask[:, None, :, None]
    # A finite minimum, not -inf: a pair without any match has no NaN rows, and zeros replace them below.
    scores = scores.masked_fill(~real_key, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1) * (real_key & real_query)


def cubic_form(A: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 1: h_i = sqrt(l_i^T l_i) with L = D - W, [... x N x N] to [... x N]."""
    W = A.transpose(-2, -1) @ A
    off_diagonal = W - torch.diag_embed(torch.diagonal(W, dim1=-2, dim2=-1))
    square = off_diagonal.sum(-1).square() + off_diagonal.square().sum(-1)
    # The square root has no slope at 0, where a lone match stands.
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


def quadratic_form(A: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 4: h_i = sqrt(2) (sum_k a_ki - sum_k a_ki^2), the upper bound of Eq. 1 given by Eq. 3."""
    return math.sqrt(2) * (A.sum(-2) - A.square().sum(-2))


def linear_form(A: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 5: h_i = sqrt(2) (sum_k a_ki - (sum_k a_ki)^2 / N), an upper bound of Eq. 4; needs column sums only."""
    column_sum = A.sum(-2)
    return math.sqrt(2) * (column_sum - column_sum.square() / count)


CONTEXT: dict[Form, Callable[[Tensor, Tensor | int], Tensor]] = {
    "linear": linear_form,
    "quadratic": quadratic_form,
    "cubic": cubic_form,
}


def second_order_attention(
    query: Tensor, key: Tensor, value: Tensor, form: Form | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """First-order output and attention-consistent context of one attention map.

    Args:
        query, key, value: [B x H x N x D].
        form: which of the paper's three forms of the context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are.

    Returns:
        The output A V, [B x H x N x D], and the context h, [B x H x N] (None without a form).
        Both are zero at padding, but for a cubic context, which is about 1e-19 there.
    """
    A = attention_map(query, key, mask, mask)
    if form is None:
        return A @ value, None
    return A @ value, CONTEXT[form](A, real_count(query, mask))


def seeded_attention(
    query: Tensor, key: Tensor, value: Tensor, seeds: Tensor, form: Form | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attention through m of N matches, the seeds, by two thin maps in place of the square one.

    All matches attend to the seeds, T = softmax(Q K_s^T / sqrt(d)): the output is T V_s. The seeds attend to all
    matches, S = softmax(Q_s K^T / sqrt(d)): each of its rows stands for N / m rows of the square map, so

        linear:     h_i = sqrt(2) (c_i - c_i^2 / N) with c_i = N / m sum_k s_ki
        quadratic:  h_i = sqrt(2) N / m (sum_k s_ki - sum_k s_ki^2)

    Args:
        query, key, value: [B x H x N x D].
        seeds: [B x m] different indices of matches; those of padding are left out.
        form: of the context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are.

    Returns:
        The output, [B x H x N x D], and the context h, [B x H x N] (None without a form); zero at padding.
    """
    query_s, key_s, value_s = (take_seeds(x, seeds) for x in (query, key, value))
    seed_mask = None if mask is None else mask.gather(1, seeds)
    T = attention_map(query, key_s, mask, seed_mask)
    if form is None:
        return T @ value_s, None
    S = attention_map(query_s, key, seed_mask, mask)
    # In single precision at least: sums times N leave the range of half.
    S = S.to(torch.promote_types(S.dtype, torch.float32))
    N, m = real_count(query, mask), real_count(query_s, seed_mask)
    column_sum = S.sum(-2) * N / m
    if form == "linear":
        return T @ value_s, math.sqrt(2) * (column_sum - column_sum.square() / N)
    return T @ value_s, math.sqrt(2) * (column_sum - S.square().sum(-2) * N / m)


def take_seeds(x: Tensor, seeds: Tensor) -> Tensor:
    """[B x H x N x D] to the [B x H x m x D] of the seeds."""
    return x.gather(2, seeds[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def real_count(x: Tensor, mask: Tensor | None) -> Tensor | int:
    """Number of real matches: N of [B x H x N x D], or [B x 1 x 1] from a mask; at least 1."""
    return max(x.shape[2], 1) if mask is None else mask.sum(-1).clamp_min(1)[:, None, None]
