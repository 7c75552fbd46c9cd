"""Second-order attention in plain PyTorch: reads like the paper's equations, keeps the whole map in memory.

Names follow the paper: A is the first-order attention map, a_ij how much match i attends to match j, with
sum_j a_ij = 1. The second-order map W = A^T A compares *columns*: w_ij = sum_k a_ki a_kj is large when the
same matches attend to i and to j. The attention-consistent context h_i is drawn from row i of W.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Form = Literal["linear", "quadratic", "cubic"]
"""Form of the second-order context: Eq. 5, Eq. 4 or Eq. 1 of the paper."""
FORMS: tuple[Form, ...] = get_args(Form)
"""All forms."""
SEEDED_FORMS: tuple[Form, ...] = ("linear", "quadratic")
"""Forms of the context of seeded attention; the cubic one compares all matches with all."""


def attention_map(
    query: Tensor, key: Tensor, query_weight: Tensor | None = None, key_weight: Tensor | None = None
) -> Tensor:
    """A = softmax(Q K^T / sqrt(d)), [B x H x M x N], where a key of weight w counts as w equal ones.

    Args:
        query: [B x H x M x D].
        key: [B x H x N x D].
        query_weight, key_weight: [B x M] and [B x N], how many matches each stands for, or a mask; both None if each
            stands for itself. Rows and columns of weight 0, padding, are zero.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if query_weight is None or key_weight is None:
        return scores.softmax(dim=-1)
    real = (query_weight[:, None, :, None] > 0) & (key_weight[:, None, None, :] > 0)
    return (scores + log_weight(key_weight, scores.dtype)).softmax(dim=-1) * real


def log_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[B x N] weights to what is added to the scores of keys, [B x 1 x 1 x N], which makes the map 0 at padding."""
    # A finite minimum, not -inf: a pair without any key has no NaN rows.
    return weight.to(dtype).log().clamp_min(torch.finfo(dtype).min / 2)[:, None, None, :]


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


class Seeds(NamedTuple):
    """Groups of matches. The mean of a group, its seed, stands for all matches in it."""

    group: Tensor
    """[B x N] the group of every match, from 0 to m - 1; any of these at padding."""
    weights: Tensor
    """[B x m] how many matches each seed stands for; a group may be empty."""


def seeded_attention(
    query: Tensor, key: Tensor, value: Tensor, seeds: Seeds, form: Form | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attention through the seeds of m groups of matches, by two thin maps in place of the square one.

    Seed k stands for w_k matches; the weights add up to N. Q_s, K_s and V_s are means over groups. All matches attend
    to the seeds, where a seed counts as w_k equal keys: T = softmax(Q K_s^T / sqrt(d) + log w), and the output is
    T V_s. The seeds attend to all matches, S = softmax(Q_s K^T / sqrt(d)): row k stands for w_k rows of the square
    map, so

        linear:     h_i = sqrt(2) (c_i - c_i^2 / N) with c_i = sum_k w_k s_ki
        quadratic:  h_i = sqrt(2) (sum_k w_k s_ki - sum_k w_k s_ki^2)

    Args:
        query, key, value: [B x H x N x D].
        form: of the context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are. Padding is zero.

    Returns:
        The output, [B x H x N x D], and the context h, [B x H x N] (None without a form); zero at padding.
    """
    query_s, key_s, value_s = (group_means(x, seeds) for x in (query, key, value))
    real = torch.ones_like(query[:, 0, :, 0], dtype=torch.bool) if mask is None else mask
    T = attention_map(query, key_s, real, seeds.weights)
    if form is None:
        return T @ value_s, None
    S = attention_map(query_s, key, seeds.weights, real)
    # In single precision at least: sums over all matches leave the range of half.
    S = S.to(torch.promote_types(S.dtype, torch.float32))
    weighted = S * seeds.weights.to(S.dtype)[:, None, :, None]
    column_sum = weighted.sum(-2)
    if form == "linear":
        return T @ value_s, math.sqrt(2) * (column_sum - column_sum.square() / real_count(query, mask))
    return T @ value_s, math.sqrt(2) * (column_sum - (weighted * S).sum(-2))


def group_means(x: Tensor, seeds: Seeds) -> Tensor:
    """[B x H x N x D], zero at padding, to the means of groups, [B x H x m x D]; zero for empty ones."""
    # Sums over many matches leave the range of half precision.
    rows = x.transpose(1, 2).flatten(2).to(torch.promote_types(x.dtype, torch.float32))
    sums = rows.new_zeros(*seeds.weights.shape, rows.shape[2])
    sums = sums.scatter_add(1, seeds.group[..., None].expand_as(rows), rows)
    means = sums / seeds.weights.to(rows.dtype).clamp_min(1)[..., None]
    return means.to(x.dtype).unflatten(2, (x.shape[1], -1)).transpose(1, 2)


def real_count(x: Tensor, mask: Tensor | None) -> Tensor | int:
    """Number of real matches: N of [B x H x N x D], or [B x 1 x 1] from a mask; at least 1."""
    return max(x.shape[2], 1) if mask is None else mask.sum(-1).clamp_min(1)[:, None, None]
